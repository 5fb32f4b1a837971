"""The map is a test: imports point down, optional packages have one home."""

import ast
from functools import cache
from pathlib import Path

import hpcsgd

PACKAGE = Path(__file__).parents[2] / "hpcsgd"
MODULES = sorted(PACKAGE.rglob("*.py"))

LAYERS = (
    (
        "errors",
        "precision",
        "formats",
        "rounding",
        "storage",
        "schedule",
        "csr",
        "csr_columns",
        "assets",
        "timing",
        "files",
        "sealed",
        "weights_file",
        "compiled",
        "toml_text",
        "json_text",
        "ends",
    ),
    (
        "families",
        "penalties",
        "problem",
        "rates",
        "updates",
        "models",
        "codecs",
        "mirror",
    ),
    ("backends", "comm", "data", "tiles"),
    (
        "products",
        "agreement",
        "objective",
        "sliced_objective",
        "optimality",
        "polish",
        "cost",
        "cost_terms",
        "bound",
    ),
    (
        "build",
        "assembly",
        "loading",
        "row_weights",
        "exponents",
        "calibrate",
        "timed_tasks",
        "machine_file",
        "parts",
        "engine",
        "pace",
        "energy",
        "nvml",
        "evaluation",
        "finisher",
        "stopping",
        "snapshot",
        "callbacks",
        "result",
        "report",
        "profiling",
        "advice",
        "run_folder",
        "folder_lock",
        "checkpoint",
        "capture",
        "columns",
        "looks",
        "saving",
        "scale_kept",
        "recording",
        "resume",
        "signals",
        "memory",
        "limits",
        "damage",
        "events",
        "fall_back",
        "from_disk",
        "good_states",
        "session",
        "sweeps",
        "coordinate",
        "trials",
        "tuner",
        "hardware",
        "auto_precision",
        "auto_rate",
        "averaging",
        "best_held",
        "retired",
        "unread",
        "start",
        "survive",
        "prediction",
        "assessment",
        "config",
        "sections",
        "methods",
        "api",
        "alternate",
        "fitting",
        "paths",
    ),
    (
        *("estimators", "charts", "plots", "loss_plots", "verify"),
        *("cli", "jobs", "study", "__main__"),
    ),
)
SIBLINGS = ("backends", "comm", "data")
HOMES = {
    "mpi4py": ("comm/mpi.py", "comm/mpi_facts.py"),
    "cupy": ("backends/cuda.py", "backends/kernels.py", "backends/device_layer.py"),
    "h5py": (
        "data/hdf5_open.py",
        "data/store_writer.py",
        "data/writers.py",
        "data/foreign_hdf5.py",
        "sealed.py",
    ),
    "sklearn": ("estimators/",),
    "matplotlib": ("plots.py",),
    "rich": ("callbacks/progress.py", "cli/"),
    "jinja2": ("jobs/render.py",),
    "ml_dtypes": ("storage.py",),
    "kvikio": ("data/direct.py",),
}
CONCRETE = {"HostBackend", "LookAheadGram", "Delayed", "CudaBackend"}


@cache
def imports_of(path):
    """(module, names) of every import in a file, wherever it stands."""
    return tuple(_imports_of(path))


def _imports_of(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ()
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module, tuple(alias.name for alias in node.names)


def room(path):
    """The file or folder directly below the package."""
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def layer(name):
    """The floor that a room is on."""
    for number, names in enumerate(LAYERS):
        if name in names:
            return number
    raise AssertionError(f"{name} is on no floor; add it to LAYERS")


def rooms_imported(path):
    """The rooms of this package that a file takes from."""
    for module, names in imports_of(path):
        parts = module.split(".")
        if parts[0] != "hpcsgd":
            continue
        yield from [parts[1]] if len(parts) > 1 else [n for n in names if _is_room(n)]


def _is_room(name):
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").exists()


def rises(path):
    """What a file imports from above, or from a room beside its own."""
    own = room(path)
    for other in {*rooms_imported(path)} - {own}:
        beside = own in SIBLINGS and other in SIBLINGS
        if own != "__init__" and (layer(other) > layer(own) or beside):
            yield f"{path.relative_to(PACKAGE)} imports {other}"


def test_imports_point_down():
    assert [one for path in MODULES for one in rises(path)] == []


def strays(path):
    """Optional packages that a file imports and that have their home elsewhere."""
    place = str(path.relative_to(PACKAGE))
    for module, _ in imports_of(path):
        homes = HOMES.get(module.split(".")[0])
        if homes and not place.startswith(homes):
            yield f"{place} imports {module}"


def test_optional_packages_have_one_home():
    assert [one for path in MODULES for one in strays(path)] == []


def test_only_build_names_the_backend():
    for path in MODULES:
        if room(path) in ("assembly", "backends"):
            continue
        names = {name for _, group in imports_of(path) for name in group}
        assert not names & CONCRETE, path


def test_a_planted_import_from_above_is_found(tmp_path):
    """The test can fail: the reader of imports sees what it must see."""
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from hpcsgd.engine import Engine\n")
    assert list(rooms_imported(file)) == ["engine"]
    assert layer("engine") > layer("comm")


def test_no_file_hides_a_public_name():
    """Importing `hpcsgd.x` sets `hpcsgd.x`, be it a function for users or not."""
    files = {p.stem if p.is_file() else p.name for p in PACKAGE.iterdir()}
    assert not files & set(hpcsgd.__all__) - {"__version__"}


def test_no_test_is_imported():
    """What tests share lies in tests/helpers; benchmarks import that, and no test."""
    root = PACKAGE.parent
    offenders = [
        f"{path.relative_to(root)} imports {name}"
        for folder in ("tests", "benchmarks", "examples")
        for path in sorted((root / folder).rglob("*.py"))
        for module, names in imports_of(path)
        for name in (module, *(f"{module}.{one}" for one in names))
        if name.startswith("tests.")
        and name.rpartition(".")[2].startswith(("test_", "conftest"))
    ]
    assert offenders == []

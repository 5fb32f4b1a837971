"""The map is a test: imports point strictly down, optional packages have one home."""

import ast
import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest

import hpcsgd
from hpcsgd.agreements import AGREEMENTS

PACKAGE = Path(__file__).parents[2] / "hpcsgd"
MODULES = sorted(PACKAGE.rglob("*.py"))

# The floor of each room. A room imports from lower floors only: rooms on one floor do
# not see each other. `hpcsgd/__init__.py` names everything and imports nothing.
FLOORS = {
    "__main__": 15,
    "cli": 14,
    "studies": 13,
    "estimators": 13,
    "jobs": 12,
    "api": 12,
    "tuning": 11,
    "runs": 10,
    "config": 9,
    "solvers": 8,
    "agreements": 7,
    "products": 6,
    "backends": 5,
    "data": 4,
    "comm": 4,
    "glm": 3,
    "precision": 2,
    "files": 2,
    "settings": 1,
    "formats": 1,
    "errors": 0,
}
HOMES = {
    "mpi4py": ("comm/mpi.py",),
    "cupy": ("backends/cuda/device.py", "backends/cuda/driver.py"),
    "h5py": (
        "data/hdf5.py",
        "data/store.py",
        "data/writers.py",
        "data/convert/sources.py",
        "files.py",
    ),
    "sklearn": ("estimators/",),
    "matplotlib": ("runs/figures.py",),
    "pandas": ("runs/figures.py",),
    "IPython": ("runs/progress.py",),
    "rich": ("runs/progress.py", "cli/"),
    "jinja2": ("jobs/script.py",),
    "ml_dtypes": ("formats.py",),
    "pyarrow": ("data/convert/csv.py",),
    "kvikio": ("data/gpudirect.py",),
}
CONCRETE = {"HostBackend", "LookAheadGram", "DelayedCommunicator", "CudaBackend"}
# Protocols that several rooms implement under one name.
SAME_NAMES: set[str] = set()


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
    """What a file imports from its own floor or from above."""
    own = room(path)
    for other in {*rooms_imported(path)} - {own}:
        if own != "__init__" and FLOORS[other] >= FLOORS[own]:
            yield f"{path.relative_to(PACKAGE)} imports {other}"


def test_every_room_has_a_floor():
    assert {room(path) for path in MODULES} - {"__init__"} == set(FLOORS)


def test_imports_point_down():
    assert [one for path in MODULES for one in rises(path)] == []


def test_no_files_import_each_other():
    """Inside a room, too, imports have an order."""
    names = {path: _module(path) for path in MODULES}
    files = {name: path for path, name in names.items()}
    below = {names[path]: _files_imported(path, files) for path in MODULES}
    below.pop("hpcsgd")
    while below:
        lowest = {name for name, others in below.items() if not others & below.keys()}
        assert lowest, f"these import each other in a circle: {sorted(below)}"
        below = {name: others for name, others in below.items() if name not in lowest}


def _module(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _files_imported(path, files):
    found = set()
    for module, names in imports_of(path):
        if module.split(".")[0] == "hpcsgd":
            inner = {f"{module}.{name}" for name in names} & files.keys()
            found |= inner or {module} & files.keys()
    return found - {_module(path)}


def strays(path):
    """Optional packages that a file imports and that have their home elsewhere."""
    place = str(path.relative_to(PACKAGE))
    for module, _ in imports_of(path):
        homes = HOMES.get(module.split(".")[0])
        if homes and not place.startswith(homes):
            yield f"{place} imports {module}"


def test_optional_packages_have_one_home():
    assert [one for path in MODULES for one in strays(path)] == []


def test_only_runs_name_the_backend():
    for path in MODULES:
        if room(path) in ("runs", "backends"):
            continue
        names = {name for _, group in imports_of(path) for name in group}
        assert not names & CONCRETE, path


def test_a_planted_import_from_above_is_found(tmp_path):
    """The test can fail: the reader of imports sees what it must see."""
    file = tmp_path / "x.py"
    file.write_text("def f():\n    from hpcsgd.runs.loop import Engine\n")
    assert list(rooms_imported(file)) == ["runs"]
    assert FLOORS["runs"] > FLOORS["comm"]


def test_no_file_hides_a_public_name():
    """Importing `hpcsgd.x` sets `hpcsgd.x`, be it a function for users or not."""
    files = {p.stem if p.is_file() else p.name for p in PACKAGE.iterdir()}
    assert not files & set(hpcsgd.__all__) - {"__version__"}


def test_no_class_name_is_used_twice():
    """A class in a traceback names one thing."""
    places = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    counts = Counter({name: len(files) for name, files in places.items()})
    twice = {name: places[name] for name, count in counts.items() if count > 1}
    assert {n: w for n, w in twice.items() if n not in SAME_NAMES} == {}


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


# Names of agreements that are words of other tables, too.
COMMON = {"none", "average", "gradient", "hierarchical"}


def agreement_names_in(tree):
    """The names of agreements that a file compares something with, or maps from."""
    names = set(AGREEMENTS)
    for node in ast.walk(tree):
        found = []
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            found = [part for side in sides for part in ast.walk(side)]
        elif isinstance(node, ast.Dict):
            found = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.MatchValue):
            found = [node.value]
        words = {
            part.value
            for part in found
            if isinstance(part, ast.Constant) and isinstance(part.value, str)
        }
        mine = words & names
        # A common word counts beside another name, or where a kind is compared.
        text = ast.unparse(node) if mine else ""
        if mine - COMMON or (mine and re.search(r"agreement|\bbase\b", text)):
            yield from mine


def test_the_name_of_an_agreement_stands_in_two_files_at_most():
    """In its table and in that of methods: else whoever adds one edits many files."""
    files = defaultdict(set)
    for path in MODULES:
        for name in agreement_names_in(ast.parse(path.read_text())):
            files[name].add(str(path.relative_to(PACKAGE)))
    assert files, "the search finds nothing"
    many = {name: sorted(found) for name, found in files.items() if len(found) > 2}
    assert many == {}


@pytest.mark.parametrize(
    "text",
    [
        'if config.agreement.kind == "slowmo": pass',
        'if asked.kind in ("sharded", "offload"): pass',
        'KINDS = {"ticktock": 1}',
        'if (name, mode) == ("ticktock", "delayed"): pass',
        'match kind:\n    case "qadam": pass',
    ],
)
def test_the_search_finds_a_planted_name(text):
    assert list(agreement_names_in(ast.parse(text)))

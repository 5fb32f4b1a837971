"""Pages of Trust and of GPUs name files that exist and figures of those files."""

import re
from pathlib import Path

import pytest

from hpcsgd.backends.cuda import kernels
from tests.helpers.figures import figures_of, hold, name_of, table

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs" / "trust").glob("*.md"), ROOT / "docs/howto/gpu.md"])
# Made by the commands that the page shows.
MADE = ("benchmarks/results/gpu-NAME.json", "benchmarks/results/NAME.json")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_named_by_a_page_exist(page):
    """Paths of code, tests, kernels and results; a star may stand for a part."""
    folders = "hpcsgd|tests|benchmarks|kernels|slurm|docs"
    named = set(re.findall(rf"`((?:{folders})/[\w./*-]+)`", page.read_text()))
    missing = [
        path
        for path in named - {*MADE, "benchmarks/NAME.py"}
        if not any(ROOT.glob(path))
    ]
    assert not missing, f"{page.name} names {sorted(missing)}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_targets_of_make_named_by_a_page_exist(page):
    """`make NAME`, in the text and in blocks."""
    made = (ROOT / "Makefile").read_text()
    for target in re.findall(r"(?:`|\$ )make ([a-z-]+)", page.read_text()):
        assert re.search(rf"(?m)^{target}:", made), target


def test_benchmarks_named_by_the_page_exist():
    text = (ROOT / "docs" / "trust" / "benchmarks.md").read_text()
    named = set(re.findall(r"`(bench_\w+)`", text))
    assert len(named) > 25
    for name in named:
        assert (ROOT / "benchmarks" / f"{name}.py").exists(), name
        assert (ROOT / "benchmarks" / "results" / f"{name}.json").exists(), name


def cpu():
    """Compiled kernels beside NumPy, on two processors."""
    files = [figures_of(name) for name in ("bench_cpu", "bench_cpu-amx")]

    def of_gram(rows, columns):
        for found in files:
            (row,) = (
                row
                for row in found["gram"]
                if (row["batch"] * row["steps"], row["columns"]) == (rows, columns)
            )
            yield f"{row['bf16']['times_numpy']:.1f}"

    def of_rows(what):
        for found in files:
            (row,) = (row for row in found["rows"] if row["columns"] == 4000)
            yield f"{row[what]['bf16']['times_numpy']:.1f}"

    yield table(
        ["bf16", "EPYC", "Xeon"],
        ["Gram matrix, 512 × 1000", *of_gram(512, 1000)],
        ["Gram matrix, 2048 × 8000", *of_gram(2048, 8000)],
        ["margins, 512 × 4000", *of_rows("margins")],
        ["update, 512 × 4000", *of_rows("updates")],
    )


def recipes():
    """The largest difference of the loss of two recipes, and the set it is on."""
    found = figures_of("bench_recipes")
    rows = []
    for recipe in ("c", "d"):
        mine = [row for row in found if row["recipe"] == recipe]
        assert len({row["set"] for row in mine}) == 12
        worst = max(mine, key=lambda row: abs(row["gap_percent"]))
        rows.append([f"`{recipe}`", f"{abs(worst['gap_percent']):.3f} %", worst["set"]])
    yield table(["recipe", "largest difference of the loss", "on"], *rows)


def campaigns():
    """What drawn faults did to starts and to runs."""
    found = figures_of("starts")
    starts, kills = found["starts"], found["kills"]
    assert not (starts["bad"] or kills["bad"])
    assert not (starts["segments_left"] or kills["segments_left"])
    count = starts["starts"] + kills["starts"]
    slowest = max(part["longest_seconds"] for part in (starts, kills))
    yield f"one signal to each of {count} short training runs on three ranks"
    yield (
        f"{starts['starts']} receive one of seven signals within two seconds of their"
        f" start, and {kills['starts']} receive SIGKILL within four seconds"
    )
    yield (
        f"All {count} interrupted runs ended within their time limit, at most"
        f" {slowest:.1f} s after the signal"
    )
    mapped = sum(part["starts_that_mapped_segments"] for part in (starts, kills))
    yield f"The ranks of {mapped} interrupted runs mapped shared memory"
    soak = figures_of("soak")
    storm, calm = soak["storm"], soak["calm"]
    assert storm["wrong"] == 0 and calm["growth"] == 0
    yield (
        f"In a test of {soak['minutes'] * 2 / 3:.0f} minutes, {storm['runs']} training"
        f" runs on two to four ranks received {sum(storm['blows'].values())} kills and"
        f" signals and were resumed {storm['resumes']} times"
    )
    yield f"The final weights of all {storm['runs']} killed and resumed runs equal"
    yield (
        f"run of {calm['exchanges']:,} exchanges (rounds of s SGD steps) wrote"
        f" {calm['checkpoints']:,} checkpoints"
    )


FIGURES = [
    *(("trust/kernels", cpu), ("trust/precision", recipes)),
    ("trust/faults", campaigns),
]


@pytest.mark.parametrize("page, made", FIGURES, ids=name_of)
def test_a_page_has_the_figures_of_the_file(page, made):
    hold(page, made)


def test_the_page_of_kernels_names_the_builds():
    """The oldest and the newest architecture, and the one of warpgroup products."""
    text = (ROOT / "docs" / "trust" / "kernels.md").read_text()
    for arch in (
        kernels.ARCHS[0],
        kernels.ARCHS[-1],
        kernels.OF_ONE_ARCH["gram_wgmma"],
    ):
        assert f"sm_{arch}" in text
    sources = {path.stem for path in (ROOT / "kernels" / "cuda").glob("*.cu")}
    for name in ("sample", "gram", "gram_wgmma", "recurrence", "softmax", "update"):
        assert f"`{name}`" in text and name in sources
    for name in ("direct_steps", "gather_steps"):
        assert f"`{name}`" in text and name in sources

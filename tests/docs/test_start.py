"""README, CONTRIBUTING, CHANGELOG, CITATION.cff and the pages of Start.

They are short, they name what exists, and their figures are those of the files.
"""

import re
import shlex
from pathlib import Path

import pytest

import hpcsgd
from tests.helpers.figures import figures_of, hold, name_of, two_digits

ROOT = Path(__file__).parents[2]
SHELVES = ("start", "learn", "howto", "reference", "extend", "trust")
README = (ROOT / "README.md").read_text()


@pytest.mark.parametrize(
    "name, most", [("README.md", 120), ("CONTRIBUTING.md", 59), ("CHANGELOG.md", 70)]
)
def test_a_first_document_is_short(name, most):
    assert len((ROOT / name).read_text().splitlines()) <= most


def test_the_readme_links_to_the_six_shelves_and_to_no_page():
    links = re.findall(r"(?<!!)\[[^\]]*\]\((docs/[^)]*)\)", README)
    assert sorted(links) == sorted(f"docs/{shelf}/index.md" for shelf in SHELVES)


def test_the_readme_has_one_picture_and_one_table_of_at_most_twelve_rows():
    pictures = re.findall(r"!\[([^\]]*)\]\(([^)]*)\)", README)
    assert [path for _, path in pictures] == ["docs/figures/products.svg"]
    assert len(pictures[0][0]) > 40, "the picture needs a text for those who miss it"
    rows = re.findall(r"(?m)^\|.*", README)
    assert 2 < len(rows) <= 2 + 12


def commands_of(text):
    """Return the commands of hpcsgd in the blocks of a page that run, as words."""
    found = []
    for needs, block in re.findall(
        r"(<!-- needs: [^>]*-->\n)?```console\n(.*?)```", text, re.S
    ):
        lines = block.replace("\\\n", " ")
        if not needs:
            found += [shlex.split(c) for c in re.findall(r"(?m)^\$ hpcsgd (.*)", lines)]
    return found


@pytest.mark.parametrize("page", ["README.md", "docs/start/first-run.md"])
def test_a_page_makes_the_files_that_it_uses(page):
    """In the order in which a newcomer types what is shown."""
    made = set()
    for words in commands_of((ROOT / page).read_text()):
        files = {w for w in words if re.search(r"\.(h5|toml)$|^runs/|^compared$", w)}
        new = {words[words.index("--out") + 1]} if "--out" in words else set()
        if words[:2] == ["data", "convert"]:
            new = {words[3], words[3].replace(".h5", "-test.h5")}
        assert files - new <= made, words
        made |= new
    assert {"train.h5", "train-test.h5", "runs/first"} <= made


@pytest.mark.parametrize("page", ["README.md", "docs/start/first-run.md"])
def test_a_page_compares_behind_a_network(page):
    """In shared memory plain SGD is first, and no message costs anything."""
    words = commands_of((ROOT / page).read_text())
    compared = [command for command in words if command[0] == "compare"]
    assert compared and all("--network" in command for command in compared)


def test_contributing_has_the_rooms_of_the_package_on_their_floors():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    rooms = {
        room.removesuffix("/").removesuffix(".py"): int(floor)
        for floor, names in re.findall(r"(?m)^\| (\d+) \| (`[^|]*) \|", text)
        for room in re.findall(r"`([^`]+)`", names)
    }
    layers = (ROOT / "tests" / "architecture" / "test_layers.py").read_text()
    floors = re.search(r"FLOORS = \{(.*?)\}", layers, re.S)[1]
    known = {name: int(n) for name, n in re.findall(r'"(\w+)": (\d+)', floors)}
    known.pop("__main__")
    assert rooms == known


def test_contributing_names_targets_of_make():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    targets = re.findall(r"(?m)^\$ make ([\w-]+)", text)
    makefile = (ROOT / "Makefile").read_text()
    missing = [t for t in targets if not re.search(rf"(?m)^{t}:", makefile)]
    assert len(targets) >= 7 and not missing


def test_the_citation_has_the_version_and_the_papers_of_the_readme():
    text = (ROOT / "CITATION.cff").read_text()
    assert f"\nversion: {hpcsgd.__version__}\n" in text
    for address in re.findall(r"https://(?:arxiv|doi)\.org/[^)\s]+", README):
        assert address.removeprefix("https://doi.org/") in text, address
    assert "preferred-citation:" in text and "Apache-2.0" in text


def products():
    """What README.md says of each product beside plain SGD."""
    document = figures_of("bench_headline")
    problems = document["problems"]
    lan, hpc = (
        [cells[network]["rows"] for cells in problems.values()]
        for network in ("lan", "hpc")
    )

    def times(of, product):
        ratios = [rows[product]["speedup"] for rows in of]
        return f"{two_digits(min(ratios))} to {two_digits(max(ratios))}"

    yield (
        "With 50 µs per message, CA-SGD with `--products gram` is"
        f" {times(lan, 'gram')} times as fast as plain SGD, with `cached`"
        f" {times(lan, 'cached')} times, and with `gather-once`"
        f" {times(lan, 'gather-once')} times."
    )
    yield (
        "With 5 µs per message, CA-SGD with `--products gram` is"
        f" {times(hpc, 'gram')} times as fast as plain SGD, with `cached`"
        f" {times(hpc, 'cached')} times, and with `gather-once`"
        f" {times(hpc, 'gather-once')} times."
    )
    gaps = [
        abs(rows[product]["loss_gap_percent"])
        for rows in (*lan, *hpc)
        for product in ("gram", "cached", "gather-once")
    ]
    yield (
        "In the runs of the bar chart, the final losses of plain SGD and CA-SGD agree"
        f" within {max(gaps):.3f} %."
    )
    of = document["configuration"]
    assert (of["batch"], of["epochs"], of["repeats"]) == (32, 10, 5)
    yield f"with {of['rows']:,} rows, batches of 32 and ten epochs"


def waiting():
    """What docs/start/problem.md says of the time that plain SGD waits."""
    problem = figures_of("bench_headline")["problems"]["higgs"]
    behind = problem["lan"]["rows"]["direct"]["us"]
    alone = problem["many"]["one_rank"]["direct"]["us"]
    yield (
        f"One rank alone needs {alone:.1f} µs for an SGD step on 28 columns, and two"
        f" ranks with an emulated LAN (50 µs a message) need {behind:.0f} µs"
    )


def scikit_learn():
    """What docs/start/problem.md says of small data."""
    rows = figures_of("bench_estimators")["lasso"]
    ours, theirs = (
        sorted(row["cpu_ms"][name] for row in rows)
        for name in ("hpcsgd", "scikit-learn")
    )
    yield f"takes {ours[0]:.0f} to {ours[-1]:.0f} ms of CPU time in hpcsgd"
    yield f"{theirs[0]:.0f} to {theirs[-1]:.0f} ms in scikit-learn"


def ddp():
    """What docs/start/problem.md says of PyTorch DDP."""
    found = figures_of("bench_ddp")["problems"]

    def times(product):
        rows = [found[shape]["methods"] for shape in ("epsilon", "higgs")]
        ratios = [row["ddp"]["us"] / row[f"hpcsgd {product}"]["us"] for row in rows]
        return map(two_digits, ratios)

    chosen = [found[shape]["methods"]["hpcsgd auto"]["product"] for shape in found]
    assert chosen == ["direct", "gather-once"]
    epsilon, higgs = times("auto")
    yield (
        "On epsilon-shaped rows (2000 columns), `--products auto` selects plain SGD and"
        f" takes {epsilon} times as many steps a second as PyTorch DDP"
    )
    yield (
        "On HIGGS-shaped rows (28 columns), `--products auto` selects `gather-once` and"
        f" takes {higgs} times as many steps a second as PyTorch DDP"
    )
    epsilon, higgs = times("gram")
    yield (
        f"`--products gram` takes {epsilon} times (epsilon-shaped rows) and {higgs}"
        " times (HIGGS-shaped rows) as many steps a second as PyTorch DDP"
    )


def ranking():
    """What docs/start/problem.md says of the place of hpcsgd on one core."""
    places = {}
    for name, problem in figures_of("bench_peers")["problems"].items():
        reached = {
            method: row["seconds"]
            for method, row in problem["methods"].items()
            if row["reached"]
        }
        ours = min(s for m, s in reached.items() if m.startswith("hpcsgd"))
        others = [s for m, s in reached.items() if not m.startswith("hpcsgd")]
        places[name] = 1 + sum(seconds < ours for seconds in others)
    assert places["epsilon"] == places["poisson-synth"] == 1
    assert {places[name] for name in ("synth", "synth-linear", "a9a")} <= {2, 3}
    assert places["higgs"] == places["susy"] == 4
    yield (
        "Among the solvers in `make bench-peers`, hpcsgd is fastest on epsilon-shaped"
        " and Poisson data, second or third on three sets, and fourth on HIGGS- and"
        " SUSY-shaped data."
    )


def conversion():
    """What docs/howto/convert.md says of the time of a conversion."""
    texts = figures_of("bench_convert")["texts"]
    largest = max(texts, key=lambda row: row["megabytes"])
    seconds = largest["ranks"]["1"]["wall"]
    assert largest["file"] == "epsilon.svm"
    yield (
        f"One rank converts {largest['megabytes']:.0f} MB of LIBSVM text in"
        f" {seconds:.1f} s"
    )


def defaults():
    """What docs/start/library.md says of fits without an argument."""
    sets = figures_of("bench_defaults")
    assert max(row["gap"] for row in sets) <= 3e-9
    assert not any(row["warnings"] for row in sets)
    yield f"fits {len(sets)} data sets with the defaults of `hpcsgd.fit`"
    bolder = [row["rate"] / row["rate_of_rows"] for row in sets]
    yield (
        f"On the {len(sets)} data sets of `bench_defaults.py`, `rate.norm ="
        f' "batches"` gives {min(bolder):.1f} to {max(bolder):.0f} times the learning'
        ' rate of `rate.norm = "rows"`.'
    )


PROBLEM = "start/problem"
FIGURES = [
    ("../README", products),
    *((PROBLEM, made) for made in (waiting, scikit_learn, ddp, ranking)),
    ("howto/convert", conversion),
    ("start/library", defaults),
]


@pytest.mark.parametrize("page, made", FIGURES, ids=name_of)
def test_a_page_has_the_figures_of_the_file(page, made):
    hold(page, made)

"""The tables and the picture of each product beside plain SGD, from bench_headline.

python -m benchmarks.headline           # writes docs/trust/benchmarks.md
python -m benchmarks.headline --check   # reports whether its tables are right
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.bench_headline import NETWORKS, STEPS
from benchmarks.choosing import page_with

Figures = dict[str, Any]
ROOT = Path(__file__).parents[1]
RESULT = ROOT / "benchmarks" / "results" / "bench_headline.json"
PAGE = ROOT / "docs" / "trust" / "benchmarks.md"
PICTURE = ROOT / "docs" / "figures" / "products.svg"
BEGIN, END = "<!-- begin of products -->", "<!-- end of products -->"
TWO_SHAPES = ("epsilon", "higgs")  # 2000 and 28 columns
TITLES = {
    "direct": "plain SGD: `direct`, fp32",
    "gram": "`gram`, c",
    "cached": "`cached`, c",
    "gather-once": "`gather-once`, c",
}
NAMES = {"lan": "emulated LAN (50 µs)", "hpc": "emulated HPC network (5 µs)"}
LEGEND = {
    "direct": "plain SGD",
    "gram": "CA-SGD: gram",
    "cached": "CA-SGD: cached",
    "gather-once": "CA-SGD: gather-once",
}


def performance(document: Figures) -> str:
    """Return the tables of docs/trust/benchmarks.md."""
    problems = document["figures"]["problems"]
    times, traffic, many = [], [], []
    for shape, cells in problems.items():
        for network in NETWORKS:
            chosen = cells[network]["rows"]["auto"]
            choice = f"{_short(chosen['us'])} ({chosen['product']}, s = {chosen['s']})"
            times.append([shape, network, *_times(cells[network]), choice])
        if shape in TWO_SHAPES:
            for what, values in _traffic(cells["lan"]):
                traffic.append([shape, what, *values])
        many.append([shape, str(cells["many"]["members"]), *_of_many(cells["many"])])
    heads = list(TITLES.values())
    more = ["gradient sum", "one rank, fp32", "one rank, `auto`"]
    return "\n\n".join(
        [
            _conditions(document),
            "The following table shows the µs per step on two ranks and, in"
            " parentheses, the fastest number s of steps per message and the speed"
            " relative to plain SGD:",
            _table(["shape", "network", *heads, "`auto`, c"], times),
            "The following table shows the messages and words (array elements) that a"
            " rank sends in ten epochs on an emulated LAN, and the stored Gram matrices"
            " and rows (MiB kept):",
            _table(["shape", "", *heads], traffic),
            "The following table shows the µs per step of one process that computes"
            " the share of one emulated rank (`--emulate-members`); the column"
            " *members* has the number of emulated ranks. For each message, the process"
            " waits as long as the message takes on an emulated LAN of 64 ranks: six"
            " hops with 50 µs of latency each, and the transfer time. The column"
            " *gradient sum* has the time of one all-reduce of a gradient, calculated"
            " from the network model and not measured.",
            _table(["shape", "members", *heads, *more], many),
        ]
    )


def _conditions(document: Figures) -> str:
    figures, machine = document["figures"], document["machine"]
    asked = figures["configuration"]
    cells = [cell for cells in figures["problems"].values() for cell in cells.values()]
    loads = [cell["load"] for cell in cells]
    return (
        f"The runs of `bench_headline` train on {asked['rows']} rows with batches of"
        f" {asked['batch']} for {asked['epochs']} epochs in one order of rows"
        " (shuffle-once), on two MPI ranks of one thread with emulated networks. The"
        f" runs of `bench_headline` use {machine['cores']} cores of {machine['model']}"
        f" ({', '.join(machine['features'])}). All times of `bench_headline`"
        f" are medians of {asked['repeats']} runs. The compared settings take turns:"
        " each runs once before any runs again. The load average was"
        f" {min(loads):.1f} to {max(loads):.1f}"
        " (`benchmarks/results/bench_headline.json`)."
    )


def _times(cell: Figures) -> list[str]:
    """Return µs of a step of each product, its s and its speed beside plain SGD."""
    return [_time(cell, product) for product in STEPS]


def _time(cell: Figures, product: str) -> str:
    row = cell["rows"][product]
    if product == "direct":
        return _short(row["us"])
    return f"{_short(row['us'])} (s = {row['s']}, {_short(row['speedup'])}×)"


def _of_many(cell: Figures) -> list[str]:
    alone = [_short(row["us"]) for row in cell["one_rank"].values()]
    return [*_times(cell), _short(cell["gradient_sum_us"]), *alone]


def _traffic(cell: Figures) -> list[tuple[str, list[str]]]:
    rows = [cell["rows"][product] for product in STEPS]
    return [
        ("messages", [f"{row['messages']:,}" for row in rows]),
        ("thousand words", [f"{row['words'] / 1e3:,.0f}" for row in rows]),
        ("MiB kept", [_mib(row["held_bytes"]) for row in rows]),
    ]


def _mib(size: int) -> str:
    return "0" if size == 0 else f"{size / 2**20:.1f}"


def _short(value: float) -> str:
    """Return two digits of a small number and none behind the point of a large one."""
    return f"{value:.0f}" if value >= 20 else f"{value:.1f}"


def _table(heads: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    lines = [line.replace("|  |", "| |") for line in lines]
    return "\n".join([lines[0], "|---" * len(heads) + "|", *lines[1:]])


def bars(document: Figures) -> dict[str, list[tuple[str, str, float]]]:
    """Return the bars of each network: shape, product, microseconds of a step."""
    return {
        network: [
            (shape, product, cells[network]["rows"][product]["us"])
            for shape, cells in document["figures"]["problems"].items()
            for product in STEPS
        ]
        for network in NETWORKS
    }


def draw(document: Figures, path: Path) -> None:
    """Draw the time of a step of each product, on any background."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    grey, colours = "#808080", ("#8c8c8c", "#d9822b", "#2e9e6b", "#4c8bf5")
    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": "hpcsgd",
        "font.size": 9,
        **dict.fromkeys(
            ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color"), grey
        ),
        "ytick.color": grey,
    }
    with matplotlib.rc_context(style):
        figure, panels = pyplot.subplots(
            1, len(NETWORKS), figsize=(9.6, 3.2), sharey=True, squeeze=False
        )
        for panel, (network, rows) in zip(
            panels[0], bars(document).items(), strict=True
        ):
            shapes = list(dict.fromkeys(shape for shape, _, _ in rows))
            products = list(dict.fromkeys(product for _, product, _ in rows))
            for shape, product, time in rows:
                number = products.index(product)
                x = shapes.index(shape) + 0.22 * (number - 1.5)
                label = LEGEND.get(product, product) if shape == shapes[0] else None
                panel.bar(x, time, width=0.2, color=colours[number], label=label)
                panel.annotate(
                    _short(time),
                    (x, time),
                    (0, 2),
                    textcoords="offset points",
                    ha="center",
                    fontsize=6.5,
                )
            panel.set_xticks(range(len(shapes)), shapes, fontsize=8)
            panel.set_title(NAMES[network], fontsize=9)
            panel.spines[["top", "right"]].set_visible(False)
        panels[0][0].set_ylabel("microseconds of a step", fontsize=8)
        handles, names = panels[0][0].get_legend_handles_labels()
        figure.legend(handles, names, frameon=False, loc="lower center", ncols=4)
        figure.tight_layout(rect=(0, 0.08, 1, 1))
        figure.savefig(path, transparent=True, metadata={"Date": None})
        pyplot.close(figure)


def main() -> int:
    """Write the page and the picture, or report whether the page is right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    document = json.loads(RESULT.read_text())
    text = PAGE.read_text()
    made = page_with(text, performance(document), BEGIN, END)
    if check:
        if made != text:
            print(f"{PAGE.name} has other tables")
        return int(made != text)
    PAGE.write_text(made)
    draw(document, PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())

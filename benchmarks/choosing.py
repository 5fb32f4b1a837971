"""The tables and the picture of docs/trust/choosing.md, from bench_methods.

python -m benchmarks.choosing           # writes the tables and draws the picture
python -m benchmarks.choosing --check   # reports whether the tables are right
"""

import argparse
import math
import sys
from pathlib import Path
from typing import Any

from benchmarks.bench_methods import NETWORKS, RESULT
from benchmarks.methods_file import known
from benchmarks.methods_shapes import SHAPES
from hpcsgd.config import METHODS

Figures = dict[str, Any]
DOCS = Path(__file__).parents[1] / "docs"
PAGE = DOCS / "trust" / "choosing.md"
PICTURE = DOCS / "figures" / "choosing.svg"
BEGIN, END = "<!-- begin of tables -->", "<!-- end of tables -->"
NAMES = {"none": "shared memory", "lan": "LAN", "wan": "WAN"}
BASELINE = "bf16"
BEST = 3  # of a cell
CA_SGD = (
    "The following table has the speed of CA-SGD (`casgd`, with `gram` and its fastest"
    " s) relative to plain SGD (`sgd`), both in fp32:"
)
CROWDED = 1.75  # times the cores: a load at which seconds say nothing


def tables(document: Figures) -> str:
    """Return all that is between the marks."""
    cells = cells_of(document)
    quiet = {place: cell for place, cell in cells.items() if is_quiet(cell)}
    parts = [_machine(document["machine"], cells)]
    if quiet:
        parts += ["### First at the target", _firsts(quiet)]
        parts += ["### CA-SGD beside plain SGD", f"{CA_SGD}\n\n{_ca_sgd(quiet)}"]
        parts += ["### Methods that send less, beside bf16", _beside(quiet)]
    parts += ["### Fewest messages and bytes to the target", _fewest(cells)]
    parts += ["### Who reaches the target", _reached(cells)]
    return "\n\n".join(parts)


def cells_of(document: Figures) -> dict[tuple[str, str], Figures]:
    """Return the comparison of each shape and network."""
    return {
        (shape, network): found[network]
        for shape, found in document["figures"].items()
        for network in NETWORKS
        if network in found
    }


def is_quiet(cell: Figures) -> bool:
    """Return whether the ranks had their cores while this was measured."""
    return bool(cell["load"] <= CROWDED * cell["cores"])


def _machine(machine: Figures, cells: Figures) -> str:
    first = next(iter(cells.values()))
    loads = [cell["load"] for cell in cells.values()]
    repeats = sorted({cell["repeats"] for cell in cells.values()})
    text = (
        f"The following tables were measured with {first['ranks']} ranks on"
        f" {machine['cores']} cores of {machine['model']}, with"
        f" {' or '.join(map(str, repeats))} repeats of each run and a load average of"
        f" {min(loads):.1f} to {max(loads):.1f} at the end of a comparison"
        " (`benchmarks/results/bench_methods.json`)."
    )
    crowded = sum(not is_quiet(cell) for cell in cells.values())
    if crowded:
        text += (
            f" In {crowded} of {len(cells)} cells other programs used the cores. The"
            " seconds of these are left out; losses, messages and bytes are not"
            " affected."
        )
    return text


def there(cell: Figures, name: str, cost: str = "seconds") -> float | None:
    """Return the cost of a method at the target; None if it never reached it."""
    row = cell["rows"].get(name) or {}
    point = row.get("to_target")
    return point[cost] if point else None


def ranked(cell: Figures, cost: str, names: Any = None) -> list[tuple[float, str]]:
    """Return (cost, method) of all that reached the target, the least first."""
    found = [(there(cell, n, cost), n) for n in (names or cell["rows"])]
    return sorted((f for f in found if f[0] is not None), key=lambda found: found[0])


def ca_sgd(cell: Figures) -> list[str]:
    """Return the rows of CA-SGD, one for each number of steps."""
    return [name for name in cell["rows"] if name.startswith("casgd")]


def compressors() -> list[str]:
    """Return the methods that encode gradients otherwise than in fp32 or bf16."""
    return [
        name
        for name, row in METHODS.items()
        if row.fixed.get("agreement.codec", "identity") not in ("identity", "bf16")
    ]


def _firsts(cells: Figures) -> str:
    """Return a table, shape by network: the first three methods, and sgd."""

    def said(cell: Figures) -> str:
        found = ranked(cell, "seconds")
        if not found:
            return "none"
        best = ", ".join(f"{name} {_time(spent)}" for spent, name in found[:BEST])
        sgd = there(cell, "sgd")
        return f"{best}; sgd {_time(sgd)}"

    return _by_network(cells, said)


def _ca_sgd(cells: Figures) -> str:
    """Return how many times sooner than sgd the best s is."""
    wins, losses = [], []

    def said(cell: Figures, place: tuple[str, str]) -> str:
        mine, sgd = ranked(cell, "seconds", ca_sgd(cell)), there(cell, "sgd")
        if not mine or not sgd:
            return "—"
        name, ratio = mine[0][1], sgd / mine[0][0]
        (wins if ratio > 1 else losses).append(place)
        return f"{name} {ratio:.2f}x"

    table = _by_network(cells, said, with_place=True)
    if not wins and not losses:
        return table
    lost = ", ".join(f"{shape} ({NAMES[network]})" for shape, network in losses)
    count = f"{len(wins)} of {len(wins) + len(losses)} pairs of data shape and network"
    text = f"CA-SGD reached the target loss sooner than plain SGD in {count}"
    return f"{table}\n\n{text}{', but not on ' if lost else ''}{lost}."


def _beside(cells: Figures) -> str:
    """Return which compressors are sooner than the dense sum in 16 bits."""

    def said(cell: Figures) -> str:
        limit = there(cell, BASELINE)
        found = ranked(cell, "seconds", compressors())
        if limit is None:
            return "bf16 does not reach it"
        names = [f"{n} {limit / spent:.1f}x" for spent, n in found if spent < limit]
        more = f" and {len(names) - BEST} more" if len(names) > BEST else ""
        return ", ".join(names[:BEST]) + more or "none"

    return _by_network(cells, said)


def _fewest(cells: Figures) -> str:
    """Return a row for each shape; messages and bytes do not depend on the network."""
    lines = ["| | messages | bytes |", "|---|---|---|"]
    for shape in SHAPES:
        cell = next((c for (s, _), c in cells.items() if s == shape), None)
        if cell is None:
            continue
        best = [
            ", ".join(f"{n} {spent:,}" for spent, n in ranked(cell, cost)[:BEST])
            for cost in ("messages", "bytes")
        ]
        lines.append(f"| {shape} | {' | '.join(best)} |")
    return "\n".join(lines)


def _reached(cells: Figures) -> str:
    """Return the methods by the shapes on which they reach the target."""
    network = next(iter(cells))[1]  # losses are those of every network
    mine = {s: cells[s, network] for s in SHAPES if (s, network) in cells}
    names = list(dict.fromkeys(n for cell in mine.values() for n in cell["rows"]))
    missed: dict[str, list[str]] = {}
    for name in names:
        rows = [cell["rows"].get(name, {}) for cell in mine.values()]
        if all(row.get("status") == "refused" for row in rows):
            continue
        shapes = [s for s, cell in mine.items() if there(cell, name) is None]
        missed.setdefault(", ".join(shapes), []).append(name)
    lines = ["| not within six epochs on | methods |", "|---|---|"]
    lines += [
        f"| {shapes or 'none: reached on all'} | {', '.join(methods)} |"
        for shapes, methods in sorted(missed.items(), key=lambda one: len(one[0]))
    ]
    return "\n".join(lines)


def _by_network(cells: Figures, said: Any, with_place: bool = False) -> str:
    names = " | ".join(NAMES[network] for network in NETWORKS)
    lines = [f"| | {names} |", "|---" * (len(NETWORKS) + 1) + "|"]
    for shape in {shape: None for shape, _ in cells}:
        row = []
        for network in NETWORKS:
            cell, place = cells.get((shape, network)), (shape, network)
            more = (place,) if with_place else ()
            row.append(said(cell, *more) if cell else "—")
        lines.append(f"| {shape} | {' | '.join(row)} |")
    return "\n".join(lines)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "—"
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1e3 * seconds:.0f} ms"


def page_with(text: str, made: str, begin: str = BEGIN, end: str = END) -> str:
    """Return `text` with `made` between the marks."""
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n\n{made}\n\n{end}{after}"


def ratios(document: Figures) -> dict[str, dict[str, list[float | None]]]:
    """Return network -> method -> seconds to the target over those of sgd, by shape."""
    cells = {p: c for p, c in cells_of(document).items() if is_quiet(c)}
    shapes = [shape for shape in SHAPES if any(s == shape for s, _ in cells)]
    found: dict[str, dict[str, list[float | None]]] = {}
    for network in NETWORKS:
        mine = [cells[s, network] for s in shapes if (s, network) in cells]
        names = dict.fromkeys(n for cell in mine for n in cell["rows"])
        rows = {name: [_over_sgd(cell, name) for cell in mine] for name in names}
        found[network] = {
            name: row for name, row in rows.items() if any(row) and name != "sgd"
        }
    return found


def _over_sgd(cell: Figures, name: str) -> float | None:
    mine, sgd = there(cell, name), there(cell, "sgd")
    return mine / sgd if mine and sgd else None


def draw(document: Figures, path: Path) -> None:
    """Draw a heat map for each network: methods by shapes, times the time of sgd."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    grey = "#808080"
    style = {"svg.fonttype": "none", "svg.hashsalt": "hpcsgd", "font.size": 8}
    style |= dict.fromkeys(("text.color", "xtick.color", "ytick.color"), grey)
    found = ratios(document)
    shapes = list(SHAPES)
    names = list(dict.fromkeys(n for rows in found.values() for n in rows))
    with matplotlib.rc_context(style):
        figure, panels = pyplot.subplots(
            1, len(found), figsize=(10.5, 0.21 * len(names) + 0.8), sharey=True
        )
        for panel, (network, rows) in zip(panels, found.items(), strict=True):
            values = [
                [math.log10(v) if v else math.nan for v in rows.get(name, [])]
                or [math.nan] * len(shapes)
                for name in names
            ]
            panel.imshow(values, "RdBu_r", vmin=-1.3, vmax=1.3, aspect="auto")
            for y, name in enumerate(names):
                for x, ratio in enumerate(rows.get(name, [None] * len(shapes))):
                    panel.text(
                        x,
                        y,
                        label(ratio),
                        ha="center",
                        va="center",
                        fontsize=6.5,
                        color=_text_colour(ratio),
                    )
            panel.set_xticks(range(len(shapes)), shapes)
            panel.xaxis.tick_top()
            panel.set_yticks(range(len(names)), names)
            panel.tick_params(length=0)
            panel.set_title(NAMES[network], fontsize=9)
            panel.spines[:].set_visible(False)
        figure.tight_layout()
        figure.savefig(path, transparent=True, metadata={"Date": None})
        pyplot.close(figure)


def _text_colour(ratio: float | None) -> str:
    if not ratio:
        return "#808080"
    return "white" if ratio > 9 or ratio < 0.2 else "#202020"


def label(ratio: float | None) -> str:
    """Return a ratio in two digits; a dash where the target was not reached."""
    if not ratio:
        return "—"
    return f"{ratio:.0f}×" if ratio >= 10 else f"{ratio:.2g}×"


def main() -> int:
    """Write the page and the picture, or report whether the page is right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args()
    text, document = PAGE.read_text(), known(RESULT)
    made = page_with(text, tables(document))
    if given.check:
        print("up to date" if made == text else f"{PAGE.name} has other tables")
        return int(made != text)
    PAGE.write_text(made)
    draw(document, PICTURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())

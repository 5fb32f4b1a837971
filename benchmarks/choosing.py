"""The tables of docs/choosing.md, from what bench_methods measured.

python -m benchmarks.choosing           # writes them between the marks
python -m benchmarks.choosing --check   # says whether they are those of the figures
"""

import argparse
import sys
from pathlib import Path
from typing import Any

from benchmarks.bench_methods import NETWORKS, RESULT
from benchmarks.methods_file import known
from benchmarks.methods_shapes import SHAPES
from hpcsgd.config import METHODS

Figures = dict[str, Any]
PAGE = Path(__file__).parents[1] / "docs" / "choosing.md"
BEGIN, END = "<!-- begin of tables -->", "<!-- end of tables -->"
NAMES = {"none": "shared memory", "lan": "LAN", "wan": "WAN"}
BASELINE, CROWD = "bf16", "crowd"
CA_SGD = "CA-SGD is product `gram`, both are in fp32; times are those to the target."
CROWDED = 1.75  # times the cores: a load at which seconds say nothing


def tables(document: Figures) -> str:
    """All that is between the marks."""
    cells = {
        (shape, network): found[network]
        for shape, found in document["figures"].items()
        for network in NETWORKS
        if network in found
    }
    quiet = {place: cell for place, cell in cells.items() if is_quiet(cell)}
    crowds = {s: f[CROWD] for s, f in document["figures"].items() if CROWD in f}
    parts = [_machine(document["machine"], cells)]
    if quiet:
        parts += ["### First at the target", _firsts(quiet)]
        parts += ["### CA-SGD beside plain SGD", f"{CA_SGD}\n\n{_ca_sgd(quiet)}"]
        parts += ["### Methods that send less, beside bf16", _beside(quiet)]
    parts += ["### Fewest messages and bytes to the target", _fewest(cells)]
    for network in {network: None for _, network in quiet}:
        parts += [f"### Seconds to the target: {NAMES[network]}"]
        parts += [_seconds(quiet, network)]
    parts += ["### How far each came", _gaps(cells)]
    if crowds:
        parts += ["### Four ranks", _crowd(crowds)]
    return "\n\n".join(parts)


def is_quiet(cell: Figures) -> bool:
    """Whether the ranks had their cores while it was measured."""
    return bool(cell["load"] <= CROWDED * cell["cores"])


def _machine(machine: Figures, cells: Figures) -> str:
    first = next(iter(cells.values()))
    loads = [cell["load"] for cell in cells.values()]
    repeats = sorted({cell["repeats"] for cell in cells.values()})
    said = (
        f"{first['ranks']} ranks on {machine['cores']} cores of {machine['model']};"
        f" load of the machine when a comparison ended: {min(loads):.1f} to"
        f" {max(loads):.1f}; repeats: {' or '.join(map(str, repeats))}."
    )
    crowded = sum(not is_quiet(cell) for cell in cells.values())
    if crowded:
        said += (
            f" In {crowded} of {len(cells)} cells other programs had the cores: their"
            " seconds are left out; losses, messages and bytes do not depend on them."
        )
    return said


def there(cell: Figures, name: str, cost: str = "seconds") -> float | None:
    """What a method had spent at the target; None where it never got there."""
    row = cell["rows"].get(name) or {}
    point = row.get("to_target")
    return point[cost] if point else None


def ranked(cell: Figures, cost: str, names: Any = None) -> list[tuple[float, str]]:
    """(spent, method) of all that got there, the least first; ties by the table."""
    found = [(there(cell, n, cost), n) for n in (names or cell["rows"])]
    return sorted((f for f in found if f[0] is not None), key=lambda found: found[0])


def ca_sgd(cell: Figures) -> list[str]:
    """CA-SGD with its numbers of steps."""
    return [name for name in cell["rows"] if name.startswith("casgd")]


def compressors() -> list[str]:
    """Methods that send gradients in fewer bytes than bf16 would, or try to."""
    return [
        name
        for name, row in METHODS.items()
        if row.fixed.get("agreement.codec", "identity") not in ("identity", "bf16")
    ]


def _firsts(cells: Figures) -> str:
    """Shape by network: the first, the second, and how long sgd takes."""

    def said(cell: Figures) -> str:
        found = ranked(cell, "seconds")
        if not found:
            return "nobody"
        best = ", ".join(f"{name} {_time(spent)}" for spent, name in found[:3])
        sgd = there(cell, "sgd")
        return f"{best}; sgd {_time(sgd)}"

    return _by_network(cells, said)


def _ca_sgd(cells: Figures) -> str:
    """How many times sooner than sgd the best s is, and than the best of all others."""
    wins, losses = [], []

    def said(cell: Figures, place: tuple[str, str]) -> str:
        mine, sgd = ranked(cell, "seconds", ca_sgd(cell)), there(cell, "sgd")
        if not mine or not sgd:
            return "—"
        (spent, name), ratio = mine[0], sgd / mine[0][0]
        (wins if ratio > 1 else losses).append(place)
        rest = [n for n in cell["rows"] if not n.startswith("casgd")]
        best, other = ranked(cell, "seconds", rest)[0]
        return f"{name} {ratio:.2f}x of sgd, {best / spent:.2f}x of {other}"

    table = _by_network(cells, said, with_place=True)
    if not wins and not losses:
        return table
    lost = ", ".join(f"{shape} ({NAMES[network]})" for shape, network in losses)
    said_so = f"Sooner than plain SGD in {len(wins)} of {len(wins) + len(losses)} cells"
    return f"{table}\n\n{said_so}; not in: {lost or 'none'}."


def _beside(cells: Figures) -> str:
    """Which of them were at the target before the dense sum in 16 bits."""

    def said(cell: Figures) -> str:
        limit = there(cell, BASELINE)
        found = ranked(cell, "seconds", compressors())
        if limit is None:
            return "bf16 not there"
        names = [f"{n} {limit / spent:.1f}x" for spent, n in found if spent < limit]
        return ", ".join(names) or "none"

    return _by_network(cells, said)


def _fewest(cells: Figures) -> str:
    """A row a shape; messages and bytes do not depend on the network."""
    lines = ["| | messages | bytes | bf16 | sgd |", "|---|---|---|---|---|"]
    for shape in SHAPES:
        cell = next((c for (s, _), c in cells.items() if s == shape), None)
        if cell is None:
            continue
        best = [
            ", ".join(f"{n} {spent:,}" for spent, n in ranked(cell, cost)[:3])
            for cost in ("messages", "bytes")
        ]
        others = [
            f"{_count(there(cell, name, 'messages'))} messages,"
            f" {_count(there(cell, name, 'bytes'))} bytes"
            for name in (BASELINE, "sgd")
        ]
        lines.append(f"| {shape} | {' | '.join([*best, *others])} |")
    return "\n".join(lines)


def _seconds(cells: Figures, network: str) -> str:
    """Method by shape."""
    return _by_method(cells, network, lambda cell, name: _time(there(cell, name)))


def _gaps(cells: Figures) -> str:
    """Method by shape: loss above the lowest of sgd, and the rate."""

    network = next(iter(cells))[1]  # losses are those of every network

    def said(cell: Figures, name: str) -> str:
        row = cell["rows"].get(name, {})
        if row.get("gap_to_best_sgd") is None:
            return row.get("status", "—")
        return f"{100 * row['gap_to_best_sgd']:+.2f} % at {row['rate']:g}"

    return _by_method(cells, network, said)


def _crowd(crowds: Figures) -> str:
    """Four ranks share two cores: what was sent, and how far it came."""
    names = list(dict.fromkeys(n for cell in crowds.values() for n in cell["rows"]))

    def said(cell: Figures, name: str) -> str:
        row = cell["rows"][name]
        if row["status"] != "completed":
            return str(row["status"])
        gap = f"{100 * row['gap_to_best_sgd']:+.2f} %"
        return f"{row['messages']} messages, {row['bytes']:,} bytes, {gap}"

    lines = [f"| | {' | '.join(crowds)} |", "|---" * (len(crowds) + 1) + "|"]
    for name in names:
        row = " | ".join(said(cell, name) for cell in crowds.values())
        lines.append(f"| {name} | {row} |")
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


def _by_method(cells: Figures, network: str, said: Any) -> str:
    mine = {
        shape: cells[shape, network] for shape in SHAPES if (shape, network) in cells
    }
    names = list(dict.fromkeys(n for cell in mine.values() for n in cell["rows"]))
    lines = [f"| | {' | '.join(mine)} |", "|---" * (len(mine) + 1) + "|"]
    for name in names:
        row = " | ".join(said(cell, name) for cell in mine.values())
        lines.append(f"| {name} | {row} |")
    return "\n".join(lines)


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "—"
    return f"{seconds:.2f} s" if seconds >= 0.1 else f"{1e3 * seconds:.0f} ms"


def _count(value: float | None) -> str:
    return "—" if value is None else f"{value:,}"


def page_with(text: str, made: str, begin: str = BEGIN, end: str = END) -> str:
    """Return `text` with `made` between the marks."""
    before, rest = text.split(begin)
    _, after = rest.split(end)
    return f"{before}{begin}\n\n{made}\n\n{end}{after}"


def main() -> int:
    """Write the page, or say whether it is right."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    given = parser.parse_args()
    text = PAGE.read_text()
    made = page_with(text, tables(known(RESULT)))
    if given.check:
        print("up to date" if made == text else f"{PAGE.name} has other tables")
        return int(made != text)
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())

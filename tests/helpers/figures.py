"""Figures of benchmarks/results as pages of docs/ say them: words, cells and tables."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def figures_of(name):
    """What a benchmark measured."""
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return json.loads(path.read_text())["figures"]


def text_of(page):
    """A page of docs/."""
    return (ROOT / "docs" / f"{page}.md").read_text()


def table(*rows):
    """Lines of Markdown: cells of a heading, then of rows; None is an empty cell."""
    lines = [f"| {' | '.join(cell or '' for cell in row)} |" for row in rows]
    lines = [line.replace("|  |", "| |").replace("|  |", "| |") for line in lines]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])


def tenths(value, digits):
    """4.52·10⁻³."""
    head, power = f"{value:.{digits}e}".split("e")
    return f"{head}·10{str(int(power)).translate(RAISED)}"


def two_digits(value, digits=1):
    """2.4, 0.7 and 24: digits behind the point of numbers below 20."""
    return f"{value:.0f}" if value >= 20 else f"{value:.{digits}f}"


def part(value, digits=0):
    """A share, in hundredths."""
    return f"{100 * value:.{digits}f} %"


def less(value, than, digits=0):
    """By which part it is less."""
    return f"{100 * (1 - value / than):.{digits}f} %"


def more(value, than, digits=0):
    """By which part it is more."""
    return f"{100 * (value / than - 1):.{digits}f} %"


def by_method(found):
    """Method -> its row."""
    return {row["method"]: row for row in found["rows"]}


def close(gap):
    """A gap, or that it is none to rounding."""
    return tenths(gap, 1) if gap > 1e-15 else "< 10⁻¹⁵"


def name_of(given):
    """Of a case, for pytest."""
    return given if isinstance(given, str) else given.__name__


def hold(page, made):
    """Every table in the page as it is, and every other phrase, wherever lines end."""
    text = text_of(page)
    unbroken = " ".join(text.split())
    for words in made():
        where = text if words.startswith("|") else unbroken
        assert words in where, f"docs/{page}.md should say:\n{words}"


def names_its_file(page, made):
    """The command that measures, and where figures are."""
    name = f"bench_{made.__name__.split('_of_')[0]}"
    text = text_of(page)
    assert f"python -m benchmarks.run {name}" in text
    assert f"benchmarks/results/{name}.json" in text

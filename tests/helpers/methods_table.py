"""The table of methods, papers and settings in docs/reference/methods.md.

    python -m tests.helpers.methods_table    # writes it

A paper is that of the section of the method. A setting is one that a run of the method
on two replicas reads, that its definition does not fix, and that some other method does
not read.
"""

import re
from pathlib import Path

from hpcsgd.config import FOREIGN, METHODS, RunConfig, is_read
from hpcsgd.settings import declarations

PAGES = Path(__file__).parents[2] / "docs" / "reference"
PAGE = PAGES / "methods.md"
BEGIN, END = "<!-- begin of settings -->", "<!-- end of settings -->"
SECTION = re.compile(r"^## (.+)$", re.MULTILINE)
PAPER = re.compile(r"^\| Paper \| (.+) \|$", re.MULTILINE)


def table():
    """Return the table, a line for each method."""
    papers = papers_of_pages()
    read = {name: settings_read(config_of(name)) for name in METHODS}
    by_all = set.intersection(*map(set, read.values()))
    lines = ["| method | paper | settings |", "|---|---|---|"]
    for name, row in METHODS.items():
        own = [s for s in read[name] if s not in by_all | row.fixed.keys()]
        settings = ", ".join(f"`{one}`" for one in own)
        lines.append(f"| {name} | {papers[name]} | {settings or 'none'} |")
    return "\n".join(lines)


def config_of(method):
    """Return the settings of a method on two replicas."""
    tables = {"agreement": {"method": method}, "grid": {"replicas": 2, "members": 1}}
    return RunConfig.parse(tables)


def settings_read(config):
    """Return section.key of all settings that a run with `config` reads, in order."""
    names = (
        f"{section}.{key}"
        for section, settings in vars(config).items()
        for key in declarations(type(settings))
        if key != FOREIGN
    )
    return dict.fromkeys(name for name in names if is_read(name, config))


def papers_of_pages():
    """Return method -> its paper, as the section of the method has it."""
    papers = {}
    for page in sorted((PAGES / "methods").glob("*.md")):
        _, *parts = SECTION.split(page.read_text())
        for title, text in zip(parts[::2], parts[1::2], strict=True):
            paper = PAPER.search(text)
            for name in re.findall(r"`([\w-]+)`", title):
                papers[name] = paper[1] if paper else "none"
    for name, paper in papers.items():
        while paper.startswith("as "):
            paper = papers[paper.split()[1].strip("`")]
        papers[name] = paper
    return papers


def page_with_table():
    """Return the text of the page with the table between its marks."""
    before, rest = PAGE.read_text().split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with_table())

"""Links in the documents lead somewhere, and the tables say what the code has."""

import re
from pathlib import Path

from hpcsgd.agreements.codecs import CODECS
from hpcsgd.cli.parser import make_parser
from hpcsgd.config import METHODS
from hpcsgd.errors import ConfigError
from hpcsgd.glm import ADAPTIVE, FAMILIES, UPDATES
from hpcsgd.products import PRODUCTS
from tests.helpers.blocks import (
    BlockError,
    blocks_of,
    check_form,
    commands_of,
    hpcsgd_words,
)

ROOT = Path(__file__).parents[2]
MADE = ("_build", "gallery", "notebooks")  # folders of docs that a build writes
DOCUMENTS = [
    path
    for path in sorted(
        {*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("docs/**/*.md")}
    )
    if not any(p.startswith(".") or p in MADE for p in path.relative_to(ROOT).parts)
]


def links_of(text):
    """Return (path, anchor) of each link of a page that leads to a file here."""
    text = re.sub(r"(?ms)^ *(`{3,}).*?^ *\1`*$|`[^`\n]*`", "", text)
    targets = re.findall(r"\]\(<?([^)\s>]+)", text)
    return [t.partition("#")[::2] for t in targets if not re.match(r"[a-z]+:", t)]


def anchors_of(text):
    """Return what a link into a page may name: headings as GitHub does, and targets."""
    text = re.sub(r"(?ms)^ *(`{3,}).*?^ *\1`*$", "", text)
    found = set(re.findall(r"(?m)^\(([\w-]+)\)=|\bid=\"([\w-]+)|\{#([\w-]+)", text))
    found = {name for names in found for name in names if name}
    for heading in re.findall(r"(?m)^#+ +(.*?) *$", text):
        words = re.sub(r"\]\([^)]*\)", "", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        number = sum(
            re.fullmatch(rf"{slug}(-\d+)?", name) is not None for name in found
        )
        found.add(f"{slug}-{number}" if number and slug in found else slug)
    return found


def broken_links(path):
    """Return each link of a document whose file or heading does not exist."""
    found = []
    for target, anchor in links_of(path.read_text()):
        file = (path.parent / target).resolve() if target else path
        if not file.exists():
            found.append(target)
        elif anchor and file.suffix == ".md":
            text = file.read_text()
            # Headings of a generated page are known to the build of the site alone.
            if "<!-- generated: " not in text and anchor not in anchors_of(text):
                found.append(f"{target}#{anchor}")
    return found


def test_links_lead_somewhere():
    broken = {path.relative_to(ROOT): broken_links(path) for path in DOCUMENTS}
    offenders = [f"{path}: {link}" for path, links in broken.items() for link in links]
    assert not offenders, "links that lead nowhere:\n" + "\n".join(offenders)


def test_a_link_that_leads_nowhere_is_found(tmp_path):
    page, other = tmp_path / "page.md", tmp_path / "other.md"
    other.write_text("# The *first* `b`, or c\n\n## Twice\n\n## Twice\n")
    good = ("other.md", "other.md#the-first-b-or-c", "other.md#twice-1", "#own")
    bad = ("none.md", "other.md#third", "other.md#twice-2", "#twice")
    links = " ".join(f"[text]({target})" for target in (*good, *bad))
    page.write_text(f"# Own\n\n{links}\n\n`[text](code.md)`\n")
    assert broken_links(page) == list(bad)


def commands_in(path):
    """Yield the arguments of every `hpcsgd ...` of a page's blocks."""
    text = path.read_text()
    for block in blocks_of(text):
        if block.language == "console":
            for command in commands_of(block):
                yield from hpcsgd_words(command.text)
    for line in re.findall(
        r"(?m)^    (?:.* )?hpcsgd ([a-z].*)", text.replace("\\\n", " ")
    ):
        # Descriptions of a usage are no commands: hpcsgd inspect RUN|MODEL.
        if not re.search(r"\[--|[A-Z]\||\bSRC\b|[()]", line.partition("#")[0]):
            yield from hpcsgd_words(f"hpcsgd {line}")


def test_blocks_have_the_form_that_the_site_runs():
    """tests/docs/test_blocks.py runs them."""
    offenders = []
    for path in DOCUMENTS:
        for block in blocks_of(path.read_text()):
            try:
                check_form(block)
            except (BlockError, SyntaxError) as error:
                offenders.append(f"{path.relative_to(ROOT)}: {error}")
    assert not offenders, "\n".join(offenders)


def test_the_commands_shown_are_commands(capsys):
    parser, offenders = make_parser(), []
    for path in DOCUMENTS:
        for words in commands_in(path):
            try:
                parser.parse_args(words)
            except (SystemExit, ConfigError) as error:
                reason = capsys.readouterr().err.strip() or error
                offenders.append(f"{path.relative_to(ROOT)}: {reason}")
    assert not offenders, "no commands of hpcsgd:\n" + "\n".join(offenders)


def rows_like_epsilon(path):
    """Return the files of a page whose rows are drawn in the shape of epsilon."""
    made = {"epsilon.h5"}
    for words in commands_in(path):
        if words[:2] == ["data", "synth"] and "epsilon" in words:
            made.add(words[words.index("--out") + 1])
    return made


def files_with_a_rate(path):
    """Return the configurations that a page writes and that set the rate."""
    blocks = [block for block in blocks_of(path.read_text()) if block.file]
    return {block.file for block in blocks if "[rate]" in block.text}


def test_commands_on_rows_like_epsilon_give_a_rate():
    """Rows of length one need a rate near 8: at its default SGD learns nothing."""
    offenders = []
    for path in DOCUMENTS:
        made, rates = rows_like_epsilon(path), {"--rate", *files_with_a_rate(path)}
        for words in commands_in(path):
            trains = words[0] in ("train", "compare", "precision", "tune")
            trains |= words[:1] == ["study"] and words[1] in ("strong", "weak", "sweep")
            if trains and made & set(words) and not rates & set(words):
                offenders.append(f"{path.relative_to(ROOT)}: hpcsgd {' '.join(words)}")
    assert not offenders, "commands that learn nothing:\n" + "\n".join(offenders)


def test_the_readme_compares_behind_a_network():
    """In shared memory plain SGD is first, and no command shows what a sum costs."""
    compared = [w for w in commands_in(ROOT / "README.md") if w[0] == "compare"]
    assert compared and all("--network" in words for words in compared)


def techniques():
    """Return the table of techniques of docs/trust/index.md."""
    text = (ROOT / "docs" / "trust" / "index.md").read_text()
    return text.partition("## Techniques")[2].partition("\n## ")[0]


def test_the_table_of_techniques_names_every_technique_that_runs():
    """What a flag can name stands in the table."""
    names = {*METHODS, *CODECS, *PRODUCTS, *UPDATES, *ADAPTIVE, *FAMILIES}
    missing = names - {"identity", "sgd"} - set(re.findall(r"`([^`]+)`", techniques()))
    assert not missing, f"docs/trust/index.md lacks {sorted(missing)}"


def test_the_table_of_techniques_names_files_that_exist():
    """The code and the tests of every technique."""
    paths = set(re.findall(r"`((?:\w+/)+[\w.]*)`", techniques()))
    assert len(paths) > 50
    missing = sorted(path for path in paths if not (ROOT / path).exists())
    assert not missing, f"docs/trust/index.md names {missing}"

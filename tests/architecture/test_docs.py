"""Links in the documents lead somewhere, and the tables say what the code has."""

import re
import shlex
from pathlib import Path

from hpcsgd.agreements.codecs import CODECS
from hpcsgd.cli.parser import make_parser
from hpcsgd.config import METHODS
from hpcsgd.errors import ConfigError
from hpcsgd.glm import ADAPTIVE, FAMILIES, UPDATES
from hpcsgd.products import PRODUCTS

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    {*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("docs/**/*.md")}
)
DOCUMENTS = [
    d
    for d in DOCUMENTS
    if not any(p.startswith(".") for p in d.relative_to(ROOT).parts)
]


def test_links_lead_somewhere():
    offenders = [
        f"{path.relative_to(ROOT)}: {target}"
        for path in DOCUMENTS
        for target in re.findall(r"\]\(([^)#\s]+)", path.read_text())
        if not re.match(r"[a-z]+:", target) and not (path.parent / target).exists()
    ]
    assert not offenders, "links that lead nowhere:\n" + "\n".join(offenders)


def test_the_readme_example_runs(capsys):
    """The Python block, as it stands."""
    text = (ROOT / "README.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(block, "README.md", "exec"), {})
    assert "Status.COMPLETED" in capsys.readouterr().out


def test_the_examples_of_estimators_run(capsys):
    """One after the other, as a reader would type them."""
    text = (ROOT / "docs" / "estimators.md").read_text()
    known = {}
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(block, "estimators.md", "exec"), known)
    assert "D² = 0." in capsys.readouterr().out


def commands_in(path):
    """Every `hpcsgd ...` of the indented blocks, without its launcher, as words."""
    text = path.read_text().replace("\\\n", " ")
    for line in re.findall(r"(?m)^    (?:.* )?hpcsgd ([a-z].*)", text):
        # Descriptions of a usage are no commands: hpcsgd inspect RUN|MODEL.
        if not re.search(r"\[--|[A-Z]\||\bSRC\b|[()]", line.partition("#")[0]):
            words = shlex.split(line, comments=True)
            ends = [words.index(end) for end in ("|", ">") if end in words]
            yield words[: min(ends, default=len(words))]


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


def test_commands_on_rows_like_epsilon_give_a_rate():
    """Rows of length one need a rate near 8: at its default SGD learns nothing."""
    offenders = []
    for path in DOCUMENTS:
        made = rows_like_epsilon(path)
        for words in commands_in(path):
            trains = words[0] in ("train", "compare", "precision", "tune")
            trains |= words[:1] == ["study"] and words[1] in ("strong", "weak", "sweep")
            if trains and made & set(words) and "--rate" not in words:
                offenders.append(f"{path.relative_to(ROOT)}: hpcsgd {' '.join(words)}")
    assert not offenders, "commands that learn nothing:\n" + "\n".join(offenders)


def test_the_readme_compares_behind_a_network():
    """In shared memory plain SGD is first, and no command shows what a sum costs."""
    compared = [w for w in commands_in(ROOT / "README.md") if w[0] == "compare"]
    assert compared and all("--network" in words for words in compared)


def test_the_readme_makes_the_files_that_it_uses():
    """In the order in which a newcomer types what is shown."""
    made = set()
    for words in commands_in(ROOT / "README.md"):
        files = {w for w in words if re.search(r"\.(h5|toml|npy)$|^runs/", w)}
        new = {words[words.index("--out") + 1]} if "--out" in words else set()
        if words[0] == "new":
            new = {words[1]}
        if words[:2] == ["data", "convert"]:
            new = {words[3], words[3].replace(".h5", "-test.h5")}
        assert files - new <= made, words
        made |= new
    assert {"epsilon.h5", "run.toml", "runs/first"} <= made


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

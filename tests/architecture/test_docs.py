"""Links in the documents lead somewhere, and the tables say what the code has."""

import doctest
import importlib
import re
from dataclasses import asdict
from pathlib import Path

import pytest

from hpcsgd.cli.train import FLAGS, SWITCHES
from hpcsgd.config import RunConfig

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("*/*.md"), *ROOT.glob("docs/**/*.md")]
)
DOCUMENTS = [
    d
    for d in DOCUMENTS
    if not any(p.startswith(".") for p in d.relative_to(ROOT).parts)
]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\(([^)#\s]+)", path.read_text()):
        if not re.match(r"[a-z]+:", target):
            assert (path.parent / target).exists(), f"{path.name}: {target}"


def test_the_readme_example_runs(capsys):
    """The Python block, as it stands."""
    text = (ROOT / "README.md").read_text()
    for block in re.findall(r"```python\n(.*?)```", text, re.S):
        exec(compile(block, "README.md", "exec"), {})
    assert "Status.COMPLETED" in capsys.readouterr().out


@pytest.mark.parametrize(
    "name",
    [
        "hpcsgd.api",
        "hpcsgd.config",
        "hpcsgd.prediction",
        "hpcsgd.assessment",
        "hpcsgd.study.settings",
    ],
)
def test_examples_in_docstrings_run(name):
    """What users call has an example, and it is true."""
    results = doctest.testmod(importlib.import_module(name))
    assert results.attempted and not results.failed


def test_every_setting_is_documented():
    """docs/train.md names every key of every section."""
    text = (ROOT / "docs" / "train.md").read_text()
    for section, table in asdict(RunConfig()).items():
        assert f"[{section}]" in text
        for key in table:
            assert re.search(rf"\b{key}\b", text), f"{section}.{key}"


def test_every_flag_is_documented():
    text = "".join(path.read_text() for path in DOCUMENTS)
    for flag, _, _ in (*FLAGS, *SWITCHES):
        assert f"`{flag}" in text or f" {flag} " in text, flag

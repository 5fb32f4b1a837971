"""The notebooks run from top to bottom, and are committed without outputs."""

import json
import os
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(path.stem for path in FOLDER.glob("*.ipynb"))
LIMIT = 240  # seconds of one cell, on a machine that does other things, too


def test_the_notebooks_are_those_of_the_documentation():
    assert NOTEBOOKS == ["first_fit", "scaling_study"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_committed_without_outputs(name):
    document = json.loads((FOLDER / f"{name}.ipynb").read_text())
    cells = [cell for cell in document["cells"] if cell["cell_type"] == "code"]
    assert cells and all(cell["outputs"] == [] for cell in cells)
    assert all(cell["execution_count"] is None for cell in cells)
    assert document["cells"][0]["source"][0].startswith("# ")


@pytest.fixture
def execute(tmp_path, monkeypatch):
    """Return a function that runs a notebook and returns its code cells."""
    nbformat, nbclient = (
        pytest.importorskip("nbformat"),
        pytest.importorskip("nbclient"),
    )
    root, programs = Path(__file__).parents[2], Path(sys.executable).parent
    paths = [str(root), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def execute(name):
        notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
        where = {"metadata": {"path": str(tmp_path)}}
        nbclient.NotebookClient(notebook, timeout=LIMIT, resources=where).execute()
        return [cell for cell in notebook.cells if cell.cell_type == "code"]

    return execute


def outputs(cells, kind):
    """Return what the cells show in one format, in their order."""
    found = [out.get("data", {}).get(kind) for cell in cells for out in cell.outputs]
    return [text for text in found if text is not None]


def streams(cells):
    """Return what the cells print to standard error."""
    all_outputs = [output for cell in cells for output in cell.outputs]
    return [output.text for output in all_outputs if output.get("name") == "stderr"]


def test_first_fit(execute):
    cells = execute("first_fit")
    assert streams(cells) == []
    pages = outputs(cells, "text/html")
    assert sum("<svg" in page for page in pages) == 2  # the result and the path
    assert sum("<progress" in page for page in pages) == 1
    assert len(outputs(cells, "image/png")) == 2
    assert outputs(cells, "text/plain")[-2] == "True"  # what was saved comes back


def test_scaling_study(execute):
    cells = execute("scaling_study")
    assert sum("<svg" in page for page in outputs(cells, "text/html")) == 1
    assert len(outputs(cells, "image/png")) == 2
    assert "is the fastest" in cells[-1].outputs[-1].text

"""Run a script of the gallery as a reader does: in an empty folder, no screen."""

import ast
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

GALLERY = Path(__file__).parents[2] / "examples" / "gallery"
SCRIPTS = {path.stem.removeprefix("plot_"): path for path in GALLERY.glob("plot_*.py")}
LIMIT = 300.0  # seconds of one script, on a machine that does other things, too
# Runs the script, saves its pictures, and writes what its names stand for.
RUNNER = """
import json, matplotlib, numbers, runpy, sys
matplotlib.use("Agg")
from matplotlib import pyplot
names = runpy.run_path(sys.argv[1], run_name="__main__")
numbers_of = {k: float(v) for k, v in names.items() if isinstance(v, numbers.Real)}
figures = pyplot.get_fignums()
sizes = []
for number in figures:
    figure = pyplot.figure(number)
    figure.savefig(f"{number}.png", dpi=64)
    sizes += [[len(a.lines) + len(a.patches) + len(a.images) + len(a.collections),
               bool(a.get_xlabel()) or bool(a.images)] for a in figure.axes]
json.dump({"numbers": numbers_of, "axes": sizes, "figures": len(figures)},
          open("ended.json", "w"))
"""


@dataclass(frozen=True)
class Ended:
    """What a script has left."""

    sentence: str  # the last line that it printed
    figures: int
    axes: list[tuple[int, bool]]  # things drawn, and whether the x axis has a label
    numbers: dict[str, float]  # its names that stand for numbers
    strays: list[str]  # files that it has left in the folder


def run_script(name: str, folder: Path) -> Ended:
    """Run the script and return what it has left; its errors are those of the test."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [sys.executable, "-W", "ignore:.*non-interactive", "-c", RUNNER, SCRIPTS[name]],
        cwd=folder,
        env={**os.environ, **threads, "PATH": path, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads((folder / "ended.json").read_text())
    known = {"ended.json", *(f"{n}.png" for n in range(1, found["figures"] + 1))}
    strays = [p.name for p in folder.iterdir() if p.is_file() and p.name not in known]
    return Ended(
        sentence=done.stdout.strip().splitlines()[-1],
        figures=found["figures"],
        axes=[tuple(each) for each in found["axes"]],
        numbers=found["numbers"],
        strays=strays,
    )


def check_ended(ended: Ended) -> None:
    """Refuse a script without a picture, or without a sentence that has a number."""
    assert ended.figures == 1
    assert ended.axes and all(drawn for drawn, _ in ended.axes)
    assert ended.sentence.endswith(".")
    assert any(letter.isdigit() for letter in ended.sentence)
    assert ended.strays == []


def parsed(name: str) -> ast.Module:
    """Return the tree of a script."""
    return ast.parse(SCRIPTS[name].read_text())

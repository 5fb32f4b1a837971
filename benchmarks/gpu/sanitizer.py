"""What compute-sanitizer says of every kernel, launched once each."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.every_kernel import DIFFERS
from benchmarks.gpu.figure import Figure

ROOT = Path(__file__).parents[2]
TOOLS = ("memcheck", "racecheck", "synccheck")
# CuPy asks for attributes that not every driver knows, and expects to be refused.
OPTIONS = {"memcheck": ["--report-api-errors", "no"]}
DRIVER = [sys.executable, "-m", "benchmarks.gpu.every_kernel"]
FOUND = 86  # what it exits with, where it found something
LIMIT = 300.0  # seconds of one tool
LEAST = 60.0  # of one that begins when minutes are nearly over
WHERE = "install CUDA, or: pip install nvidia-cuda-sanitizer-api"
# memcheck and synccheck say the first, racecheck the second.
SUMMARIES = (r"ERROR SUMMARY: (\d+) error", r"RACECHECK SUMMARY: (\d+) hazard")


def places() -> Iterator[Path]:
    """Where it may be: the path, CUDA's own folder, its wheel."""
    found = shutil.which("compute-sanitizer")
    if found:
        yield Path(found)
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(name):
            yield Path(os.environ[name]) / "bin" / "compute-sanitizer"
    yield Path("/usr/local/cuda/bin/compute-sanitizer")
    packages = Path(sysconfig.get_paths()["purelib"])
    yield from sorted(packages.glob("nvidia/*/compute-sanitizer/compute-sanitizer"))


def tool_named(name: str) -> Callable[[Bench], Sequence[Figure]]:
    """The figure of one of its tools."""
    return lambda bench: [checked(name, min(LIMIT, max(bench.left, 0) + LEAST))]


def checked(name: str, limit: float = LIMIT) -> Figure:
    """Errors that one tool finds in so many seconds."""
    says = f"errors that compute-sanitizer finds with {name}, every kernel once"
    tool = next((path for path in places() if path.exists()), None)
    if tool is None:
        return Figure(name, says, 0, True, failure=f"it is not installed; {WHERE}")
    own = ["--tool", name, *OPTIONS.get(name, []), "--error-exitcode", str(FOUND)]
    command = [str(tool), *own, *DRIVER]
    environment = {**os.environ, "CUPY_CACHE_IN_MEMORY": "0"}
    try:
        done = subprocess.run(
            *(command,),
            **{"capture_output": True, "text": True, "timeout": limit},
            **{"cwd": ROOT, "env": environment},
        )
    except subprocess.TimeoutExpired:
        return Figure(name, says, 0, True, failure=f"not done in {limit:.0f} s")
    return judged(name, says, done.returncode, done.stdout + done.stderr)


def judged(name: str, says: str, code: int, text: str) -> Figure:
    """From what it printed; a driver that ended early has shown nothing."""
    counts = [int(n) for summary in SUMMARIES for n in re.findall(summary, text)]
    launched = re.search(r"launched (\d+) kernels", text)
    last = text.strip().splitlines()[-8:]
    if not counts or launched is None or code not in (0, FOUND, DIFFERS):
        failure = f"it ended with {code} and no summary: {' | '.join(last)}"
        return Figure(name, says, 0, True, failure=failure[:2000])
    details = {"kernels": int(launched[1]), "exit_code": code}
    if max(counts):
        details["said"] = "\n".join(_errors(text))
    return Figure(name, says, 0, True, float(max(counts)), "", details)


def _errors(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("=====")][:60]

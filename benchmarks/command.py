"""The command `hpcsgd`, run as a user runs it, and how busy it was."""

import json
import os
import resource
import subprocess
import sys
import time
from typing import Any


def hpcsgd(*arguments: str) -> str:
    """What it prints."""
    return subprocess.run(
        [sys.executable, "-m", "hpcsgd", *arguments],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ,
    ).stdout


def timed(*arguments: str) -> tuple[dict[str, Any], float]:
    """The JSON that it prints, and CPU seconds of all its processes a second."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    document = json.loads(hpcsgd(*arguments))
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return document, cpu / wall

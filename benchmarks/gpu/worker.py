"""Parts of `make gpu` in a process of their own, told line by line to another.

A launch that never ends, or one that spoils the context of the GPU, would take all
later parts with it. Who waits here has no GPU, loses one part, and starts another
worker for the rest.
"""

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

ROOT = Path(__file__).parents[2]
COMMAND = [sys.executable, "-m", "benchmarks.bench_gpu", "--worker"]
LIMIT = 180.0  # seconds of a part
LAST = 10.0  # of a worker that has said all
NO_GPU = 2  # what a worker exits with before its first part
Told = dict[str, Any]


def own_line() -> TextIO:
    """The output that is listened to; what else is printed goes to stderr."""
    line = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return line


def tell(told: Told, line: TextIO) -> None:
    """At once."""
    print(json.dumps(told), file=line, flush=True)


def apart(
    names: Sequence[str], minutes: float, limit: Callable[[str], float]
) -> Iterator[Told]:
    """What workers tell of these parts, in this order; nothing without a GPU.

    {"facts": ...} of each worker, then {"name": ..., "figures": ...} of each part, with
    "failure" in the place of figures where it ended its worker.
    """
    end, left, was_there = time.monotonic() + 60 * minutes, list(names), False
    while left:
        over = (end - time.monotonic()) / 60
        worker, is_lost = Worker(left, over), False
        try:
            while left and not is_lost:
                told = worker.next_line(limit(left[0]))
                if told is None:
                    break
                is_lost, was_there = told.get("lost", False), True
                if "name" in told:
                    del left[0]
                yield told
        except BaseException:
            worker.why = "nobody listens any more"
            raise
        finally:
            code = worker.end()
        if code == NO_GPU:
            why = "the GPU cannot be opened any more"
            yield from ({"name": one, "failure": why} for one in left if was_there)
            return
        if left and not is_lost:
            yield {"name": left.pop(0), "failure": worker.why}


class Worker:
    """One of them, as long as it answers."""

    def __init__(self, names: Sequence[str], minutes: float) -> None:
        self._process = subprocess.Popen(
            [*COMMAND, "--minutes", f"{minutes:.3f}", "--only", *names],
            stdout=subprocess.PIPE,
            cwd=ROOT,
            process_group=0,  # it ends with all that it has started
        )
        assert self._process.stdout is not None
        self._number, self._held = self._process.stdout.fileno(), b""
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._number, selectors.EVENT_READ)
        self.why = ""

    def next_line(self, seconds: float) -> Told | None:
        """None where there is none in this time, or no more."""
        until = time.monotonic() + seconds
        while b"\n" not in self._held:
            if not self._selector.select(max(until - time.monotonic(), 0)):
                self.why = f"it was ended: not done after {seconds:g} s"
                return None
            read = os.read(self._number, 2**16)
            if not read:
                return None
            self._held += read
        line, _, self._held = self._held.partition(b"\n")
        told: Told = json.loads(line)
        return told

    def end(self) -> int:
        """Its exit code, once it and all that it has started are gone."""
        try:
            code = self._process.wait(0 if self.why else LAST)
        except subprocess.TimeoutExpired:
            code = -signal.SIGKILL
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._selector.close()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self.why = self.why or f"it ended its process with code {code}"
        return code

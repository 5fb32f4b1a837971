"""The processes of one launch, found by a mark in their environment.

Launchers put ranks into sessions of their own, and whoever outlives its parent gets
another one: neither groups nor parents lead to all of them. Linux only; where there is
no /proc nobody is found.
"""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

MARK = "HPCSGD_JOB"  # set by our launcher, inherited by all that it starts


class Family:
    """All processes, other than this one, that carry the mark."""

    def __init__(self, mark: str) -> None:
        self.variable = f"{MARK}={mark}".encode()

    def members(self) -> list[int]:
        """Those alive now."""
        return [pid for pid in _all_processes() if self._has(pid)]

    def ranks(self, command: list[str]) -> list[int]:
        """Those that run exactly `command`, without what they forked."""
        wanted = b"".join(word.encode() + b"\0" for word in command)
        found = [p for p in self.members() if _read(p, "cmdline") == wanted]
        return [pid for pid in found if _parent(pid) not in found]

    def tell(self, number: int, pids: list[int]) -> None:
        """Send a signal to those that are still what they were."""
        for pid in pids:
            if self._has(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, number)

    def end(self, grace: float) -> None:
        """Returns when nobody is left; who is there after `grace` seconds is killed."""
        limit = time.monotonic() + grace
        while members := self.members():
            if time.monotonic() >= limit:
                self.tell(signal.SIGKILL, members)
            time.sleep(0.05)

    def _has(self, pid: int) -> bool:
        return self.variable in _read(pid, "environ").split(b"\0")


def _all_processes() -> Iterator[int]:
    own = os.getpid()
    for path in Path("/proc").glob("[0-9]*"):
        if int(path.name) != own:
            yield int(path.name)


def _read(pid: int, name: str) -> bytes:
    """/proc/PID/name; nothing for a process that is gone, a zombie or not ours."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


def _parent(pid: int) -> int | None:
    fields = _read(pid, "stat").rpartition(b")")[2].split()
    return int(fields[1]) if fields else None

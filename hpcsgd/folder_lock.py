"""One run at a time in a run folder; the system frees it however the run ends."""

import fcntl
import os
import re
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

from hpcsgd.errors import ConfigError
from hpcsgd.files import open_entry, read_entry_text

NAME = ".in-use"
TRIES, PAUSE = 5, 0.02  # to lock it, and seconds between two


class FolderLock:
    """Held from `take` to `release`, or to the end of the process."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.file: IO[str] | None = None

    def take(self) -> None:
        """Refuse where another run has it."""
        while self.file is None:
            number = open_entry(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
            file = open(number, "a+", encoding="utf-8")  # noqa: SIM115
            try:
                _lock(file)
            except BlockingIOError as error:
                raise ConfigError(
                    f"--out {self.path.parent} is in use by {_owner(file)}; choose"
                    " another folder, or wait until that run has ended"
                ) from error
            except OSError:
                pass  # a file system without locks: better unguarded than not at all
            # Between open and lock the run before may have removed the file.
            if _is_at(file, self.path):
                self.file = file
        self.file.truncate(0)
        self.file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self.file.flush()

    def release(self) -> None:
        """Let the next one in."""
        if self.file is not None:
            # While it is still ours; the folder may be gone, or have become a file.
            with suppress(OSError):
                self.path.unlink()
            self.file.close()
            self.file = None


def user_of(folder: Path) -> str:
    """Return who trains in `folder`, or "" where nobody does or it cannot be known."""
    try:
        with open(
            open_entry(folder / NAME), encoding="utf-8", errors="replace"
        ) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _owner(file)
    except OSError:
        pass
    return ""


def is_abandoned(folder: Path) -> bool:
    """Whether a process of this machine has trained in `folder` and was killed.

    It names itself in the lock file, which it would have removed at its own end. A lock
    is not enough to see that it is gone: there are file systems without locks.
    """
    try:
        owner = read_entry_text(folder / NAME, "replace").strip()
    except OSError:
        return False
    pattern = rf"process ([1-9]\d*) on {re.escape(socket.gethostname())}"
    match = re.fullmatch(pattern, owner)
    return match is not None and not _is_alive(int(match[1])) and not user_of(folder)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # of another user
    return True


def _lock(file: IO[str]) -> None:
    """Lock it for this process alone, also where `user_of` looks just then."""
    for left in reversed(range(TRIES)):
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not left:
                raise
            time.sleep(PAUSE)


def _owner(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip() or "another run"


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False

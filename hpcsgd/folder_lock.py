"""One run at a time in a run folder; the system frees it however the run ends."""

import fcntl
import os
import socket
from pathlib import Path
from typing import IO

from hpcsgd.errors import ConfigError

NAME = ".in-use"


class FolderLock:
    """Held from `take` to `release`, or to the end of the process."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.file: IO[str] | None = None

    def take(self) -> None:
        """Refuse where another run has it."""
        while self.file is None:
            file = open(self.path, "a+", encoding="utf-8")  # noqa: SIM115
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
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
            self.path.unlink(missing_ok=True)  # while it is still ours
            self.file.close()
            self.file = None


def _owner(file: IO[str]) -> str:
    file.seek(0)
    return file.read().strip() or "another run"


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except OSError:
        return False

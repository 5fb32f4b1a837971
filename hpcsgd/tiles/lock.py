"""One run at a time on the states of a rank; the system frees them however it ends."""

import fcntl
from pathlib import Path
from typing import IO

from hpcsgd.errors import ConfigError


class Lock:
    """Held from `take` to `release`, or to the end of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: IO[bytes] | None = None

    def take(self) -> None:
        """Refuse where another run has it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        file = open(self.path, "ab")  # noqa: SIM115
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise ConfigError(
                f"{self.path.parent} is in use by another run; choose another"
                " [agreement] store, or wait until that run has ended"
            ) from error
        except OSError:
            pass  # a file system without locks: better unguarded than not at all
        self.file = file

    def release(self) -> None:
        """Let the next one in."""
        if self.file is not None:
            self.file.close()
            self.file = None

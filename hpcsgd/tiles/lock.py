"""One run at a time on the states of a rank; the system frees them however it ends."""

import fcntl
import os
from pathlib import Path
from typing import IO

from hpcsgd.errors import ConfigError
from hpcsgd.files import open_entry


class Lock:
    """Held from `take` to `release`, or to the end of the process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: IO[bytes] | None = None

    def take(self) -> None:
        """Refuse where another run has it."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            number = open_entry(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            file = open(number, "ab")  # noqa: SIM115
        except OSError as error:
            raise ConfigError(
                f"{self.path.parent} cannot be written ({error.strerror}); choose"
                " another [agreement] store, a folder that can be"
            ) from error
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

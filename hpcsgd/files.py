"""Files that appear whole or not at all."""

import os
from pathlib import Path


def _umask() -> int:
    """What new files must not allow; it can be asked only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


UMASK = _umask()  # once, at import: no other thread makes files then


def replace_file(path: Path, *parts: bytes | memoryview) -> None:
    """Write `parts` beside `path`, flush them to disk, then take its name in one move.

    The temporary file belongs to this user alone until it has its name.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.part")
    number = open_private(temporary)
    try:
        with open(number, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            os.fchmod(number, 0o666 & ~UMASK)
            os.fsync(number)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def open_private(path: Path) -> int:
    """A new empty file that only this user may open; its descriptor."""
    path.unlink(missing_ok=True)  # of a process that had our number and died
    # O_EXCL: a link that somebody planted under this name is not followed.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def make_public(path: Path) -> None:
    """What the user wants new files to be, for one that was private while written."""
    path.chmod(0o666 & ~UMASK)


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    replace_file(path, text.encode())


def sync_folder(folder: Path) -> None:
    """Make the names in `folder` survive a power failure, where the system can."""
    try:
        number = os.open(folder, os.O_RDONLY)
    except OSError:
        return  # a system that opens no folders
    try:
        os.fsync(number)
    except OSError:
        pass  # a file system that flushes no folders
    finally:
        os.close(number)

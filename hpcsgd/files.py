"""Files that appear whole or not at all, and files of folders that others may write.

A run folder may hold what somebody else put there. Its entries are opened by
`open_entry`: never through a link, and never a device or a pipe, which would be read
without end or waited for. Its subfolders are entered through `own_folder`, which
follows no link either. The folder itself may well be a link: users link to scratch
file systems.
"""

import errno
import os
import stat
from contextlib import suppress
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


def own_folder(folder: Path, *names: str, make: bool = False) -> Path:
    """Return the subfolder `names` of a folder; refuse links and what is no folder.

    Every user of a subfolder calls this before it lists, reads or writes there. A
    subfolder that is missing is returned as it is, and read as an empty one.

    Parameters
    ----------
    folder : a folder that the user has named; it may be a link
    names : one name for each level below it
    make : make the subfolders that are missing; `folder` itself has to be there, for a
        run folder that was removed is not to come back with a part of its content

    Raises
    ------
    Irregular
        One level is a symbolic link or no folder.
    OSError
        The system refuses it.
    """
    path = folder
    for name in names:
        path = path / name
        if make:
            with suppress(FileExistsError):
                path.mkdir()
        try:
            mode = os.lstat(path).st_mode
        except FileNotFoundError:
            continue
        if stat.S_ISLNK(mode):
            text = "it is a symbolic link, which is not followed"
            raise Irregular(errno.ELOOP, text, str(path))
        if not stat.S_ISDIR(mode):
            raise Irregular(errno.ENOTDIR, "it is no folder", str(path))
    return path


CREATE = os.O_RDWR | os.O_CREAT | os.O_TRUNC  # a new file, or an old one emptied


class Irregular(OSError):
    """An entry of a folder is no regular file, or not one that this user may write."""


def reason(error: OSError) -> str:
    """Return why a folder cannot be used, with the name of the entry at fault."""
    text = error.strerror or repr(error)
    return f"{error.filename}: {text}" if isinstance(error, Irregular) else text


def open_entry(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor; refuse anything else.

    A file that is written in place has to belong to this user or to the owner of its
    folder, whom it shows on file systems that map users: what anybody else has put
    there may be shared with a file elsewhere.

    Raises
    ------
    Irregular
        It is a symbolic link, a folder, a device, a pipe or a socket; or `flags` ask
        to write and it belongs to somebody else.
    OSError
        The system refuses it.
    """
    # Without O_NONBLOCK a pipe is waited for; O_NONBLOCK changes no regular file.
    safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        # What is emptied is looked at first.
        number = os.open(path, flags & ~os.O_TRUNC | safe, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            text = "it is a symbolic link, which is not followed"
            raise Irregular(error.errno, text, str(path)) from error
        if error.errno == errno.ENXIO:  # a socket, or a pipe that nobody reads
            raise _irregular(path) from error
        raise
    try:
        found = os.fstat(number)
        if not stat.S_ISREG(found.st_mode):
            raise _irregular(path)
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        if writes and found.st_uid not in (os.geteuid(), path.parent.stat().st_uid):
            raise Irregular(errno.EPERM, "it belongs to another user", str(path))
        if flags & os.O_TRUNC:
            os.ftruncate(number, 0)
    except BaseException:
        os.close(number)
        raise
    return number


def _irregular(path: Path) -> Irregular:
    return Irregular(errno.EINVAL, "it is not a regular file", str(path))


def read_entry(path: Path) -> bytes:
    """Return the content of a regular file; see `open_entry`."""
    with open(open_entry(path), "rb") as file:
        return file.read()


def read_entry_text(path: Path, errors: str = "strict") -> str:
    """Return the text of a regular file in UTF-8; see `open_entry`."""
    return read_entry(path).decode("utf-8", errors)


def check_entry(path: Path) -> None:
    """Refuse what `open_entry` refuses, before a library opens `path` by its name."""
    os.close(open_entry(path))


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

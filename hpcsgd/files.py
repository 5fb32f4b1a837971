"""Files that appear whole or not at all, and files of folders that others may write.

A run folder may hold what somebody else put there. Its entries are opened by
`open_entry`: never through a link, and never a device or a pipe, which would be read
without end or waited for. Its subfolders are entered through `own_folder`, which
follows no link either. The folder itself may well be a link: users link to scratch
file systems.
"""

import ctypes
import errno
import fcntl
import hashlib
import json
import math
import os
import re
import socket
import stat
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from hpcsgd.errors import ConfigError, DataError, MissingPackage

if TYPE_CHECKING:  # commands write files before NumPy is there
    from hpcsgd.formats import Array


def _umask() -> int:
    """Return the umask of the process, which can be read only by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


UMASK = _umask()  # once, at import: no other thread makes files then


def replace_file(path: Path, *parts: bytes | memoryview) -> None:
    """Write `parts` to a file beside `path`, flush it to disk, and rename it to `path`.

    Only this user may open the temporary file until it is renamed.
    """
    temporary = temporary_name(path)
    number = open_private(temporary)
    try:
        with open(number, "wb") as file:
            for part in parts:
                file.write(part)
            file.flush()
            publish(number, temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def temporary_name(path: Path) -> Path:
    """Return the temporary name, beside `path`, of a file this process is writing."""
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def open_private(path: Path) -> int:
    """Make an empty file that only this user may open; return its descriptor.

    A file that exists at `path` is removed first.
    """
    path.unlink(missing_ok=True)  # of a process that had our number and died
    # O_EXCL: a link that somebody planted under this name is not followed.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)


def publish(number: int, temporary: Path, path: Path) -> None:
    """Flush a complete file to disk, then rename it from `temporary` to `path`.

    `number` is a descriptor of the file, to which nothing is left to write. The file
    gets the permissions that the user wants new files to have, and its name survives a
    power failure. If this raises an OSError, a file that was at `path` before is
    unchanged.
    """
    os.fsync(number)
    os.fchmod(number, 0o666 & ~UMASK)
    os.replace(temporary, path)
    sync_folder(path.parent)


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
    """The error for a file or folder that is a link, of a wrong kind, or not ours.

    A file in a folder is ours if it belongs to this user or to the owner of the folder.
    """


def reason(error: OSError) -> str:
    """Return the text of `error`, preceded by the file name if it is `Irregular`."""
    text = error.strerror or repr(error)
    return f"{error.filename}: {text}" if isinstance(error, Irregular) else text


def open_entry(path: Path, flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor; refuse anything else.

    `flags` are those of `os.open`; with O_CREAT a missing file is made.

    A file that is opened to write has to belong to this user, or to the owner of its
    folder, as whom file systems that map users may show this user. A file of another
    user may be a hard link to a file elsewhere.

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
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode):
            raise _irregular(path)
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        if writes and status.st_uid not in (os.geteuid(), path.parent.stat().st_uid):
            raise Irregular(errno.EPERM, "it belongs to another user", str(path))
        if flags & os.O_TRUNC:
            os.ftruncate(number, 0)
    except BaseException:
        os.close(number)
        raise
    return number


def _irregular(path: Path) -> Irregular:
    return Irregular(errno.EINVAL, "it is not a regular file", str(path))


def open_to_append(path: Path) -> int:
    """Open a regular file to write at its end, or make it; see `open_entry`."""
    return open_entry(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)


def read_entry(path: Path) -> bytes:
    """Return the content of a regular file; see `open_entry`."""
    with open(open_entry(path), "rb") as file:
        return file.read()


def read_entry_text(path: Path, errors: str = "strict") -> str:
    """Return the text of a regular file in UTF-8; see `open_entry`."""
    return read_entry(path).decode("utf-8", errors)


def check_entry(path: Path) -> None:
    """Raise the errors of `open_entry`, before a library opens `path` by its name."""
    os.close(open_entry(path))


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all."""
    replace_file(path, text.encode())


def append_line(path: Path, line: str) -> None:
    """Append a line to a text file, made if missing; return when it is on disk."""
    number = open_to_append(path)
    with open(number, "ab") as file:
        file.write(f"{line}\n".encode())
        file.flush()
        os.fsync(number)


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


# JSON texts of files that others may have written, and values for JSON texts.


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises
    ------
    json.JSONDecodeError
        The text is not JSON, or is nested more deeply than the parser can follow.
    UnicodeDecodeError
        The bytes are not UTF-8.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise json.JSONDecodeError("nested too deeply", "", 0) from error


def parse_object(text: str | bytes) -> dict[str, Any] | None:
    """Return the object of a JSON text; None for half a text or another value."""
    try:
        value = parse_json(text)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def finite(value: Any) -> Any:
    """Return `value` with None in place of every float that JSON cannot represent."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


# Sealed files: arrays and one JSON document, in an HDF5 file that knows it is whole.
#
# The first 512 bytes (HDF5's user block, so every HDF5 tool opens the file) say what it
# is, how long it is, and the SHA-256 of all that follows. Nothing of a file is believed
# before that agrees, and then only flat arrays of plain numbers are: no groups, no
# links, no filters, nothing stored elsewhere, and never a pickle.

HEADER_BYTES = 512
MAGIC = b"hpcsgd "
# What every version begins with; the rest of the header is of this one.
FIRST_LINE = re.compile(MAGIC + rb"([a-z]{1,32}) (\d{1,4})\n")
HEADER = re.compile(
    FIRST_LINE.pattern + rb"bytes (\d{1,18})\nsha256 ([0-9a-f]{64})\n *"
)
DOCUMENT = "document"
KINDS = "fiu"  # elements that an array may have: real numbers
MOST_DIMENSIONS = 4


class DamagedFile(DataError):
    """The error for a file whose bytes are proven to differ from those written."""


class Unreadable(DataError):
    """The error for a file that the system, or this version, cannot read.

    The file may well be whole.
    """


def write_sealed(
    path: Path,
    kind: str,
    version: int,
    document: Mapping[str, Any],
    arrays: "Mapping[str, Array]",
) -> None:
    """Write document and arrays to a sealed file of `kind`, whole or not at all.

    Raise OSError where there is no room.
    """
    # The image is made in memory: HDF5 takes the interpreter down with it when a
    # disk fills under an open file.
    image = _image(document, arrays)
    digest = hashlib.sha256(image).hexdigest()
    header = f"hpcsgd {kind} {version}\nbytes {len(image)}\nsha256 {digest}\n"
    replace_file(path, header.encode().ljust(HEADER_BYTES), image)


def read_sealed(
    path: Path, kind: str, version: int
) -> "tuple[dict[str, Any], dict[str, Array]]":
    """Return (document, arrays) of a whole sealed file of `kind` and `version`.

    Raise DataError for any other file.
    """
    image = _checked(path, kind, version)
    h5py = _h5py()
    try:
        with h5py.File(h5py.h5f.open_file_image(image)) as file:
            arrays = {name: _array(path, file, name, len(image)) for name in file}
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise _refusal(path, "it is not well-formed HDF5") from error
    return _document(path, arrays.pop(DOCUMENT, None)), arrays


def is_sealed(path: Path, kind: str) -> bool:
    """Return whether the header of a file names `kind`; nothing more is checked."""
    try:
        with open(open_entry(path), "rb") as file:
            match = HEADER.match(file.read(HEADER_BYTES))
    except OSError:
        return False
    return match is not None and match[1].decode() == kind


def check_schema(
    path: Path, document: Mapping[str, Any], schema: Mapping[str, Any]
) -> None:
    """Raise DataError if `document` does not match `schema`.

    It does not match if it lacks a key of the schema, or has a wrong value there. A
    schema is a type; a tuple of schemas, one of which has to fit; [item] for a list;
    {key: schema} for a table with at least these keys; {...: schema} for any keys.
    """
    for key, pattern in schema.items():
        if not _matches(document.get(key, _MISSING), pattern):
            raise _refusal(path, f"its {key} is missing or not what it has to be")


_MISSING = object()


def _matches(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, tuple):
        return any(_matches(value, alternative) for alternative in wanted)
    if isinstance(wanted, list):
        return type(value) is list and all(_matches(v, wanted[0]) for v in value)
    if isinstance(wanted, dict):
        if type(value) is not dict:
            return False
        if ... in wanted:
            return all(_matches(v, wanted[...]) for v in value.values())
        return all(_matches(value.get(k, _MISSING), w) for k, w in wanted.items())
    if wanted is None:
        return value is None
    # A number without a point may stand for a real one; a truth value for nothing.
    return type(value) is wanted or (wanted is float and type(value) is int)


def _image(document: Mapping[str, Any], arrays: "Mapping[str, Array]") -> bytes:
    import numpy as np

    h5py = _h5py()
    text = json.dumps(document).encode()
    # The name is never made on disk; it only tells open images of one process apart.
    name = f"sealed-{id(document)}"
    with h5py.File(name, "w", driver="core", backing_store=False) as file:
        file[DOCUMENT] = np.frombuffer(text, dtype=np.uint8)
        for key, array in arrays.items():
            file[key] = array
        file.flush()
        image: bytes = file.id.get_file_image()
    return image


def unreadable(path: Path, error: OSError) -> Unreadable:
    """Return the error for a file that the system could not read."""
    return Unreadable(
        f"{path} cannot be read ({error.strerror or error}); make it readable, then"
        " try again"
    )


def _checked(path: Path, kind: str, version: int) -> bytes:
    """Return the bytes after the header; refuse a wrong length or SHA-256."""
    try:
        with open(open_entry(path), "rb") as file:
            header = file.read(HEADER_BYTES)
            _check_first_line(path, header, kind, version)
            match = HEADER.fullmatch(header)
            if match is None:
                raise _refusal(path, "its header is not what was written", DamagedFile)
            # Compared before reading: a file may claim to be longer than memory.
            size = os.fstat(file.fileno()).st_size - HEADER_BYTES
            if size != int(match[3]):
                why = f"it has {size} of {int(match[3])} bytes"
                raise _refusal(path, why, DamagedFile)
            image = file.read(size)
    except OSError as error:
        raise unreadable(path, error) from error
    if hashlib.sha256(image).hexdigest() != match[4].decode():
        raise _refusal(path, "its bytes are not those that were written", DamagedFile)
    return image


def _check_first_line(path: Path, content: bytes, kind: str, version: int) -> None:
    """Refuse a file that ends within its header, another kind, or another version."""
    if len(content) < HEADER_BYTES and content.startswith(MAGIC[: len(content)]):
        why = f"it has {len(content)} bytes, less than its header"
        raise _refusal(path, why, DamagedFile)
    match = FIRST_LINE.match(content)
    if match is None or match[1].decode() != kind:
        raise DataError(
            f"{path} is not {_with_article(kind)} of hpcsgd; name a file that hpcsgd"
            " wrote"
        )
    if int(match[2]) != version:
        raise Unreadable(
            f"{path} is a {kind} of version {int(match[2])} and this package reads"
            f" version {version}; use the hpcsgd that wrote it"
        )


def _array(path: Path, file: Any, name: str, limit: int) -> "Array":
    """Return a dataset of the root group; refuse what `write_sealed` never writes."""
    import numpy as np

    h5py = _h5py()
    if not isinstance(file.get(name, getlink=True), h5py.HardLink):
        raise _refusal(path, f"/{name} is a link to elsewhere")
    node = file[name]
    if not isinstance(node, h5py.Dataset):
        raise _refusal(path, f"/{name} is no array")
    plain = (
        node.dtype.kind in KINDS
        and node.dtype.isnative
        and len(node.shape) <= (MOST_DIMENSIONS)
    )
    if not plain or node.id.get_create_plist().get_nfilters() or node.is_virtual:
        raise _refusal(path, f"/{name} is not stored as plain numbers")
    # A file may claim any shape; what it holds is bounded by its length.
    size = int(np.prod(node.shape, dtype=object)) * node.dtype.itemsize
    if size > limit or node.external or node.id.get_storage_size() != size:
        raise _refusal(path, f"/{name} claims {size} bytes that are not in the file")
    array: Array = node[()] if node.shape else np.asarray(node[()])
    return array


def _document(path: Path, text: "Array | None") -> dict[str, Any]:
    try:
        document = parse_json(b"" if text is None else text.tobytes())
    except ValueError as error:
        raise _refusal(path, "its document is not JSON") from error
    if not isinstance(document, dict):
        raise _refusal(path, "its document is no table")
    return document


def _refusal(path: Path, why: str, kind: type[DataError] = DataError) -> DataError:
    return kind(
        f"{path} cannot be used: {why}; take a copy that is whole, or make it again"
    )


def _h5py() -> Any:
    try:
        import h5py
    except ImportError as missing:
        raise MissingPackage(
            "models and checkpoints need h5py; install it with: pip install h5py"
        ) from missing
    return h5py


def _with_article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"


# One process at a time: locks on files, which the system frees however a process ends.

NAME = ".in-use"  # in a run folder
TRIES, PAUSE = 5, 0.02  # to lock it, and seconds between two


def open_locked(
    path: Path,
    open_file: Callable[[Path], int],
    tries: int = 1,
    lock_required: bool = False,
) -> int:
    """Open a file and lock it for this process alone, until it is closed.

    Parameters
    ----------
    path : the file; its last owner may remove or rename it just then
    open_file : opens `path`, or makes it, and returns the descriptor
    tries : attempts to lock it, `PAUSE` seconds apart; more than one for a file that
        `user_of` locks for a moment
    lock_required : raise OSError on a file system without locks; if False, the file is
        opened there without a lock

    Raises
    ------
    BlockingIOError
        Another process has locked it.
    OSError
        The system refuses to open it, or to lock it where a lock is required.
    """
    while True:
        number = open_file(path)
        try:
            _lock(number, tries)
        except OSError as error:
            if lock_required or isinstance(error, BlockingIOError):
                os.close(number)
                raise
        # Between open and lock the last owner may have removed or renamed the file.
        if _is_at(number, path):
            return number
        os.close(number)


class FolderLock:
    """A lock on a run folder, from `take` to `release` or to the end of the process."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.file: IO[str] | None = None

    def take(self) -> None:
        """Take the lock; raise ConfigError if another run uses the folder."""
        try:
            number = open_locked(self.path, open_to_append, TRIES)
        except BlockingIOError as error:
            raise ConfigError(
                f"--out {self.path.parent} is in use by {_owner(self.path)}; choose"
                " another folder, or wait until that run has ended"
            ) from error
        self.file = open(number, "a", encoding="utf-8")  # noqa: SIM115
        self.file.truncate(0)
        self.file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        self.file.flush()

    def release(self) -> None:
        """Remove the lock file and release the lock."""
        if self.file is not None:
            # While it is still ours; the folder may be gone, or have become a file.
            with suppress(OSError):
                self.path.unlink()
            self.file.close()
            self.file = None


def user_of(folder: Path) -> str:
    """Return the line on the process that has locked `folder` for a run.

    It is "process PID on HOST", or "another run" if the lock file is empty or cannot be
    read; "" if the folder is not locked or that cannot be found out.
    """
    try:
        with open(open_entry(folder / NAME), "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _owner(folder / NAME)
    except OSError:
        pass
    return ""


def is_abandoned(folder: Path) -> bool:
    """Return whether a process of this machine has trained in `folder` and was killed.

    The lock file names the process, which would have removed the file at a regular end.
    That the file is not locked does not show that the process has ended: there are file
    systems without locks.
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


def _lock(number: int, tries: int) -> None:
    """Lock a file for this process alone.

    Raise BlockingIOError if another process has it locked at each of `tries` attempts,
    which are `PAUSE` seconds apart.
    """
    for left in reversed(range(tries)):
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if not left:
                raise
            time.sleep(PAUSE)


def _owner(path: Path) -> str:
    try:
        return read_entry_text(path, "replace").strip() or "another run"
    except OSError:  # its run has just ended
        return "another run"


def _is_at(number: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(number), path.stat())
    except OSError:
        return False


# TOML texts, and single values as TOML writes and reads them.


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises
    ------
    tomllib.TOMLDecodeError
        The text is not TOML, or is nested more deeply than the parser can follow.
    """
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise tomllib.TOMLDecodeError(
            "its tables or lists are nested more deeply than any setting is"
        ) from error


def toml_value(text: str) -> Any:
    """Return the value of a TOML text, or the text itself if it is not TOML."""
    try:
        return parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def toml_literal(value: Any) -> str:
    """Return `value` as a TOML text."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, which takes DEL for a control character too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(list(value) if isinstance(value, tuple) else value)


def names_in(place: str, value: Any) -> tuple[str, ...]:
    """Return a list of names as a tuple.

    Raise ConfigError for any other value, such as a single name. `place` names the
    setting.
    """
    if not isinstance(value, list | tuple) or not all(
        isinstance(name, str) for name in value
    ):
        raise ConfigError(f'{place} = {value!r} must be a list of names, as ["mine"]')
    return tuple(value)


def numbers(place: str, value: Any) -> tuple[float, ...]:
    """Return a list of numbers as a tuple of float.

    Raise ConfigError for any other value, such as a single number. `place` names the
    setting.
    """
    good = isinstance(value, list | tuple) and all(
        isinstance(number, int | float) and not isinstance(number, bool)
        for number in value
    )
    if not good:
        raise ConfigError(
            f"{place} = {value!r} must be a list of numbers, as [1e-5, 1e-4]"
        )
    return tuple(float(number) for number in value)


# Sizes of files, messages and memory in sentences.

UNIT_BYTES = {
    "bytes": 1,
    "kB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
    "TiB": 2**40,
}
BINARY = ("bytes", "KiB", "MiB", "GiB", "TiB")
DECIMAL = ("bytes", "kB", "MB", "GB")


def format_bytes(
    size: float, units: Sequence[str] = BINARY, digits: str = ".3g"
) -> str:
    """Return `size`, a number of bytes, as text in the largest unit that fits into it.

    `units` are keys of `UNIT_BYTES` in ascending order. `digits` is the format
    specification of the number; in the unit "bytes" it is rounded to a whole number.
    """
    fitting = [unit for unit in units if UNIT_BYTES[unit] <= size]
    unit = fitting[-1] if fitting else units[0]
    return f"{size / UNIT_BYTES[unit]:{'.0f' if unit == 'bytes' else digits}} {unit}"


# Where kernels/, slurm/ and data/ are: in a wheel, an editable install, a checkout.

PACKAGE = Path(__file__).parent


def asset_path(name: str) -> Path:
    """Return the path of the file or folder `name`, for example "kernels/cpu/rows.c".

    A wheel contains the folders kernels, slurm and data inside the package; an editable
    install and a bare checkout have them beside it.
    """
    for base in (PACKAGE / "_shared", PACKAGE.parent):
        path = base / name
        if path.exists() and _is_ours(base):
            return path
    raise ConfigError(
        f"{name} is not part of this installation; install hpcsgd again from its wheel"
    )


def _is_ours(base: Path) -> bool:
    """Return whether `base` belongs to this package, as site-packages does not."""
    return base.name == "_shared" or (base / "setup.cfg").exists()


# Loading of the compiled kernels, or the reason why they are missing.

SWITCH = "HPCSGD_NATIVE"  # off: leave the compiled kernels alone
# The letters of a C signature: an address, bytes, and numbers; none is `void`.
C_TYPES = {
    "p": ctypes.c_void_p,
    "s": ctypes.c_char_p,
    "l": ctypes.c_int64,
    "i": ctypes.c_int,
    "f": ctypes.c_float,
    "d": ctypes.c_double,
    "": None,
}


def declare(library: Any, name: str, result: str, arguments: str) -> Any:
    """Return the C function `name` of a library, with its signature declared.

    `result` and `arguments` are letters of `C_TYPES`.
    """
    function = getattr(library, name)
    function.restype = C_TYPES[result]
    function.argtypes = [C_TYPES[letter] for letter in arguments]
    return function


def load_kernels(
    folder: Path,
    name: str,
    instead: str,
    signatures: Mapping[str, tuple[str, str]] | None = None,
) -> tuple[Any, str]:
    """Load the compiled object `name` of `folder` and declare its functions.

    Parameters
    ----------
    folder : Path
    name : str, the file without the suffix of an extension
    instead : str, what does the work where the object is missing
    signatures : dict, function -> (result, arguments) in the letters of `C_TYPES`

    Returns
    -------
    library : CDLL, or None where it is missing or switched off
    why : str, "compiled: FILE" if the library is loaded, else why it is not
    """
    library, why = _load(folder, name, instead)
    if library is not None:
        for function, (result, arguments) in (signatures or {}).items():
            declare(library, function, result, arguments)
    return library, why


def _load(folder: Path, name: str, instead: str) -> tuple[Any, str]:
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "no"):
        return None, f"switched off by {SWITCH}"
    for suffix in EXTENSION_SUFFIXES:
        path = folder / f"{name}{suffix}"
        if path.exists():
            return _open(path, instead)
    return None, (
        "not compiled in this installation (no C compiler when it was installed,"
        f" or a bare checkout); {instead} is used"
    )


def _open(path: Path, instead: str) -> tuple[Any, str]:
    try:
        return ctypes.CDLL(str(path)), f"compiled: {path.name}"
    except OSError as error:
        return None, f"{path.name} does not load: {error}; {instead} is used"

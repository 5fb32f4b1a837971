"""Opening an HDF5 file of data: what it must hold before a row of it is read."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from hpcsgd.data.layout import COLUMNS
from hpcsgd.errors import ConfigError, DataError, MissingPackage

PARTS = ("indptr", "indices", "data")
MOST = np.iinfo(np.int64).max  # columns that an index of 64 bits can name


def need_h5py() -> Any:
    """h5py, or a sentence that says how to get it."""
    try:
        import h5py
    except ImportError as missing:
        raise MissingPackage(
            "HDF5 files need h5py; install it with: pip install h5py"
        ) from missing
    return h5py


def open_parallel(path: Path, mpi: Any) -> Any:
    """The file, open for reading through MPI-IO by all ranks of a communicator."""
    if not need_h5py().get_config().mpi:
        raise ConfigError(
            "hdf5 = 'mpio' needs an h5py that was built with MPI; leave --hdf5 out"
            " (every rank then reads for itself), or build h5py with HDF5_MPI=ON"
        )
    if mpi is None:
        raise ConfigError(
            "hdf5 = 'mpio' needs ranks of MPI; start them with mpiexec or --ranks,"
            " or leave --hdf5 out"
        )
    return open_hdf5(path, driver="mpio", comm=mpi)


def open_hdf5(path: Path, **driver: Any) -> Any:
    """The file, open for reading.

    Without a lock: nobody writes to a store under its own name, some parallel file
    systems refuse locks, and thousands of ranks would ask for one at the same moment.
    """
    check_file(path, "an HDF5 file")
    if not os.access(path, os.R_OK):
        raise DataError(f"{path} may not be read by this user; change its permissions")
    try:
        return need_h5py().File(path, "r", locking=False, **driver)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read as HDF5 (truncated, or another format);"
            f" {_remedy(path)}"
        ) from error


def _remedy(path: Path) -> str:
    """By its name: text is converted, and what should have been HDF5 is not."""
    if path.suffix in (".h5", ".hdf5", ".hdf", ""):
        return "write it again, for example with: hpcsgd data synth"
    return f"convert text first: hpcsgd data convert {path} {path.with_suffix('.h5')}"


def check_finished(path: Path, file: Any) -> None:
    """Refuse what cannot be learnt from, in one sentence."""
    if not file.attrs.get("finished", True):
        raise DataError(f"{path} was never finished; write it again")
    if "X" not in file:
        raise lacks("X", path, file)


def shape_of(path: Path, file: Any) -> tuple[int, int]:
    """Rows and columns of a dense /X, or of a CSR one."""
    X = node_of(path, file, "X")
    if isinstance(X, need_h5py().Group) and set(PARTS) <= set(X):
        return _sparse_shape(path, file, X)
    if (
        not isinstance(X, need_h5py().Dataset)
        or len(X.shape or ()) != 2
        or 0 in X.shape
    ):
        raise DataError(
            f"{path}: /X must be a dense rows x columns dataset, or a group of indptr,"
            " indices and data; write it as one"
        )
    _check_numbers(path, "X", X)
    return int(X.shape[0]), int(X.shape[1])


def _sparse_shape(path: Path, file: Any, X: Any) -> tuple[int, int]:
    shape = X.attrs.get("shape", file.attrs.get("shape"))
    for name in PARTS:
        node = node_of(path, file, f"X/{name}")
        _check_numbers(path, f"X/{name}", node, "fiub" if name == "data" else "iu")
    rows = len(X["indptr"]) - 1
    is_pair = np.shape(shape) == (2,)
    if not is_pair or shape[0] != rows or rows < 1 or not 1 <= shape[1] <= MOST:
        raise DataError(
            f"{path}: /X has no attribute shape (rows, columns) that suits its indptr;"
            " write it again"
        )
    ends = (int(X["indptr"][0]), int(X["indptr"][rows]))
    if ends != (0, len(X["data"])) or len(X["indices"]) != len(X["data"]):
        raise DataError(
            f"{path}: /X/indptr, indices and data do not belong together"
            f" ({ends[1]}, {len(X['indices'])} and {len(X['data'])} values);"
            " write them again"
        )
    return rows, int(shape[1])


def check_columns(path: Path, file: Any, rows: int) -> None:
    """Refuse targets, weights and offsets that do not suit the rows."""
    for name in COLUMNS:
        if name not in file:
            continue
        _check_numbers(path, name, node_of(path, file, name))
        if file[name].shape not in ((rows,), (rows, 1)):
            raise DataError(
                f"{path}: /{name} has shape {file[name].shape} and /X has"
                f" {rows} rows; write one value for each row"
            )


def lacks(name: str, path: Path, file: Any) -> DataError:
    """The error of a dataset that is not there."""
    return DataError(
        f"{path} has no /{name}; it holds {sorted(file) or 'nothing'},"
        " and hpcsgd reads /X (rows x columns) and /y"
    )


def node_of(path: Path, file: Any, name: str) -> Any:
    """Return what has this name; it may be a link into another file.

    HDF5 raises KeyError for a link to nothing, RuntimeError for one to itself.
    """
    try:
        return file[name]
    except (KeyError, RuntimeError) as error:
        raise DataError(
            f"{path}: /{name} is a link that leads nowhere; put back what it names,"
            " or write the values themselves"
        ) from error


def dtype_of(node: Any) -> Any:
    """Return the type of a data set's values; None for what holds no values.

    That is a group, or a type that the file has under a name.
    """
    return node.dtype if isinstance(node, need_h5py().Dataset) else None


def _check_numbers(path: Path, name: str, node: Any, kinds: str = "fiub") -> None:
    dtype = dtype_of(node)
    if dtype is None or dtype.kind not in kinds or dtype.itemsize > 8:
        wanted = "real numbers of at most 64 bits" if "f" in kinds else "whole numbers"
        raise DataError(
            f"{path}: /{name} must hold {wanted}, not"
            f" {'a group or a type' if dtype is None else dtype}; encode it and write"
            " it again"
        )
    if node.is_virtual:
        check_sources(path, name, node)


def check_sources(path: Path, name: str, node: Any) -> None:
    """HDF5 reads the fill value where a file of a virtual data set is missing."""
    for source in node.virtual_sources():
        other = Path(source.file_name)
        if "%" in other.name or source.file_name == ".":
            continue  # a pattern of files, or this one
        if not any(place.exists() for place in (path.parent / other, other)):
            raise DataError(
                f"{path}: /{name} takes values from {other}, which does not exist; put"
                " it back, or write the values themselves"
            )


def check_file(path: Path, what: str) -> None:
    """Refuse what is no readable file, in one sentence."""
    if not path.exists():
        raise DataError(f"{path} does not exist; check the name")
    if path.is_dir():
        raise DataError(f"{path} is a folder; give the name of {what}")
    if not path.is_file():  # a pipe would be waited for
        raise DataError(f"{path} is not a regular file; write it to one first")

"""How a store lies in its file: attributes, element types, tiles and blocks of rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError, DataError
from hpcsgd.storage import decode_element, encode_element

Array = NDArray[Any]
FORMAT, FORMAT_VERSION = "hpcsgd", 2
COLUMNS = {"y": "<f8", "sample_weight": "<f8", "offset": "<f8", "qid": "<i8"}
TILE_BYTES = 2**20  # of a chunk: large enough to stream, small enough to cut columns
TILE_COLUMNS = 256
SPARSE_ROWS = 4096  # rows of one block of a CSR matrix
PIECE = 2**16  # entries of one chunk of a sparse matrix's indices and data

# name -> NumPy dtype as stored; what has no such dtype is held as its bits
ELEMENTS = {
    "fp64": "<f8",
    "fp32": "<f4",
    "fp16": "<f2",
    "bf16": "<u2",
    "fp8-e4m3": "u1",
    "fp8-e5m2": "u1",
}


@dataclass(frozen=True)
class Layout:
    """What is the same for every row of a store."""

    cols: int
    element: str = "fp32"
    scale: float = 1.0  # values are stored elements times this
    is_sparse: bool = False
    block_rows: int = 0  # rows under one checksum; 0: as suits the width
    tile_cols: int = 0  # columns under one checksum

    def __post_init__(self) -> None:
        if self.element not in ELEMENTS:
            raise ConfigError(
                f"unknown element type {self.element!r}; known: {', '.join(ELEMENTS)}"
            )
        if self.cols < 1:
            raise ConfigError(f"{self.cols} columns: a store needs at least one")
        if not (np.isfinite(self.scale) and self.scale > 0):
            raise ConfigError(f"scale = {self.scale} must be above 0 and finite")
        rows, cols = tile_shape(self.cols, self.stored.itemsize, self.is_sparse)
        object.__setattr__(self, "block_rows", self.block_rows or rows)
        object.__setattr__(self, "tile_cols", self.tile_cols or cols)

    @property
    def stored(self) -> np.dtype[Any]:
        """The dtype on disk."""
        return np.dtype(ELEMENTS[self.element])

    @property
    def index(self) -> np.dtype[Any]:
        """The dtype of column numbers of a sparse matrix."""
        return np.dtype("<i4" if self.cols <= np.iinfo(np.int32).max else "<i8")

    @property
    def tiles(self) -> int:
        """Tiles side by side."""
        return -(-self.cols // self.tile_cols)

    def encode(self, values: Array) -> Array:
        """`values` rounded to nearest even into what is stored."""
        return encode_element(values, self.element, self.stored, self.scale)

    def decode(self, stored: Array) -> Array:
        """The values of stored elements: float64 of fp64, else float32."""
        return decode_element(stored, self.element, self.scale)

    def attributes(self) -> dict[str, Any]:
        """As they stand in the file, without those that grow with the rows."""
        return {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "element": self.element,
            "scale": self.scale,
            "sparse": self.is_sparse,
            "block_rows": self.block_rows,
            "tile_columns": self.tile_cols,
        }


def layout_of(path: Any, attributes: Any) -> Layout | None:
    """What the attributes of a file say; None where they are not a store's."""
    if _text(attributes.get("format")) != FORMAT:
        return None
    version = attributes.get("format_version")
    if not isinstance(version, int | np.integer) or version > FORMAT_VERSION:
        raise DataError(
            f"{path} has format version {version} and this hpcsgd reads up to"
            f" {FORMAT_VERSION}; use a newer hpcsgd or write the file again"
        )
    if version < 2:
        return None
    try:
        return Layout(
            cols=int(attributes["shape"][1]),
            element=str(_text(attributes["element"])),
            scale=float(attributes["scale"]),
            is_sparse=bool(attributes["sparse"]),
            block_rows=int(attributes["block_rows"]),
            tile_cols=int(attributes["tile_columns"]),
        )
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise DataError(
            f"{path} has attributes that are incomplete or wrong ({error});"
            " write the file again"
        ) from error


def widen(part: slice, size: int, whole: int) -> slice:
    """`part` of range(whole) widened to multiples of `size`."""
    stop = min(-(-part.stop // size) * size, whole)
    return slice(part.start // size * size, max(stop, part.start))


def tile_shape(cols: int, item: int, is_sparse: bool) -> tuple[int, int]:
    """Rows and columns of about a megabyte that row ranges and slabs both like."""
    if is_sparse:
        return SPARSE_ROWS, cols
    width = min(cols, TILE_COLUMNS)
    return max(TILE_BYTES // (item * width), 1), width


def _text(value: Any) -> Any:
    return value.decode(errors="replace") if isinstance(value, bytes) else value

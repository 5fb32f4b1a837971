"""Rows to predict as a model was trained on them: the same columns, scaled alike.

Raw rows are prepared while they are read: x ← (x − mean) / scale with the moments of
the training data, then x ← x / ‖x‖ where its rows have length 1.
"""

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from hpcsgd.data.preparation import Preparation
from hpcsgd.data.readers import RowReader, is_sparse, preparation_of
from hpcsgd.errors import DataError

Array = NDArray[Any]
MOST_NAMED = 10  # columns that an error lists
MOMENTS = "the column means and scales of the training data"
SCALED_NOW = f"rows were raw: scaled with {MOMENTS}"
SCALED_BEFORE = f"rows were scaled already, with {MOMENTS}"
SHORTENED = "rows were brought to length 1, as those of the training data"


class PreparedReader:
    """The rows of a reader in float64, prepared while they are read.

    Sparse rows stay sparse where columns are only scaled; where they are centred too,
    blocks of them are dense.
    """

    def __init__(self, reader: RowReader, preparation: Preparation) -> None:
        self.reader, self.applied = reader, preparation
        self.rows, self.cols = reader.rows, reader.cols
        scales = preparation.scales
        self.is_sparse = is_sparse(reader) and (scales is None or scales.mean is None)
        if self.is_sparse and hasattr(reader, "nnz"):
            self.nnz = reader.nnz
        self.block_rows = getattr(reader, "block_rows", 1)

    def read(self, rows: slice, cols: slice) -> Array:
        """Return a dense block in float64."""
        prepared: Array = self.applied.apply(self.reader.read(rows, self._every))
        return prepared[:, cols]

    def read_csr(self, rows: slice, cols: slice) -> Any:
        """Return a sparse block in float64, columns ascending in each row."""
        from scipy.sparse import csr_array

        raw = csr_array(self.reader.read_csr(rows, self._every))
        prepared = csr_array(self.applied.apply(raw))[:, cols]
        prepared.sort_indices()
        return prepared

    def targets(self, rows: slice) -> Array:
        """Return the targets of these rows, float64."""
        return self.reader.targets(rows)

    def sample_weight(self, rows: slice) -> Array | None:
        """Return the weights of these rows, float64, or None."""
        return self.reader.sample_weight(rows)

    def offset(self, rows: slice) -> Array | None:
        """Return the offsets of these rows, float64, or None."""
        return self.reader.offset(rows)

    def describe(self) -> dict[str, Any]:
        """Return what a result remembers of its data."""
        return self.reader.describe()

    def close(self) -> None:
        """Let go of the file."""
        self.reader.close()

    @property
    def _every(self) -> slice:
        return slice(0, self.cols)


def prepare(
    reader: RowReader, wanted: Preparation | None, trained_on: str = "train.h5"
) -> tuple[RowReader, str]:
    """Return the rows as the training data was prepared, and a sentence that says how.

    `wanted` is None where nobody knows: rows are then taken as they are. `trained_on`
    is the file of the training, as a remedy names it. Rows that were scaled otherwise
    are refused.
    """
    given = preparation_of(reader)
    if wanted is None:
        return reader, ""
    missing = _missing(wanted, given)
    if missing is None:
        raise _scaled_otherwise(reader, wanted, given, trained_on)
    if missing.is_raw:
        return reader, "" if wanted.scales is None else SCALED_BEFORE
    said = SHORTENED if missing.scales is None else SCALED_NOW
    return PreparedReader(reader, missing), said


def _missing(wanted: Preparation, given: Preparation) -> Preparation | None:
    """What is still to be done to rows; None where it cannot be done to them."""
    if given.is_raw:
        return wanted
    if given.unit_rows and not wanted.unit_rows:
        return None
    if not wanted.scales_as(given):
        return None
    return Preparation(None, wanted.unit_rows and not given.unit_rows)


def _scaled_otherwise(
    reader: RowReader, wanted: Preparation, given: Preparation, trained_on: str
) -> DataError:
    """The error of rows that the model cannot judge."""
    data = str(reader.describe().get("path", "the data"))
    same = wanted.unit_rows == given.unit_rows
    if wanted.is_raw or (wanted.scales is None and given.scales is not None):
        what = "scaled columns" if given.scales is not None else "rows of length 1"
        return DataError(
            f"{data} has {what} and the model was trained on raw rows; give it raw rows"
        )
    if wanted.scales is not None and given.scales is not None and same:
        what = "columns scaled with other means and scales than the training data"
    else:
        what = "rows that were prepared otherwise than the training data"
    return DataError(
        f"{data} has {what}; give the raw rows, or prepare them as the training data"
        f" with: hpcsgd data convert --like {trained_on}"
    )


def check_names(
    wanted: Sequence[str] | None, given: Sequence[str] | None, remedy: str
) -> None:
    """Refuse columns of other names than those of the training, or in another order.

    Data without names is taken by position, as scikit-learn does. `remedy` says how to
    bring columns into order.
    """
    if wanted is None or given is None or list(wanted) == list(given):
        return  # of one that has none, columns are taken by their place
    lacking, unknown = differing(wanted, given)
    if not lacking and not unknown and len(wanted) == len(given):
        place = next(k for k, name in enumerate(wanted) if given[k] != name)
        raise DataError(
            f"the columns are in another order than those of the training: column"
            f" {place} is {given[place]!r} and was {wanted[place]!r}; {remedy}"
        )
    raise other_columns(lacking, unknown)


def differing(
    wanted: Sequence[str], given: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Return the names that are missing, and those that nobody wants."""
    has, wants = set(given), set(wanted)
    lacking = [name for name in wanted if name not in has]
    return lacking, [name for name in given if name not in wants]


def other_columns(
    lacking: Sequence[str], unknown: Sequence[str], whose: str = "the data"
) -> DataError:
    """The error of columns that are not those of the training."""
    parts = []
    if lacking:
        parts.append(f"lacks the columns {_listed(lacking)}")
    if unknown:
        parts.append(f"has the columns {_listed(unknown)} beyond them")
    said = " and ".join(parts) or "has columns of the same name twice"
    return DataError(
        f"{whose} has other columns than the training data: it {said}; give exactly"
        " the columns of the training"
    )


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(repr(name) for name in names[:MOST_NAMED])
    more = len(names) - MOST_NAMED
    return f"{shown} and {more} more" if more > 0 else shown

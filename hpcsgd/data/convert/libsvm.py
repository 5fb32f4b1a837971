"""LIBSVM files as sources of rows; `parsers.py` parses their lines."""

import re
from pathlib import Path
from typing import Any

import scipy.sparse

from hpcsgd.data.convert import parsers
from hpcsgd.data.convert.parsers import Pairs
from hpcsgd.data.convert.sources import Outline, SourceColumns, SourceRows
from hpcsgd.data.convert.text import Fault, PassCounts, TextChunk, TextSource, pieces
from hpcsgd.data.convert.transform import ColumnMoments
from hpcsgd.errors import ConfigError, DataError

# The first row up to its second token; group 1 matches if that token is a qid.
FIRST = re.compile(rb"^[ \t\r\v\f]*[^ \t\r\v\f\n#]+[ \t\r\v\f]*(qid:)?", re.MULTILINE)


class LibsvmSource(TextSource):
    """Rows of a LIBSVM file, plain or compressed; `X` is a csr_array of float64.

    If the first row has a qid, all rows must have one, otherwise none. X has `cols`
    columns also if the text has no values in the last of them.
    """

    fills = False

    def __init__(
        self, path: str | Path, index_base: str | int = "auto", cols: int | None = None
    ) -> None:
        if str(index_base) not in ("auto", "0", "1"):
            raise ConfigError(
                f"--index-base {index_base!r} is unknown; use auto, 0 or 1"
            )
        if cols is not None and not 1 <= cols <= 2**31:
            raise ConfigError(f"--cols {cols} must be at least 1 and at most 2^31")
        self.path = Path(path)
        self.cols = cols
        self.index_base = str(index_base)
        self.least = 1 if self.index_base == "1" else 0

    def _read_head(self) -> None:
        """Set `queried` to True if the first row of the file has a qid."""
        rows = (FIRST.search(p.text) for p in pieces(self.path, size=self.piece))
        first = next((row for row in rows if row), None)
        self.queried = first is not None and first.group(1) is not None

    def scan(self, piece: TextChunk, keep: bool) -> tuple[PassCounts, Any]:
        """Return the counts of a piece, and with `keep` its X.

        Columns of X are the indices as written, less 1 if `index_base` is 1.
        """
        pairs = self._parse(piece, self.least, keep)
        lowest = pairs.lowest if pairs.count else PassCounts.lowest
        tally = PassCounts(pairs.rows, pairs.count, lowest, pairs.highest, piece.end)
        width = max(pairs.highest - self.least + 1, 1)
        return tally, _matrix(pairs, width) if keep else None

    def outline_of(self, tally: PassCounts, moments: ColumnMoments) -> Outline:
        """Return the outline of the file from the counts of all its pieces.

        For index base "auto", columns are counted from 0 if there is an index 0, else
        from 1.
        """
        base = self.least
        if self.index_base == "auto":
            base = min(tally.lowest, 1)
        if not tally.rows or tally.highest < base:
            what = "no features" if tally.rows else "no rows"
            raise DataError(f"{self.path} holds {what}; give a file of labelled rows")
        cols = tally.highest - base + 1
        if self.cols is not None and cols > self.cols:
            raise DataError(
                f"{self.path} has {cols} columns and --cols says {self.cols}; give a"
                f" number of at least {cols}"
            )
        return Outline(
            rows=tally.rows,
            cols=self.cols or cols,
            nnz=tally.stored,
            labelled=True,
            size=tally.end,
            columns=SourceColumns(index_base=base),
        )

    def moments_of(self, outline: Outline, moments: ColumnMoments) -> ColumnMoments:
        """Return the moments of the columns of X.

        Values that the file leaves out count as 0.
        """
        first = (outline.columns.index_base or 0) - self.least
        return moments.of_columns(first, outline.cols).with_zeros()

    def rows(self, piece: TextChunk, outline: Outline) -> SourceRows:
        """Return the rows of a piece: sparse X, labels, and qids if there are any."""
        base = outline.columns.index_base or 0
        pairs = self._parse(piece, base, keep=True)
        if pairs.highest - base >= outline.cols:
            raise DataError(
                f"{self.path} changed between the two passes of the conversion; wait"
                " until it is complete and convert it again"
            )
        queries = pairs.queries if self.queried else None
        X = _matrix(pairs, outline.cols)
        return SourceRows(X, pairs.labels, piece.end, queries=queries)

    def _parse(self, piece: TextChunk, base: int, keep: bool) -> Pairs:
        try:
            return parsers.parse_libsvm(piece.text, base, keep, self.queried)
        except Fault as fault:
            raise self.refused(piece, fault) from None


def _matrix(found: Pairs, cols: int) -> Any:
    parts = (found.values, found.indices, found.starts)
    return scipy.sparse.csr_array(parts, shape=(found.rows, cols))

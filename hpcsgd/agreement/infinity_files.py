"""Where the states of a run lie, and how a run finds them again."""

from base64 import b64decode, b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcsgd.comm.grid import Grid
from hpcsgd.errors import DataError
from hpcsgd.products.base import Array, State
from hpcsgd.tiles import Layout, Store, columns_for
from hpcsgd.tiles.pipeline import RING

TEMPORARY = 4  # arrays of a tile that a rule makes on its way
FOLDER = "tiles"


@dataclass(frozen=True)
class Place:
    """The folder, the tile and the policy of a run."""

    folder: Path
    columns: int  # of the data
    parts: tuple[slice, ...]  # of all members
    height: int  # columns of a tile
    direct: bool
    sync: bool

    def store(self, grid: Grid, widths: dict[str, int], dtype: np.dtype[Any]) -> Store:
        """The files of this rank."""
        part = self.parts[grid.member]
        layout = Layout(
            columns=self.columns,
            widths=widths,
            dtype=dtype.str,
            height=self.height,
            replicas=grid.replicas.size,
            first=part.start,
            held=part.stop - part.start,
        )
        folder = self.folder / f"r{grid.replica}c{grid.member}"
        return Store(folder, layout, grid.replica, self.direct, self.sync)

    def stand(self, grid: Grid, store: Store) -> None:
        """Open the newest step that all ranks have."""
        own = [stamp.version for stamp in grid.world.together(store.versions)]
        of_all = grid.world.exchange_objects(own)
        common = set(of_all[0]).intersection(*of_all[1:])
        grid.world.together(lambda: _open(store, common))


def _open(store: Store, common: set[int]) -> None:
    if not common:
        raise DataError(
            f"{store.folder.parent} holds no step that is complete on all ranks; bring"
            " the files back, or start anew with --resume no"
        )
    store.open_at(max(common))


def tile_height(
    budget: float, widest: int, columns: int, words: int, rows: int, itemsize: int
) -> int:
    """Columns of a tile, of which so many bytes are held at a time.

    The ring of states, w and G whole, what a rule makes on its way, `rows` of the
    batch, and the tile once more in float64 where a loss is taken.
    """
    held = RING * words + (2 + TEMPORARY) * columns + rows
    return columns_for(budget, held * itemsize + 8 * columns, widest)


def document_of(state: State, exchanges: int) -> dict[str, Any]:
    """What belongs to a step beside the tiles."""
    arrays = dict(state.shared)
    if state.intercept is not None:
        arrays["intercept"] = state.intercept
    return {
        "exchanges": exchanges,
        "arrays": {name: _text(array) for name, array in sorted(arrays.items())},
    }


def put_back(document: dict[str, Any], state: State) -> None:
    """Make it so again."""
    known = document["arrays"]
    for name, array in state.shared.items():
        array[...] = _array(known[name], array)
    if state.intercept is not None:
        state.intercept[...] = _array(known["intercept"], state.intercept)


def _text(array: Array) -> str:
    return b64encode(np.ascontiguousarray(array).tobytes()).decode()


def _array(text: str, like: Array) -> Array:
    return np.frombuffer(b64decode(text), dtype=like.dtype).reshape(like.shape)

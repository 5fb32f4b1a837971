"""Where the states of a run lie, and how a run finds them again."""

import logging
import shutil
from base64 import b64decode, b64encode
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hpcsgd.agreement.infinity_network import ALONE, TOGETHER
from hpcsgd.comm.grid import Grid
from hpcsgd.errors import DataError
from hpcsgd.files import own_folder
from hpcsgd.products.base import Array, State
from hpcsgd.tiles import Layout, Store, columns_for
from hpcsgd.tiles.files import unreadable
from hpcsgd.tiles.generation import Generation, generations, place_in, remove
from hpcsgd.tiles.pipeline import RING
from hpcsgd.tiles.plan import PAGE
from hpcsgd.tiles.stamp import Stamp
from hpcsgd.tiles.store import CHECKSUMS

log = logging.getLogger(__name__)
TEMPORARY = 4  # arrays of a tile that a rule makes on its way
FOLDER = "tiles"
RUN = "run"  # in stamps and in checkpoints: which run these states are of


@dataclass(frozen=True)
class Place:
    """The folder, the tile and the policy of a run."""

    folder: Path
    columns: int  # of the data
    parts: tuple[slice, ...]  # of all members
    height: int  # columns of a tile
    direct: bool
    sync: bool
    is_of_a_run: bool = False  # it lies in the run folder: nobody has named it

    def check(self) -> None:
        """Refuse a link in place of a folder of the run."""
        if self.is_of_a_run:
            try:
                own_folder(self.folder.parent, self.folder.name)
            except OSError as error:
                raise unreadable(self.folder, error) from error

    def layout(
        self, grid: Grid, widths: dict[str, int], dtype: np.dtype[Any]
    ) -> Layout:
        """Of the files of this rank."""
        part = self.parts[grid.member]
        return Layout(
            columns=self.columns,
            widths=widths,
            dtype=dtype.str,
            height=self.height,
            replicas=grid.replicas.size,
            first=part.start,
            held=part.stop - part.start,
        )

    def store(self, grid: Grid, layout: Layout, generation: int) -> Store:
        """The files of this rank."""
        folder = place_in(self.folder, generation, grid.replica, grid.member)
        return Store(folder, layout, grid.replica, self.direct, self.sync)

    def fresh(self, grid: Grid, layout: Layout, document: dict[str, Any]) -> Store:
        """Those of a run that begins; what an earlier one left in the folder goes."""
        world = grid.world
        world.together(lambda: self._clear(grid, 0))
        store = self.store(grid, layout, 1)
        world.together(lambda: store.create(document))
        return store

    def earlier(self, grid: Grid, layout: Layout, run: str) -> Store:
        """Those of the run `run` that goes on, at the newest step that all have."""
        world = grid.world
        of_all = world.exchange_objects(world.together(self._generations))
        for number in sorted(set().union(*of_all), reverse=True):
            store = self._same(grid, layout, number, run) or self._dealt(
                grid, layout, number, max(map(max, filter(None, of_all))), run
            )
            if store is not None:
                return store
        raise _nothing(self.folder)

    def _generations(self) -> list[int]:
        return generations(self.folder)

    def _same(self, grid: Grid, layout: Layout, number: int, run: str) -> Store | None:
        """Where every rank finds files of its own."""
        world, store = grid.world, self.store(grid, layout, number)
        stamps = world.together(store.versions)
        of_all = world.exchange_objects([stamp.version for stamp in stamps])
        common = set(of_all[0]).intersection(*of_all[1:])
        if not common:
            return None
        world.together(lambda: self._check(stamps[0].document["state"], run))
        _note_unchecked(self.folder, stamps[0])
        version = self._whole(grid, store, sorted(common, reverse=True))
        world.together(lambda: store.open_at(version))
        return store

    def _whole(self, grid: Grid, store: Store, versions: list[int]) -> int:
        """The newest step whose tiles are as they were written, on all ranks."""
        told = []
        for version in versions:
            own = grid.world.together(partial(store.differs_at, version))
            differ = list(filter(None, grid.world.exchange_objects(own)))
            if not differ:
                return version
            told.append(f"{differ[0]}, step {version},")
            log.warning(
                "%s holds other words than that step has written; the run goes on from"
                " the one before, if that is whole",
                told[-1],
                extra={"on_all_ranks": True},
            )
        raise _torn(told)

    def _dealt(
        self, grid: Grid, layout: Layout, number: int, newest: int, run: str
    ) -> Store | None:
        """Where they were dealt in another way, and every rank sees all of them."""
        world = grid.world
        old = world.together(lambda: self._seen(number, layout))
        versions = world.exchange_objects(None if old is None else old.version)
        if old is None or None in versions or len(set(versions)) > 1:
            return None
        version, store = versions[0], self.store(grid, layout, newest + 1)
        world.together(lambda: self._check(old.document(version), run))

        _note_unchecked(self.folder, old.held[0].stamps[0])

        def fill(name: str, columns: slice, out: Array) -> None:
            old.fill(name, version, columns, out)

        world.together(lambda: store.create(old.document(version), fill))
        world.together(lambda: self._clear(grid, newest + 1))
        return store

    def _seen(self, number: int, layout: Layout) -> Generation | None:
        folder = self.folder / f"{number:06d}"
        found = Generation(folder) if folder.is_dir() else None
        if found is None or found.version is None:
            return None
        then = found.held[0].layout
        if (then.columns, then.widths, then.dtype) != (
            layout.columns,
            layout.widths,
            layout.dtype,
        ):
            raise DataError(
                f"{folder} holds states of {then.columns} columns, {then.widths} words"
                f" a column in {then.dtype}, and this run has {layout.columns},"
                f" {layout.widths} in {layout.dtype}; name the folder of this run, or"
                " start anew with --resume no"
            )
        return found

    def _check(self, document: dict[str, Any], run: str) -> None:
        """Another run may have begun in the same folder since."""
        if document.get(RUN) != run:
            raise DataError(
                f"{self.folder} holds the states of another run, which began there"
                " after the one that is to go on; name the folder of its states with"
                " agreement.store, or start anew with --resume no"
            )

    def _clear(self, grid: Grid, but: int) -> None:
        """Remove other generations; each rank its own folders."""
        for number in generations(self.folder):
            if number != but:
                if grid.world.rank == 0:
                    remove(self.folder / f"{number:06d}")
                own = place_in(self.folder, number, grid.replica, grid.member)
                shutil.rmtree(own, ignore_errors=True)


def _nothing(folder: Path) -> DataError:
    error = DataError(
        f"{folder} holds no step that is complete on all ranks; bring the files back,"
        " go on with the grid and the tile that it was made with, or start anew with"
        " --resume no"
    )
    error.on_all_ranks = True
    return error


def _note_unchecked(folder: Path, stamp: Stamp) -> None:
    if CHECKSUMS not in stamp.document:
        log.warning(
            "the states in %s have no checksums, which earlier versions did not take:"
            " they are believed as they are, and have some from the next step on",
            folder,
            extra={"on_all_ranks": True},
        )


def _torn(told: list[str]) -> DataError:
    error = DataError(
        f"{' and '.join(told)} hold other words than a step has written: a drive, or"
        " another program, has changed them; bring the files of all ranks back, or"
        " start anew with --resume no"
    )
    error.on_all_ranks = True
    return error


def tile_height(
    budget: float,
    widest: int,
    columns: int,
    words: int,
    rows: int,
    itemsize: int,
    replicas: int = 1,
) -> int:
    """Columns of a tile, of which so many bytes are held at a time.

    The ring of states, w and G whole, both twice where they travel, what a rule makes
    on its way, `rows` of the batch, and the tile in float64 where a loss is taken.
    """
    whole = TOGETHER if replicas > 1 else ALONE
    held = RING * words + (whole + TEMPORARY) * columns + rows
    height = columns_for(budget, held * itemsize + 8 * columns, widest)
    page = PAGE // itemsize
    return height if height < 8 * page else height // page * page


def document_of(state: State, exchanges: int, each: int) -> dict[str, Any]:
    """What belongs to a step beside the tiles."""
    arrays = dict(state.shared)
    if state.intercept is not None:
        arrays["intercept"] = state.intercept
    return {
        "exchanges": exchanges,
        "of_an_epoch": each,
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

"""What a caller passed, as something that the ranks can open."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpcsgd.comm.base import Communicator
from hpcsgd.config import RunConfig
from hpcsgd.data.frames import Matrix, to_column
from hpcsgd.data.readers import RowReader, open_reader
from hpcsgd.data.there import is_there
from hpcsgd.errors import ConfigError
from hpcsgd.fitting.layouts import LAYOUTS, open_layout
from hpcsgd.precision import AUTO


@dataclass(frozen=True)
class Given:
    """The data of a fit."""

    opens: Callable[[Communicator], RowReader]
    names: list[str] | None  # of the columns, where they have any

    def knowing(self, **facts: Any) -> "Given":
        """The same, whose reader knows what rows do not say.

        `labels`: all there are, where the rows may lack some; `fold_of`: the fold of
        each row of the whole data.
        """
        known = {name: fact for name, fact in facts.items() if fact is not None}

        def opens(world: Communicator) -> RowReader:
            reader = self.opens(world)
            for name, fact in known.items():
                setattr(reader, name, fact)
            return reader

        return replace(self, opens=opens) if known else self


def open_data(
    matrix: Matrix, sides: Mapping[str, Any], layout: str, config: RunConfig
) -> Given:
    """Arrays by their layout, a path as a file."""
    if layout not in LAYOUTS:
        raise ConfigError(f"layout = {layout!r}; known: {', '.join(LAYOUTS)}")
    if matrix.path is not None:
        return _of_file(config, sides, layout)
    if layout in ("rows", "columns") and config.precision.recipe == AUTO:
        raise ConfigError(
            f"precision='auto' tries recipes on one rank, which has not all of the data"
            f" with layout = {layout!r}; name a recipe, or use layout='replicated'"
        )
    if layout != "columns" and matrix.X is not None and sides["y"] is None:
        raise ConfigError("give y, the targets of the rows: fit(X, family, y)")
    if is_there(matrix.X):
        _check_there(layout, config)
    columns = {name: to_column(name, values) for name, values in sides.items()}
    return Given(open_layout(layout, matrix.X, columns, config), matrix.names)


def _check_there(layout: str, config: RunConfig) -> None:
    """Rows on a GPU are trained on there, by ranks that all have them."""
    if config.run.device != "cuda" or layout != "replicated":
        raise ConfigError(
            f"X is in the memory of a GPU, and device = {config.run.device!r}, layout ="
            f" {layout!r} want it elsewhere; use device='cuda' with"
            " layout='replicated', or pass X.get()"
        )
    if config.precision.recipe == AUTO:
        raise ConfigError(
            "precision='auto' tries recipes on the host, and X is in the memory of a"
            " GPU; name a recipe, or pass X.get()"
        )


def _of_file(config: RunConfig, sides: Mapping[str, Any], layout: str) -> Given:
    for name, values in sides.items():
        if values is not None:
            raise ConfigError(
                f"{name} is given beside a file, which has its own; leave it out"
            )
    if layout not in ("hdf5", "replicated"):
        raise ConfigError(f"layout = {layout!r} is for arrays; a file needs none")
    path, shared = Path(config.data.path), config.data.hdf5 == "mpio"
    return Given(
        lambda world: open_reader(path, *([world.mpi_handle] if shared else [])), None
    )

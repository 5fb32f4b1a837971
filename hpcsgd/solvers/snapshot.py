"""Snapshots: the arrays of a run at one moment, in memory or in a file."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcsgd.backends.task import State
from hpcsgd.files import read_sealed, write_sealed
from hpcsgd.formats import Array

KIND, VERSION = "checkpoint", 1  # of a file
MEMORY = "memory_"  # before the names of what agreements and codecs keep
SHARED = "shared_"  # before the names of what is the same on all members
RANK = "rank_"  # before the names of what is each rank's own


@dataclass(frozen=True)
class Snapshot:
    """The arrays of a run at one moment, and what was known of the run then.

    Attributes
    ----------
    document : dict
        What was known, such as the exchanges that were done. JSON can represent it.
    arrays : dict of ndarray
        `weights`, `intercept`, and what `State` keeps beside them, with the prefix
        `memory_`, `shared_` or `rank_`. `of` copies those of one rank. A checkpoint has
        those of all ranks (`hpcsgd.runs.checkpoint.Capture`).
    """

    document: dict[str, Any]
    arrays: dict[str, Array]

    @property
    def exchanges(self) -> int:
        """Return the exchanges that were done."""
        return int(self.document["exchanges"])

    @classmethod
    def of(cls, state: State, document: dict[str, Any]) -> "Snapshot":
        """Copy all arrays of `state`; those of a device stay there as they are."""
        arrays = arrays_of(state.host_state())
        return cls(document, {name: array.copy() for name, array in arrays.items()})

    def put_into(self, state: State) -> None:
        """Write the arrays into those of `state`."""
        for name, array in self.arrays.items():
            _array(state, name)[...] = array

    def write(self, path: Path) -> None:
        """Write a whole file, or none; OSError if there is no space."""
        write_sealed(path, KIND, VERSION, self.document, self.arrays)

    @classmethod
    def read(cls, path: Path) -> "Snapshot":
        """Read a whole file; DataError for any other file."""
        return cls(*read_sealed(path, KIND, VERSION))


def arrays_of(state: State) -> dict[str, Array]:
    """Return the arrays of `state` themselves, by their names in a snapshot."""
    arrays = {"weights": state.weights}
    if state.intercept is not None:
        arrays["intercept"] = state.intercept
    arrays |= {MEMORY + name: array for name, array in state.memory.items()}
    arrays |= {SHARED + name: array for name, array in state.shared.items()}
    arrays |= {RANK + name: array for name, array in state.rank_arrays.items()}
    return arrays


def _array(state: State, name: str) -> Array:
    """Return one array of `state`, and fetch no other one from a device."""
    for prefix, arrays in (
        (MEMORY, state.memory),
        (SHARED, state.shared),
        (RANK, state.rank_arrays),
    ):
        if name.startswith(prefix):
            return arrays[name.removeprefix(prefix)]
    array: Array = getattr(state, name)
    return array

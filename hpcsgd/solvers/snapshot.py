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
    """The arrays of a run at one moment, and facts of the run at that moment.

    Attributes
    ----------
    document : dict
        Facts of the run, such as the exchanges that were done. JSON can represent them.
    arrays : dict of ndarray
        `weights`, `intercept`, and what `State` keeps beside them, with the prefix
        `memory_`, `shared_` or `rank_`. `of` copies those of one rank. A checkpoint has
        those of all ranks (`hpcsgd.runs.checkpoint.Capture`).
    """

    document: dict[str, Any]
    arrays: dict[str, Array]

    @property
    def exchanges(self) -> int:
        """Return how many exchanges were done at the moment of the snapshot."""
        return int(self.document["exchanges"])

    @classmethod
    def of(cls, state: State, document: dict[str, Any]) -> "Snapshot":
        """Return a snapshot of `state`, with copies of all arrays on the host.

        Arrays on a device are copied to the host and are not changed.
        """
        arrays = arrays_of(state.host_state())
        return cls(document, {name: array.copy() for name, array in arrays.items()})

    def put_into(self, state: State) -> None:
        """Write the arrays of the snapshot into the arrays of `state`."""
        for name, array in self.arrays.items():
            _array(state, name)[...] = array

    def write(self, path: Path) -> None:
        """Write the snapshot to a file, complete or not at all.

        OSError is raised if there is no space.
        """
        write_sealed(path, KIND, VERSION, self.document, self.arrays)

    @classmethod
    def read(cls, path: Path) -> "Snapshot":
        """Read a snapshot from a file; raise DataError if it is damaged or another."""
        return cls(*read_sealed(path, KIND, VERSION))


def arrays_of(state: State) -> dict[str, Array]:
    """Return the arrays of `state`, not copies, by their names in a snapshot."""
    arrays = {"weights": state.weights}
    if state.intercept is not None:
        arrays["intercept"] = state.intercept
    arrays |= {MEMORY + name: array for name, array in state.memory.items()}
    arrays |= {SHARED + name: array for name, array in state.shared.items()}
    arrays |= {RANK + name: array for name, array in state.rank_arrays.items()}
    return arrays


def _array(state: State, name: str) -> Array:
    """Return the array of `state` with this name in a snapshot.

    No other array is copied from a device.
    """
    for prefix, arrays in (
        (MEMORY, state.memory),
        (SHARED, state.shared),
        (RANK, state.rank_arrays),
    ):
        if name.startswith(prefix):
            return arrays[name.removeprefix(prefix)]
    array: Array = getattr(state, name)
    return array

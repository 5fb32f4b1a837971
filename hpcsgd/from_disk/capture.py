"""Checkpoints of a run whose states are on disk: where it stood, and no states.

The files are the checkpoint: they stand after a step of their own, that of the last
commit, and a run goes on from there.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hpcsgd.agreement.infinity import Infinity
from hpcsgd.callbacks.base import View
from hpcsgd.capture import Capture
from hpcsgd.checkpoint import ON_DISK, Checkpoint
from hpcsgd.products.base import Array, State


@dataclass
class TiledCapture(Capture):
    """Takes the document alone; puts a run back to what its files hold."""

    def _arrays(self, state: State, exchanges: int) -> dict[str, Array]:
        return {}

    def _document(self, view: View) -> dict[str, Any]:
        return {**super()._document(view), ON_DISK: True}

    def put_back(
        self,
        checkpoint: Checkpoint,
        state: State,
        view: View,
        progress: Callable[[int], tuple[int, int]],
    ) -> None:
        """Where the files stand, on all ranks together."""
        assert isinstance(self.agreement, Infinity)
        found, each = self.agreement.go_on(state)
        said = _until(checkpoint.document, found) | {"exchanges_per_epoch": each}
        super().put_back(Checkpoint(said, {}), state, view, progress)

    def _put_back_state(self, checkpoint: Checkpoint, state: State) -> None:
        """The files hold it."""

    def _put_back_evaluation(self, checkpoint: Checkpoint) -> None:
        """The copy with a good loss was of the process before."""
        said = checkpoint.document["evaluation"]
        self.evaluation.first_loss = said["first_loss"]
        self.evaluation.measured_at = said["measured_at"]
        self.evaluation.clipped = said["clipped"]


def _until(document: dict[str, Any], exchanges: int) -> dict[str, Any]:
    """What was known after so many exchanges: files may be behind their checkpoint."""
    history = [one for one in document["history"] if one["exchanges"] <= exchanges]
    said = {**document, "exchanges": exchanges, "history": history}
    if document["evaluation"]["measured_at"] > exchanges:
        said["evaluation"] = {**document["evaluation"], "measured_at": -1}
    return said

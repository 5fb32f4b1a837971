"""Where a run begins, if not at zero."""

from dataclasses import dataclass

from hpcsgd.agreement.on_disk import OnDisk
from hpcsgd.assembly.engine_parts import Live
from hpcsgd.errors import ConfigError
from hpcsgd.products.base import Array


@dataclass(frozen=True)
class Start:
    """All columns of the weights, with all states of the update, and the intercept."""

    weights: Array  # (d, states x K)
    intercept: Array | None  # (states, K)

    def put_into(self, live: Live) -> None:
        """On every rank: its columns, in the format that its weights have."""
        state, precision = live.state, live.task.precision
        if isinstance(state.weights, OnDisk):
            raise begins_at_zero()
        live.engine.agreement.put_whole(state, self.weights[live.columns.own])
        live.task.backend.round(state.weights, precision.weights)
        if state.intercept is not None:
            state.intercept[...] = self.intercept


def begins_at_zero() -> ConfigError:
    """Weights on disk are not put in from memory."""
    return ConfigError(
        "[agreement] kind = 'infinity' begins at zero and initial weights were given;"
        " leave them out, or use --agreement gradient"
    )

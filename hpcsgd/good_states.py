"""Copies of the state at moments when all was well: what a run falls back to.

The gap monitor's verdict on an exchange comes with the next one, and all ranks hear of
it when they look up. A copy is made where a look at the recurrence is begun, on all
ranks after the same exchange, and counts from the next time they all look up and
nobody has found anything.
"""

from dataclasses import dataclass, field

from hpcsgd.callbacks.base import View
from hpcsgd.products.base import Array, State


@dataclass(frozen=True)
class Kept:
    """This rank's part of the state after an exchange, and where the run stood."""

    exchanges: int
    epoch: int
    loss: float
    evaluations: int
    weights: Array
    intercept: Array | None
    memory: dict[str, Array]
    kept: dict[str, Array]
    shared: dict[str, Array]

    @classmethod
    def of(cls, state: State, view: View) -> "Kept":
        """A copy of how it is now."""
        state = state.glance()
        return cls(
            exchanges=view.exchanges,
            epoch=view.epoch,
            loss=view.loss,
            evaluations=len(view.history),
            weights=state.weights.copy(),
            intercept=None if state.intercept is None else state.intercept.copy(),
            memory=_copies(state.memory),
            kept=_copies(state.kept),
            shared=_copies(state.shared),
        )

    def put_back(self, state: State, view: View) -> None:
        """Make it so again; time that was spent stays spent."""
        state.weights[...] = self.weights
        if state.intercept is not None and self.intercept is not None:
            state.intercept[...] = self.intercept
        for own, held in (
            (state.memory, self.memory),
            (state.kept, self.kept),
            (state.shared, self.shared),
        ):
            for name, array in held.items():
                own[name][...] = array
        view.exchanges, view.epoch = self.exchanges, self.epoch
        view.loss = self.loss
        del view.history[self.evaluations :]


def _copies(arrays: dict[str, Array]) -> dict[str, Array]:
    return {name: array.copy() for name, array in arrays.items()}


@dataclass
class GoodStates:
    """At most four copies: checked, being checked (two), and with a good loss."""

    every: int  # exchanges between looks at the recurrence; 0 = there are none
    active: bool = True  # False: there is nothing that a run could fall back to
    checked: Kept | None = None  # no alarm until then
    measured: Kept | None = None  # its loss was good, or the run began there
    candidates: list[Kept] = field(default_factory=list)

    def begin(self, state: State, view: View) -> None:
        """A run begins well, and one that goes on does from a good state."""
        if self.active:
            self.checked = self.measured = Kept.of(state, view)

    def after_exchange(self, state: State, view: View) -> None:
        """A copy where a look at the recurrence is begun."""
        if self.active and self.every and view.exchanges % self.every == 0:
            self.candidates.append(Kept.of(state, view))

    def passed(self, exchanges: int) -> None:
        """All ranks looked up after `exchanges`, and nobody had found anything."""
        known = [kept for kept in self.candidates if kept.exchanges < exchanges]
        if known:
            self.checked = known[-1]
            self.candidates = [k for k in self.candidates if k.exchanges >= exchanges]

    def has_good_loss(self, state: State, view: View) -> None:
        """The loss was taken just now."""
        if self.active:
            self.measured = Kept.of(state, view)

    def after_alarm(self) -> Kept | None:
        """The last state that was checked: a loss may be good in spite of a gap."""
        return self.checked

    def after_divergence(self) -> Kept | None:
        """The last one with a good loss: what grows may be without a gap."""
        return self.measured

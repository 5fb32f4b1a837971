"""Observers, which act at events of a run; the proximal step is one of them."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np

from hpcsgd.backends.task import Group, State
from hpcsgd.formats import Array
from hpcsgd.glm.penalties import Penalty

# What reads or touches the state between exchanges: proximal steps, averages,
# snapshots of SVRG, recordings, checks of members, copies to fall back to.


EVENTS = (
    *("prepare", "start", "before_epoch", "before_exchange", "after_steps"),
    *("after_exchange", "after_poll", "after_evaluation", "at_end"),
)


class Observer:
    """Base class of observers, which the loop of a run calls; its methods do nothing.

    All ranks call their observers alike, in the order of a list. Exchanges are numbered
    from 1, epochs from 0. What has to outlive a checkpoint is kept in `state.memory` or
    in the state itself.
    """

    # The events for which a class has a method of its own.
    events: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.events = tuple(
            name for name in EVENTS if getattr(cls, name) is not getattr(Observer, name)
        )

    def prepare(self, state: State) -> None:
        """Allocate arrays in the state, before a checkpoint is read into it."""

    def start(self, state: State, exchanges: int) -> None:
        """Read the state from which the run starts, or resumes after `exchanges`.

        `exchanges` is the number of exchanges already done: 0 for a new run.
        """

    def before_epoch(self, state: State, epoch: int) -> None:
        """Act before the first exchange of `epoch` (from 0 on)."""

    def before_exchange(self, state: State, number: int) -> None:
        """Act before the steps of exchange `number`."""

    def after_steps(self, state: State, number: int, group: Group | None) -> None:
        """Act after the steps of `group` in exchange `number`, before replicas agree.

        `group` is None if this replica took no steps in the exchange.
        """

    def after_exchange(self, state: State, number: int) -> None:
        """Act after exchange `number`, whether or not replicas synchronised in it."""

    def after_poll(self, number: int) -> None:
        """Act after the poll of exchange `number`, unless it found a fault of any rank.

        A fault is a weight that is not finite, or an alarm of the monitor that is not
        only noted. After a request to stop, this method is still called.
        """

    def after_evaluation(self, state: State, view: Any) -> None:
        """Act after an evaluation, whose record is the last of `view.history`."""

    def at_end(self, state: State, number: int, is_finished: bool) -> None:
        """Act when training ends after exchange `number`, before the last evaluation.

        `is_finished` is False if the run diverged, or is to resume later.
        """

    def facts(self) -> dict[str, Any]:
        """Return the facts of this observer for the report of the result, by name."""
        return {}


class Observers(Observer):
    """All observers of a run, called as one."""

    def __init__(self, observers: Sequence[Observer] = ()) -> None:
        self.observers = tuple(observers)
        # Event -> the methods of the observers that override it: the others take no
        # time of an exchange.
        methods: dict[str, list[Callable[..., None]]] = {name: [] for name in EVENTS}
        for observer in self.observers:
            for event in observer.events:
                methods[event].append(getattr(observer, event))
        self._prepare = methods["prepare"]
        self._start = methods["start"]
        self._before_epoch = methods["before_epoch"]
        self._before_exchange = methods["before_exchange"]
        self._after_steps = methods["after_steps"]
        self._after_exchange = methods["after_exchange"]
        self._after_poll = methods["after_poll"]
        self._after_evaluation = methods["after_evaluation"]
        self._at_end = methods["at_end"]

    def prepare(self, state: Any) -> None:
        for call in self._prepare:
            call(state)

    def start(self, state: Any, exchanges: int) -> None:
        for call in self._start:
            call(state, exchanges)

    def before_epoch(self, state: Any, epoch: int) -> None:
        for call in self._before_epoch:
            call(state, epoch)

    def before_exchange(self, state: Any, number: int) -> None:
        for call in self._before_exchange:
            call(state, number)

    def after_steps(self, state: Any, number: int, group: Group | None) -> None:
        for call in self._after_steps:
            call(state, number, group)

    def after_exchange(self, state: Any, number: int) -> None:
        for call in self._after_exchange:
            call(state, number)

    def after_poll(self, number: int) -> None:
        for call in self._after_poll:
            call(number)

    def after_evaluation(self, state: Any, view: Any) -> None:
        for call in self._after_evaluation:
            call(state, view)

    def at_end(self, state: Any, number: int, is_finished: bool) -> None:
        for call in self._at_end:
            call(state, number, is_finished)

    def facts(self) -> dict[str, Any]:
        return {
            name: fact
            for observer in self.observers
            for name, fact in observer.facts().items()
        }


# The proximal map of l1 and bounds, behind the steps of every exchange.
#
# The map adds to a step the gradient ξ that l1 and the bounds have at its end: a step
# takes the state x = (w, v) to M x + u (g + ξ), with the ridge in M. So w moves by
# T = −u_w towards zero, and a velocity by its own share of ξ:
#
#     w ← prox_T(w),    v ← v + (u_v / u_w) · what w moved by
#
# Without the share of v, momentum would amplify g and not ξ, and end at a point whose
# l1 is (1 − μ) times too small. With one step an exchange this is proximal SGD (T = η,
# for the Nesterov of deep-learning frameworks (1 + μ) η). With more it is the
# approximation of that name, l1_at = "exchange": one ξ, held for all s steps, so that T
# is the sum of their rates, each shrunk by the ridge, or grown by the momentum, of the
# steps behind it.


class Proximal(Observer):
    """The proximal step of l1 and bounds, on the columns of this member.

    Each replica takes the step before replicas average.
    """

    def __init__(
        self, penalty: Penalty, classes: int, store: Callable[[Array], object]
    ) -> None:
        self.penalty = penalty  # of the local columns
        self.classes = classes  # K
        self.store = store  # rounds weights to the format that they have

    def prepare(self, state: State) -> None:
        """Move the initial weights into the bounds."""
        self._map(state, np.zeros(1))

    def after_steps(self, state: State, number: int, group: Group | None) -> None:
        """Apply one proximal map for all steps of the group."""
        if group is not None:
            self._map(state, reach(group.coefficients))

    def _map(self, state: State, reached: Array) -> None:
        weights = state.weights
        K = self.classes
        position = weights[:, :K]
        before = position.copy() if len(reached) > 1 else None
        self.penalty.prox(position, float(reached[0]))
        if before is not None:
            moved = position - before
            for k, distance in enumerate(reached[1:], start=1):
                share = weights.dtype.type(distance / reached[0] if reached[0] else 0.0)
                weights[:, k * K : (k + 1) * K] += share * moved
        self.store(weights)


def reach(coefficients: Any) -> Array:
    """Return how far a unit of the gradient ξ moves each state in an exchange.

    ξ is the gradient of l1 and bounds, which all steps of the exchange share. The
    result is −Σ_i b_i Φ_{s,i+1} u_i over the s steps, each of which takes ξ once: b_i
    are the rows of step i, u_i its gain, and Φ_{s,i+1} the transition of the steps
    after it.
    """
    sizes = np.asarray(coefficients.blocks.sizes, dtype=np.float64)
    form = coefficients.plain if len(sizes) == 1 else coefficients.whole
    far: Array = -(sizes @ form.gain)
    return far

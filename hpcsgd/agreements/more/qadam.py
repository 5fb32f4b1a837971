"""QAdam of BAGUA: Adam whose momentum is what travels."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from hpcsgd.agreements.base import AgreementShape
from hpcsgd.agreements.buckets import PlainSender, Sender, Tile
from hpcsgd.agreements.gradient import Gradient, GradientParts, sent_for_gradient
from hpcsgd.agreements.hierarchical import ByLeaders
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.ledger import Sent
from hpcsgd.glm.updates import Adam, ColumnViews, Turn
from hpcsgd.products.base import Array, State

# QAdam: Adam whose momentum travels in few bits, once its variances are known.
#
# The first `warmup_steps` steps are those of Adam, on gradients that are summed as they
# are. Then v rests, and what replicas say is no gradient but what becomes of m:
#
#     m_p = β₁ m + (1 − β₁) s_p / n_p;    m ← mean_p C(m_p) + (1 − β₁) λ w
#     w ← w − η m̂ / (√v̂ + ε)
#
# by the rows n_p of each. m moves slowly, and is coarsened with less harm than
# gradients (BAGUA, arXiv 2107.01499; the codec is bytegrad there). v̂ goes on to be
# corrected by the number of steps, as in BAGUA's own code: with v at rest, steps grow
# by 1/√(1 − β₂^T) in the long run.


@dataclass(frozen=True)
class RestingAdam(Adam):
    """Adam for so many steps; then it is told m, and v rests."""

    warmup_steps: int = 100

    @classmethod
    def of(cls, adam: Adam, warmup_steps: int) -> "RestingAdam":
        """With the numbers of `adam`."""
        return cls(adam.beta1, adam.beta2, adam.epsilon, warmup_steps)

    def rests(self, number: int) -> bool:
        """Whether v does in step `number`, from 0 on."""
        return number >= self.warmup_steps

    def step(
        self, part: ColumnViews, gradient: Array, factor: float, turn: Turn, l2: float
    ) -> None:
        """After the warm-up `factor` · `gradient` is m, without this step's penalty."""
        if not self.rests(turn.number):
            super().step(part, gradient, factor, turn, l2)
            return
        m, real = part.arrays["adam_m"], gradient.dtype.type
        gradient *= real(factor)
        m[...] = gradient
        if l2:
            m += real((1.0 - self.beta1) * l2) * part.weights
        self.walk(part, turn)


class QAdam(Gradient):
    """Two senders: of gradients as they are, then of momentum by the codec."""

    def __init__(self, grid: Grid, share: float, means: GradientParts) -> None:
        adam = means.steps.rule
        assert isinstance(adam, Adam)
        self.rule = RestingAdam.of(adam, means.settings.warmup_steps)
        steps = replace(means.steps, rule=self.rule)
        super().__init__(grid, share, replace(means, steps=steps))

    def prepare(self, state: State) -> None:
        """The codec keeps what it keeps from the start."""
        super().prepare(state)
        self.coded: Sender = self.sender
        self.plain: Sender = PlainSender(self.grid.replicas)
        if isinstance(self.coded, ByLeaders):
            groups = self.coded.groups
            self.plain = ByLeaders(groups, PlainSender(groups.leaders))
        # One account of what was hidden.
        self.plain.overlap = self.coded.overlap

    def close(self) -> None:
        """The groups that the codec speaks in."""
        if hasattr(self, "coded"):  # not yet, where others have refused
            self.sender = self.coded
        super().close()

    @classmethod
    def messages(cls, shape: AgreementShape, exchanges: int) -> Sent | None:
        """Return a gradient as it is; after the warm-up momentum by the codec."""
        if exchanges <= shape.settings.warmup_steps:
            return sent_for_gradient(shape)
        return super().messages(shape, exchanges)

    def _begin(self, number: int) -> None:
        super()._begin(number)
        self.sender = self.coded if self.rule.rests(number) else self.plain

    def _finish_sums(self, state: State) -> None:
        """Σr becomes what it adds to the intercept's m; rows count as they did."""
        if state.intercept is not None and self._tells_momentum():
            self._turn(
                self.buffer.tail[: self.buffer.sums], state.shared["adam_m"].reshape(-1)
            )

    def _finish_tile(self, state: State, tile: Tile) -> None:
        """s_p becomes n_p m_p."""
        if self._tells_momentum():
            self._turn(tile.gradient, state.memory["adam_m"][tile.columns])

    def _tells_momentum(self) -> bool:
        return self.rule.rests(self._moment.number)

    def _turn(self, sums: Array, m: Array) -> None:
        """sums ← β₁ n m + (1 − β₁) sums."""
        real, count = sums.dtype.type, float(self.buffer.tail[-1])
        sums *= real(1.0 - self.rule.beta1)
        sums += (real(self.rule.beta1 * count) * m).astype(sums.dtype)


# Methods that begin as another one, and runs that are over before that changes.

AS_DENSE = "all words went as they are"
# codec -> what it is until its levels adapt
ADAPT = {
    "alq": "it was nuqsgd",
    "amq": "its levels were powers of 1/2",
}


def unreached_phase(config: Any, exchanges: int) -> str:
    """Return a sentence on the phase that a run of so many exchanges never reaches; ""
    if it reaches all.

    `config` has the sections of a run.
    """
    if config.grid.replicas == 1:
        return ""
    first, epochs = config.accordion.interval + 1, config.schedule.epochs
    meanwhile = _until_a_look(config)
    if meanwhile and epochs <= first:
        return (
            f"{meanwhile} until accordion.interval + 1 = {first} epochs, and the run"
            f" had {epochs}"
        )
    for setting, first, meanwhile in _beginnings(config):
        if exchanges <= first:
            return (
                f"{meanwhile} until {setting} = {first} exchanges, and the run had"
                f" {exchanges}"
            )
    return ""


def _until_a_look(config: Any) -> str:
    """Return what it is before two looks at its gradients; "" if it does not look."""
    if config.agreement.kind == "growing":
        return "its batches were small"
    return "it compressed little" if config.agreement.codec == "accordion" else ""


def _beginnings(config: Any) -> Iterator[tuple[str, int, str]]:
    """(setting, exchanges until the method is itself, what it is before)."""
    asked, codec = config.agreement, config.codec
    name = config.accordion.codec if asked.codec == "accordion" else asked.codec
    if asked.kind == "qadam":
        yield "agreement.warmup_steps", asked.warmup_steps, "it was plain Adam"
    if name == "powersgd":
        yield "codec.start", codec.start, AS_DENSE
    if name in ADAPT:
        yield "codec.adapt", codec.adapt, ADAPT[name]

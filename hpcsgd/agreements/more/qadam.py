"""QAdam of BAGUA: Adam whose momentum is what travels (Gan et al., 2021).

Needs    update adam, s = 1, τ = 1, product direct, gather or gather-once, one model, a
         smooth penalty, and weights of at least 32 bits.
Refuses  changes and clipping of gradients, 8-bit states, and scaled residuals.
Keeps    m, v and a gradient on every replica, d·K words each of d columns and K
         classes, and what the codec keeps.
Sends    in the first `warmup_steps` exchanges a gradient, later the new momentum: an
         all-reduce of each bucket, d·K words in all, and with the first the tail of
         K·i + 1 words (i = 1 with an intercept, else 0). A codec sends its bytes of m
         instead, behind an all-reduce of the tail in float64. With i = 1 and R > 2
         member 0 broadcasts the tail to the members. `hierarchical` takes two levels.
         `messages` is None where the data, or the nodes of ranks, decide.
"""

from dataclasses import dataclass, replace
from typing import ClassVar, cast

from hpcsgd.agreements.base import (
    AgreementSettings,
    GradientSettings,
    Requires,
    RunShape,
    Supports,
)
from hpcsgd.agreements.buckets import Sender, Tile
from hpcsgd.agreements.gradient import Gradient, GradientInputs, sent_for_gradient
from hpcsgd.backends.task import State
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.ledger import Sent
from hpcsgd.formats import Array
from hpcsgd.glm.updates import Adam, ColumnViews, Turn
from hpcsgd.settings import setting

# QAdam: Adam whose momentum travels in few bits, once its variances are known.
#
# The first `warmup_steps` steps are those of Adam. Then v rests, and replica p sends m
# after its own gradient:
#
#     m_p = β₁ m + (1 − β₁) s_p / n_p;    m ← mean_p C(m_p) + (1 − β₁) λ w
#     w ← w − η m̂ / (√v̂ + ε)
#
# by the rows n_p of each. m moves slowly, and is coarsened with less harm than
# gradients (BAGUA, arXiv 2107.01499; the codec is bytegrad there). v̂ is still
# corrected by the number of steps, as in BAGUA's own code: with v at rest, steps grow
# by 1/√(1 − β₂^T) in the long run; with `frozen_correction` they do not.
#
# With the codec sign and its error feedback this is 1-bit Adam (H. Tang et al., ICML
# 2021, algorithm 1, lines 4 to 11), whose means are not encoded once more, since all
# replicas gather the records:
#
#     c_p = β₁ m + (1 − β₁) g_p + e_p;    m ← mean_p C(c_p);    e_p ← c_p − C(c_p)


@dataclass(frozen=True)
class RestingAdam(Adam):
    """Adam for `warmup_steps` steps; then m is an input of a step, and v stays."""

    warmup_steps: int = 100
    frozen_correction: bool = False

    @classmethod
    def of(
        cls, adam: Adam, warmup_steps: int, frozen_correction: bool = False
    ) -> "RestingAdam":
        """Return a rule with the coefficients of `adam` and this length of warm-up."""
        coefficients = adam.beta1, adam.beta2, adam.epsilon
        return cls(*coefficients, warmup_steps, frozen_correction)

    def steps_of_squares(self, steps: int) -> int:
        """Return the steps that v is corrected for: with v at rest, maybe fewer."""
        return min(steps, self.warmup_steps) if self.frozen_correction else steps

    def rests(self, number: int) -> bool:
        """Return whether v rests, unchanged, in step `number` (0 is the first step)."""
        return number >= self.warmup_steps

    def step(
        self, part: ColumnViews, gradient: Array, factor: float, turn: Turn, l2: float
    ) -> None:
        """Step a part of the weights.

        After the warm-up `factor` · `gradient` is m, without the penalty of this step.
        """
        if not self.rests(turn.number):
            super().step(part, gradient, factor, turn, l2)
            return
        m = part.arrays["adam_m"]
        real = gradient.dtype.type
        gradient *= real(factor)
        m[...] = gradient
        if l2:
            m += real((1.0 - self.beta1) * l2) * part.weights
        self.walk(part, turn)


@dataclass(frozen=True)
class QAdamSettings(GradientSettings):
    """The settings of Adam that sends its momentum in few bits after a warm-up."""

    warmup_steps: int = setting(
        100,
        "steps of uncompressed Adam before the second moment is frozen",
        at_least=1,
        remedy="the second moment is from these steps",
    )
    frozen_correction: bool = setting(
        False,
        "freeze the bias correction of the second moment with it, as 1-bit Adam does,"
        " so that steps do not grow",
    )

    requires: ClassVar[Requires] = replace(GradientSettings.requires, updates=("adam",))
    supports: ClassVar[Supports] = Supports(
        shaping=False, clipping=False, packed_states=False, loss_scale=False
    )

    @property
    def beginning(self) -> tuple[str, int, str] | None:
        """Return setting, length and description of the warm-up, plain Adam."""
        return "agreement.warmup_steps", self.warmup_steps, "it was plain Adam"


class QAdam(Gradient):
    """QAdam: uncompressed gradients in the warm-up, then momentum in the codec."""

    settings: ClassVar[type[AgreementSettings]] = QAdamSettings

    def __init__(self, grid: Grid, share: float, inputs: GradientInputs) -> None:
        adam = cast(Adam, inputs.steps.rule)  # which its settings require
        settings = inputs.settings
        self.rule = RestingAdam.of(
            adam, settings.warmup_steps, settings.frozen_correction
        )
        steps = replace(inputs.steps, rule=self.rule)
        super().__init__(grid, share, replace(inputs, steps=steps))

    def prepare(self, state: State) -> None:
        """Allocate the arrays of the codec, and make senders with and without it."""
        super().prepare(state)
        self.coded: Sender = self.sender
        self.plain: Sender = self.coded.uncoded()
        # Both senders count hidden transfers in one place.
        self.plain.overlap = self.coded.overlap

    def close(self) -> None:
        """Close the communicators of the sender with the codec. Collective."""
        if hasattr(self, "coded"):  # missing where an error came before `prepare`
            self.sender = self.coded
        super().close()

    @classmethod
    def messages(cls, shape: RunShape, exchanges: int) -> Sent | None:
        """Return the messages of an exchange: a gradient, after the warm-up a momentum.

        The momentum is encoded by the codec. `exchanges` is the number of exchanges
        done.
        """
        if exchanges <= shape.settings.warmup_steps:
            return sent_for_gradient(shape)
        return super().messages(shape, exchanges)

    def _begin(self, number: int) -> None:
        super()._begin(number)
        self.sender = self.coded if self.rule.rests(number) else self.plain

    def _finish_sums(self, state: State) -> None:
        """Replace Σr by n_p m_p of the intercept, if momentum is sent.

        m_p is the new momentum and n_p the rows of this replica, whose count stays as
        it is.
        """
        if state.intercept is not None and self._tells_momentum():
            self._turn(
                self.buffer.tail[: self.buffer.sums], state.shared["adam_m"].reshape(-1)
            )

    def _finish_tile(self, state: State, tile: Tile) -> None:
        """Replace the sum s_p of a tile by n_p m_p of the tile, if momentum is sent."""
        if self._tells_momentum():
            self._turn(tile.gradient, state.memory["adam_m"][tile.columns])

    def _tells_momentum(self) -> bool:
        return self.rule.rests(self._moment.number)

    def _turn(self, sums: Array, m: Array) -> None:
        """Compute sums ← β₁ n m + (1 − β₁) sums, in place."""
        real = sums.dtype.type
        count = float(self.buffer.tail[-1])
        sums *= real(1.0 - self.rule.beta1)
        sums += (real(self.rule.beta1 * count) * m).astype(sums.dtype)

"""Steps of rules on a device, word by word: slices may begin and end anywhere.

Products and sums are rounded one by one, in the order of the host: the same gradient
gives the same bits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcsgd.backends.device import Device
from hpcsgd.backends.kernel_table import build_of
from hpcsgd.backends.launch_steps import words
from hpcsgd.errors import ConfigError
from hpcsgd.updates import Rule, Turn
from hpcsgd.updates.moments import Adagrad, Adam
from hpcsgd.updates.rules import Linear

VELOCITY = "velocity"  # of momenta: it lies beside the weights, not between them


@dataclass(frozen=True)
class Piece:
    """Some words: what is read at `weights` is written to `to`, maybe the same."""

    weights: Any
    to: Any
    kept: Mapping[str, Any]


class DeviceRules:
    """Weights on the device are divided by `scale`; what is kept beside them is not."""

    def __init__(self, device: Device, rule: Rule, l2: float, scale: float) -> None:
        self.device, self.rule, self.l2, self.scale = device, rule, l2, scale

    def step(self, piece: Piece, gradient: Any, factor: float, turn: Turn) -> None:
        """As `Rule.step`; the gradient stays as it is."""
        name, kept, numbers = self._way()(factor, turn)
        arrays = piece.weights, piece.to, *(piece.kept[one] for one in kept), gradient
        self._launch(name, gradient.size, (*arrays, *map(np.float32, numbers)))

    def add(self, part: Any, total: Any, is_first: bool) -> None:
        """total ← total + part, or the part alone."""
        self._launch("add_words", part.size, (part, np.int32(is_first), total))

    def _launch(self, name: str, count: int, arguments: tuple[Any, ...]) -> None:
        if not count:
            return
        launch = self.device.kernel(build_of(name, "fp32", self.device.arch))
        launch(*words(count)[:2], (np.int64(count), *arguments))

    def _way(self) -> "Way":
        for kind, way in (
            (Linear, self._linear),
            (Adagrad, self._adagrad),
            (Adam, self._adam),
        ):
            if type(self.rule) is kind:
                return way
        raise ConfigError(
            f"a GPU takes no steps of {type(self.rule).__name__} on slices; use"
            " --method offload, or --device cpu"
        )

    def _linear(self, factor: float, turn: Turn) -> "Call":
        assert isinstance(self.rule, Linear)
        update = self.rule.update
        carry = update.transition(turn.rate, self.l2).ravel()
        gain = update.gain(turn.rate, 1) * factor
        if update.states == 1:
            return "step_plain", (), (self.scale, *carry, *gain)
        return "step_momentum", (VELOCITY,), (self.scale, *carry, *gain)

    def _adagrad(self, factor: float, turn: Turn) -> "Call":
        rule = self.rule
        assert isinstance(rule, Adagrad)
        numbers = self.scale, factor, self.l2, -turn.rate, rule.epsilon
        return "step_adagrad", rule.kept, numbers

    def _adam(self, factor: float, turn: Turn) -> "Call":
        rule, t = self.rule, turn.number + 1
        assert isinstance(rule, Adam)
        first, second = (rule.beta1, 1.0 - rule.beta1), (rule.beta2, 1.0 - rule.beta2)
        mend, rate = 1.0 / (1.0 - rule.beta2**t), turn.rate / (1.0 - rule.beta1**t)
        moments = *first, *second, mend, -rate, rule.epsilon
        return "step_adam", rule.kept, (self.scale, factor, self.l2, *moments)


Call = tuple[str, tuple[str, ...], tuple[float, ...]]  # kernel, what is kept, numbers
Way = Callable[[float, Turn], Call]

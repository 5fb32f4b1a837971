"""Sums, averages and step rules of weights on a GPU."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcsgd.backends.cuda.device import Device
from hpcsgd.backends.cuda.exchange import DenseProducts, GramTiles, Widths
from hpcsgd.backends.cuda.kernels import average, build_of, words
from hpcsgd.backends.cuda.matrix import DeviceMatrix, sent
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array
from hpcsgd.glm.unrolling import blocks_of
from hpcsgd.glm.updates import Adagrad, Adam, LinearRule, Rule, Turn

# x ← M x + u g on a device: the kernel of updates, for a matrix of one row.

ONE = blocks_of((1,))  # row


class DeviceAdd:
    """Of one g, a row of whole chunks; x has so many states of each word of it."""

    def __init__(self, device: Device, row: Any, words: int, states: int = 1) -> None:
        matrix, tiles = DeviceMatrix(row, "fp32", 1, words), GramTiles(device, ONE)
        widths = Widths(1, states)
        self._products = DenseProducts(device, matrix, ONE, tiles, widths)
        self._numbers = sent(device, np.zeros(1, np.int64))
        self._device = device
        self._room = device.empty((states + states**2,), np.float32)
        self._gain, self._carry = self._room[:states], self._room[states:]

    def to(self, target: Any, carry: Array, gain: Array) -> None:
        """target ← carry target + gain g, word by word; (states²), (states)."""
        values = np.concatenate([np.ravel(gain), np.ravel(carry)])
        self._device.fill(self._room, values.astype(np.float32))
        self._products.update(self._numbers, self._gain, self._carry, target)


# What a replica gives to an average, and takes from it, on its device.


class DeviceAverage:
    """One buffer for the weights in fp32 and, behind them, the intercept in fp64."""

    def __init__(
        self, device: Device, weights: Any, intercept: Any, scale: float = 1.0
    ) -> None:
        """`scale` is what weights on the device are divided by."""
        self.device = device
        self._scale = np.float32(scale)
        self._held = np.int64(weights.size)
        self._more = np.int32(0 if intercept is None else intercept.size)
        words = int(self._held) + int(self._more)
        self.buffer = device.empty((words,), np.float32)
        self._shape = average(int(self._held), int(self._more))

    def portion(self, weights: Any, intercept: Any, share: float) -> Any:
        """The buffer ← both, times the share, rounded as the host rounds them."""
        own = weights, self._held, self._scale, intercept, self._more
        self._launch("portion", (*own, np.float32(share), self.buffer))
        return self.buffer

    def become(self, weights: Any, intercept: Any) -> None:
        """Both ← the buffer."""
        sizes = self._held, self._scale, self._more
        self._launch("become", (self.buffer, *sizes, weights, intercept))

    def _launch(self, kernel: str, arguments: Any) -> None:
        launch = self.device.kernel(build_of(kernel, "fp32", self.device.arch))
        launch(self._shape.grid, self._shape.block, arguments)


# Steps of rules on a device, word by word: slices may begin and end anywhere.
#
# Products and sums are rounded one by one, in the order of the host: the same gradient
# gives the same bits.

VELOCITY = "velocity"  # of momenta: it lies beside the weights, not between them


@dataclass(frozen=True)
class WordRange:
    """Some words: what is read at `weights` is written to `to`, maybe the same."""

    weights: Any
    to: Any
    arrays: Mapping[str, Any]


class DeviceRules:
    """Weights on the device are divided by `scale`; what is kept beside them is not."""

    def __init__(self, device: Device, rule: Rule, l2: float, scale: float) -> None:
        self.device, self.rule, self.l2, self.scale = device, rule, l2, scale

    def step(self, piece: WordRange, gradient: Any, factor: float, turn: Turn) -> None:
        """As `Rule.step`; the gradient stays as it is."""
        name, kept, numbers = self._way()(factor, turn)
        arrays = piece.weights, piece.to, *(piece.arrays[one] for one in kept), gradient
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
            (LinearRule, self._linear),
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
        assert isinstance(self.rule, LinearRule)
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
        return "step_adagrad", rule.state_names, numbers

    def _adam(self, factor: float, turn: Turn) -> "Call":
        rule, t = self.rule, turn.number + 1
        assert isinstance(rule, Adam)
        first, second = (rule.beta1, 1.0 - rule.beta1), (rule.beta2, 1.0 - rule.beta2)
        mend, rate = 1.0 / (1.0 - rule.beta2**t), turn.rate / (1.0 - rule.beta1**t)
        moments = *first, *second, mend, -rate, rule.epsilon
        return "step_adam", rule.state_names, (self.scale, factor, self.l2, *moments)


Call = tuple[str, tuple[str, ...], tuple[float, ...]]  # kernel, what is kept, numbers
Way = Callable[[float, Turn], Call]

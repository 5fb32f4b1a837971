"""Sums, averages and step rules of weights on a GPU."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np

from hpcsgd.backends.base import VELOCITY, DeviceCopy, Wait, WordRange
from hpcsgd.backends.cuda.device import Device, Mirrored, MirroredArrays
from hpcsgd.backends.cuda.exchange import DenseProducts, GramTiles, Widths
from hpcsgd.backends.cuda.kernels import average, build_of, words
from hpcsgd.backends.cuda.matrix import DeviceMatrix, sent
from hpcsgd.comm.communicator import Communicator
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array
from hpcsgd.glm.unrolling import blocks_of
from hpcsgd.glm.updates import Adagrad, Adam, LinearRule, Rule, Turn

# The memory of a device, for agreements.

CHUNK = 4  # words that kernels read at once


class DeviceMemory:
    """Arrays of float32 on a device, and pinned ones of the host beside them."""

    on_device: ClassVar[bool] = True

    def __init__(self, device: Device) -> None:
        self.device = device
        self.layer = device.layer
        self.stream = device.stream
        self.up = self.down = 0  # bytes, since this process began

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array of zeros."""
        return self.device.zeros(shape, dtype)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        """Return an array of undefined values."""
        return self.device.empty(shape, dtype)

    def mirrored(
        self, kept: dict[str, Array], names: Iterable[str]
    ) -> dict[str, Array]:
        """Return the arrays `kept`, of which those of `names` get a copy on the device.

        Reading one of `names` from the result returns its newest values on the host.
        """
        return MirroredArrays(self.device, kept, names)

    def host_zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return zeros in pinned memory."""
        host: Array = self.device.layer.pinned(int(np.prod(shape)), np.dtype(dtype))
        host[...] = 0
        return host.reshape(shape)

    def row_of(self, host: Array) -> Any:
        """Return a device matrix of one row of zeros, for the elements of `host`.

        The row is padded to a multiple of four elements.
        """
        words = -(-host.size // CHUNK) * CHUNK
        return self.device.zeros((1, words), np.float32)

    def clear(self, array: Any) -> None:
        """Set all elements of `array` to 0."""
        self.device.clear(array)

    def copy(self, array: Any, out: Any) -> None:
        """Compute out ← array by a kernel; both may be slices that begin anywhere."""
        self._launch("add_words", array.size, (array, np.int32(True), out))

    def add(self, array: Any, out: Any) -> None:
        """Compute out ← out + array."""
        self._launch("add_words", array.size, (array, np.int32(False), out))

    def step(
        self,
        rule: Rule,
        l2: float,
        part: WordRange,
        gradient: Any,
        factor: float,
        turn: Turn,
    ) -> None:
        """Take a step of `rule` with the gradient `factor` · `gradient` + λw.

        λ is `l2`, and `turn` has the number and the rate of the step. It writes the
        weights to `part.to` and updates the other arrays of `part` in place; `gradient`
        stays as it is. Weights are stored divided by `part.scale`; the other arrays are
        not.
        """
        name, state_names, numbers = _step_of(rule)(rule, l2, part.scale, factor, turn)
        arrays = (
            part.weights,
            part.to,
            *(part.arrays[state] for state in state_names),
            gradient,
        )
        self._launch(name, gradient.size, (*arrays, *map(np.float32, numbers)))

    def _launch(self, name: str, count: int, arguments: tuple[Any, ...]) -> None:
        if not count:
            return
        launch = self.device.kernel(build_of(name, "fp32", self.device.arch))
        launch(*words(count)[:2], (np.int64(count), *arguments))

    def host_wait(self, group: Communicator) -> Wait:
        """Return a function that waits for the newest collective of `group`.

        The function raises an error if the collective has failed.
        """
        return partial(group.reach, group.newest)

    def start_to_host(self, array: Any, out: Array) -> Wait:
        """Start to copy `array` to `out`, after all earlier requests.

        Return a function that waits until the copy is complete.
        """
        self.layer.to_host(array.reshape(-1), out.reshape(-1), self.stream)
        done = self.layer.record(self.stream)
        self.down += out.nbytes
        return partial(self.layer.wait, done)

    def from_host(self, values: Array, out: Any) -> None:
        """Copy `values` of the host to `out`, through pinned buffers."""
        self.device.fill(out, values)
        self.up += out.nbytes

    def fetch(self, array: Any) -> Array:
        """Return a copy of `array` on the host."""
        values = self.device.fetch(array)
        self.down += values.nbytes
        return values

    def linear_step(self, row: Any, words: int, states: int) -> "DeviceAdd":
        """Return the step x ← M x + u g; g are the first `words` elements of `row`.

        `row` is a matrix of `row_of`. For each element of g, x has `states` elements.
        """
        return DeviceAdd(self.device, row, words, states)

    def settle(self) -> None:
        """Wait until the device is done; raise the error of a failed collective."""
        self.device.settle()

    def facts(self) -> dict[str, int]:
        """Return two counts: bytes copied up to the device, and down from it."""
        return {"device_bytes_up": self.up, "device_bytes_down": self.down}


# Rows that were sampled on a device, where agreements add up their gradients.


class RowsOnDevice(Protocol):
    """Rows of a batch, or some of their columns, with its residuals."""

    def part(self, columns: slice) -> "RowsOnDevice":
        """Return the same rows in `columns` alone."""

    def add_gradient(self, gradient: Any) -> None:
        """Compute gradient ← gradient + Yᵀr for these rows Y and their residuals r."""

    def scores(self, weights: Any, out: Any) -> None:
        """Compute out ← Y w for these rows Y and the weights w."""


class DeviceRows:
    """The methods of a backend that agreements call, for rows sampled on a device."""

    def zeros(self, shape: tuple[int, ...]) -> Array:
        """Return zeros on the host in float32, the dtype of weights on devices."""
        return np.zeros(shape, dtype=np.float32)

    def prepare(self, unrolled: Any, blocks: Any) -> None:
        """Return None: the product has the coefficients on the device already."""

    def some_columns(self, rows: RowsOnDevice, part: slice) -> RowsOnDevice:
        """Return the same rows in the columns `part` alone."""
        return rows.part(part)

    def scores(self, rows: RowsOnDevice, weights: Any, out: Any) -> Any:
        """Compute out ← Y w."""
        rows.scores(weights, out)
        return out

    def apply_update(
        self, weights: Any, rows: RowsOnDevice, residuals: Array, plan: Any
    ) -> None:
        """Add Yᵀr of `rows` to `weights`, which is a gradient here.

        `rows` has the residuals r on the device; `residuals` and `plan` are not used.
        """
        rows.add_gradient(weights)


# x ← M x + u g on a device: the kernel of updates, for a matrix of one row.

ONE = blocks_of((1,))  # row


class DeviceAdd:
    """The step x ← M x + u g on a device, as one call of the update kernel.

    g are the first `words` elements of `row`, a matrix of one padded row. For each
    element of g, x has `states` elements.
    """

    def __init__(self, device: Device, row: Any, words: int, states: int = 1) -> None:
        matrix = DeviceMatrix(row, "fp32", 1, words)
        tiles = GramTiles(device, ONE)
        widths = Widths(1, states)
        self._products = DenseProducts(device, matrix, ONE, tiles, widths)
        self._numbers = sent(device, np.zeros(1, np.int64))
        self._device = device
        self._room = device.empty((states + states**2,), np.float32)
        self._gain, self._carry = self._room[:states], self._room[states:]

    def to(self, target: Any, carry: Array, gain: Array) -> None:
        """Compute target ← carry target + gain g, element by element of g.

        `carry` has states² values, `gain` has `states` values.
        """
        values = np.concatenate([np.ravel(gain), np.ravel(carry)])
        self._device.fill(self._room, values.astype(np.float32))
        self._products.update(self._numbers, self._gain, self._carry, target)


# The part of a replica in an average, on its device.


class DeviceAverage:
    """One buffer in fp32 for the weights and, behind them, the intercept."""

    def __init__(
        self, device: Device, weights: Any, intercept: Any, scale: float = 1.0
    ) -> None:
        """Allocate the buffer; weights on the device are divided by `scale`."""
        self.device = device
        self._scale = np.float32(scale)
        self._held = np.int64(weights.size)
        self._more = np.int32(0 if intercept is None else intercept.size)
        words = int(self._held) + int(self._more)
        self.buffer = device.empty((words,), np.float32)
        self._shape = average(int(self._held), int(self._more))

    def portion(self, weights: Any, intercept: Any, share: float) -> Any:
        """Fill the buffer with both arrays times `share`, and return it.

        The products are rounded as on the host.
        """
        arguments = weights, self._held, self._scale, intercept, self._more
        self._launch("portion", (*arguments, np.float32(share), self.buffer))
        return self.buffer

    def become(self, weights: Any, intercept: Any) -> None:
        """Set weights and intercept to the values of the buffer."""
        sizes = self._held, self._scale, self._more
        self._launch("become", (self.buffer, *sizes, weights, intercept))

    def _launch(self, kernel: str, arguments: Any) -> None:
        launch = self.device.kernel(build_of(kernel, "fp32", self.device.arch))
        launch(self._shape.grid, self._shape.block, arguments)


class FetchedArray:
    """An array that a device has computed, and that the host reads."""

    def __init__(self, device: Device, array: Any) -> None:
        self._device = device
        self._array = array
        self._host: Array | None = None  # what was put in its place

    def on_host(self) -> Array:
        """Return a copy on the host, or the values that have replaced the array."""
        return self._device.fetch(self._array) if self._host is None else self._host

    host_view = on_host

    def on_device(self) -> Any:
        """Return the array of the device."""
        return self._array

    def written(self) -> None:
        """Do nothing: the array is copied to the host whenever it is read there."""

    def replace(self, values: Array) -> None:
        """Have `on_host` return `values` from now on; the device's array stays."""
        self._host = values


class DeviceCopies:
    """The arrays of a state on a device, where weights are divided by `scale`."""

    def __init__(
        self,
        device: Device,
        weights: Array,
        intercept: Array | None,
        scale: float = 1.0,
    ) -> None:
        self.device = device
        self.scale = scale
        self.mirrors = {"weights": Mirrored(device, weights, "float32", scale)}
        if intercept is not None:
            self.mirrors["intercept"] = Mirrored(device, intercept, "float64")
        self.arrays: dict[str, DeviceCopy] = dict(self.mirrors)
        self._average: DeviceAverage | None = None

    def written(self, residuals: Any) -> None:
        """Mark weights and intercept as written on the device; store `residuals`."""
        for mirror in self.mirrors.values():
            mirror.written()
        self.arrays["residuals"] = FetchedArray(self.device, residuals)

    def sums(self, group: Communicator) -> bool:
        """Return whether `group` can sum arrays that are stored on a device."""
        return group.kind != "none"

    def portion(self, share: float) -> Any:
        """Return weights and intercept, times `share`, in one array of the device.

        Each call returns the same array with new values.
        """
        weights, intercept = self._on_device()
        if self._average is None:
            average = DeviceAverage(self.device, weights, intercept, self.scale)
            self._average = average
        return self._average.portion(weights, intercept, share)

    def has_made(self, total: Any) -> bool:
        """Return whether `total` is the array that `portion` returns."""
        return self._average is not None and total is self._average.buffer

    def become(self) -> Any:
        """Set weights and intercept to the values of the array of `portion`.

        Return the intercept on the device, which the caller may write; None without
        one.
        """
        assert self._average is not None
        weights, intercept = self._on_device()
        self._average.become(weights, intercept)
        for mirror in self.mirrors.values():
            mirror.written()
        return intercept

    def _on_device(self) -> tuple[Any, Any]:
        intercept = self.mirrors.get("intercept")
        beta = None if intercept is None else intercept.on_device()
        return self.mirrors["weights"].on_device(), beta


# Steps of rules on a device, word by word: slices may begin and end anywhere.
#
# Products and sums are rounded one by one, in the order of the host: the same gradient
# gives the same bits.

Call = tuple[str, tuple[str, ...], tuple[float, ...]]  # kernel, what is kept, numbers
CallOf = Callable[[Any, float, float, float, Turn], Call]


def _step_of(rule: Rule) -> CallOf:
    """Return the function that returns the kernel, array names and numbers of a step.

    Raise ConfigError if no kernel takes steps of `rule`.
    """
    call = CALLS.get(type(rule))
    if call is None:
        raise ConfigError(
            f"--device cuda does not support the update {type(rule).__name__} on slices"
            " of the weights (sharded methods); use --method offload, or --device cpu"
        )
    return call


def _linear(
    rule: LinearRule, l2: float, scale: float, factor: float, turn: Turn
) -> Call:
    update = rule.update
    carry = update.transition(turn.rate, l2).ravel()
    gain = update.gain(turn.rate, 1) * factor
    if update.states == 1:
        return "step_plain", (), (scale, *carry, *gain)
    return "step_momentum", (VELOCITY,), (scale, *carry, *gain)


def _adagrad(rule: Adagrad, l2: float, scale: float, factor: float, turn: Turn) -> Call:
    numbers = scale, factor, l2, -turn.rate, rule.epsilon
    return "step_adagrad", rule.state_names, numbers


def _adam(rule: Adam, l2: float, scale: float, factor: float, turn: Turn) -> Call:
    t = turn.number + 1
    first = (rule.beta1, 1.0 - rule.beta1)
    second = (rule.beta2, 1.0 - rule.beta2)
    mend = 1.0 / (1.0 - rule.beta2**t)
    rate = turn.rate / (1.0 - rule.beta1**t)
    moments = *first, *second, mend, -rate, rule.epsilon
    return "step_adam", rule.state_names, (scale, factor, l2, *moments)


CALLS: dict[type[Rule], CallOf] = {
    LinearRule: _linear,
    Adagrad: _adagrad,
    Adam: _adam,
}

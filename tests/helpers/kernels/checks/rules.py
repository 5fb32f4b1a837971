"""The rules kernel beside float64: sizes, checks and planted faults."""

from ctypes import c_longlong, c_void_p

import numpy as np

from hpcsgd.backends.base import VELOCITY, WordRange
from hpcsgd.backends.cuda.weights import DeviceMemory
from hpcsgd.glm import ColumnViews, Turn
from hpcsgd.glm.updates import Adagrad, Adam, HeavyBall, LinearRule, Nesterov, Sgd
from tests.helpers.kernels.emulator import SEEDS, Kernel, check_guards, empty, on_device
from tests.helpers.kernels.fake_device import FakeDevice
from tests.helpers.kernels.mutants import Mutant

RULES = {
    "sgd": LinearRule(Sgd()),
    "momentum": LinearRule(HeavyBall(0.9)),
    "nesterov": LinearRule(Nesterov(0.8)),
    "adagrad": Adagrad(),
    "adam": Adam(),
}
MUTANTS = [
    Mutant("rules", "a word behind the last", "if (i < count)", "if (i <= count)"),
    Mutant("rules", "the sum begins with what was there", "is_first ? part[i] :",
           "is_first < 0 ? part[i] :"),
    Mutant("rules", "the words of the first block", "(s64)blockIdx.x * 256 +",
           "0 * (s64)blockIdx.x +"),
    Mutant("rules", "a gradient that is no mean", "exact_product(gradient, factor)",
           "gradient"),
    Mutant("rules", "no penalty", "l2 != 0.0f ?", "l2 < 0.0f ?"),
    Mutant("rules", "a penalty of weights as they are stored",
           "whole_gradient(gradient[i], factor, l2, w);\n    float h",
           "whole_gradient(gradient[i], factor, l2, weights[i]);\n    float h"),
    Mutant("rules", "squares that are not kept", "squares[i] = h;", ""),
    Mutant("rules", "a mean that is not kept", "mean[i] = m;", ""),
    Mutant("rules", "a square that is not kept", "square[i] = v;", ""),
    Mutant("rules", "the velocity of the step before",
           "exact_product(carry_vv, v)", "exact_product(carry_wv, v)"),
    Mutant("rules", "a velocity without the gradient", "exact_product(gain_v, g)",
           "0.0f"),
    Mutant("rules", "no root", "exact_root(h)", "h"),
    Mutant("rules", "a square that is not mended", "exact_product(v, mend)", "v"),
    Mutant("rules", "epsilon within the root",
           "exact_sum(exact_root(exact_product(v, mend)), epsilon)",
           "exact_root(exact_sum(exact_product(v, mend), epsilon))"),
    Mutant("rules", "products that are joined with sums",
           "exact_sum(moved, exact_product(gain_w, g))", "fmaf(gain_w, g, moved)"),
    Mutant("rules", "the scale is left out",
           "exact_quotient(exact_sum(weight, exact_product(gradient[i], gain)), scale)",
           "exact_sum(weight, exact_product(gradient[i], gain))"),
]  # fmt: skip


class Launching(FakeDevice):
    """Takes the text of a mutant."""

    def __init__(self, text, seed):
        super().__init__(seed=seed)
        self.text = text

    def kernel(self, build):
        run = Kernel(build.source, *build.defines, text=self.text, entry=build.entry)

        def launch(grid, block, arguments):
            count, *rest = arguments
            given = [_given(one) for one in rest]
            run(grid, block, (c_longlong(int(count)), *given), seed=self.seed)

        return launch


def _given(one):
    """Of a part of an array its address alone: the guards are around the whole."""
    is_part = isinstance(one, np.ndarray) and one.ctypes.data % 128
    return c_void_p(one.ctypes.data) if is_part else one


def check(text):
    """What mutants have to fail."""
    for name in RULES:
        agrees(name, 257, text, first=0)
    sums_agree(257, text)


def agrees(name, count, text=None, first=3):
    """Three steps, of a slice that begins anywhere; small numbers are no zeros."""
    rng, rule, scale = np.random.default_rng(count), RULES[name], 2.0**-3
    weights = rng.normal(size=(count, 1)).astype("f4")
    names = (*rule.state_names, *((VELOCITY,) if rule.states > 1 else ()))
    held = {one: np.zeros((count, 1), np.float32) for one in names}
    wholes = [on_device(np.zeros(first + count), "f4") for _ in ("w", *names)]
    whole, *kept = (one[first:] if first else one for one in wholes)
    there = dict(zip(names, kept, strict=True))
    whole[...] = weights[:, 0] / scale
    memory = DeviceMemory(Launching(text, SEEDS[count % 4]))
    for number in range(3):
        gradient = rng.normal(size=(count, 1)).astype("f4")
        gradient[::7] = rng.choice([0.0, 1e-22, 1e-30], size=gradient[::7].shape)
        to, sent = (whole if number else empty(count)), on_device(gradient[:, 0])
        part = WordRange(whole, to, there, scale)
        memory.step(rule, 0.05, part, sent, 0.3, Turn(number, 0.02))
        whole[...] = to
        _by_the_host(rule, weights, held, gradient, Turn(number, 0.02))
        np.testing.assert_array_equal(whole * np.float32(scale), weights[:, 0])
        for one in names:
            np.testing.assert_array_equal(there[one], held[one][:, 0], err_msg=one)
    for one in wholes:
        check_guards(one)
        assert not one[:first].any()


def _by_the_host(rule, weights, held, gradient, turn):
    if rule.states == 1:
        rule.step(ColumnViews(weights, held), gradient, 0.3, turn, 0.05)
        return
    # Term by term: some builds of NumPy round a product and a sum together.
    real, velocity = np.float32, held[VELOCITY]
    carry = rule.update.transition(turn.rate, 0.05).astype(real)
    gain = (rule.update.gain(turn.rate, 1) * 0.3).astype(real)
    moved = [one * weights + other * velocity for one, other in carry]
    weights[...], velocity[...] = (
        one + by * gradient for one, by in zip(moved, gain, strict=True)
    )


def sums_agree(count, text=None):
    """The first of them begins the sum."""
    rng, device = np.random.default_rng(count), Launching(text, 1)
    parts = rng.normal(size=(2, count)).astype("f4")
    memory, total = DeviceMemory(device), empty(count)
    for number, part in enumerate(parts):
        put = memory.add if number else memory.copy
        put(on_device(part), total)
    np.testing.assert_array_equal(total, parts[0] + parts[1])

"""Exchanges as a device is given them, and their residuals in float64."""

from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from hpcsgd.backends.cuda.kernels import KernelCoefficients, coefficients
from hpcsgd.glm import get_family
from hpcsgd.glm.families import exp_bound
from hpcsgd.glm.unrolling import unroll
from hpcsgd.glm.updates import HeavyBall, LinearUpdate, Nesterov, NesterovClassic, Sgd
from tests.helpers.kernels.emulator import empty, on_device

TILE = 64
UPDATES = {
    "sgd": Sgd(),
    "momentum": HeavyBall(0.9),
    "nesterov": Nesterov(0.8),
    "nesterov-classic": NesterovClassic(0.8),
}
# What of an exchange may be left out.
SIDES = frozenset(("weights", "offsets", "intercept"))


class Three(LinearUpdate):
    """No update of this project has three states: a kernel takes them all the same."""

    states = 3

    def transition(self, rate, l2):
        return np.array([[0.9, -0.2, 0.1], [0.3, 0.8, -rate], [l2, 0.2, 0.7]])

    def gain(self, rate, count):
        return np.array([-rate, 0.5, -0.3]) / count

    def probe(self):
        return np.array([1.0, 0.5, -0.25])


UPDATES["three"] = Three()


@dataclass
class Exchange:
    """Everything a recurrence is given; None where it is left out."""

    starts: np.ndarray
    gram: np.ndarray  # (m, m), as float32
    z: np.ndarray  # (m, states K)
    targets: np.ndarray
    weights: np.ndarray | None
    offsets: np.ndarray | None
    intercept: np.ndarray | None  # (states, K)
    given: KernelCoefficients
    classes: int = 1

    @property
    def states(self):
        return len(self.given.probe)

    @property
    def read(self):
        """Columns of margins for each class."""
        return self.given.lead.shape[1]

    @property
    def rows(self):
        return int(self.starts[-1])


def exchange(
    rng, sizes, update="sgd", family="logistic", sides=SIDES, classes=1, read=None
):
    """Steps of batches of `sizes` rows that move scores by about as much as they are.

    By less where a residual is an exponential: roundoff would grow from step to step.
    `read` = 1: margins are those of one point of all states.
    """
    how, m = UPDATES[update], sum(sizes)
    far = 0.4 if np.isfinite(get_family(family).curvature) else 0.05
    rates = [far * (1 + j % 3) * max(size, 1) ** 0.5 for j, size in enumerate(sizes)]
    unrolled = unroll(how, rates, [max(size, 1) for size in sizes], l2=0.01)
    if read is not None:
        unrolled = replace(unrolled, lead=np.ones((len(sizes), read)))
    y = rng.normal(size=(m, 24)) / 24**0.5
    width = unrolled.lead.shape[1] * classes
    return Exchange(
        starts=on_device(np.concatenate([[0], np.cumsum(sizes)]), np.int32),
        gram=(y @ y.T).astype(np.float32),
        z=on_device(rng.normal(size=(m, width)), np.float32),
        targets=on_device(targets_of(rng, family, m, classes), np.float32),
        weights=_side(rng.uniform(0.5, 2.0, size=m), "weights" in sides),
        offsets=_side(rng.normal(size=m), "offsets" in sides),
        intercept=on_device(rng.normal(size=(how.states, classes)), np.float64)
        if "intercept" in sides
        else None,
        given=KernelCoefficients(*map(on_device, coefficients(unrolled).arrays)),
        classes=classes,
    )


def _side(values, is_there):
    return on_device(values, np.float32) if is_there else None


def targets_of(rng, family, m, classes):
    """m of them that the family takes; of a softmax the numbers of classes."""
    if family == "softmax":
        return rng.integers(0, classes, size=m)
    kind = get_family(family).targets
    return {
        "binary": rng.integers(0, 2, size=m),
        "signed": 2 * rng.integers(0, 2, size=m) - 1,
        "counts": rng.poisson(2.0, size=m),
        "positive": rng.uniform(0.2, 3.0, size=m),
        "real": rng.normal(size=m),
        "nonnegative": rng.poisson(0.7, size=m) * rng.uniform(0.5, 2.0, size=m),
        "proportions": rng.integers(0, 6, size=m) / 5,
    }[kind]


def setting_of(family):
    """The number that a family is given."""
    settings = {"huber": 1.0, "tweedie": 1.5, "negative-binomial": 1.0}
    return settings.get(family, exp_bound(np.float32))


def in_tiles(given, tile=TILE):
    """(tiles, map, tiles to a row of it, shift): NaN wherever nothing may be read."""
    m, starts = given.rows, given.starts
    across = max(-(-m // tile), 1)
    needed = np.zeros((across * tile, across * tile), dtype=bool)
    for first, last in pairwise(starts):
        needed[first:last, :first] = True
    full = np.full(needed.shape, np.nan, dtype=np.float32)
    full[:m, :m] = given.gram
    full[~needed] = np.nan
    tiles, places = [], on_device(np.full((across, across), -1), np.int32)
    for i, k in reversed(list(np.ndindex(across, across))):
        part = np.s_[i * tile : (i + 1) * tile, k * tile : (k + 1) * tile]
        if needed[part].any():
            places[i, k] = len(tiles)
            tiles.append(full[part])
    held = on_device(np.array(tiles or [full[:0, :0]]), np.float32)
    return held, places, across, tile.bit_length() - 1


def residuals_in_float64(given, family):
    """(r, intercept): t_j = Σ lead z + Σ couple G r + β + offset, step by step."""
    own, classes = given.given, given.classes
    z = given.z.astype(np.float64).reshape(given.rows, given.read, classes)
    gram, y = given.gram.astype(np.float64), given.targets[:, None].astype(np.float64)
    r = np.zeros((given.rows, classes))
    beta = None if given.intercept is None else given.intercept.copy()
    bounds = list(pairwise(given.starts))
    for j, (first, last) in enumerate(bounds):
        t = np.einsum("a,mak->mk", own.lead[j].astype(np.float64), z[first:last])
        for i, (begin, end) in enumerate(bounds[:j]):
            couple = float(own.couple[j * (j - 1) // 2 + i])
            t += couple * gram[first:last, begin:end] @ r[begin:end]
        if beta is not None:
            t += own.probe.astype(np.float64) @ beta
        if given.offsets is not None:
            t += given.offsets[first:last, None]
        part = get_family(family).residual(t, y[first:last])
        if given.weights is not None:
            part *= given.weights[first:last, None]
        r[first:last] = part
        if beta is not None:
            total = np.multiply.outer(own.push[j].astype(np.float64), part.sum(axis=0))
            beta = own.free[j].astype(np.float64) @ beta + total
    return r, beta


def factors_of(given, r):
    """r times the gain of its step, for each state: rows × (states K)."""
    batches = np.repeat(np.arange(len(given.starts) - 1), np.diff(given.starts))
    gain = given.given.gain[batches].astype(np.float64)
    return np.einsum("ma,mk->mak", gain, r).reshape(given.rows, -1)


def results(given):
    """(residuals, factors, intercept) to be written to."""
    m, classes = given.rows, given.classes
    beta = None if given.intercept is None else on_device(given.intercept)
    return empty((m, classes)), empty((m, given.states * classes)), beta


def agree(found, given, family, within=1e-6):
    """What a launch has written, with float64, relative to the largest."""
    residuals, factors, intercept = found
    r, beta = residuals_in_float64(given, family)
    close(residuals, r, within)
    close(factors, factors_of(given, r), within)
    if beta is not None:
        # Residuals cancel in its sums.
        summed = np.abs(given.given.push).max() * np.abs(r).sum()
        close(intercept, beta, within, np.abs(beta).max() + summed)


def close(found, wanted, within, size=None):
    """All of them, relative to the largest."""
    size = size or max(np.abs(wanted).max(initial=0.0), 1e-30)
    worst = np.abs(found - wanted).max(initial=0.0) / size
    assert worst <= within, f"off by {worst:.2e} of the largest"

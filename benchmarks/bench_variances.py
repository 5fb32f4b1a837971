"""What rounding by adaptive levels costs: a mixture of laws, one law, and AMQ's zero.

The variance of a rounded gradient, relative to |v|², once the levels have adapted to
it. `one law` fits the levels of alq to one truncated normal of the pooled moments, as
if all chunks were alike; `with a zero` is the best of 0, ±pˢ, ..., ±1, whose zero takes
the place of one power, so that the bits are the same. Two gradients: normal words,
whose scale in half of the chunks is a tenth of the norm that they share with one large
word; and softmax on the digits of scikit-learn, at zero weights, a chunk a class. All
of it is exact: no clock is read.

    python -m benchmarks.run bench_variances
"""

import numpy as np
from sklearn.datasets import load_digits

from hpcsgd.agreements.codecs.levels import Mixture, powers
from tests.helpers.contracts.codec import Alone, moments, opened

BITS = (3, 4, 6, 8)
NORMS = ("max", "l2")


def measure() -> list[dict]:
    """One row for each gradient, norm and number of bits."""
    gradients = {"normal": normal(), "digits": digits()}
    return [
        {"gradient": name, **row(chunks, norm, bits)}
        for name, chunks in gradients.items()
        for norm in NORMS
        for bits in BITS
    ]


def normal() -> np.ndarray:
    """Chunks of normal words; in half of them they are small beside the largest one."""
    rng = np.random.default_rng(2)
    chunks = rng.normal(size=(8, 1024)) * np.repeat([0.3, 0.03], 4)[:, None]
    chunks = np.clip(chunks, -1.0, 1.0)
    chunks[:, 0] = 1.0
    return chunks


def digits() -> np.ndarray:
    """The gradient of softmax at zero weights, a row for each class."""
    X, y = load_digits(return_X_y=True)
    Y = np.eye(10)[y]
    return (X.T @ (0.1 - Y) / len(X)).T.copy()


def row(chunks: np.ndarray, norm: str, bits: int) -> dict:
    """The variances of every kind of levels, relative to |v|²."""
    settings = {"bits": bits, "norm": norm, "chunk": chunks.shape[1]}
    part, found = chunks.reshape(-1), {"norm": norm, "bits": bits}
    found["nuqsgd"] = relative(opened("nuqsgd", settings, part.size), part)
    alq, amq = (adapted(name, settings, part) for name in ("alq", "amq"))
    found["alq"] = relative(alq, part)
    one = alq.fit(pooled(chunks, norm))
    found["alq, one law"] = with_levels(alq, one, part)
    found["amq"] = relative(amq, part)
    count = len(one) - 1
    found["amq, with a zero"] = min(
        with_levels(alq, [0.0, *powers(p, count)], part)
        for p in np.linspace(0.02, 0.98, 97)
    )
    return found


def adapted(name: str, settings: dict, part: np.ndarray):
    """The codec after the exchange in which it adapts."""
    codec = opened(name, {**settings, "adapt": 1}, part.size)
    for at in moments(2):
        codec.start(part.copy(), Alone(), at)()
    return codec


def pooled(chunks: np.ndarray, norm: str) -> Mixture:
    """The law of the words of all chunks, taken for one; zeros are left out."""
    order = np.inf if norm == "max" else 2
    norms = np.linalg.norm(chunks, order, axis=1, keepdims=True)
    ratios, weights = chunks / norms, norms**2 * (chunks != 0.0)
    sums = [(weights * ratios**power).sum() for power in range(3)]
    return Mixture(np.array([sums]))


def with_levels(codec, levels, part: np.ndarray) -> float:
    """Return the relative variance of these levels."""
    codec.kept["levels"][...] = levels
    return relative(codec, part)


def relative(codec, part: np.ndarray) -> float:
    """Return the variance of a rounded gradient over |v|²."""
    return float(codec.variance(part).sum() / np.square(part).sum())

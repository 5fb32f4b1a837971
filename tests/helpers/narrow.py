"""Words for sums in narrow formats, and the bound of their error."""

import numpy as np

FP32 = 2.0**-24


def bound_of(parts, form):
    """(2u + u²) Σ|parts|, what subnormal numbers add to it, and float32's own sum."""
    u, sizes = form.unit_roundoff, np.abs(parts).sum(axis=0)
    count = len(parts)
    bound = (2 * u + u * u) * sizes + count * FP32 * (1 + 2 * u) * sizes
    tiny = form.tiny / 2
    if form.wants_scale:
        # A scale takes the largest value above half of the largest number.
        units = 2 * np.abs(parts).max(axis=1) / form.largest
        above = 2 * (1 + u) * sizes.max() / form.largest
        return bound + tiny * ((1 + u) * units.sum() + above)
    return bound + tiny * (count + 1)


def drawn(kind, ranks, words=1013):
    rng = np.random.default_rng(ranks)
    parts = rng.normal(size=(ranks, words)).astype(np.float32)
    if kind == "cancelling":
        parts[-1] = -parts[:-1].sum(axis=0) * np.float32(1 + 1e-4)
    elif kind == "wide":
        parts *= 10.0 ** rng.uniform(-9, 9, size=parts.shape).astype(np.float32)
    elif kind == "unlike":  # ranks of very different sizes
        parts *= 10.0 ** np.linspace(-6, 6, ranks, dtype=np.float32)[:, None]
    return parts.astype(np.float32)

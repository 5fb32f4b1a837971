"""Exchanges drawn at random, small enough for thousands of them in a test."""

from dataclasses import replace

import numpy as np

from hpcsgd.backends.base import StepBatch, make_scaling
from hpcsgd.data.shard import split_range
from hpcsgd.formats import FOR_MATRICES, formats_of, get_format
from hpcsgd.glm import get_family
from hpcsgd.precision import FIELDS
from hpcsgd.tuning.exact_exchange import ExactExchange, SgdSteps, largest_safe_rate
from hpcsgd.tuning.pilots import held, with_one_field

LOW = ("fp32", "tf32", "bf16", "fp16", "fp8-e4m3", "fp8-e5m2", "int8")
FAMILIES = ("gaussian", "logistic", "poisson", "softmax")
# largest columns, steps and rows of a batch
TINY, SMALL, LARGE = (4, 3, 3), (48, 5, 8), (512, 8, 32)
CALM = 1e-6  # a rate at which scores stay where they are


def draw_exchange(seed, limits, family=None, l2=None):
    """Ragged batches, C in 1, 2 and 4, all that may be added to plain rows at times."""
    rng = np.random.default_rng([7, seed, *limits])
    d, s, b = (_size(rng, limit) for limit in limits)
    sizes = (b,) * (s - 1) + (int(rng.integers(1, b + 1)),)
    name = family or FAMILIES[rng.integers(len(FAMILIES))]
    X, w, y = _data(rng, name, sum(sizes), d)
    column = (len(X), 1)
    drawn = float(rng.choice([0.0, 0.0, 0.01, 0.2]))
    exchange = ExactExchange(
        rows=X,
        batch=StepBatch(
            targets=y,
            weights=rng.uniform(0.5, 2.0, column) if rng.random() < 0.3 else None,
            offsets=rng.uniform(-0.3, 0.3, column) if rng.random() < 0.3 else None,
        ),
        steps=SgdSteps(sizes, (CALM,) * s, drawn if l2 is None else l2),
        before=w,
        family=get_family(name),
        intercept=rng.uniform(-0.2, 0.2, w.shape[1]) if rng.random() < 0.3 else None,
        parts=parts_of(d, min(int(rng.choice([1, 2, 4])), d)),
    )
    return at_share_of_safe_rate(exchange, rng.uniform(0.1, 0.9), rng)


def parts_of(d, members):
    """The columns of every member."""
    return tuple(split_range(d, members, c) for c in range(members))


def at_share_of_safe_rate(exchange, share, rng=None):
    """Rates below the limit, equal or not."""
    s = len(exchange.steps.sizes)
    scale = np.ones(s) if rng is None else rng.uniform(0.5, 1, 99)
    rate = share * largest_safe_rate(exchange)
    return with_rates(exchange, tuple(rate * scale[:s]))


def with_rates(exchange, rates):
    """The exchange with other rates."""
    return replace(exchange, steps=replace(exchange.steps, rates=rates))


def scaled_for(exchange, name):
    """Columns and residuals scaled as a run scales them for a format that wants it."""
    if not get_format(name).wants_scale:
        return exchange
    peaks = np.abs(exchange.rows).max(axis=0)
    own = slice(0, len(peaks))
    scaling = make_scaling(get_format(name), peaks, own, "column")
    return replace(exchange, exponents=scaling.exponents, loss_scale=4.0)


def cases(seed, limits, name):
    """(field, exchange, precision) for all fields of one draw that know the format."""
    drawn = draw_exchange(seed, limits)
    drawn = scaled_for(drawn, name) if seed % 2 or name in FOR_MATRICES else drawn
    for field in (field for field in FIELDS if name in formats_of(field)):
        exchange = held(drawn, name) if field == "weights" else drawn
        yield field, exchange, with_one_field(field, name)


def _size(rng, limit):
    """Any size up to the limit, small ones as often as large ones."""
    return int(np.exp(rng.uniform(0, np.log(limit + 0.999))))


def _data(rng, name, m, d):
    classes = 3 if name == "softmax" else 1
    X = rng.normal(size=(m, d))
    w = rng.uniform(0.3, 1.2) * rng.normal(size=(d, classes)) / np.sqrt(d)
    t = 0.8 * X @ w + 0.3 * rng.normal(size=(m, classes))
    if name == "gaussian":
        return X, w, t + 0.5 * rng.normal(size=t.shape)
    if name == "logistic":
        return X, w, (rng.random(t.shape) < 1 / (1 + np.exp(-t))).astype(float)
    if name == "poisson":
        return X, w / 2, rng.poisson(np.exp(np.minimum(t, 1.5))).astype(float)
    return X, w, t.argmax(axis=1)[:, None].astype(float)

"""What the arithmetic of a member has to say of one exchange, whoever does it.

A side is given a `Problem` and answers with `Found`: a backend of the host, or the
kernels of a device. Each check takes one and holds it against longdouble.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest

from hpcsgd.errors import HpcsgdError
from hpcsgd.formats import decode, encode
from hpcsgd.glm.unrolling import blocks_of, unroll
from hpcsgd.glm.updates import HeavyBall, Nesterov, NesterovClassic, Sgd
from tests.helpers import oracle
from tests.helpers.kernels.exchanges import targets_of

L = np.longdouble
L2 = 0.01
UPDATES = {
    "sgd": Sgd(),
    "momentum": HeavyBall(0.9),
    "nesterov": Nesterov(0.8),
    "nesterov-classic": NesterovClassic(0.8),
}


@dataclass(frozen=True)
class Problem:
    """Rows, the numbers of those that an exchange takes, and where it begins."""

    X: np.ndarray  # (n, d) float32, values of `form`
    targets: np.ndarray  # (n, 1)
    sampled: np.ndarray  # (m,) numbers, some of them twice
    sizes: tuple[int, ...]
    weights: np.ndarray  # (d, S K)
    sample_weights: np.ndarray | None
    offsets: np.ndarray | None
    intercept: np.ndarray | None  # (S, K)
    form: str = "fp32"
    family: str = "logistic"
    update: str = "sgd"
    classes: int = 1

    @property
    def rates(self):
        return [0.3 + 0.1 * (j % 3) for j in range(len(self.sizes))]

    @property
    def linear(self):
        return UPDATES[self.update]

    @property
    def blocks(self):
        return blocks_of(self.sizes)

    @property
    def unrolled(self):
        return unroll(self.linear, self.rates, self.sizes, L2)


@dataclass(frozen=True)
class Found:
    """What an exchange makes, in its order."""

    gram: np.ndarray  # strictly lower blocks, packed
    margins: np.ndarray  # (m, S K)
    residuals: np.ndarray  # (m, K)
    weights: np.ndarray  # (d, S K)
    intercept: np.ndarray | None


def problem_of(
    sizes=(5, 5, 5),
    n=40,
    d=21,
    form="fp32",
    family="logistic",
    update="sgd",
    classes=1,
    sides=True,
    density=1.0,
    seed=0,
):
    """One of these sizes."""
    rng, m = np.random.default_rng([seed, n, d]), sum(sizes)
    n = max(n, m)
    states = UPDATES[update].states
    X = rng.normal(size=(n, d)) / d**0.5
    X[rng.uniform(size=X.shape) > density] = 0.0
    X = decode(encode(X.astype(np.float32), form), form, np.float32)
    wide = states * classes
    return Problem(
        X=np.ascontiguousarray(X),
        targets=targets_of(rng, family, n, classes)[:, None].astype(float),
        sampled=rng.integers(0, n, size=m),
        sizes=tuple(sizes),
        weights=rng.normal(size=(d, wide)),
        sample_weights=rng.uniform(0.5, 2.0, size=(n, 1)) if sides else None,
        offsets=rng.normal(size=(n, 1)) if sides else None,
        intercept=rng.normal(size=(states, classes)) if sides else None,
        **{"form": form, "family": family, "update": update, "classes": classes},
    )


def exact(problem):
    """The same in longdouble: products of the definition, steps one by one."""
    p = problem
    X, y = p.X[p.sampled].astype(L), p.targets[p.sampled].astype(L)
    states, classes = p.linear.states, p.classes
    x = p.weights.astype(L).reshape(-1, states, classes)
    b = None if p.intercept is None else p.intercept.astype(L)
    probe, residuals, first = p.linear.probe().astype(L), [], 0
    for size, rate in zip(p.sizes, p.rates, strict=True):
        part = slice(first, first + size)
        t = X[part] @ np.einsum("a,dak->dk", probe, x)
        t = t if b is None else t + probe @ b
        t = t if p.offsets is None else t + p.offsets[p.sampled[part]].astype(L)
        r = oracle.residual(p.family, t, y[part])
        if p.sample_weights is not None:
            r = r * p.sample_weights[p.sampled[part]].astype(L)
        residuals.append(r)
        gain = p.linear.gain(rate, size).astype(L)
        step = p.linear.transition(rate, L2).astype(L)
        free = p.linear.transition(rate, 0.0).astype(L)
        x = np.einsum("ab,dbk->dak", step, x) + np.einsum(
            "a,dk->dak", gain, X[part].T @ r
        )
        b = None if b is None else free @ b + np.multiply.outer(gain, r.sum(axis=0))
        first += size
    return Found(
        gram=packed(X @ X.T, p.blocks),
        margins=X @ p.weights.astype(L),
        residuals=np.concatenate(residuals),
        weights=x.reshape(len(x), -1),
        intercept=b,
    )


def packed(gram, blocks):
    """Its strictly lower blocks, one after the other."""
    panels = [
        gram[first:last, :first].ravel()
        for first, last in zip(blocks.starts, blocks.starts[1:], strict=False)
    ]
    return np.concatenate([*panels, np.empty(0, gram.dtype)])


def holds(side, problem, within=2e-5):
    """Everything that the side makes of it, relative to the largest of its kind."""
    found, wanted = side(problem), exact(problem)
    for name in ("gram", "margins", "residuals", "weights", "intercept"):
        one, other = getattr(found, name), getattr(wanted, name)
        assert (one is None) == (other is None), name
        if other is None:
            continue
        one, other = np.asarray(one), other.astype(float)
        assert one.shape == other.shape, name
        size = max(np.abs(other).max(initial=0.0), 1.0)
        worst = np.abs(one - other).max(initial=0.0) / size
        assert worst <= within, f"{name} is off by {worst:.1e}"
    return found


def steps_of_any_sizes(side):
    """One step, one row, rows that fill no tile and no vector, uneven batches."""
    for sizes in ((1,), (7,), (1, 1, 1), (3, 1, 5), (33, 32), (64, 64), (9,) * 8):
        holds(side, problem_of(sizes))


def any_width(side):
    for d in (1, 2, 7, 8, 16, 33, 130, 515):
        holds(side, problem_of((6, 6), d=d))


def every_family(side):
    for family in ("logistic", "gaussian", "poisson", "squared-hinge", "huber",
                   "gamma", "probit"):  # fmt: skip
        holds(side, problem_of((5, 5, 5), family=family), within=1e-4)


def sides_or_none(side):
    """Sample weights, offsets and an intercept, each alone and all left out."""
    full = problem_of()
    for kept in ("sample_weights", "offsets", "intercept", ""):
        names = {"sample_weights", "offsets", "intercept"} - {kept}
        holds(side, replace(full, **dict.fromkeys(names)))


def every_update(side):
    for update in UPDATES:
        holds(side, problem_of((4, 4, 4, 4), update=update))


def classes(side):
    for count in (2, 3, 5):
        for update in ("sgd", "momentum"):
            given = {"family": "softmax", "classes": count, "update": update}
            holds(side, problem_of((4, 4, 4), **given))


def rows_of_zeros(side):
    """Empty rows and columns are rows and columns."""
    problem = problem_of((5, 5, 5))
    X = problem.X.copy()
    X[problem.sampled[2]] = 0
    X[:, 3] = 0
    holds(side, replace(problem, X=X))
    holds(side, replace(problem, X=np.zeros_like(X)))


def few_values(side):
    holds(side, problem_of((6, 5, 4), d=45, density=0.15))


def the_same_bits_again(side):
    """The same exchange twice, and another one in between."""
    problem = problem_of((17, 17, 17), d=130)
    first = side(problem)
    side(problem_of((3, 4), seed=1))
    again = side(problem)
    for name in vars(first):
        one, other = getattr(first, name), getattr(again, name)
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_array_equal(one, other)


def what_is_no_number_stays_in_its_row(side):
    """Margins of other rows are those that they were."""
    problem = problem_of((4, 4))
    X = problem.X.copy()
    X[problem.sampled[0], 5] = np.nan
    given = replace(problem, X=X)
    hit = given.sampled == given.sampled[0]
    try:
        found = side(given)
    except HpcsgdError:  # it may refuse
        return
    assert np.isnan(found.margins[hit]).all()
    wanted = exact(problem).margins[~hit].astype(float)
    np.testing.assert_allclose(found.margins[~hit], wanted, atol=1e-4)


CHECKS = [
    *(steps_of_any_sizes, any_width, every_family, sides_or_none, every_update),
    *(classes, rows_of_zeros, few_values, the_same_bits_again),
    what_is_no_number_stays_in_its_row,
]


def in_other_formats(side, form):
    """Storage is exact here: what is made of it is as good as in fp32."""
    for problem in (problem_of(form=form), problem_of((33, 32), d=70, form=form)):
        holds(side, problem)


def tells_a_wrong_one(side):
    """The checks can fail: each part of an exchange, changed by little."""
    problem = problem_of()
    for name in ("gram", "margins", "residuals", "weights", "intercept"):

        def wrong(given, name=name):
            found = side(given)
            values = np.array(getattr(found, name))
            values.flat[-1] += 1e-3
            return replace(found, **{name: values})

        with pytest.raises(AssertionError, match=f"{name} is off"):
            holds(wrong, problem)

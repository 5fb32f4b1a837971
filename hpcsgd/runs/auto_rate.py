"""The default rate 1/L of a run whose rate is not set, from the rows themselves.

The Hessian of the loss on one batch A_k of b rows is at most A_kᵀ D A_k / b, where
D = diag(c_i κ_i) and κ_i bounds the curvature of the loss in its score. With L, the
largest eigenvalue λ_max of that matrix plus the ridge penalty λ, the rate 1/L is half
of what is stable. There are two figures for λ_max:

    rows       max_i c_i κ_i (‖a_i‖² + 1)                    no batch has a larger one
    batches    max over sampled batches of λ_max(A_kᵀ D A_k) / b, as if the longest of
               all rows were in place of the longest sampled row

The 1 is that of the intercept. The first needs one sum of n words over members, n the
rows of a replica; the second b words more for every row it samples. Momentum adds up
1/(1 − μ) steps, so that its rate is (1 − μ)/L. Gradients that are one step late
(`offload` with a delay) are stable half as far, and take half of these rates.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import floor, log10
from typing import Any

import numpy as np

from hpcsgd.comm.grid import Grid
from hpcsgd.config import RunConfig, UpdateConfig
from hpcsgd.errors import DataError
from hpcsgd.formats import Array
from hpcsgd.glm import ADAPTIVE
from hpcsgd.glm.families import Family
from hpcsgd.glm.updates import RateConfig
from hpcsgd.runs.load import LoadedRows
from hpcsgd.solvers.objective import block_rows

log = logging.getLogger(__name__)
SAMPLED = 1024  # rows of a replica from which batches are made
SAMPLED_VALUES = 2**21  # of these rows, where they are very wide
GATHERING = ("momentum", "nesterov", "nesterov-classic")  # updates with a velocity
BOLDER = "; rate.norm = 'batches' takes the smaller L of sampled batches"
DIGITS = 3  # of the rate: sums of other grids differ in the last ones


def rate_of(config: RunConfig, steepness: float | None) -> RateConfig:
    """Return the settings of the rate, with its value from the curvature L.

    L is `steepness`. If it is None, return the settings in `config`.
    """
    rate = config.rate
    if steepness is None:
        return rate
    if rate.per_batch:
        return replace(rate, value=_scaled_rate(config, steepness), per_batch=0)
    return replace(rate, value=rate_of_rows(config, steepness))


def rate_of_rows(config: RunConfig, steepness: float) -> float:
    """Return the rate 1/L, lowered for momentum, late gradients and growing batches.

    L is `steepness`; if it is 0, the rate is 1. The rate is rounded down to `DIGITS`
    digits.
    """
    slowed = _slowed(config) / growth(config)
    return rounded_down(slowed / steepness) if steepness > 0.0 else 1.0


def rate_reason(config: RunConfig) -> str:
    """Return how `rate_of` computes the rate of `config` from the rows, in words."""
    slowed = _slowed(config) / growth(config)
    if config.rate.per_batch:
        rows = f"from {config.rate.per_batch} to {rows_of_step(config)} rows a step"
        is_bounded = not ignores_length(config.update)
        return f"scaled {rows}" + is_bounded * f", and at most {2.0 * slowed:.3g}/L"
    rows = "sampled batches" if config.rate.norm == "batches" else "the longest row"
    return f"{slowed:.3g}/L, with the curvature L of {rows}"


def rows_of_step(config: RunConfig) -> int:
    """Return the rows of one step at the start of a run.

    If replicas share gradients, they are the rows of all replicas and of all batches
    that are accumulated; else they are those of one batch.
    """
    agreement = config.agreement
    batch = config.schedule.batch
    if not agreement.shares_gradients:
        return batch
    return batch * config.grid.replicas * agreement.batches_of_first_step


def ignores_length(update: UpdateConfig) -> str:
    """Return the setting by which steps do not shrink with gradients; "" if none does.

    It is a setting of [update]: an adaptive rule, trust ratios, or normalised
    gradients. No rate from
    the curvature L suits such steps.
    """
    if update.kind in ADAPTIVE:
        return f"kind = {update.kind!r}"
    if update.trust:
        return f"trust = {update.trust:g}"
    return "normalise = true" if update.normalise else ""


def growth(config: RunConfig) -> int:
    """Return the factor by which growing batches raise the rate during a run."""
    if not config.accordion.scale_rate:
        return 1
    agreement = config.agreement
    return agreement.batches_together // agreement.batches_of_first_step


def _scaled_rate(config: RunConfig, steepness: float) -> float:
    """Return the rate of the linear rule: k times the rows, k times the rate.

    It is never above 2/L, which is lowered as 1/L is, unless adaptive or normalised
    steps ignore L. Unlike losses of deep networks, those of linear models have
    an L that no batch makes smaller: beyond 2/L full gradients diverge.

    L is the largest that single rows or sampled batches have (`rate.norm`), and no mean
    over them: a batch that occurs once in an epoch may be the one that diverges.
    """
    rate = config.rate
    slowed = _slowed(config)
    linear_rate = rate.value * rows_of_step(config) / rate.per_batch
    is_bounded = steepness > 0.0 and not ignores_length(config.update)
    most = 2.0 * slowed / growth(config) / steepness if is_bounded else linear_rate
    if linear_rate > most:
        log.warning(
            "a rate of %.3g, scaled from %d to %d rows a step, is above 2/L and may"
            " diverge; the run uses %.3g, which fewer replicas or smaller batches would"
            " reach as well%s",
            linear_rate,
            rate.per_batch,
            rows_of_step(config),
            most,
            "" if rate.norm == "batches" else BOLDER,
            extra={"on_all_ranks": True},
        )
    return min(linear_rate, most)


def find_steepness(
    config: RunConfig, grid: Grid, loaded: LoadedRows, family: Family
) -> float | None:
    """Return the curvature L; None if the rate of `config` does not depend on it.

    Collective.
    """
    if not (config.rate.per_batch or config.rate.is_open):
        return None
    return measure_steepness(config, grid, loaded, family)


def measure_steepness(
    config: RunConfig, grid: Grid, loaded: LoadedRows, family: Family
) -> float:
    """Return L, a bound of the curvature of F along a step. Collective.

    It includes the ridge penalty, for a sweep the largest one. `rate.norm` decides
    whether it holds for all batches or for sampled ones. Raise DataError on all ranks
    if it is not finite.
    """
    # Of several models the one with the largest penalty bends most.
    l2 = max(config.sweep.l2, default=config.problem.l2)
    with np.errstate(over="ignore", invalid="ignore"):
        steepness = smoothness(config, grid, loaded, family) + l2
    if not np.isfinite(steepness):
        raise DataError(
            "X is too large for a rate from the data: the squares of a row overflow;"
            " divide the columns of X by a power of ten, or set a number as --rate",
            on_all_ranks=True,
        )
    return steepness


def _slowed(config: RunConfig) -> float:
    """Return the factor of 1/L: 1 − μ with momentum, and half if gradients are late."""
    update = config.update
    agreement = config.agreement
    slowed = 1.0 - update.momentum if update.kind in GATHERING else 1.0
    # A gradient that is one step late is stable half as far.
    return 0.5 * slowed if agreement.steps_late else slowed


def rounded_down(value: float) -> float:
    """Return a positive value rounded down to `DIGITS` significant digits."""
    unit = 10.0 ** (floor(log10(value)) - DIGITS + 1)
    return float(f"{floor(value / unit * (1 + 1e-9)) * unit:.{DIGITS}g}")


def smoothness(
    config: RunConfig, grid: Grid, loaded: LoadedRows, family: Family
) -> float:
    """Return the largest curvature of the loss on any rank, without the penalty.

    Collective. With `rate.norm` = "batches" it is that of sampled batches, otherwise
    that of the row with the largest one.
    """
    ones = float(config.problem.intercept)
    bends = curvatures(grid, loaded, family)
    looked = _look(loaded, config.schedule.batch, config.rate.norm == "batches")
    grid.members.sum(looked.squares, "control")
    longest = float(np.max(bends * (looked.squares + ones), initial=0.0))
    own_smoothness = longest
    if looked.grams is not None:
        grid.members.sum(looked.grams, "control")
        own_smoothness = _of_batches(looked, bends, ones, longest)
    return grid.world.max_number(own_smoothness)


@dataclass(frozen=True)
class _PassResult:
    """The results of one pass over the rows of this rank."""

    squares: Array  # ‖a_i‖² of every local row, over the local columns
    chosen: Array  # (batches, b) local numbers of the rows that were sampled
    grams: Array | None  # (batches, b, b), over the local columns


def _look(loaded: LoadedRows, batch: int, wants_batches: bool) -> _PassResult:
    """Return the squares ‖a_i‖² of all local rows and the sampled batches, by one pass.

    With `wants_batches`, the Grams of the sampled batches are returned, too. Squares
    and Grams are sums over the local columns. `batch` is the number of rows of a batch.
    """
    shard = loaded.shard
    squares = np.zeros(shard.height)
    chosen = _sampled(shard.height, batch, shard.total_columns)
    taken: list[Any] = []
    for rows in _blocks(shard.height, shard.total_columns):
        block = loaded.read_exact(rows)
        squares[rows] = row_squares(block)
        if wants_batches:
            inside = np.sort(chosen, axis=None)
            inside = inside[(inside >= rows.start) & (inside < rows.stop)]
            taken.append(block[inside - rows.start])
    grams = _grams(taken, chosen) if wants_batches else None
    return _PassResult(squares, chosen, grams)


def squares_of_rows(grid: Grid, loaded: LoadedRows) -> Array:
    """Return ‖a_i‖² of all local rows over all columns, the same on all members.

    Collective: members sum one word for each row, and member 0 broadcasts the sums.
    """
    squares = _look(loaded, 1, False).squares
    if grid.members.size > 1:
        grid.members.sum(squares, "control")
        grid.members.broadcast(squares, 0, "control")
    return squares


def _blocks(height: int, columns: int) -> Iterator[slice]:
    step = block_rows(columns)
    for start in range(0, height, step):
        yield slice(start, min(start + step, height))


def _sampled(height: int, batch: int, columns: int) -> Array:
    """Return (batches, b) numbers of rows that are spread over all local rows.

    Consecutive samples are in different batches, unless there is one batch only.
    """
    batch = min(batch, height)
    most = max(min(SAMPLED, SAMPLED_VALUES // columns) // batch, 1)
    count = min(most, height // batch)
    rows = np.linspace(0, height, count * batch, endpoint=False).astype(np.int64)
    return rows.reshape(batch, count).T


def _grams(taken: list[Any], chosen: Array) -> Array:
    """Return the Gram of each batch, (batches, b, b), over the local columns.

    `taken` contains the sampled rows in ascending order, `chosen` their numbers.
    """
    place = {row: number for number, row in enumerate(np.sort(chosen, axis=None))}
    grams = np.empty((*chosen.shape, chosen.shape[1]))
    whole = _stacked(taken)
    for number, rows in enumerate(chosen):
        part = whole[[place[row] for row in rows]]
        product = part @ part.T
        grams[number] = product.toarray() if hasattr(product, "tocsr") else product
    return grams


def _stacked(taken: list[Any]) -> Any:
    if hasattr(taken[0], "tocsr"):
        from scipy.sparse import vstack

        return vstack(taken).tocsr().astype(np.float64)
    return np.concatenate(taken).astype(np.float64)


def row_squares(block: Any) -> Array:
    """Return ‖a_i‖² of every row of a block, dense or sparse, in float64."""
    if hasattr(block, "tocsr"):
        squares: Array = block.astype(np.float64).power(2).sum(axis=1)
        return np.asarray(squares).reshape(-1)
    wide = np.asarray(block, dtype=np.float64)
    squared_norms: Array = np.einsum("ij,ij->i", wide, wide)
    return squared_norms


def _of_batches(
    looked: _PassResult, bends: Array, ones: float, longest: float
) -> float:
    """Return the largest λ_max(A_kᵀ D A_k) / b of the sampled batches.

    If the longest of all rows (`longest`) was not sampled, 1/b of its excess over the
    longest sampled row is added.
    """
    assert looked.grams is not None
    if not (np.isfinite(longest) and np.isfinite(looked.grams).all()):
        return float("inf")
    scale = np.sqrt(bends[looked.chosen])
    grams = (looked.grams + ones) * scale[:, :, None] * scale[:, None, :]
    batch = grams.shape[1]
    largest = float(np.linalg.eigvalsh(grams)[:, -1].max()) / batch
    longest_sampled = float(np.max(np.einsum("kii->ki", grams)))
    return float(largest + max(longest - longest_sampled, 0.0) / batch)


def curvatures(grid: Grid, loaded: LoadedRows, family: Family) -> Array:
    """Return c_i κ_i of every local row: sample weight times curvature. Collective.

    A family without a bound on its curvature (log links) has that of the null model or
    that of the score which fits the row, whichever is larger: a good model lies between
    these scores.
    """
    shard = loaded.shard
    weights = np.ones(shard.height)
    if shard.weights is not None:
        weights = shard.weights.max(axis=1).astype(np.float64)  # of any model
    if np.isfinite(family.curvature):
        return weights * family.curvature
    targets = shard.targets.astype(np.float64)
    offsets = np.zeros_like(targets)
    if shard.offsets is not None:
        offsets = shard.offsets.astype(np.float64)
    null = offsets + _null_score(grid, weights, targets, offsets)
    fitting = np.log(np.where(targets > 0.0, targets, 1.0))
    fitting = np.where(targets > 0.0, fitting, null)
    bends = [_bend(family, t, targets) for t in (null, fitting)]
    row_curvatures: Array = weights * np.maximum(*bends)[:, 0]
    return row_curvatures


def _null_score(grid: Grid, weights: Array, targets: Array, offsets: Array) -> float:
    """Return log(Σc y / Σc e^o), the best score that all rows can share. Collective.

    The result is 0 if all targets are 0.
    """
    sums = np.array([weights @ targets[:, 0], weights @ np.exp(offsets[:, 0])])
    own_sums = sums if grid.member == 0 else np.zeros(2)
    total, exposed = np.sum(grid.world.exchange_objects(own_sums), axis=0)
    return float(np.log(total / exposed)) if total > 0.0 else 0.0


def _bend(family: Family, scores: Array, targets: Array, step: float = 1e-3) -> Array:
    """Return ∂r/∂t of each row at these scores, by a central difference, at least 0.

    r is the GLM residual.
    """
    above = family.residual(scores + step, targets)
    below = family.residual(scores - step, targets)
    slope: Array = np.maximum(above - below, 0.0) / (2.0 * step)
    return slope

"""Where a fit begins: at weights that are known, or at the best constant model."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcsgd.agreement.on_disk import OnDisk
from hpcsgd.assembly.engine_parts import Live
from hpcsgd.errors import ConfigError
from hpcsgd.products.base import Array
from hpcsgd.result import Result
from hpcsgd.start import Start, begins_at_zero


def make_start(given: Any) -> Start:
    """From a result, (weights, intercept), weights alone, or nothing."""
    if given is None:
        return NullModel(np.empty(0), None)
    if isinstance(given, Result):
        given = (given.weights, given.intercept)
    pair = given if isinstance(given, tuple) else (given, None)
    if len(pair) != 2:
        raise ConfigError(
            "start must be a Result, weights, or a pair of weights and intercept"
        )
    weights, intercept = pair
    w = _numbers(weights)
    if w.ndim not in (1, 2) or not np.isfinite(w).all():
        raise ConfigError(
            f"start has weights of shape {w.shape} or values that are not finite; give"
            " (d,) or (d, K) finite numbers"
        )
    w = w.reshape(len(w), -1)
    if intercept is None:
        return KnownModel(w, None)
    b = _numbers(intercept).reshape(1, -1)
    if b.size not in (1, w.shape[1]) or not np.isfinite(b).all():
        raise ConfigError(
            f"start has {b.size} numbers as the intercept, or such as are not finite;"
            f" give {w.shape[1]} finite ones"
        )
    return KnownModel(w, b)


def _numbers(given: Any) -> Array:
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            "start must be a Result, weights, or a pair of weights and intercept"
        ) from error


@dataclass(frozen=True)
class KnownModel(Start):
    """Weights (d, K) and perhaps an intercept (1, K); momentum begins at zero."""

    def put_into(self, live: Live) -> None:
        """Refused alike on all ranks where it is the model of something else."""
        columns, state = live.task.columns, live.state
        wanted = (live.task.shard.total_columns, columns)
        if self.weights.shape != wanted:
            raise ConfigError(
                f"start has weights of shape {self.weights.shape} and these data need"
                f" {wanted}; give the model of the same columns and classes"
            )
        if isinstance(state.weights, OnDisk):
            raise begins_at_zero()
        agreement, own = live.engine.agreement, self.weights[live.columns.own]
        weights = np.zeros((len(own), agreement.width(state)), state.weights.dtype)
        weights[:, :columns] = own
        live.task.backend.round(weights, live.task.precision.weights)
        agreement.put_whole(state, weights)
        if state.intercept is not None and self.intercept is not None:
            state.intercept[:1] = self.intercept


@dataclass(frozen=True)
class NullModel(Start):
    """Zero weights, and the intercept that is best with them, where there is one."""

    def put_into(self, live: Live) -> None:
        """From sums over the targets, the same bits on all ranks."""
        if live.state.intercept is not None:
            live.state.intercept[:1] = best_constant(live)


def best_constant(live: Live) -> Array:
    """(K,): the link of the mean target; zero for families that have no such link."""
    shard, family = live.task.shard, live.task.family
    y = shard.targets.astype(np.float64)
    c = np.ones_like(y) if shard.weights is None else shard.weights.astype(np.float64)
    c = c[:, :1]
    o = np.zeros_like(y) if shard.offsets is None else shard.offsets.astype(np.float64)
    kind = family.targets
    if kind in ("signed",) or family.name == "probit":
        return np.zeros(live.task.columns)
    own = _sums(kind, c, y, o, live.task.columns)
    grid = live.grid
    total = sum(grid.world.exchange_objects(own * (grid.member == 0)))
    return _link(kind, np.asarray(total))


def _sums(kind: str, c: Array, y: Array, o: Array, columns: int) -> Array:
    """What the mean target is made of, over the local rows."""
    if kind == "classes":
        return _by_class(c, y, columns)
    if kind == "real":
        return np.array([c.sum(), (c * (y - o)).sum()])
    exposed = np.exp(o) if kind in ("counts", "positive") else np.ones_like(o)
    return np.array([(c * exposed).sum(), (c * y).sum()])


def _by_class(c: Array, y: Array, columns: int) -> Array:
    labels = y[:, 0].astype(np.intp)
    found: Array = np.bincount(labels, weights=c[:, 0], minlength=columns)
    return found


def _link(kind: str, total: Array) -> Array:
    """Of the mean; of classes less their mean score. Nobody of a class: as if one."""
    found: Array
    if kind == "real":
        found = total[1:] / total[0]
    elif kind == "binary":
        some = max(1.0, 1e-9 * total[0])
        none = max(total[0] - total[1], some)
        found = np.log(np.maximum(total[1:], some) / none)
    elif kind == "classes":
        logs = np.log(np.maximum(total, 1.0))
        found = logs - logs.mean()
    else:
        # Targets may be of any size; where all are 0 no intercept is best.
        mean = total[1:] / total[0]
        found = np.log(np.where(mean > 0.0, mean, 1e-9))
    return found

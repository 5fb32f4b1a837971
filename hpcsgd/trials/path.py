"""Real groups of real data, given exactly: what an error bound is computed on."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.bound import Exchange
from hpcsgd.config import RunConfig
from hpcsgd.data.partition import split_range
from hpcsgd.data.sampling import Sampler, plan_groups
from hpcsgd.data.targets import encode_targets
from hpcsgd.errors import ConfigError
from hpcsgd.families import get_family
from hpcsgd.rates import make_rate
from hpcsgd.trials.pilot import DEFAULT_STEPS, Sample

Array = NDArray[Any]
MOST_BYTES = 2**30  # of the rows of one group in float64


@dataclass(frozen=True)
class Path:
    """The groups of a run on a sample, and the exact weights that each begins with."""

    config: RunConfig
    sample: Sample
    members: int

    @cached_property
    def sizes(self) -> list[tuple[int, ...]]:
        """The batches of every group of an epoch."""
        schedule = self.config.schedule
        steps = schedule.steps or DEFAULT_STEPS
        found = plan_groups(len(self.sample.y), schedule.batch, steps)
        if len(found[0]) < steps or min(found[0]) < schedule.batch:
            raise ConfigError(
                f"{len(self.sample.y)} rows are fewer than the {schedule.batch} x"
                f" {steps} of one exchange; use a smaller --batch or --steps"
            )
        return found

    def exchanges(self, count: int, apart: int) -> list[Exchange]:
        """`count` of them, each `apart` exchanges further on the exact path."""
        chosen: list[Exchange] = []
        weights: Array = np.zeros((self._cols, self._columns))
        intercept = np.zeros(self._columns) if self.config.problem.intercept else None
        for number in range(1, count * apart + 1):
            exchange = self._exchange(number - 1, weights, intercept)
            if number % apart == 0:
                chosen.append(exchange)
            weights = exchange.path.after
            if intercept is not None:
                intercept = _advanced(exchange)
        return chosen

    @cached_property
    def _columns(self) -> int:
        return len(self._encoded[1].labels) if self._family.targets == "classes" else 1

    @cached_property
    def _family(self) -> Any:
        return get_family(self.config.problem.family)

    @cached_property
    def _encoded(self) -> Any:
        kind = self._family.targets
        return encode_targets(self.sample.y, kind, 0, lambda own: [own])

    @property
    def _cols(self) -> int:
        return int(self.sample.X.shape[1])

    @cached_property
    def _parts(self) -> tuple[slice, ...]:
        if self.members > self._cols:
            raise ConfigError(
                f"--members {self.members}: the data have {self._cols} columns; use"
                " at most as many members"
            )
        every = range(self.members)
        return tuple(split_range(self._cols, self.members, c) for c in every)

    @cached_property
    def _weights(self) -> Array | None:
        given = self.sample.weights
        return None if given is None else (given / given.mean())[:, None]

    def _exchange(
        self, number: int, weights: Array, intercept: Array | None
    ) -> Exchange:
        epoch, place = divmod(number, len(self.sizes))
        sizes = self.sizes[place]
        before = sum(len(s) for s in self.sizes[:place])
        steps = sum(len(s) for s in self.sizes)
        first = sum(sum(s) for s in self.sizes[:place])
        sampler = Sampler("shuffle-once", self.config.sampling.seed, self._rows, 0)
        rows = sampler.order(epoch)[first : first + sum(sizes)]
        epochs = self.config.schedule.epochs
        rate = make_rate(self.config.rate, epochs * steps, epochs)
        offsets = self.sample.offsets
        return Exchange(
            rows=self._dense(rows),
            sizes=sizes,
            targets=self._encoded[0][rows],
            before=weights,
            rates=tuple(rate.at(epoch * steps + before, len(sizes)).tolist()),
            family=self._family,
            l2=self.config.problem.l2,
            weights=None if self._weights is None else self._weights[rows],
            offsets=None if offsets is None else offsets[rows][:, None],
            intercept=intercept,
            parts=self._parts,
        )

    @property
    def _rows(self) -> int:
        return len(self.sample.y)

    def _dense(self, rows: Array) -> Array:
        size = 8 * len(rows) * self._cols
        if size > MOST_BYTES:
            raise ConfigError(
                f"the rows of one exchange take {size / 2**30:.1f} GiB in float64;"
                " use a smaller --batch or --steps"
            )
        part = self.sample.X[rows]
        found: Array = part.toarray() if hasattr(part, "toarray") else part
        return found.astype(np.float64)


def _advanced(exchange: Exchange) -> Array:
    """The intercept after the exchange."""
    path, h = exchange.path, exchange.per_row
    sums = [path.residuals[part].sum(axis=0) for part in exchange.slices]
    assert exchange.intercept is not None
    moved: Array = exchange.intercept - np.tensordot(h, np.array(sums), axes=1)
    return moved


def scaled(exchange: Exchange, exponents: Array | None) -> Exchange:
    """The same exchange, its columns stored times powers of two."""
    return replace(exchange, exponents=exponents)

"""Clipping, centring and noise of gradients."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcsgd.agreements.codecs.base import Moment
from hpcsgd.backends.task import State
from hpcsgd.formats import Array

# What may become of the mean gradient before the step.


@dataclass(frozen=True)
class GradientFacts:
    """What a part of the gradient has to know of the others."""

    columns: slice | Array  # of all columns, those held here; or their numbers
    total: Callable[[Array], Array]  # sums a few words over all who hold other parts

    def runs(self) -> list[tuple[int, slice]]:
        """Columns that lie together: where the first is here, and which they are."""
        if isinstance(self.columns, slice):
            return [(0, self.columns)]
        breaks = np.flatnonzero(np.diff(self.columns) != 1) + 1
        parts = [part for part in np.split(self.columns, breaks) if part.size]
        places = np.cumsum([0, *(part.size for part in parts)])
        return [
            (int(place), slice(int(part[0]), int(part[-1]) + 1))
            for place, part in zip(places, parts, strict=False)
        ]


class Shaper(ABC):
    """Changes the mean gradient, without penalty and intercept, in place."""

    def prepare(self, state: State) -> None:  # noqa: B027
        """Room in the state for what outlives a checkpoint."""

    @abstractmethod
    def shape(self, gradient: Array, whole: GradientFacts, moment: Moment) -> None:
        """The gradient of the columns held here, (columns, K).

        Called once an exchange on all ranks alike, with all that each of them holds.
        """

    def facts(self) -> dict[str, Any]:
        """For the report of a run."""
        return {}


# Gradients that are too large, made smaller before replicas step.
#
# The same words as `hpcsgd.products.base`, which clips where one replica steps alone: a
# norm is that of the mean gradient of all rows of a batch, over all columns and scores.

HISTORY = 100  # norms that a percentile is of
KEPT = "clip_norms"
NONE = -1.0  # in the place of a norm that nobody has seen: checkpoints take no NaN


@dataclass
class ByValue(Shaper):
    """Every word to [−at, at]."""

    at: float
    clipped: int = 0

    def shape(self, gradient: Array, whole: GradientFacts, moment: Moment) -> None:
        """Word by word: nobody has to be asked."""
        self.clipped += int((np.abs(gradient) > self.at).any())
        np.clip(gradient, -self.at, self.at, out=gradient)

    def facts(self) -> dict[str, Any]:
        """Steps with a word that was too large, of this rank's."""
        return {"clipped_updates": self.clipped}


@dataclass
class ByNorm(Shaper):
    """g ← g · min(1, at / ‖g‖)."""

    at: float
    clipped: int = 0

    def shape(self, gradient: Array, whole: GradientFacts, moment: Moment) -> None:
        """One factor for all."""
        size, limit = norm_of(gradient, whole), self.limit(moment)
        if size > limit:
            gradient *= gradient.dtype.type(limit / size)
            self.clipped += 1

    def limit(self, moment: Moment) -> float:
        """The largest norm."""
        return self.at

    def facts(self) -> dict[str, Any]:
        """Steps that were made shorter."""
        return {"clipped_updates": self.clipped}


@dataclass
class ByPercentile(ByNorm):
    """The largest norm is a percentile of the last hundred: `at` = 5 is the lowest 5 %.

    Of the norms before they were clipped, this one among them. Steps that were left out
    have none.
    """

    _norms: Array = field(default_factory=lambda: np.full((1, HISTORY), NONE))

    def prepare(self, state: State) -> None:
        """The history is part of a run."""
        self._norms = state.shared.setdefault(KEPT, self._norms)

    def shape(self, gradient: Array, whole: GradientFacts, moment: Moment) -> None:
        """By what was seen so far."""
        norms, size = self._norms[0], norm_of(gradient, whole)
        norms[moment.number % HISTORY] = size
        seen = norms[norms >= 0.0]
        limit = float(np.percentile(seen, self.at)) if len(seen) else size
        if size > limit:
            gradient *= gradient.dtype.type(limit / size)
            self.clipped += 1


def norm_of(gradient: Array, whole: GradientFacts) -> float:
    """‖g‖ over all columns."""
    word = np.array([np.square(gradient, dtype=np.float64).sum()])
    return float(np.sqrt(whole.total(word)[0]))


# Gradients without their mean, or of length one.


class OverClasses(Shaper):
    """Less the mean over the K scores of a column.

    Of softmax that mean is 0 but for rounding, so that the optimum stays.
    """

    def shape(self, gradient: Array, whole: GradientFacts, moment: Moment) -> None:
        """Column by column."""
        gradient -= gradient.mean(axis=1, keepdims=True, dtype=gradient.dtype)


@dataclass
class OverColumns(Shaper):
    """Less the mean over all columns, score by score (gradient centralisation)."""

    total: int  # columns

    def shape(self, gradient: Array, whole: GradientFacts, moment: Moment) -> None:
        """One sum of K words."""
        sums = whole.total(gradient.sum(axis=0, dtype=np.float64))
        gradient -= (sums / self.total).astype(gradient.dtype)


class ToLengthOne(Shaper):
    """g / ‖g‖: a step is as long as the rate says; of zeros there is none."""

    def shape(self, gradient: Array, whole: GradientFacts, moment: Moment) -> None:
        """One factor for all."""
        size = norm_of(gradient, whole)
        if size > 0.0:
            # In float64: of a size near the least number 1 / size would be infinite.
            gradient[...] = gradient.astype(np.float64) / size


# Noise that fades: N(0, σ² / (1 + t)^0.55) on every word of the mean gradient.
#
# It is added after replicas agreed, so all of them have to throw the same dice; a
# column has its noise on any grid, since dice are thrown for blocks of columns.

FADES = 0.55  # of the variance (arXiv 1511.06807)
BLOCK = 4096  # columns that share dice
SALT = 0x6E6F697365  # dice of nobody else


@dataclass
class Noise(Shaper):
    """`variance` is that of the first step."""

    variance: float
    seed: int

    def shape(self, gradient: Array, whole: GradientFacts, moment: Moment) -> None:
        """Block by block of all columns."""
        size = np.sqrt(self.variance / (1.0 + moment.number) ** FADES)
        for place, held in whole.runs():
            height = held.stop - held.start
            self._add(gradient[place : place + height], held, size, moment)

    def _add(self, gradient: Array, held: slice, size: float, moment: Moment) -> None:
        for block in range(held.start // BLOCK, -(-held.stop // BLOCK)):
            first, last = block * BLOCK, (block + 1) * BLOCK
            here = slice(max(first, held.start), min(last, held.stop))
            drawn = self._dice(moment, block).normal(size=(BLOCK, gradient.shape[1]))
            own = drawn[here.start - first : here.stop - first]
            part = gradient[here.start - held.start : here.stop - held.start]
            part += (size * own).astype(gradient.dtype)

    def _dice(self, moment: Moment, block: int) -> np.random.Generator:
        return np.random.default_rng((self.seed, SALT, moment.number, block))

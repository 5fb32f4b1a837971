"""Mini-batch SGD as a careful person writes it with NumPy: four calls a step.

Views of every batch are made once; rows are gathered into the order of the shuffle
during the first epoch, batch by batch, so that each is used while the cache holds it.
A step is a product, a residual in place, and one GEMV that also shrinks the weights.
"""

from typing import Any

import numpy as np
from scipy.linalg.blas import saxpy, sgemv
from scipy.special import expit

from benchmarks.peers.problems import Problem
from benchmarks.peers.settings import Setting


def _logistic(t: np.ndarray, y: np.ndarray) -> None:
    expit(t, out=t)
    np.subtract(t, y, out=t)


def _poisson(t: np.ndarray, y: np.ndarray) -> None:
    np.exp(t, out=t)
    np.subtract(t, y, out=t)


def _gaussian(t: np.ndarray, y: np.ndarray) -> None:
    np.subtract(t, y, out=t)


RESIDUALS = {"logistic": _logistic, "poisson": _poisson, "gaussian": _gaussian}


class NumpySgd:
    """w ← (1 − ηλ) w − η/b Aᵀr, or heavy ball where the trial has momentum."""

    def __init__(self, problem: Problem, setting: Setting, seed: int) -> None:
        self.problem, self.setting = problem, setting
        self.residual = RESIDUALS[problem.family]
        self.order = np.random.default_rng(seed).permutation(len(problem.y))
        self.rows = np.empty_like(problem.X)
        self.batches = self._batches(int(setting["batch"]))
        self.w = np.zeros(problem.X.shape[1], dtype=np.float32)
        self.v = np.zeros_like(self.w)
        self.done = 0

    def _batches(self, size: int) -> list[tuple[Any, ...]]:
        """(numbers of the rows, rows, the same turned, targets, scores) of each."""
        n, targets = len(self.order), self.problem.y[self.order]
        scores = np.empty(size, dtype=np.float32)
        parts = (slice(start, min(start + size, n)) for start in range(0, n, size))
        return [
            (
                self.order[part],
                self.rows[part],
                self.rows[part].T,
                targets[part],
                scores[: part.stop - part.start],
            )
            for part in parts
        ]

    def epoch(self) -> None:
        """Every batch once; the first time it is fetched before."""
        step = self._ball if self.setting["momentum"] else self._plain
        rate, decay = self.setting["rate"], self.setting["decays"] / len(self.batches)
        for numbers, rows, turned, wanted, scores in self.batches:
            if self.done < len(self.batches):
                np.take(self.problem.X, numbers, axis=0, out=rows, mode="clip")
            np.dot(rows, self.w, out=scores)
            self.residual(scores, wanted)
            step(turned, scores, rate / (1 + decay * self.done))
            self.done += 1

    def _plain(self, turned: np.ndarray, r: np.ndarray, rate: float) -> None:
        shrink = 1 - rate * self.problem.l2
        self.w = sgemv(-rate / len(r), turned, r, shrink, self.w, overwrite_y=1)

    def _ball(self, turned: np.ndarray, r: np.ndarray, rate: float) -> None:
        """v ← μv + g,  w ← w − ηv."""
        kept = self.setting["momentum"]
        self.v = sgemv(1 / len(r), turned, r, kept, self.v, overwrite_y=1)
        self.v = saxpy(self.w, self.v, a=self.problem.l2)
        self.w = saxpy(self.v, self.w, a=-rate)

    def weights(self) -> np.ndarray:
        """Those of now."""
        return self.w

"""PyTorch on one thread: the same SGD without a DataLoader or autograd, and LBFGS."""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.peers.problems import Problem
from benchmarks.peers.settings import Setting

torch.set_num_threads(1)
HISTORY = 10  # pairs that LBFGS keeps, as scikit-learn's and SciPy's do
Tensor = torch.Tensor


def _logistic(t: Tensor, y: Tensor) -> None:
    t.sigmoid_().sub_(y)


def _poisson(t: Tensor, y: Tensor) -> None:
    t.exp_().sub_(y)


def _gaussian(t: Tensor, y: Tensor) -> None:
    t.sub_(y)


RESIDUALS = {"logistic": _logistic, "poisson": _poisson, "gaussian": _gaussian}
LOSSES = {
    "logistic": lambda t, y: F.softplus(t).sum() - y @ t,
    "poisson": lambda t, y: t.exp().sum() - y @ t,
    "gaussian": lambda t, y: (t - y).square().sum() / 2,
}


class TorchSgd:
    """Fused in-place updates on slices of rows that were shuffled once."""

    def __init__(self, problem: Problem, setting: Setting, seed: int) -> None:
        self.setting, self.l2 = setting, problem.l2
        self.residual = RESIDUALS[problem.family]
        self.X = torch.from_numpy(problem.X)
        order = np.random.default_rng(seed).permutation(len(problem.y))
        self.order = torch.from_numpy(order)
        self.rows = torch.empty_like(self.X)
        self.batches = self._batches(torch.from_numpy(problem.y)[self.order])
        self.w = torch.zeros(self.X.shape[1])
        self.v = torch.zeros_like(self.w)
        self.done = 0

    def _batches(self, targets: Tensor) -> list[tuple[Any, ...]]:
        """(numbers of the rows, rows, the same turned, targets, scores) of each."""
        size = int(self.setting["batch"])
        rows, scores = self.rows.split(size), torch.empty(size)
        return [
            (numbers, part, part.t(), wanted, scores[: len(wanted)])
            for numbers, part, wanted in zip(
                self.order.split(size), rows, targets.split(size), strict=True
            )
        ]

    @torch.inference_mode()
    def epoch(self) -> None:
        """Every batch once; the first time it is fetched before."""
        step = self._ball if self.setting["momentum"] else self._plain
        rate, decay = self.setting["rate"], self.setting["decays"] / len(self.batches)
        for numbers, rows, turned, wanted, scores in self.batches:
            if self.done < len(self.batches):
                torch.index_select(self.X, 0, numbers, out=rows)
            torch.mv(rows, self.w, out=scores)
            self.residual(scores, wanted)
            step(turned, scores, rate / (1 + decay * self.done))
            self.done += 1

    def _plain(self, turned: Tensor, r: Tensor, rate: float) -> None:
        """w ← (1 − ηλ) w − η/b Aᵀr."""
        self.w.addmv_(turned, r, beta=1 - rate * self.l2, alpha=-rate / len(r))

    def _ball(self, turned: Tensor, r: Tensor, rate: float) -> None:
        """v ← μv + g,  w ← w − ηv."""
        self.v.addmv_(turned, r, beta=self.setting["momentum"], alpha=1 / len(r))
        self.v.add_(self.w, alpha=self.l2)
        self.w.add_(self.v, alpha=-rate)

    def weights(self) -> np.ndarray:
        """Those of now."""
        return self.w.numpy()


def lbfgs(problem: Problem, iterations: int) -> np.ndarray:
    """torch.optim.LBFGS with its line search; gradients by formula, not by autograd."""
    X, y = torch.from_numpy(problem.X), torch.from_numpy(problem.y)
    w = torch.zeros(X.shape[1], requires_grad=True)
    residual, loss, n = RESIDUALS[problem.family], LOSSES[problem.family], len(y)

    @torch.no_grad()
    def closure() -> Tensor:
        t = X @ w
        value = loss(t, y) / n + problem.l2 / 2 * (w @ w)
        residual(t, y)
        w.grad = torch.addmv(w, X.t(), t, beta=problem.l2, alpha=1 / n)
        return value

    torch.optim.LBFGS(
        [w],
        max_iter=iterations,
        max_eval=100 * iterations,
        tolerance_grad=1e-12,
        tolerance_change=1e-12,
        history_size=HISTORY,
        line_search_fn="strong_wolfe",
    ).step(closure)
    return w.detach().numpy()

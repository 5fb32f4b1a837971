"""Plain SGD in FP32 on one GPU: as one writes it first, and as well as we can."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import Way, as_graph
from benchmarks.gpu.exchanges import Epoch, stored
from benchmarks.gpu.sizes import Case
from hpcsgd.backends.cuda.exchange import DeviceFusedSteps
from hpcsgd.backends.cuda.matrix import sent
from hpcsgd.glm import get_family, make_update
from hpcsgd.glm.unrolling import plain_steps, uniform_blocks
from hpcsgd.precision import RECIPES

STEPS = 16  # of one graph


def naive(bench: Bench, case: Case, X: np.ndarray, y: np.ndarray) -> Way:
    """A few calls of CuPy a step; one run is an epoch, in parts of steps."""
    cupy, device, batch = bench.cupy, bench.device, bench.sizes.batch
    with device.stream:
        rows, targets = cupy.asarray(X), cupy.asarray(y.astype(np.float32))
        order = cupy.asarray(np.random.default_rng(1).permutation(len(X)))
        weights = cupy.zeros(X.shape[1], dtype=np.float32)
    links: dict[str, Callable[[Any], Any]] = {
        "logistic": lambda t: 1 / (1 + cupy.exp(-t)),
        "poisson": cupy.exp,
    }
    link, steps = links[case.family], len(X) // batch

    def epoch() -> None:
        nonlocal weights
        with device.stream:
            for first in range(0, steps * batch, batch):
                part = order[first : first + batch]
                own = rows[part]
                residuals = link(own @ weights) - targets[part]
                weights -= case.rate / batch * (own.T @ residuals)

    return Way(epoch, steps, on_host=True)


def graphs(bench: Bench, case: Case, X: np.ndarray, y: np.ndarray) -> Way:
    """Our kernels step by step, so many steps to a graph."""
    given = bench, X, y, case.family, case.rate, "fp32", (bench.sizes.batch, 1)
    epoch = Epoch(*given)

    def steps() -> None:
        for _ in range(STEPS):
            epoch.made.before(epoch.weights)
            epoch.made.after(epoch.weights, None)

    epoch.begin()
    most = epoch.count // STEPS
    return Way(as_graph(bench.device, steps), STEPS, most, epoch.begin)


@dataclass(frozen=True)
class InOrder:
    """The rows of an epoch, and their targets beforehand, which costs it nothing."""

    numbers: Any
    targets: Any
    weights: Any = None
    offsets: Any = None


def persistent(bench: Bench, case: Case, X: np.ndarray, y: np.ndarray) -> Way:
    """An epoch in one launch, whose blocks meet once a step."""
    device, batch = bench.device, bench.sizes.batch
    blocks = uniform_blocks(batch, len(X) // batch)
    steps, precision = len(blocks.sizes), RECIPES["fp32"]
    order = np.random.default_rng(1).permutation(len(X))[: blocks.rows]
    rows = InOrder(
        sent(device, order.astype(np.int64)), sent(device, y[order].astype(np.float32))
    )
    matrix = stored(device, X, "fp32")
    arithmetic = SimpleNamespace(family=get_family(case.family), precision=precision)
    walk = DeviceFusedSteps(device, matrix, rows, blocks, arithmetic)
    rates = [case.rate] * steps
    walk.load(plain_steps(make_update("sgd", 0.0), rates, blocks.sizes, 0.0))
    weights = device.zeros((X.shape[1], 1), np.float32)
    return Way(lambda: walk.launch(weights, None), steps, most=1)

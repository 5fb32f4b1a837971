"""Plain SGD in FP32 on one GPU: as one writes it first, and as well as we can."""

from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import Way, as_graph
from benchmarks.gpu.exchanges import Epoch, stored
from benchmarks.gpu.sizes import Case
from hpcsgd.backends import launch_steps
from hpcsgd.backends.device_buffers import sent
from hpcsgd.backends.kernel_table import build_of
from hpcsgd.families.base import exp_bound

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


def persistent(bench: Bench, case: Case, X: np.ndarray, y: np.ndarray) -> Way:
    """An epoch in one launch, whose blocks meet once a step.

    The targets stand in the order of the epoch beforehand, which costs it nothing.
    """
    device, batch = bench.device, bench.sizes.batch
    steps, width, arch = len(X) // batch, X.shape[1], bench.device.arch
    matrix = stored(device, X, "fp32")
    order = np.random.default_rng(1).permutation(len(X)).astype(np.int64)
    shape = launch_steps.direct_steps(width, 4, batch, device.multiprocessors)
    starts = batch * np.arange(steps + 1, dtype=np.int32)
    rates = np.full(steps, -case.rate / batch, np.float32)
    ones = sent(device, np.ones(steps, np.float32))
    held = (matrix.values, matrix.stride, sent(device, order), sent(device, starts))
    targets = sent(device, y[order].astype(np.float32))
    setting = np.float32(exp_bound(np.float32))
    how = (targets, None, None, setting, np.int32(0), ones, sent(device, rates), ones)
    state = (device.zeros((width,), np.float32), device.empty((len(X),), np.float32))
    room = device.empty((launch_steps.direct_partials(shape, batch),), np.float32)
    counters = device.zeros((2,), np.uint32)
    sizes = np.int32(steps), np.int32(width)
    given = (*held, *sizes, *how, None, *state, room, np.int32(batch), counters)
    family = launch_steps.with_family(
        build_of("direct_steps", "fp32", arch), case.family
    )
    kernel = device.kernel(family)

    def epoch() -> None:
        more = {"shared": shape.shared, "cluster": shape.grid[0]}
        kernel(shape.grid, shape.block, given, **more)

    return Way(epoch, steps, most=1)

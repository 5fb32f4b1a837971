"""Exchanges as a run has them, without the run: from rows to weights, as one graph."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import Way, as_graph
from benchmarks.gpu.figure import Figure
from hpcsgd.backends.cuda.exchange import DeviceShard, ExchangeKernels
from hpcsgd.backends.cuda.matrix import DeviceMatrix, Order, sent
from hpcsgd.formats import encode
from hpcsgd.glm import get_family, make_update, unroll
from hpcsgd.glm.unrolling import uniform_blocks
from hpcsgd.precision import RECIPES

MOST_US = 35.0
NCCL_FLOAT, NCCL_SUM = 7, 0
ELEMENTS = {"bf16": ("bf16", 8), "fp32": ("fp32", 4)}  # element, values of a chunk


class Epoch:
    """Exchanges of one size over all rows of a matrix, one after the other."""

    def __init__(
        self,
        bench: Bench,
        X: np.ndarray,
        y: np.ndarray,
        family: str,
        rate: float,
        recipe: str,
        sizes: tuple[int, int],
    ) -> None:
        precision, self.device = RECIPES[recipe], bench.device
        self.blocks = uniform_blocks(*sizes)
        self.matrix = stored(self.device, X, precision.matrix)
        self.order = Order(self.device, y.astype(np.float32)[:, None], None, None)
        update, steps = make_update("sgd", 0.0), len(self.blocks.sizes)
        unrolled = unroll(update, [rate] * steps, self.blocks.sizes, 0.0)
        shard = DeviceShard(self.matrix, self.order, self.matrix.width)
        given = self.device, shard, self.blocks
        self.made, self.other = (
            ExchangeKernels(*given, get_family(family), precision) for _ in range(2)
        )
        for one in (self.made, self.other):
            one.coefficients.load(unrolled)
        self.weights = self.device.zeros((X.shape[1], 1), np.float32)
        self.permutation = np.random.default_rng(1).permutation(len(X))
        self.count = len(X) // self.blocks.rows  # exchanges of an epoch

    def begin(self) -> None:
        """The next exchange is the first."""
        self.order.seek(self.permutation, 0, -1)

    def graph(self, add: Callable[[Any], None] = lambda _: None) -> Any:
        """An exchange as one launch, with a sum over members in it if one is given."""
        made = self.made

        def all_of_it() -> None:
            made.before(self.weights)
            add(made.message)
            made.after(self.weights, None)

        self.begin()
        return as_graph(self.device, all_of_it)

    def ahead(self) -> Way:
        """Two exchanges as one launch, each beside the Gram of the one that follows."""

        def make(one: ExchangeKernels) -> None:
            one.sample()
            one.gram_alone()

        def take(now: ExchangeKernels, following: ExchangeKernels) -> None:
            with self.device.aside():
                make(following)
            now.scores(self.weights)
            now.after(self.weights, None)
            self.device.join()

        def both() -> None:
            take(self.made, self.other)
            take(self.other, self.made)

        def begin() -> None:
            self.begin()
            make(self.made)

        begin()
        graph = as_graph(self.device, both)
        return Way(graph, 2, max((self.count - 1) // 2, 1), begin)

    def way(self, graph: Callable[[], None]) -> Way:
        """Exchanges one after the other, at most an epoch of them."""
        return Way(graph, 1, self.count, self.begin)


def stored(device: Any, X: np.ndarray, form: str) -> DeviceMatrix:
    """Rows of whole chunks in one of two formats."""
    element, chunk = ELEMENTS[form]
    values, width = encode(X, form), X.shape[1]
    padded = np.zeros((len(X), -(-width // chunk) * chunk), values.dtype)
    padded[:, :width] = values
    return DeviceMatrix(sent(device, padded), element, len(X), width)


def one_exchange(bench: Bench) -> Sequence[Figure]:
    """512 rows of epsilon's width on one member, in recipe c."""
    batch, steps, width = bench.sizes.exchange
    rng, height = np.random.default_rng(0), bench.sizes.height
    height = height // (batch * steps) * batch * steps
    X = rng.standard_normal((height, width), dtype=np.float32) / np.float32(
        np.sqrt(width)
    )
    y = (rng.random(height) < 0.5).astype(np.float32)
    epoch = Epoch(*(bench, X, y, "logistic", 0.1, "c", (batch, steps)))
    with ExitStack() as behind:
        ways, said = {"alone": epoch.way(epoch.graph())}, "NCCL is left out"
        try:
            graph = epoch.graph(_one_rank(bench, behind))
            behind.callback(getattr(graph, "release", lambda: None))
            ways["with NCCL"] = epoch.way(graph)
            said = "an in-place sum by NCCL of one rank is in it"
        except Exception as error:  # what there is of NCCL does not work here
            said += f" ({str(error).splitlines()[0][:200]})"
        name = list(ways)[-1]
        ways["look-ahead"] = epoch.ahead()
        times = bench.clock.measure(ways)
    finite = bool(np.isfinite(bench.device.fetch(epoch.weights)).all())
    if not finite:
        raise ArithmeticError("weights are not finite: not timed")
    details = {"us": {one: each.us for one, each in times.items()}, "counted": name}
    says = f"{batch * steps} x {width}, one member, one graph launch; {said}"
    us = 1e6 * times[name].median
    return [Figure("exchange", says, MOST_US, True, us, "us", details)]


def _one_rank(bench: Bench, behind: ExitStack) -> Callable[[Any], None]:
    """The sum of a communicator of one rank, which ends after its graph."""
    from cupy.cuda import nccl

    if not nccl.available:
        raise RuntimeError("CuPy finds no NCCL")
    comm = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0)
    behind.callback(comm.destroy)
    stream = bench.device.stream.ptr

    def add(buffer: Any) -> None:
        at = buffer.data.ptr
        comm.allReduce(at, at, buffer.size, NCCL_FLOAT, NCCL_SUM, stream)

    return add

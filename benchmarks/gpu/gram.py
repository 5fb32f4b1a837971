"""One launch for Gram and margins beside rows that are taken, cuBLAS and a product.

cuBLAS multiplies the whole square, our kernel the tiles that a recurrence reads: half
of it and the diagonal. Both are given: times, and operations that were really done.
Theirs is the fastest of all ways below, each recorded as a graph, so that no way waits
for Python; rows are others in every launch, as in a run.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import Times, Way, as_graph
from benchmarks.gpu.figure import Figure
from benchmarks.gpu.rows import OurGram, Rows
from hpcsgd.backends.cuda.gram import CublasGram

NEAR = 1e-3  # of a product, on the scale of the largest
SMALL, LARGE, SHARE = 2.0, 1.0, 0.45


class Theirs:
    """Rows as one block, with the weights as one more row, and its products."""

    def __init__(self, bench: Bench, rows: Rows) -> None:
        m, stride, device = rows.count, int(rows.matrix.stride), bench.device
        self.bench, self.rows, self.device = bench, rows, device
        self.block = device.zeros((m + 1, stride), np.uint16)
        self.square = device.empty((m, m), np.float32)
        self.with_margins = device.empty((m, m + 1), np.float32)
        self.margins = device.empty((m, 1), np.float32)
        weights = np.zeros((1, stride), np.float32)
        weights[0, : rows.width] = device.fetch(rows.weights)[:, 0]
        bits = (weights.view(np.uint32) >> 16).astype(np.uint16)
        device.fill(self.block[m:], bits)

    def ways(self) -> dict[str, Callable[[Any], None]]:
        """Every way to take rows, with every way to multiply them."""
        takes = {"take": self._take, "gather_rows": self._gather}
        products = {"gemmEx + gemv": self._apart, "one gemmEx": self._as_one}

        def way(take: Any, product: Any) -> Callable[[Any], None]:
            return lambda numbers: (take(numbers), product())[0]

        return {
            f"{one} + {other}": way(take, product)
            for one, take in takes.items()
            for other, product in products.items()
        }

    def _take(self, numbers: Any) -> None:
        with self.device.stream:
            values, block = self.rows.matrix.values, self.block[: self.rows.count]
            self.bench.cupy.take(values, numbers, axis=0, out=block)

    def _gather(self, numbers: Any) -> None:
        self.rows.gather(numbers, self.block[: self.rows.count])

    def _apart(self) -> None:
        block, last = self.block[: self.rows.count], self.block[self.rows.count :]
        self.device.gemm_bf16(self.square, block, block)
        self.device.gemm_bf16(self.margins, block, last)

    def _as_one(self) -> None:
        block = self.block[: self.rows.count]
        self.device.gemm_bf16(self.with_margins, block, self.block)


def small(bench: Bench) -> Sequence[Figure]:
    """As CA-SGD has it: 16 steps of 32 rows of epsilon."""
    ratio, details = _measured(bench, *bench.sizes.small)
    return [Figure("gram small", _says(details), SMALL, False, ratio, "x", details)]


def large(bench: Bench) -> Sequence[Figure]:
    """Where arithmetic is all."""
    ratio, details = _measured(bench, *bench.sizes.large)
    says, share = _says(details), details["share_of_bf16"]
    said = f"operations done, share of {details['bf16_TF_s']:.0f} TF/s in bf16"
    return [
        Figure("gram large", says, LARGE, False, ratio, "x", details),
        Figure("gram large rate", said, SHARE, False, share, "", details),
    ]


def _says(details: dict[str, Any]) -> str:
    return (
        f"{details['rows']} x {details['columns']} beside {details['theirs']}"
        f" (its square is {details['square_over_tiles']:.2f} times our tiles)"
    )


def rows_of(bench: Bench, count: int, width: int) -> Rows:
    """Sets of rows of a matrix that takes the same room whatever its width."""
    height = max(bench.sizes.height // (width // 2000 or 1), count)
    return Rows(bench, height, count, width)


def _measured(bench: Bench, count: int, width: int) -> tuple[float, dict[str, Any]]:
    rows = rows_of(bench, count, width)
    ours, theirs = OurGram(rows, bench.sizes.batch), Theirs(bench, rows)
    _check(ours, theirs)
    packed = CublasGram(ours.products)
    actions: dict[str, Callable[[Any], None]] = {"ours": ours, **theirs.ways()}
    actions["ours by cuBLAS"] = lambda numbers: packed.both(
        numbers, rows.weights, ours.out, rows.out
    )
    times = bench.clock.measure(
        {name: over_sets(bench, rows, action) for name, action in actions.items()}
    )
    best = min(theirs.ways(), key=lambda name: times[name].median)
    ratio = times[best].median / times["ours"].median
    return ratio, _details(bench, rows, ours, times, best)


def over_sets(bench: Bench, rows: Rows, action: Callable[[Any], None]) -> Way:
    """Every set of rows once, as a graph."""

    def all_of_them() -> None:
        for numbers in rows.sets:
            action(numbers)

    return Way(as_graph(bench.device, all_of_them), len(rows.sets))


def _details(
    bench: Bench, rows: Rows, ours: OurGram, times: dict[str, Times], best: str
) -> dict[str, Any]:
    done = 2 * ours.tiles.words * rows.width
    square = 2 * rows.count**2 * rows.width
    rate = bench.bf16[0]
    return {
        "rows": rows.count,
        "columns": rows.width,
        "sets_of_rows": len(rows.sets),
        "theirs": best,
        "us": {name: each.us for name, each in times.items()},
        "operations": {"ours": done, "theirs": square},
        "square_over_tiles": square / done,
        "share_of_bf16": done / times["ours"].median / rate,
        "their_share_of_bf16": square / times[best].median / rate,
        "bf16_TF_s": rate / 1e12,
        "splits": ours.products.splits,
    }


def _check(ours: OurGram, theirs: Theirs) -> None:
    """Below the diagonal all have the same products; a wrong one has no figure."""
    numbers = ours.rows.sets[0]
    ours(numbers)
    mine = ours.square()
    held = ~np.isnan(mine)
    if held.sum() < np.tril(np.ones_like(mine, dtype=bool), -64).sum():
        raise ArithmeticError("our tiles leave entries out: not timed")
    for name, way in theirs.ways().items():
        way(numbers)
        one = "one" in name
        found = theirs.device.fetch(theirs.with_margins if one else theirs.square)
        found = found[:, : len(mine)]
        off = np.abs(found[held] - mine[held]).max() / np.abs(mine[held]).max()
        if not off <= NEAR:
            raise ArithmeticError(f"{name} and ours differ by {off:.3g}: not timed")

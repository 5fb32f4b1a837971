"""Margins and update of many rows, as shares of what a copy moves."""

from collections.abc import Sequence

import numpy as np

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.clock import Way
from benchmarks.gpu.figure import Figure
from benchmarks.gpu.rows import Rows
from hpcsgd.backends.cuda.matrix import sent

SHARE = 0.85
NEAR = 1e-3  # of a margin, on the scale of the largest


def margins_and_update(bench: Bench) -> Sequence[Figure]:
    """Many rows, and few long ones."""
    shapes = {"tall": bench.sizes.tall, "wide": bench.sizes.wide}
    return [
        figure for name, shape in shapes.items() for figure in _of(bench, name, shape)
    ]


def _of(bench: Bench, name: str, shape: tuple[int, int]) -> list[Figure]:
    count, width = shape
    rows = Rows(bench, 2 * count, count, width)
    rng, device = np.random.default_rng(5), bench.device
    factors = sent(device, (1e-6 * rng.standard_normal(count)).astype(np.float32))
    carry = sent(device, np.ones(1, np.float32))
    _check(rows)

    def margin() -> None:
        for numbers in rows.sets:
            rows.margin(numbers)

    def update() -> None:
        for numbers in rows.sets:
            rows.update(numbers, factors, carry)

    parts = len(rows.sets)
    found = bench.clock.measure(
        {"margin": Way(margin, parts), "update": Way(update, parts)}
    )
    copied = bench.copy[0]
    return [
        Figure(
            *(f"{kernel} {name}", f"{count} x {width} bf16, share of a copy", SHARE),
            reached=rows.nbytes / times.median / copied,
            details={"us": times.us, "bytes": rows.nbytes, "sets": parts},
        )
        for kernel, times in found.items()
    ]


def _check(rows: Rows) -> None:
    """A kernel that is wrong has no figure."""
    device, numbers = rows.device, rows.sets[0]
    rows.margin(numbers)
    found, first = device.fetch(rows.out), device.fetch(numbers)[:8]
    bits = np.stack([device.fetch(rows.matrix.values[int(n)]) for n in first])
    exact = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    wanted = exact[:, : rows.width] @ device.fetch(rows.weights)[:, 0]
    off = np.abs(found[: len(first)] - wanted).max() / np.abs(wanted).max()
    if not off <= NEAR:
        raise ArithmeticError(f"margins are off by {off:.3g}: not timed")

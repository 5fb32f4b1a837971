"""Curves of replicas that are threads: loss against messages, words, bytes, time."""

from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import numpy as np

Figures = dict[str, Any]
NEAR = 1.01  # of the lowest loss that any row ended with
FIGURES = ("exchanges", "messages", "words", "bytes", "seconds")


def rows_of(shape: str, rows: int, is_sorted: bool) -> tuple[Any, Any]:
    """Rows as they come, or sorted by label: replicas then see different things."""
    from hpcsgd.data.synthetic import make_synthetic

    parts = list(make_synthetic(shape, rows))
    X, y = (np.concatenate(own) for own in zip(*parts, strict=True))
    order = np.argsort(y, kind="stable") if is_sorted else slice(None)
    return X[order], y[order]


def curve_of(config: Figures, X: Any, y: Any, ranks: int) -> tuple[list[Figures], Any]:
    """What rank 0 saw at every look at the loss, and its report."""
    from hpcsgd.api import train
    from hpcsgd.comm.threads import run_ranks
    from hpcsgd.runs.progress import Callback

    curve: list[Figures] = []

    class Watch(Callback):
        """Keeps what was sent so far beside each loss."""

        def __init__(self, ledger: Any) -> None:
            self.ledger = ledger

        def on_evaluate(self, view: Any) -> None:
            sent = self.ledger.entries["agreement"]
            curve.append(
                {
                    "loss": view.loss,
                    "exchanges": view.exchanges,
                    "messages": sent.calls,
                    "words": sent.words,
                    "bytes": sent.bytes,
                    "seconds": view.seconds,
                }
            )

    def on_rank(world: Any) -> Any:
        callbacks = [Watch(world.ledger)] if world.rank == 0 else []
        return train(config, X=X, y=y, world=world, callbacks=callbacks)

    return curve, run_ranks(ranks, on_rank)[0].report


def best_rate(rates: Iterable[float], curve: Callable[[float], list[Figures]]) -> float:
    """The rate whose curve ends lowest."""
    ends = {rate: curve(rate)[-1]["loss"] for rate in rates}
    return min(ends, key=lambda rate: ends[rate])


def compared(
    rates: dict[str, float], curve: Callable[[str], list[Figures]], repeats: int
) -> Figures:
    """Row -> its curve at its rate, and what it had taken near the lowest loss.

    Rows take turns, so that what else the machine does hits all of them.
    """
    runs: dict[str, list[list[Figures]]] = {row: [] for row in rates}
    for _ in range(repeats):
        for row in rates:
            runs[row].append(curve(row))
    curves = {row: _merged(own) for row, own in runs.items()}
    best = min(curve[-1]["loss"] for curve in curves.values())
    found: Figures = {"target": NEAR * best, "rows": {}}
    for row, points in curves.items():
        there = [p for p in points if p["loss"] <= found["target"]]
        to_target = {key: there[0][key] for key in FIGURES} if there else None
        known = {"rate": rates[row], "to_target": to_target, "curve": points}
        found["rows"][row] = known
    return found


def _merged(runs: list[list[Figures]]) -> list[Figures]:
    """One curve of several runs: all alike but for the seconds."""
    alike = [[(p["loss"], p["words"]) for p in run] for run in runs]
    if any(other != alike[0] for other in alike):
        raise RuntimeError("two runs of one row differ in more than their seconds")
    return [
        {**points[0], "seconds": median(p["seconds"] for p in points)}
        for points in zip(*runs, strict=True)
    ]

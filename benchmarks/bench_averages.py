"""How far agreements that average come: loss against exchanges, words, messages, time.

Four replicas (threads) behind an emulated LAN, on epsilon- and HIGGS-shaped rows that
are dealt as they come, and on HIGGS-shaped rows sorted by their label, where replicas
see different things. Every row has the one of RATES with which it ends lowest. One
curve a row; the losses are the same in every repeat, seconds are medians of interleaved
runs. `to_target` is what a row had sent and taken when its loss first came within 1 %
of the lowest that any row ended with.

python -m benchmarks.run bench_averages
"""

from statistics import median
from typing import Any

import numpy as np

RANKS, REPEATS, BATCH, STEPS, TAU = 4, 3, 16, 2, 16
NEAR = 1.01
Figures = dict[str, Any]
# name -> rows, epochs, sorted by label
SETS = {
    "epsilon": (4000, 16, False),
    "higgs": (4000, 16, False),
    "higgs sorted": (4000, 16, True),
}
RATES = {"epsilon": (16.0, 32.0, 64.0, 128.0), "higgs": (0.0125, 0.025, 0.05, 0.1)}
L2 = 1e-5
ROWS: dict[str, tuple[int, Figures]] = {
    "every exchange": (1, {"kind": "average"}),
    "local": (TAU, {"kind": "average"}),
    "postlocal": (TAU, {"kind": "postlocal", "switch": 1.0}),
    "hierarchical": (
        1,
        {"kind": "hierarchical", "groups": "2,4", "periods": f"2,{TAU}"},
    ),
    "fedavg": (TAU, {"kind": "fedavg", "fraction": 0.5}),
    "slowmo": (TAU, {"kind": "slowmo", "slow_momentum": 0.5}),
    "slowmo sharded": (
        TAU,
        {"kind": "slowmo", "slow_momentum": 0.5, "slow_sharded": True},
    ),
}
FIGURES = ("exchanges", "messages", "words", "bytes", "seconds")


def measure() -> Figures:
    """Set -> row -> its curve."""
    figures: Figures = {}
    for name, (rows, epochs, is_sorted) in SETS.items():
        shape = name.split()[0]
        X, y = _data(shape, rows, is_sorted)
        rates = {row: _best_rate(X, y, row, RATES[shape], epochs) for row in ROWS}
        runs: dict[str, list[list[Figures]]] = {row: [] for row in ROWS}
        for _ in range(REPEATS):
            for row in ROWS:
                runs[row].append(_curve(X, y, row, rates[row], epochs))
        curves = {row: _merged(own) for row, own in runs.items()}
        figures[name] = _compared(curves, rates)
        print(in_words(name, figures[name]), flush=True)
    return figures


def _data(shape: str, rows: int, is_sorted: bool) -> tuple[Any, Any]:
    from hpcsgd.data.synthetic import make_synthetic

    parts = list(make_synthetic(shape, rows))
    X, y = (np.concatenate(own) for own in zip(*parts, strict=True))
    order = np.argsort(y, kind="stable") if is_sorted else slice(None)
    return X[order], y[order]


def _best_rate(
    X: Any, y: Any, row: str, rates: tuple[float, ...], epochs: int
) -> float:
    ends = {rate: _curve(X, y, row, rate, epochs)[-1]["loss"] for rate in rates}
    return min(ends, key=lambda rate: ends[rate])


def _curve(X: Any, y: Any, row: str, rate: float, epochs: int) -> list[Figures]:
    """What rank 0 saw at every look at the loss."""
    from hpcsgd.api import train
    from hpcsgd.callbacks import Callback
    from hpcsgd.comm.threads import run_ranks

    period, agreement = ROWS[row]
    config = {
        "problem": {"l2": L2},
        "schedule": {
            **{"batch": BATCH, "steps": STEPS, "epochs": epochs, "period": period}
        },
        "rate": {"value": rate},
        "precision": {"recipe": "fp32"},
        "products": {"kind": "direct"},
        "grid": {"replicas": RANKS, "members": 1},
        "agreement": agreement,
        "run": {"network": "lan"},
    }
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

    def on_rank(world: Any) -> None:
        callbacks = [Watch(world.ledger)] if world.rank == 0 else []
        train(config, X=X, y=y, world=world, callbacks=callbacks)

    run_ranks(RANKS, on_rank)
    return curve


def _merged(runs: list[list[Figures]]) -> list[Figures]:
    """One curve of several runs: all alike but for the seconds."""
    alike = [[(p["loss"], p["words"]) for p in run] for run in runs]
    if any(other != alike[0] for other in alike):
        raise RuntimeError("two runs of one row differ in more than their seconds")
    return [
        {**points[0], "seconds": median(p["seconds"] for p in points)}
        for points in zip(*runs, strict=True)
    ]


def _compared(curves: dict[str, list[Figures]], rates: Figures) -> Figures:
    best = min(curve[-1]["loss"] for curve in curves.values())
    found: Figures = {"target": NEAR * best, "rows": {}}
    for row, curve in curves.items():
        there = [p for p in curve if p["loss"] <= found["target"]]
        to_target = {key: there[0][key] for key in FIGURES} if there else None
        known = {"rate": rates[row], "to_target": to_target, "curve": curve}
        found["rows"][row] = known
    return found


def in_words(name: str, found: Figures) -> str:
    """A table: at the end of the run, and where the target was met."""
    lines = [f"\n{name}: {RANKS} replicas, target {found['target']:.5f}"]
    for row, figures in found["rows"].items():
        end, there = figures["curve"][-1], figures["to_target"]
        met = "not met"
        if there:
            met = f"met after {there['exchanges']} exchanges, {there['messages']}"
            met += f" messages, {there['words']} words, {there['seconds']:.3f} s"
        lines.append(
            f"{row:16s} rate {figures['rate']:5g} loss {end['loss']:.5f} after"
            f" {end['messages']:5d} messages {end['words']:9d} words"
            f" {end['seconds']:6.3f} s; {met}"
        )
    return "\n".join(lines)

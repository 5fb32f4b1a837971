"""How far the methods of BAGUA come: loss against exchanges, messages, bytes, time.

Four replicas (threads) behind an emulated LAN, on epsilon-shaped rows that are dealt
as they come or sorted by their label. Every row has the one of its rates with which it
ends lowest. The losses are the same in every repeat, seconds are medians of interleaved
runs. `to_target` is what a row had sent and taken when its loss first came within 1 %
of the lowest that any row ended with.

python -m benchmarks.run bench_bagua
"""

from statistics import median
from typing import Any

import numpy as np

from benchmarks.bench_averages import _compared, _data, _merged

RANKS, REPEATS, BATCH, ROWS_OF_DATA, EPOCHS = 4, 3, 16, 2000, 8
L2 = 1e-4
SETS = {"epsilon": False, "epsilon sorted": True}
STEPS, MOMENTS = (16.0, 32.0, 64.0, 128.0), (0.003, 0.01, 0.03, 0.1)
# Rows, columns, replicas, batch and network where hiding is looked at: 41 ms a message.
WIDE, PAIR, TALL, SLOW = (1024, 100_000), 2, 64, "alpha=1e-3,bandwidth=1e7"
HIDING = ("ddp", "decentralized, all", "decentralized, pairs", "decentralized-low")
Figures = dict[str, Any]
# name -> method, more settings, rates
ROWS: dict[str, tuple[str, dict[str, Figures], tuple[float, ...]]] = {
    "ddp": ("ddp", {}, STEPS),
    "ddp, leaders of 2": ("ddp", {"agreement": {"hierarchical": "2"}}, STEPS),
    "bytegrad": ("bytegrad", {}, STEPS),
    "bagua": ("bagua", {}, STEPS),
    "decentralized, all": ("decentralized", {}, STEPS),
    "decentralized, pairs": (
        "decentralized",
        {"agreement": {"peers": "shift_one"}},
        STEPS,
    ),
    "decentralized-low": ("decentralized-low", {}, STEPS),
    "local": ("local", {"schedule": {"period": 8}}, STEPS),
    "async-average": (
        "async-average",
        {"schedule": {"period": 8}, "agreement": {"delay": 4}},
        STEPS,
    ),
    "ddp, adam": ("ddp", {"update": {"kind": "adam"}}, MOMENTS),
    "qadam": ("qadam", {"agreement": {"warmup_steps": 50}}, MOMENTS),
}


def measure() -> Figures:
    """Set -> row -> its curve."""
    figures: Figures = {}
    for name, is_sorted in SETS.items():
        X, y = _data("epsilon", ROWS_OF_DATA, is_sorted)
        rates = {row: _best_rate(X, y, row) for row in ROWS}
        runs: dict[str, list[list[Figures]]] = {row: [] for row in ROWS}
        for _ in range(REPEATS):
            for row in ROWS:
                runs[row].append(_curve(X, y, row, rates[row]))
        curves = {row: _merged(own) for row, own in runs.items()}
        figures[name] = _compared(curves, rates)
        print(in_words(name, figures[name]), flush=True)
    figures["hidden"] = hidden()
    print(figures["hidden"], flush=True)
    return figures


def hidden() -> Figures:
    """Row -> share of what the network charged that nobody stood still for."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((WIDE[0], WIDE[1]), dtype=np.float32)
    y = (X[:, :50].sum(axis=1) > 0).astype(float)
    shares: dict[str, list[float]] = {row: [] for row in HIDING}
    for _ in range(5):
        for row in HIDING:
            shares[row].append(_hidden_share(X, y, row))
    return {row: median(own) for row, own in shares.items()}


def _hidden_share(X: Any, y: Any, row: str) -> float:
    from hpcsgd.api import train
    from hpcsgd.comm.threads import run_ranks

    method, more, _ = ROWS[row]
    config: Figures = {
        "schedule": {"batch": TALL, "steps": 1, "epochs": 1},
        "rate": {"value": 1e-4},
        "precision": {"recipe": "fp32"},
        "grid": {"replicas": PAIR, "members": 1},
        "agreement": {"method": method, "bucket": 0.1, **more.get("agreement", {})},
        "run": {"network": SLOW, "evaluate_every": 0},
    }

    def on_rank(world: Any) -> float:
        report = train(config, X=X, y=y, world=world).report
        return float(report["agreement"]["hidden_share"])

    return run_ranks(PAIR, on_rank)[0]


def _best_rate(X: Any, y: Any, row: str) -> float:
    rates = ROWS[row][2]
    ends = {rate: _curve(X, y, row, rate)[-1]["loss"] for rate in rates}
    return min(ends, key=lambda rate: ends[rate])


def _curve(X: Any, y: Any, row: str, rate: float) -> list[Figures]:
    """What rank 0 saw at every look at the loss; the share of transfers it hid."""
    from hpcsgd.api import train
    from hpcsgd.callbacks import Callback
    from hpcsgd.comm.threads import run_ranks

    method, more, _ = ROWS[row]
    config: Figures = {
        "problem": {"l2": L2},
        "schedule": {"batch": BATCH, "steps": 1, "epochs": EPOCHS},
        "rate": {"value": rate},
        "precision": {"recipe": "fp32"},
        "products": {"kind": "direct"},
        "grid": {"replicas": RANKS, "members": 1},
        "agreement": {"method": method},
        "run": {"network": "lan"},
    }
    for section, table in more.items():
        config[section] = {**config.get(section, {}), **table}
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

    told = run_ranks(RANKS, on_rank)[0].report["agreement"]
    curve[-1]["charged"] = told.get("transfer_seconds", 0.0)
    return curve


def in_words(name: str, found: Figures) -> str:
    """One line for each row."""
    lines = [f"{name}: target {found['target']:.4f}"]
    for row, known in found["rows"].items():
        end, there = known["curve"][-1], known["to_target"]
        near = "never"
        if there:
            near = (
                f"{there['exchanges']} exchanges, {there['messages']} messages,"
                f" {there['bytes']} bytes, {there['seconds']:.3f} s"
            )
        lines.append(
            f"{row}: rate {known['rate']:g}, ends {end['loss']:.4f} after"
            f" {end['messages']} messages, {end['bytes']} bytes,"
            f" {end['seconds']:.3f} s ({end['charged']:.3f} s of them charged); near:"
            f" {near}"
        )
    return "\n".join(lines)

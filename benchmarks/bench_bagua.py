"""How far the methods of BAGUA come: loss against exchanges, messages, bytes, time.

Four replicas (threads) behind an emulated LAN, on epsilon-shaped rows that are dealt
as they come or sorted by their label. Every row has the one of its rates with which it
ends lowest. The losses are the same in every repeat, seconds are medians of interleaved
runs. `to_target` is what a row had sent and taken when its loss first came within 1 %
of the lowest that any row ended with.

python -m benchmarks.run bench_bagua
"""

from functools import partial
from statistics import median
from typing import Any

import numpy as np

from benchmarks.curves import Figures, best_rate, compared, curve_of, rows_of

RANKS, REPEATS, BATCH, ROWS_OF_DATA, EPOCHS = 4, 3, 16, 2000, 8
L2 = 1e-4
SETS = {"epsilon": False, "epsilon sorted": True}
STEPS, MOMENTS = (16.0, 32.0, 64.0, 128.0), (0.003, 0.01, 0.03, 0.1)
# Rows, columns, replicas, batch and network where hiding is looked at: 41 ms a message.
WIDE, PAIR, TALL, SLOW = (1024, 100_000), 2, 64, "alpha=1e-3,bandwidth=1e7"
HIDING = ("ddp", "decentralized, all", "decentralized, pairs", "decentralized-low")
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
        figures[name] = _figures(is_sorted)
        print(in_words(name, figures[name]), flush=True)
    figures["hidden"] = hidden()
    print(figures["hidden"], flush=True)
    return figures


def _figures(is_sorted: bool) -> Figures:
    X, y = rows_of("epsilon", ROWS_OF_DATA, is_sorted)

    def curve(row: str, rate: float) -> list[Figures]:
        points, report = curve_of(_config(row, rate), X, y, RANKS)
        points[-1]["charged"] = report["agreement"].get("transfer_seconds", 0.0)
        return points

    rates = {row: best_rate(ROWS[row][2], partial(curve, row)) for row in ROWS}
    return compared(rates, lambda row: curve(row, rates[row]), REPEATS)


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
    from hpcsgd.config import drop_unread_settings

    method, more, _ = ROWS[row]
    config: Figures = {
        "schedule": {"batch": TALL, "steps": 1, "epochs": 1},
        "rate": {"value": 1e-4},
        "precision": {"recipe": "fp32"},
        "grid": {"replicas": PAIR, "members": 1},
        "agreement": {"method": method, "bucket": 0.1, **more.get("agreement", {})},
        "run": {"network": SLOW, "evaluate_every": 0},
    }

    read = drop_unread_settings(config, config)

    def on_rank(world: Any) -> float:
        report = train(read, X=X, y=y, world=world).report
        return float(report["agreement"]["hidden_share"])

    return run_ranks(PAIR, on_rank)[0]


def _config(row: str, rate: float) -> Figures:
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
    return config


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

"""How far agreements that average come: loss against exchanges, words, messages, time.

Four replicas (threads) behind an emulated LAN, on epsilon- and HIGGS-shaped rows that
are dealt as they come, and on HIGGS-shaped rows sorted by their label, where replicas
see different things. Every row has the one of RATES with which it ends lowest. One
curve a row; the losses are the same in every repeat, seconds are medians of interleaved
runs. `to_target` is what a row had sent and taken when its loss first came within 1 %
of the lowest that any row ended with.

python -m benchmarks.run bench_averages
"""

from functools import partial

from benchmarks.curves import Figures, best_rate, compared, curve_of, rows_of

RANKS, REPEATS, BATCH, STEPS, TAU = 4, 3, 16, 2, 16
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


def measure() -> Figures:
    """Set -> row -> its curve."""
    figures: Figures = {}
    for name, (rows, epochs, is_sorted) in SETS.items():
        figures[name] = _figures(name.split()[0], rows, epochs, is_sorted)
        print(in_words(name, figures[name]), flush=True)
    return figures


def _figures(shape: str, rows: int, epochs: int, is_sorted: bool) -> Figures:
    X, y = rows_of(shape, rows, is_sorted)

    def curve(row: str, rate: float) -> list[Figures]:
        return curve_of(_config(row, rate, epochs), X, y, RANKS)[0]

    rates = {row: best_rate(RATES[shape], partial(curve, row)) for row in ROWS}
    return compared(rates, lambda row: curve(row, rates[row]), REPEATS)


def _config(row: str, rate: float, epochs: int) -> Figures:
    period, agreement = ROWS[row]
    return {
        "problem": {"l2": L2},
        "schedule": {
            "batch": BATCH,
            "steps": STEPS,
            "epochs": epochs,
            "period": period,
        },
        "rate": {"value": rate},
        "precision": {"recipe": "fp32"},
        "products": {"kind": "direct"},
        "grid": {"replicas": RANKS, "members": 1},
        "agreement": agreement,
        "run": {"network": "lan"},
    }


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

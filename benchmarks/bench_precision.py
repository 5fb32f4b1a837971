"""The error bound beside measured errors, and how both grow with steps and members.

Part "ratio": the bound over the error measured, one field in bf16 and eight in fp64,
over drawn exchanges of logistic regression and of least squares; median of all.
Part "slope": exponents p of error ~ s^p and error ~ C^p, relative to the update, fitted
to medians over the same draws with s or C alone changed. `python -m
benchmarks.bench_precision` writes both as the tables of docs/trust/precision.md.
"""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np

from hpcsgd.backends.base import StepBatch
from hpcsgd.data.shard import split_range
from hpcsgd.glm import get_family
from hpcsgd.precision import FIELDS
from hpcsgd.tuning.bound import term
from hpcsgd.tuning.exact_exchange import ExactExchange, SgdSteps, largest_safe_rate
from hpcsgd.tuning.pilots import held, relative_error, with_one_field

FORMAT = "bf16"
DRAWS = 12
BATCH, COLUMNS, STEPS, MEMBERS = 8, 256, 8, 4  # where nothing else is said
STEPS_TRIED, MEMBERS_TRIED = (2, 4, 8, 16, 32), (2, 4, 8, 16)
SIZES = {"m 32, d 64": (8, 4, 64), "m 256, d 512": (32, 8, 512)}  # b, s, d
MODELS = ("emulated", "any")
RESULTS = Path(__file__).parent / "results" / "bench_precision.json"


def measure() -> list[dict]:
    """Rows of both parts."""
    figures = [_ratios(name, *sizes) for name, sizes in SIZES.items()]
    return figures + [_slopes("s"), _slopes("C")]


def make_exchange(
    seed: int, batch: int, steps: int, columns: int, members: int
) -> ExactExchange:
    """Normal rows, weights and targets that suit them, a tenth of the safe rate."""
    rng = np.random.default_rng([seed, columns])
    name = ("logistic", "gaussian")[seed % 2]
    X = rng.normal(size=(batch * steps, columns))
    w = rng.normal(size=(columns, 1)) / np.sqrt(columns)
    t = X @ rng.normal(size=(columns, 1)) / np.sqrt(columns)
    exchange = ExactExchange(
        rows=X,
        batch=StepBatch((t > 0).astype(float) if name == "logistic" else t, None, None),
        steps=SgdSteps(sizes=(batch,) * steps, rates=(1e-6,) * steps),
        before=w,
        family=get_family(name),
        parts=tuple(split_range(columns, members, c) for c in range(members)),
    )
    rates = (0.1 * largest_safe_rate(exchange),) * steps
    return replace(exchange, steps=replace(exchange.steps, rates=rates))


def medians(batch: int, steps: int, columns: int, members: int) -> dict[str, list]:
    """field -> median of the error, and of its bound in both models."""
    found: dict[str, list] = {field: [] for field in FIELDS}
    for seed in range(DRAWS):
        drawn = make_exchange(seed, batch, steps, columns, members)
        for field in FIELDS:
            exchange = held(drawn, FORMAT) if field == "weights" else drawn
            low = with_one_field(field, FORMAT)
            said = [term(exchange, low, field, model).relative for model in MODELS]
            found[field].append((relative_error(exchange, low), *said))
    return {field: np.median(rows, axis=0).tolist() for field, rows in found.items()}


def _ratios(name: str, batch: int, steps: int, columns: int) -> dict:
    found = medians(batch, steps, columns, MEMBERS)
    rows = {field: _row(*values) for field, values in found.items()}
    return {"part": "ratio", "size": name, "format": FORMAT, "fields": rows}


def _row(error: float, here: float, anywhere: float) -> dict:
    bounded = np.isfinite(anywhere)
    return {
        "error": float(f"{error:.2e}"),
        "ratio": round(here / error, 1),
        "ratio_any": round(anywhere / error, 1) if bounded else None,
    }


def slopes(varied: str) -> dict[str, list[float]]:
    """field -> exponents of the error and of its bound as s or C grows."""
    tried = np.array(STEPS_TRIED if varied == "s" else MEMBERS_TRIED)
    found = [
        medians(BATCH, int(n), COLUMNS, MEMBERS)
        if varied == "s"
        else medians(BATCH, STEPS, COLUMNS, int(n))
        for n in tried
    ]
    return {
        field: [_slope(tried, [one[field][k] for one in found]) for k in (0, 1)]
        for field in FIELDS
    }


def _slope(x: np.ndarray, y: list[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


def _slopes(varied: str) -> dict:
    rows = {
        field: {"error": round(error, 2), "bound": round(bound, 2)}
        for field, (error, bound) in slopes(varied).items()
    }
    return {"part": "slope", "of": varied, "format": FORMAT, "fields": rows}


def tables(figures: list[dict]) -> str:
    """Both tables in Markdown."""
    small, large, steps, members = (one["fields"] for one in figures)
    sizes = [one["size"] for one in figures[:2]]
    ratio = [
        f"| field | error, {sizes[0]} | bound/error | any machine |"
        f" error, {sizes[1]} | bound/error | any machine |",
        "|---|---|---|---|---|---|---|",
    ]
    ratio += [f"| {f} | {_cells(small[f])} | {_cells(large[f])} |" for f in FIELDS]
    slope = [
        "| field | s: error | s: bound | C: error | C: bound |",
        "|---|---|---|---|---|",
    ]
    slope += [
        f"| {f} | {steps[f]['error']:+.2f} | {steps[f]['bound']:+.2f}"
        f" | {members[f]['error']:+.2f} | {members[f]['bound']:+.2f} |"
        for f in FIELDS
    ]
    return "\n".join(ratio) + "\n\n" + "\n".join(slope) + "\n"


def _cells(row: dict) -> str:
    anywhere = "none" if row["ratio_any"] is None else f"{row['ratio_any']:.0f}"
    return f"{row['error']:.1e} | {row['ratio']:.1f} | {anywhere}"


if __name__ == "__main__":
    print(tables(json.loads(RESULTS.read_text())["figures"]), end="")

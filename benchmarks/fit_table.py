"""The table of docs/trust/benchmarks.md on fits, from what bench_fit has measured.

python -m benchmarks.fit_table
"""

import json
from pathlib import Path

from benchmarks.fit_methods import DEFAULT

RESULTS = Path(__file__).parent / "results" / "bench_fit.json"
HEAD = (
    "| problem | `hpcsgd.fit`, ms | fastest other solver, ms | ratio |"
    " default `tol`, ms |",
    "|---|---|---|---|---|",
)


def table(figures: list[dict]) -> list[str]:
    """Return the lines of the table; problems in the order of the figures."""
    lines = list(HEAD)
    for name in dict.fromkeys(row["problem"] for row in figures):
        rows = [r for r in figures if r["problem"] == name and r["cpu_ms"] is not None]
        times = {row["method"]: row["cpu_ms"] for row in rows}
        own, default = times["hpcsgd"], times.get(DEFAULT)
        best = min(
            (row for row in rows if not row["method"].startswith("hpcsgd")),
            key=lambda row: row["cpu_ms"],
        )
        # What a user gets who sets nothing; its own tolerance only where that fails.
        ratio = (default or own) / best["cpu_ms"]
        last = "not reached" if default is None else f"{default:.3g}"
        lines.append(
            f"| {name} | {own:.3g} | {best['cpu_ms']:.3g} ({best['method']}) |"
            f" {ratio:.2g} | {last} |"
        )
    return lines


if __name__ == "__main__":
    print("\n".join(table(json.loads(RESULTS.read_text())["figures"])))

"""Tables of docs/trust/benchmarks.md on fits, from what benchmarks have measured.

python -m benchmarks.fit_table
"""

import json
from pathlib import Path

from benchmarks.fit_methods import DEFAULT

RESULTS = Path(__file__).parent / "results"
HEAD = (
    "| problem | `hpcsgd.fit`, ms | fastest other solver, ms | ratio |"
    " default `tol`, ms |",
    "|---|---|---|---|---|",
)
CV_HEAD = (
    "| problem | `GLM_CV`, ms | fastest of scikit-learn, ms | ratio |",
    "|---|---|---|---|",
)
STREAM_HEAD = (
    "| solver | file | bare passes, GB/s | fit, GB/s | share | passes |",
    "|---|---|---|---|---|---|",
)


def table(figures: list[dict]) -> list[str]:
    """Return the lines of the table; problems in the order of the figures."""
    lines = list(HEAD)
    for name in dict.fromkeys(row["problem"] for row in figures):
        rows = [r for r in figures if r["problem"] == name and r["cpu_ms"] is not None]
        times = {row["method"]: row["cpu_ms"] for row in rows}
        own, default = times["hpcsgd"], times.get(DEFAULT)
        best = fastest(rows, "hpcsgd")
        # All with the loosest tolerance that gets there.
        ratio = own / best["cpu_ms"]
        last = "not reached" if default is None else f"{default:.3g}"
        lines.append(
            f"| {name} | {own:.3g} | {best['cpu_ms']:.3g} ({best['method']}) |"
            f" {ratio:.2g} | {last} |"
        )
    return lines


def cv_table(figures: list[dict]) -> list[str]:
    """Return the lines of the table of penalties chosen by cross-validation."""
    lines = list(CV_HEAD)
    for name in dict.fromkeys(row["problem"] for row in figures):
        rows = [row for row in figures if row["problem"] == name]
        own = next(row["cpu_ms"] for row in rows if row["method"] == "GLM_CV")
        best = fastest(rows, "GLM_CV")
        lines.append(
            f"| {name} | {own:.3g} | {best['cpu_ms']:.3g} ({best['method']}) |"
            f" {own / best['cpu_ms']:.2g} |"
        )
    return lines


def stream_table(figures: list[dict]) -> list[str]:
    """Return the lines of the table of fits that read a file in each pass."""
    lines = list(STREAM_HEAD)
    for row in figures:
        lines.append(
            f"| {row['solver']} | {row['gigabytes']:.3g} GB, {row['columns']} columns |"
            f" {row['bare_gb_per_s']:.2g} | {row['gb_per_s']:.2g} |"
            f" {100 * row['share']:.0f} % | {row['passes_over_the_file']:.0f} |"
        )
    return lines


def fastest(rows: list[dict], own: str) -> dict:
    """Return the row of the least CPU time whose method is not `own`."""
    others = [row for row in rows if not row["method"].startswith(own)]
    return min(others, key=lambda row: row["cpu_ms"])


TABLES = {
    "bench_fit": table,
    "bench_cv": cv_table,
    "bench_streamed_fit": stream_table,
}


def figures_of(name: str) -> list[dict]:
    """Return the figures of a benchmark."""
    return json.loads((RESULTS / f"{name}.json").read_text())["figures"]


if __name__ == "__main__":
    for name, lines in TABLES.items():
        if (RESULTS / f"{name}.json").exists():
            print("\n".join([f"{name}:", *lines(figures_of(name)), ""]))

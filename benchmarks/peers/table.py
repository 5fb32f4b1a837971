"""Figures as a person reads them."""

from typing import Any

HEAD = ("method", "seconds", "times", "epochs", "gap %", "tuning s", "best")
WIDTHS = (39, 9, 7, 7, 8, 9, 0)


def table(name: str, part: dict[str, Any]) -> str:
    """One problem: the fastest first, those that never got there last."""
    rows = [(method, row) for method, row in part["methods"].items() if "runs" in row]
    rows.sort(key=lambda item: _seconds(item[1]))
    reached = [row["seconds"] for _, row in rows if row["reached"]]
    lines = [_title(name, part), _line(HEAD)]
    lines += [_row(method, row, min(reached, default=None)) for method, row in rows]
    return "\n".join(lines)


def _title(name: str, part: dict[str, Any]) -> str:
    return (
        f"{name}: {part['rows']} x {part['columns']}, {part['family']},"
        f" optimum {part['optimum']['loss']:.8g}, seconds to 0.5 % of it"
    )


def _seconds(row: dict[str, Any]) -> float:
    return row["seconds"] if row["reached"] else float("inf")


def _row(method: str, row: dict[str, Any], least: float | None) -> str:
    there = row["reached"]
    return _line(
        (
            method,
            f"{row['seconds']:.4f}" if there else "never",
            f"{row['seconds'] / least:.2f}" if there and least else "",
            f"{row['epochs']:g}",
            "" if row["gap"] is None else f"{100 * row['gap']:.3f}",
            f"{row['tuning']['seconds']:.2f}",
            ", ".join(f"{k} {v:.4g}" for k, v in row["setting"].items()),
        )
    )


def _line(cells: tuple[str, ...]) -> str:
    first, *others = zip(cells, WIDTHS, strict=True)
    text = f"{first[0]:{first[1]}s}"
    for cell, width in others:
        text += f" {cell:>{width}s}" if width else f"  {cell}"
    return text.rstrip()

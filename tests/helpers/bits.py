"""bf16 as bits, in the namespace of whatever arrays are given: NumPy's or CuPy's."""

from typing import Any


def widen_bits(bits: Any, values: Any) -> Any:
    """values ← bits as float32: a shift, exact."""
    values.view("uint32")[...] = bits.astype("uint32") << 16
    return values


def narrow_bits(xp: Any, values: Any, bits: Any) -> Any:
    """bits ← float32 values, rounded to nearest even; what is no number stays none."""
    held = values.view("uint32")
    upper = held >> 16
    # Adding just below half a unit carries where the tail says so; ties to even.
    rounded = (held + ((upper & 1) + 0x7FFF)) >> 16
    bits[...] = xp.where(values != values, upper | 0x40, rounded)
    return bits


def add_bits(xp: Any, parts: Any, ranks: int, total: Any) -> Any:
    """total ← Σ over ranks of their parts, from the left in float32, rounded once."""
    rows = parts.reshape(ranks, -1)
    wide = widen_bits(rows[0], xp.empty(rows.shape[1], dtype="float32"))
    part = xp.empty_like(wide)
    for row in rows[1:]:
        wide += widen_bits(row, part)
    return narrow_bits(xp, wide, total)

"""Number formats, and the nine places of one exchange where one is chosen."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.errors import ConfigError, MissingPackage

Array = NDArray[Any]


@dataclass(frozen=True)
class Format:
    """A floating-point format: its unit roundoff and how the host stores it."""

    name: str
    unit_roundoff: float
    storage: str  # NumPy dtype; bf16 is held as 16-bit integers, as the kernels hold it

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of an array stored in this format."""
        return np.dtype(self.storage)

    @property
    def is_native(self) -> bool:
        """True where NumPy can compute in this format."""
        return self.dtype.kind == "f"


FORMATS = {
    "fp64": Format("fp64", 2.0**-53, "float64"),
    "fp32": Format("fp32", 2.0**-24, "float32"),
    "bf16": Format("bf16", 2.0**-8, "uint16"),
}

WIDE = ("fp64", "fp32")


def get_format(name: str) -> Format:
    """The format called `name`."""
    if name not in FORMATS:
        raise ConfigError(f"unknown format {name!r}; known: {sorted(FORMATS)}")
    return FORMATS[name]


@dataclass(frozen=True)
class Precision:
    """The nine choices of one exchange; defaults are recipe `fp32`."""

    matrix: str = "fp32"  # storage of A, the input of every product
    margin: str = "fp32"  # storage of z = Yw
    margin_sum: str = "fp32"  # accumulator of Yw and its sum over members
    gram_sum: str = "fp32"  # accumulator of YYᵀ
    gram_wire: str = "fp32"  # format in which G is summed over members
    inner: str = "fp32"  # the correction Σ G r and its addition to z
    residual: str = "fp32"  # link and residual
    gradient_sum: str = "fp32"  # accumulator of Yᵀr
    weights: str = "fp32"  # storage and update of w

    def __post_init__(self) -> None:
        for field in fields(self):
            allowed = tuple(FORMATS) if field.name in ("matrix", "margin") else WIDE
            value = getattr(self, field.name)
            if value not in allowed:
                raise ConfigError(
                    f"[precision] {field.name} = {value!r} is not offered;"
                    f" known there: {', '.join(allowed)}"
                )

    @property
    def one_message(self) -> bool:
        """True where G and z travel in one buffer: their formats are equal."""
        return self.gram_wire == self.margin_sum

    @property
    def working(self) -> np.dtype[Any]:
        """The dtype products are computed in: the widest of their accumulators."""
        sums = (self.margin_sum, self.gram_sum, self.gradient_sum)
        return np.dtype("float64" if "fp64" in sums else "float32")


def _uniform(name: str) -> Precision:
    return Precision(**{field.name: name for field in fields(Precision)})


RECIPES = {
    "fp64": _uniform("fp64"),
    "fp32": _uniform("fp32"),
    "c": replace(_uniform("fp32"), matrix="bf16", margin="bf16"),
}


def make_precision(
    recipe: str, overrides: Mapping[str, str] | None = None
) -> Precision:
    """The recipe called `recipe` with single fields changed."""
    if recipe not in RECIPES:
        raise ConfigError(
            f"[precision] unknown recipe: {recipe!r}; known: {sorted(RECIPES)}"
        )
    return replace(RECIPES[recipe], **(overrides or {}))


def _bfloat16() -> Any:
    return _narrow("bf16")


# element types of files that NumPy itself does not have, as ml_dtypes calls them
NARROW = {
    "bf16": "bfloat16",
    "fp8-e4m3": "float8_e4m3fn",
    "fp8-e5m2": "float8_e5m2",
}


def _narrow(name: str) -> Any:
    try:
        import ml_dtypes
    except ImportError as missing:
        raise MissingPackage(
            f"{name} needs the package ml_dtypes; install it with:"
            " pip install ml_dtypes"
        ) from missing
    return getattr(ml_dtypes, NARROW[name])


def encode(values: Array, name: str) -> Array:
    """`values` rounded to nearest even into the storage of format `name`."""
    form = get_format(name)
    if form.is_native:
        return np.ascontiguousarray(values, dtype=form.dtype)
    rounded = values.astype(_bfloat16())
    return np.ascontiguousarray(rounded).view(np.uint16)


def decode(stored: Array, name: str, dtype: Any, out: Array | None = None) -> Array:
    """The values of an array in storage `name`, exactly, as `dtype`."""
    if get_format(name).is_native:
        return stored.astype(dtype, copy=False)
    return widen_bf16(stored, dtype, out)


def widen_bf16(stored: Array, dtype: Any, out: Array | None = None) -> Array:
    """bf16 bits to float32 or float64: a 16-bit shift, exact."""
    direct = out if out is not None and out.dtype == np.float32 else None
    if direct is None:
        direct = np.empty(stored.shape, dtype=np.float32)
    np.left_shift(stored, np.uint32(16), out=direct.view(np.uint32), dtype=np.uint32)
    if out is None:
        return direct.astype(dtype, copy=False)
    if out is not direct:
        np.copyto(out, direct)
    return out


def encode_element(values: Array, name: str, stored: Any, scale: float) -> Array:
    """`values` / `scale` rounded to nearest even, as the bits that a file holds."""
    if scale != 1.0:
        values = values / scale
    rounded = values.astype(_narrow(name) if name in NARROW else stored, copy=False)
    return np.ascontiguousarray(rounded).view(stored)


def decode_element(stored: Array, name: str, scale: float) -> Array:
    """The values of a file's elements: float64 of fp64, else float32."""
    if name == "bf16":
        values = widen_bf16(stored, np.float32)
    else:
        held = stored.view(_narrow(name)) if name in NARROW else stored
        wide = np.float64 if name == "fp64" else np.float32
        values = held.astype(wide, copy=False)
    return values if scale == 1.0 else values * values.dtype.type(scale)


def round_through(values: Array, name: str) -> None:
    """Round `values` in place to format `name`, keeping their dtype."""
    form = get_format(name)
    if form.is_native:
        if form.dtype.itemsize < values.dtype.itemsize:
            values[...] = values.astype(form.dtype)
    else:
        values[...] = values.astype(_bfloat16())

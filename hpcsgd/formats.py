"""Number formats: what each can hold, and how the host stores it."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcsgd.errors import ConfigError


@dataclass(frozen=True)
class Format:
    """A binary floating-point format.

    Integers are one, too: with as many bits in the fraction as the least exponent says,
    all that lies below the largest power of two is subnormal, and one apart.
    """

    name: str
    fraction: int  # bits of the fraction that are stored
    least: int  # exponent of the smallest normal number
    largest: float
    has_infinity: bool
    storage: str  # NumPy dtype; bf16 and fp8 are held as bits, as the kernels hold them

    @property
    def unit_roundoff(self) -> float:
        """Half the distance from 1 to its neighbour."""
        return 2.0 ** -(self.fraction + 1)

    @property
    def tiny(self) -> float:
        """The smallest number above zero, a subnormal one."""
        return float(2.0 ** (self.least - self.fraction))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of an array stored in this format."""
        return np.dtype(self.storage)

    @property
    def carrier(self) -> np.dtype[Any]:
        """The dtype in which its values are computed with."""
        return np.dtype("float64" if self.name == "fp64" else "float32")

    @property
    def is_wide(self) -> bool:
        """True where NumPy and MPI compute in this format themselves."""
        return self.name in WIDE

    @property
    def wants_scale(self) -> bool:
        """True where the exponents are so few that data may not fit."""
        return self.least > -126


WIDE = ("fp64", "fp32")
FORMATS = {
    "fp64": Format("fp64", 52, -1022, float(np.finfo("f8").max), True, "float64"),
    "fp32": Format("fp32", 23, -126, float(np.finfo("f4").max), True, "float32"),
    "tf32": Format("tf32", 10, -126, (2 - 2.0**-10) * 2.0**127, True, "float32"),
    "bf16": Format("bf16", 7, -126, (2 - 2.0**-7) * 2.0**127, True, "uint16"),
    "fp16": Format("fp16", 10, -14, 65504.0, True, "float16"),
    "fp8-e4m3": Format("fp8-e4m3", 3, -6, 448.0, False, "uint8"),
    "fp8-e5m2": Format("fp8-e5m2", 2, -14, 57344.0, True, "uint8"),
    "int8": Format("int8", 6, 6, 127.0, False, "int8"),
}

FOR_MATRICES = ("int8",)  # no other field: there is no NaN to tell that all is lost


def formats_of(field: str) -> list[str]:
    """What a field of the precision may be."""
    return [n for n in FORMATS if field == "matrix" or n not in FOR_MATRICES]


def get_format(name: str) -> Format:
    """The format called `name`."""
    if name not in FORMATS:
        raise ConfigError(f"unknown format {name!r}; known: {sorted(FORMATS)}")
    return FORMATS[name]


def wider(first: str, second: str) -> str:
    """The one of two formats that rounds less."""
    return min(first, second, key=lambda name: get_format(name).unit_roundoff)

"""Which of the compiled objects runs here: one for each set of instructions."""

import ctypes
import os
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from hpcsgd.compiled import load
from hpcsgd.errors import ConfigError

# In the order of the numbers that kernels/cpu/level.c gives.
SETS = ("portable", "avx2", "avx512", "avx512bf16", "amx")
TILES = "amx"  # the set that the system has to be asked for
settled: list[str] = []  # what runs so far have agreed on, for as long as we live
CAP = "HPCSGD_ISA"  # the best set that may be used, for comparisons and tests


@lru_cache(maxsize=1)
def best() -> tuple[Any, str, str]:
    """(library or None, its set, why): the best object that this processor can run."""
    if "" in settled:
        return None, "", "another rank has no compiled kernels; NumPy is used"
    library, why = load_library("portable")
    if library is None:
        return None, "", why
    library.hpcsgd_level.restype = ctypes.c_int
    level, refused = min(library.hpcsgd_level(), _cap()), ""
    for name in reversed(SETS[1 : level + 1]):
        better, said = load_library(name)
        if better is None:
            continue
        if name == TILES and not library.hpcsgd_ask_for_tiles():
            refused = "; the system refuses the tiles of AMX to this process"
            continue
        return better, name, said + refused
    return library, SETS[0], why


def settle(sets: Sequence[str]) -> bool:
    """Use no better set than the least of `sets`, "" for none; True if that is news."""
    least = min(sets, key=(("", *SETS)).index)
    if least == best()[1]:
        return False
    settled.append(least)
    best.cache_clear()
    return True


def _cap() -> int:
    asked = os.environ.get(CAP, "").lower() or SETS[-1]
    if asked not in SETS:
        raise ConfigError(f"{CAP}={asked} is unknown; known: {', '.join(SETS)}")
    return min(map(SETS.index, (asked, *settled)))


def load_library(name: str) -> tuple[Any, str]:
    return load(Path(__file__).parent, f"_cpu_{name}", "the NumPy path")

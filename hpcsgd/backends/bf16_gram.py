"""Which of the compiled kernels multiplies bf16 rows by one another."""

import ctypes
from collections.abc import Callable
from typing import Any

from hpcsgd.backends import isa
from hpcsgd.backends.call import door_to

INT = ctypes.c_int64
KINDS = (  # the scratch and the Gram of each; of a set with both, the faster first
    ("hpcsgd_tile_room", "hpcsgd_strict_gram_tiles"),
    ("hpcsgd_gram_room", "hpcsgd_strict_gram_pairs"),
)


def bf16_gram(library: Any) -> dict[str, Any]:
    """The Gram of this set and its scratch: by tiles, by pairs, or none."""
    for room, name in KINDS:
        words = getattr(library, room)
        words.restype, words.argtypes = INT, (INT,)
        if words(1):
            gram = door_to(library, name)
            return {"hpcsgd_strict_gram_pairs": gram, "hpcsgd_gram_room": words}
    return {}


def tile_peak() -> Callable[[int], int] | None:
    """Multiplies tiles in registers that many rounds, says how many products it took.

    None where there are no tiles.
    """
    library, name, _ = isa.best()
    if name != isa.TILES:
        return None
    peak: Callable[[int], int] = library.hpcsgd_tile_peak
    library.hpcsgd_tile_peak.restype, library.hpcsgd_tile_peak.argtypes = INT, (INT,)
    return peak

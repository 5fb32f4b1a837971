"""What a launch asks of a GPU, counted from the PTX that NVRTC made. See count.h."""

import ctypes
import re
from dataclasses import dataclass

import numpy as np

from tests.helpers.kernels.ptx.kernel import PtxKernel
from tests.helpers.kernels.ptx.parse import Instruction

FIELDS = (
    *("issued", "threads", "requests", "asked", "useful", "sectors"),
    *("passes", "fewest", "from_l2"),
)
OF_ARRAY = ("read_once", "written_once", "read", "sectors", "from_l2")
SECTOR = 32  # bytes
CLASSES = {  # in this order; what is nowhere else is integer work
    "mma": r"mma|wgmma",
    "ldmatrix": r"ldmatrix",
    "copy": r"cp\.async\.c[ga]",
    "global": r"(ld|st|atom|red|prefetch)\.[\w.]*global|prefetch",
    "shared": r"(ld|st|atom)\.[\w.:]*shared|mapa",
    "barrier": r"bar\.|barrier|membar|fence|cp\.async",
    "shuffle": r"shfl",
    "branch": r"bra|ret|exit",
    "double": r"\w+(\.\w+)*\.f64",
    "special": r"(ex2|rcp|rsqrt|sqrt|lg2|sin|cos|div)\b",
    "float": r"(add|sub|mul|fma|min|max|neg|abs|mov)\b.*f32|cvt.*f32",
}


def class_of(opcode):
    """Of CLASSES, or integer."""
    return next((n for n, p in CLASSES.items() if re.match(p, opcode)), "integer")


def goes_through_l1(opcode):
    """Loads that L1 may serve: neither cp.async.cg nor what others write meanwhile."""
    return bool(re.match(r"ld\.global(?!\.(cg|cv|acquire|relaxed))", opcode))


@dataclass
class Counts:
    """Of one launch; `table` has a row of FIELDS for each instruction."""

    instructions: list[Instruction]
    table: np.ndarray
    copied: np.ndarray  # where cp.async writes
    arrays: dict[str, dict[str, int]]
    traces: list[np.ndarray]

    def sum(self, field, pattern="", copied=False):
        """Over instructions whose opcode matches."""
        chosen = [bool(re.match(pattern, one.opcode)) for one in self.instructions]
        table = self.copied if copied else self.table
        return int(table[chosen, FIELDS.index(field)].sum())

    def issued(self):
        """Class -> instructions that warps issued."""
        found = dict.fromkeys([*CLASSES, "integer"], 0)
        for one, row in zip(self.instructions, self.table, strict=True):
            found[class_of(one.opcode)] += int(row[0])
        return found

    def conflicts(self, pattern=r".*", copied=False):
        """Passes over the banks for each that is needed; 1: none is asked twice."""
        passes = self.sum("passes", pattern, copied)
        return passes / max(self.sum("fewest", pattern, copied), 1)

    def useful_share(self, *names):
        """Bytes that were asked for, of those of the sectors they lie in."""
        read = sum(self.arrays[name]["read"] for name in names)
        return read / (SECTOR * sum(self.arrays[name]["sectors"] for name in names))


class CountedKernel(PtxKernel):
    """A PtxKernel whose last launch is in `counts`.

    Arrays are named by their place among the arguments, or by `names`, one a place.
    """

    def __init__(self, name, *defines, trace=False, **how):
        super().__init__(name, *defines, watch="count.h", **how)
        self.trace, self.counts = trace, None

    def __call__(self, grid, block, arguments, *, names=None, **how):
        own = self.entry.instructions()
        names = names or [str(place) for place in range(len(arguments))]
        arrays = {
            name: (argument.ctypes.data, argument.nbytes)
            for name, argument in zip(names, arguments, strict=False)
            if isinstance(argument, np.ndarray) and argument.nbytes
        }
        through = np.array([goes_through_l1(one.opcode) for one in own], np.uint8)
        places = np.array(list(arrays.values()), np.uint64).reshape(-1, 2)
        firsts, sizes = map(np.ascontiguousarray, places.T)
        self.library.count_begin(
            *(len(own), _at(through), len(arrays), _at(firsts), _at(sizes)),
            int(self.trace),
        )
        super().__call__(grid, block, arguments, **how)
        table = np.zeros((2, len(own), len(FIELDS)), np.uint64)
        of = np.zeros((max(len(arrays), 1), len(OF_ARRAY)), np.uint64)
        self.library.count_end(_at(table), _at(of))
        found = {
            name: dict(zip(OF_ARRAY, map(int, row), strict=True))
            for name, row in zip(arrays, of, strict=False)
        }
        self.counts = Counts(own, *table.astype(np.int64), found, self._traces())

    def _traces(self):
        found = []
        while count := self.library.count_trace(len(found), None):
            found.append(np.empty(count, np.uint32))
            self.library.count_trace(len(found) - 1, _at(found[-1]))
        return found


def _at(array):
    return ctypes.c_void_p(array.ctypes.data)

"""What compute-sanitizer would say, on a processor: a kernel that is watched.

`WatchedKernel` looks like `emulator.Kernel`. Every array that a launch is
given has exact bounds; each access is held against them and against all others that
nothing orders (watch.cpp says by which rules). What is found is raised, in sentences.
"""

import ctypes
import re
from collections import Counter
from functools import lru_cache
from pathlib import Path

import numpy as np

from tests.helpers.kernels import emulator
from tests.helpers.kernels.ptx.kernel import PtxKernel

HERE = Path(__file__).parent
PARTS = (HERE / "watch.h", *sorted((HERE / "watching").iterdir()))
MOST = 200  # findings of a launch that are looked at

# The numbers of enum What.
CHECKS = {
    "memcheck": {0: "outside", 1: "misaligned", 2: "into an input"},
    "racecheck": {3: "race", 4: "in flight", 5: "not running", 6: "ended"},
    "initcheck": {7: "never written"},
    "synccheck": {8: "elsewhere", 9: "missing", 10: "not arrived"},
}
KINDS = ("reads", "writes", "adds to", "reads")
SPACES = ("global memory", "shared memory", "shared memory of another block")
MEETS = ("block", "warp", "cluster", "warp")


class Found(AssertionError):
    """What a launch did that no launch may do."""


class Finding(ctypes.Structure):
    """As watch.cpp has it."""

    _fields_ = (
        *(
            (n, ctypes.c_int32)
            for n in ("what", "space", "kind", "other_kind", "region")
        ),
        *((n, ctypes.c_uint32) for n in ("where", "block", "thread", "size")),
        *((f"other_{n}", ctypes.c_uint32) for n in ("where", "block", "warp", "mask")),
        *((n, ctypes.c_uint32) for n in ("came", "members", "times")),
        ("offset", ctypes.c_int64),
    )

    @property
    def check(self):
        """Which of the four found it."""
        return next(check for check, some in CHECKS.items() if self.what in some)


@lru_cache
def watcher():
    """The library that all watched kernels tell."""
    path = emulator.cached("watch", "so", *(path.read_text() for path in PARTS))
    flags = ("-std=c++17", "-O2", "-shared", "-fPIC")
    source = HERE / "watching" / "watch.cpp"
    emulator.made(path, lambda part: emulator.compiler(*flags, "-o", part, source))
    found = ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    found.watch_array.argtypes = (
        *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint, ctypes.c_int, ctypes.c_int),
        ctypes.c_uint32,
    )
    found.watch_findings.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    found.watch_findings.restype = ctypes.c_size_t
    return found


def parameters(text, entry):
    """[(name, whether it is only read)] of a kernel."""
    head = re.search(rf"\b{entry}\(([^)]*)\)\s*\{{", text)[1]
    found = []
    for one in head.split(","):
        name = re.search(r"(\w+)\s*$", one)[1]
        found.append((name, "*" in one and one.strip().startswith("const ")))
    return found


class WatchedKernel(PtxKernel):
    """What NVRTC made of a kernel: every instruction that reaches memory is watched."""

    launches: Counter[str] = Counter()
    accesses: Counter[str] = Counter()

    def __init__(self, name, *defines, text=None, entry=None, **how):
        watcher()
        self.function = entry or name
        self.text = emulator.inlined(emulator.source_of(name) if text is None else text)
        self.parameters = parameters(self.text, self.function)
        same = {"text": text, "entry": entry}
        super().__init__(name, *defines, **same, watch="watch.h", **how)
        for of in (self.library.ptx_line, self.library.wgmma_said):
            of.restype = ctypes.c_char_p

    def __call__(
        self, grid, block, arguments, *, shared=0, cluster=1, seed=0, workers=1
    ):
        """As Kernel has it, one block (or cluster) after the other."""
        kept = [emulator._value(argument) for argument in arguments]
        places = (ctypes.c_void_p * len(kept))(*map(ctypes.addressof, kept))
        sizes = [(ctypes.c_uint * 3)(*emulator._three(size)) for size in (grid, block)]
        watcher().watch_begin()
        self.register(arguments)
        stuck = self.call(*sizes, cluster, shared, seed, 1, places)
        self.count()
        if some := findings():
            self.report(some)
        if said := self.library.wgmma_said():
            raise Found(f"{self.function}: synccheck: {said.decode()}")
        if stuck:
            raise emulator.Stuck(f"{self.name} got nowhere")

    def report(self, some):
        """What is done about findings."""
        raise Found("\n".join(map(self.sentence, some)))

    def register(self, arguments):
        """Every array, with what may be done to it."""
        arrays = [a for a in arguments if isinstance(a, np.ndarray) and a.nbytes]
        for array in {a.ctypes.data: a for a in arrays}.values():
            first, size = array.ctypes.data, array.nbytes
            own = [
                i for i, a in enumerate(arguments) if _begins_in(a, first, first + size)
            ]
            constant = all(self.parameters[i][1] for i in own)
            watcher().watch_array(
                *(first, size, array.itemsize, constant, own[0]), emulator.NO_NUMBER
            )

    def count(self):
        """Launches and accesses, for the table."""
        counts = (ctypes.c_uint64 * 4)()
        watcher().watch_counts(counts)
        WatchedKernel.launches[self.function] += 1
        WatchedKernel.accesses[self.function] += sum(counts)

    def line(self, where):
        """The instruction, behind the number of its line."""
        return (self.library.ptx_line(where - 1) or b"?").decode()

    def place(self, one):
        """Which bytes of what."""
        if one.region >= 0:
            name, _ = self.parameters[one.region]
            return f"{name} + {one.offset} bytes"
        if one.region == -1:
            return f"{SPACES[one.space]}, byte {one.offset}"
        return f"address {one.offset & (1 << 64) - 1:#x}"

    def sentence(self, one):
        """A finding in words."""
        here = f"thread {one.thread} of block {one.block}"
        at = f"[{self.line(one.where)}]" if one.where else ""
        what = CHECKS[one.check][one.what]
        head = f"{self.function}: {one.check}: {what}: "
        if one.check == "synccheck":
            return head + self.meeting(one, at)
        text = (
            f"{head}{here} {KINDS[one.kind]} {one.size} bytes of {self.place(one)} {at}"
        )
        if one.what in (3, 4, 6) and one.other_mask:
            lanes = [i for i in range(32) if one.other_mask >> i & 1]
            who = f"lane {lanes[0]} of warp {one.other_warp} (block {one.other_block})"
            there = self.line(one.other_where)
            text += f", and {who} {KINDS[one.other_kind]} it, in no order: [{there}]"
        return f"{text}; {one.times} times"

    def meeting(self, one, at):
        """A barrier that is none."""
        who = MEETS[one.kind]
        if one.what == 8:
            there = self.line(one.other_where)
            return f"of a {who}, some are at {at}, others at [{there}]"
        if one.what == 9:
            return f"{one.came} of the {one.members} threads of a {who} come to {at}"
        return f"a barrier of a cluster is waited for, or come to, out of turn {at}"


def _begins_in(argument, first, behind):
    if isinstance(argument, np.ndarray):
        return first <= argument.ctypes.data < behind
    inside = isinstance(argument, ctypes.c_void_p) and argument.value is not None
    return inside and first <= argument.value < behind


def findings():
    """Those of the last launch."""
    some = (Finding * MOST)()
    count = watcher().watch_findings(some, MOST)
    return list(some[: min(count, MOST)])

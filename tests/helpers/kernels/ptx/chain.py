"""How long a block takes at least: its instructions in order, each when it can begin.

A thread of every warp stands for the warp: the one that executed most between two
barriers. A warp issues one instruction a cycle; between two branches it takes them in
any order, as a compiler may, and waits where an operand is not there; loads take what
published tables say. Between two barriers a block takes as long as its slowest warp, or
as its four schedulers need to issue all of it, or as what it asks of L2. PTX is what is
replayed; its moves and conversions of addresses are left out.
"""

import re
from dataclasses import dataclass, field

import numpy as np

SCHEDULERS = 4  # of a processor


@dataclass(frozen=True)
class Latencies:
    """Cycles until a result can be used.

    Loads: arXiv:2402.13499, table IV (H100). Arithmetic: arXiv:2208.11174 (A100). Those
    of shuffles, barriers and special functions are taken, not published.
    """

    arithmetic: int = 4
    double: int = 8
    special: int = 18
    shuffle: int = 24
    shared: int = 29
    l1: int = 41
    l2: int = 263
    barrier: int = 30
    cluster_barrier: int = 190  # as a store to another processor, 2402.13499 section V
    mma: int = 33
    l2_bytes: float = 48.0  # a processor reads from L2 in a cycle


# What ptxas makes nothing of, or a part of the instruction behind it.
FREE = re.compile(r"mov\.|cvt\.[us]64\.[us]32|cvt\.u32\.u64|ld\.param|cvta|pragma")
REGISTER = re.compile(r"%\w+")
WIDE = re.compile(r"^(st|bra|bar|barrier|membar|ret|exit|prefetch|cp)\b")


@dataclass(frozen=True)
class Step:
    """One instruction: what it reads, what it writes, how long that takes."""

    reads: tuple[str, ...]
    writes: tuple[str, ...]
    cycles: int
    is_free: bool
    is_barrier: bool
    is_load: bool
    is_branch: bool


def steps_of(instructions, latencies):
    """Of every instruction of an entry."""
    return [_step(one, latencies) for one in instructions]


def _step(one, latencies):
    names = [REGISTER.findall(operand) for operand in one.operands]
    guard = [f"%{one.guard.lstrip('!')}"] if one.guard else []
    to = [] if WIDE.match(one.opcode) or not names else names[0]
    reads = guard + [n for some in names[(1 if to else 0) :] for n in some]
    if one.operands and one.operands[0].startswith("["):
        reads += names[0]
        to = []
    return Step(
        *(tuple(reads), tuple(to), _cycles(one.opcode, latencies)),
        is_free=bool(FREE.match(one.opcode)),
        is_barrier=one.opcode.startswith(("bar.sync", "barrier.cluster.wait")),
        is_load=one.opcode.startswith("ld.global"),
        is_branch=one.opcode.startswith("bra"),
    )


def _cycles(opcode, latencies):
    table = (
        (r"barrier\.cluster", latencies.cluster_barrier),
        (r"bar\.sync", latencies.barrier),
        (r"ld\.shared|ldmatrix", latencies.shared),
        (r"ld\.global", latencies.l2),
        (r"shfl", latencies.shuffle),
        (r"mma", latencies.mma),
        (r"ex2|rcp|lg2|sqrt|div", latencies.special),
        (r".*f64", latencies.double),
        (r"mov|cvt\.[us]64\.[us]32|cvt\.u32\.u64", 0),
    )
    found = (cycles for pattern, cycles in table if re.match(pattern, opcode))
    return next(found, latencies.arithmetic)


@dataclass
class Warp:
    """When its registers are there, and when it can issue."""

    now: float = 0.0
    ready: dict[str, float] = field(default_factory=dict)

    def run(self, trace, steps, hits):
        """Up to and without the next barrier; instructions that were issued.

        Between two branches ptxas has every order to choose from: there an instruction
        begins when its operands are there, and a branch when all have begun.
        """
        issued, within, began, latest = 0, 0, self.now, self.now
        for number in trace:
            step = steps[number]
            begin = max([began, *(self.ready.get(n, 0.0) for n in step.reads)])
            for name in step.writes:
                self.ready[name] = begin + hits.get(number, step.cycles)
            issued += not step.is_free
            latest = max(latest, begin)
            within += not step.is_free
            if step.is_branch:
                began = latest = max(latest, began + within)
                within = 0
        self.now = max(latest, began + within)
        return issued


@dataclass
class Interval:
    """Between two barriers of a block."""

    slowest: float  # of its warps, in cycles
    issued: int
    from_l2: float  # bytes
    barrier: int = 0  # cycles of the one that ends it

    def cycles(self, latencies):
        """What of the three takes longest, and the barrier."""
        return self.barrier + max(
            *(self.slowest, self.issued / SCHEDULERS, self.from_l2 / latencies.l2_bytes)
        )


def intervals(counts, threads, latencies=None, hits=()):
    """Of the first block of a launch whose threads were traced.

    `hits`: numbers of loads that L1 serves, by what was read before.
    """
    latencies = latencies or Latencies()
    steps = steps_of(counts.instructions, latencies)
    known = dict.fromkeys(hits, latencies.l1)
    split = [_pieces(trace, steps) for trace in counts.traces[:threads]]
    warps = [Warp() for _ in range(threads // 32)]
    found = []
    for turn in range(max(map(len, split))):
        begin, issued, loaded = warps[0].now, 0, 0.0
        for number, warp in enumerate(warps):
            lanes = [
                own[turn]
                for own in split[32 * number : 32 * number + 32]
                if turn < len(own)
            ]
            if lanes:
                trace = max(lanes, key=len)
                issued += warp.run(trace, steps, known)
                loaded += sum(_bytes(counts, lanes, steps, known))
        end = max(warp.now for warp in warps)
        met = [int(o[turn + 1][0]) for o in split if turn + 1 < len(o)]
        barrier = steps[met[0]].cycles if met else 0
        found.append(Interval(end - begin, issued, loaded, barrier))
        for warp in warps:
            warp.now = begin + found[-1].cycles(latencies)
    return found


def _pieces(trace, steps):
    ends = [i for i, number in enumerate(trace) if steps[number].is_barrier]
    return np.split(trace, ends)


def _bytes(counts, lanes, steps, known):
    """Of sectors that lanes of a warp load from L2; a mean over the whole launch."""
    met = {int(n) for lane in lanes for n in np.unique(lane)}
    for number in met:
        if steps[number].is_load and number not in known:
            row = counts.table[number]
            times = max(int(np.count_nonzero(lane == number)) for lane in lanes)
            yield 32.0 * times * row[8] / max(row[2], 1)

"""Every barrier, fence and wait of a kernel taken out, every bound moved by one: does
somebody see it?

python -m tests.kernels.ptx.planted [KERNEL ...]     # a table of all of them

Each fault runs in a process of its own, watched, on small launches of its kernel. What
nobody reports has a line in UNSEEN that says why.
"""

import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.kernels import emulator
from tests.kernels.ptx.launches import MODULES, module_of, rows_packed, run_by
from tests.kernels.ptx.kernel import ptx_of
from tests.kernels.ptx.watched import Found, WatchedKernel

LIMIT = 240  # seconds for one
TEXT_OF_ALL = "device.cuh"  # is nobody's own: it is left as it is
ORDERS = (
    *(r"__syncthreads\(\);", r"__syncwarp\(\);", r"__threadfence\(\);"),
    *(r"\barrive\(\);", r"\bwait\(\);", r"\bcluster_arrive\(\);", r"\bcluster_wait\(\);"),
    *(r"copy_wait<[^>]+>\(\);", r"copy_commit\(\);"),
)
# What is asked of memory with an order, as what asks without.
WEAKER = {r"load_acquire\((\w+)\)": r"atomicAdd((u32 *)\1, 0u)"}
BOUNDS = {r" < (?![A-Z0-9_]+\b)(?=[\w(*])": " <= ", r" >= (?=count\b|m\b)": " > "}
SKIPPED = re.compile(r"^\s*(/\*|\*|#|//)|INLINE|#define")


@dataclass(frozen=True)
class Fault:
    """A place of a text, and what stands there instead."""

    kernel: str
    line: int
    said: str  # the line
    first: int
    behind: int
    instead: str
    kind: str  # order, bound

    @property
    def name(self):
        """As a table has it."""
        return f"{self.kernel}:{self.line}:{self.first} {self.said}"


def own_text(kernel):
    """The text without what all kernels share."""
    text = emulator.inlined(emulator.source_of(kernel), {TEXT_OF_ALL})
    return f'#include "{TEXT_OF_ALL}"\n' + text


def comments_blank(text):
    """The same places, without words."""

    def blank(match):
        return re.sub(r"[^\n]", " ", match[0])

    return re.sub(r"/\*.*?\*/|^#.*?(?<!\\)$", blank, text, flags=re.S | re.M)


def faults_of(kernel):
    """All that can be planted, in the order of the text."""
    text = own_text(kernel)
    bare, found = comments_blank(text), []
    changes = [(pattern, ";", "order") for pattern in ORDERS]
    changes += [(pattern, to, "order") for pattern, to in WEAKER.items()]
    changes += [(pattern, to, "bound") for pattern, to in BOUNDS.items()]
    for pattern, to, kind in changes:
        for match in re.finditer(pattern, bare):
            line = text.count("\n", 0, match.start())
            said = text.splitlines()[line].strip()
            if said.startswith("INLINE"):
                continue
            instead = match.expand(to)
            place = (match.start(), match.end(), instead, kind)
            found.append(Fault(kernel, line + 1, said, *place))
    return sorted(found, key=lambda fault: fault.first)


def planted(fault):
    """The text with the fault."""
    text = own_text(fault.kernel)
    return text[: fault.first] + fault.instead + text[fault.behind :]


ONCE = (1,)
TIGHT = ((0, 7, 21), 40, 1)  # rows of whole chunks, more rows than whole blocks have


def _gram(m, text):
    for defines in (m.PLAIN, (*m.PLAIN, "FFMA=1")):
        for case in (TIGHT, m.CASES[2]):
            m.agrees("bf16", 64, defines, case, text, ONCE)


def _direct_steps(m, text):
    for sizes in (m.SIZES[2], (20, 128, (32, 8))):
        m.launches_agree(m.walk_of(*sizes, "bf16"), "bf16", text, seeds=ONCE)
    walk = m.walk_of(20, 512, (33, 8), "bf16")
    m.agree(m.launched(walk, "bf16", text, room=2), walk)


def _gather_steps(m, text):
    for sizes in (m.SIZES[1], (20, 128, (32, 8))):
        m.launches_agree(m.walk_of(*sizes, "bf16"), "bf16", text, seeds=ONCE)


def _csr(m, text):
    case = m.case_of(("bf16", 32), m.SIZES[1], text)
    m.update_agrees(case)
    m.margins_agree(case)
    m.margins_agree(case, 10)
    m.update_agrees(case, 10, 2)
    m.gram_agrees(case, 64)


def _recurrence(m, text):
    for cluster in (m.CLUSTER, 1):
        for sizes in (m.RAGGED, (32,) * 6):
            m.agrees("logistic", sizes, "three", m.SIDES, cluster, ONCE, text)


def _each(*sizes):
    return lambda m, text: [m.agrees("bf16", *one, text=text) for one in sizes]


LAUNCHES = {
    "average": lambda m, text: [m.agrees(*one, text) for one in m.SIZES[-3:]],
    "cast": lambda m, text: (
        m.casts_agree("bf16", text),
        *(
            m.gather_agrees("bf16", *sizes, wide, text)
            for sizes in (m.SIZES[1], (20, 128, 16))
            for wide in (False, True)
        ),
    ),
    "columns": _each((50, 257, 64, 10), (20, 128, 32, 8)),
    "csr": _csr,
    "direct_steps": _direct_steps,
    "gather_steps": _gather_steps,
    "gram": _gram,
    "margin": _each((40, 100, 37), (20, 128, 16)),
    "pack": lambda m, text: [m.agrees(starts, text) for starts in m.STARTS[2:]],
    "parts": lambda m, text: [m.adds_as_the_host(*s, 0, text) for s in m.SIZES],
    "pieces": lambda m, text: m.rows_agree(*m.SIZES[1], "bf16", text),
    "recurrence": _recurrence,
    "round": lambda m, text: m.agrees("bf16", text),
    "sample": lambda m, text: m.agrees(True, text),
    "softmax": lambda m, text: m.agrees(m.RAGGED, 5, "three", m.SIDES, ONCE, text),
    "update": _each((40, 100, 37), (20, 128, 32)),
}


class Planted(WatchedKernel):
    """Says whether anything of it is in the instructions."""

    built: set[tuple[str, tuple[str, ...]]] = set()

    def __init__(self, name, *defines, **how):
        Planted.built.add((name, defines))
        super().__init__(name, *defines, **how)


def is_in_code(text):
    """Whether instructions have changed at all."""
    return any(
        ptx_of(name, defines) != ptx_of(name, defines, text=text)
        for name, defines in Planted.built
    )


def run_one(kernel, number):
    """What is seen of one fault: a check, `values`, or nothing."""
    text = planted(faults_of(kernel)[number])
    with run_by(Planted), rows_packed():
        try:
            LAUNCHES[kernel](module_of(kernel), text)
        except Found as found:
            said = str(found).splitlines()[0]
            return re.search(r"\w+check", said)[0] + "\t" + said
        except emulator.Stuck:
            return "stuck\t"
        except AssertionError:
            return "values\t"
    return "nothing\t" if is_in_code(text) else "no code\t"


def outcome(fault, number):
    """(what is seen, in which words)"""
    command = [sys.executable, "-m", __spec__.name, "--one", fault.kernel, str(number)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return "stuck", ""
    if done.returncode:
        return "crash", done.stderr.strip().splitlines()[-1][:200]
    seen, _, said = done.stdout.strip("\n").rpartition("\n")[2].partition("\t")
    return seen, said


def main(kernels, workers=2):
    """The table; 1 where somebody planted what nobody saw."""
    some = [
        (fault, number)
        for kernel in kernels or MODULES
        for number, fault in enumerate(faults_of(kernel))
    ]
    some.sort(key=lambda one: one[0].kind, reverse=True)  # orders first
    missed = 0
    with ThreadPoolExecutor(workers) as pool:
        for (fault, _), (seen, said) in zip(
            some, pool.map(lambda one: outcome(*one), some), strict=True
        ):
            missed += seen == "nothing"
            print(f"{seen:10s} {fault.kind:6s} {fault.name[:100]}", flush=True)
            if os.environ.get("VERBOSE"):
                print(f"           {said[:240]}", flush=True)
    print(f"{len(some) - missed} of {len(some)} seen")
    return int(missed > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        print(run_one(sys.argv[2], int(sys.argv[3])))
        sys.exit(0)
    sys.exit(main(sys.argv[1:]))

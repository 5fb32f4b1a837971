"""Every barrier, fence and wait of a kernel taken out, every bound moved by one: does
somebody see it?

python -m tests.helpers.kernels.ptx.planted [KERNEL ...]     # a table of all of them

Each fault runs in a process of its own, watched, on small launches of its kernel. What
nobody reports has a line in UNSEEN that says why.
"""

import os
import re
import resource
import signal
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.helpers.kernels import emulator
from tests.helpers.kernels.ptx.faults import OTHERS, UNSEEN
from tests.helpers.kernels.ptx.kernel import ptx_of
from tests.helpers.kernels.ptx.launches import module_of, rows_packed, run_by
from tests.helpers.kernels.ptx.watched import Found, WatchedKernel

# Seconds that a processor may work on one fault: other runs beside it do not count.
LIMIT = 240
SILENT = ("nothing", "values")  # no check has said anything; float64 may have
TEXT_OF_ALL = "device.cuh"  # is nobody's own: it is left as it is
ORDERS = (
    *(r"__syncthreads\(\);", r"__syncwarp\(\);", r"__threadfence\(\);"),
    *(
        r"\barrive\(\);",
        r"\bwait\(\);",
        r"\bcluster_arrive\(\);",
        r"\bcluster_wait\(\);",
    ),
    *(r"copy_wait<[^>]+>\(\);", r"copy_commit\(\);", r"fence_for_units\(\);"),
    *(r"wgmma_(begin|commit)\(\);", r"wgmma_wait<\d>\(\);"),
)
# What is asked of memory with an order, as what asks without.
WEAKER = {r"load_acquire\((\w+)\)": r"atomicAdd((u32 *)\1, 0u)"}
BOUNDS = {r" < (?![A-Z0-9_]+\b)(?=[\w(*])": " <= ", r" >= (?=count\b|m\b)": " > "}


@dataclass(frozen=True)
class Fault:
    """Places of a text, and what stands there instead."""

    kernel: str
    kind: str  # order, bound, other
    name: str
    edits: tuple[tuple[int, int, str], ...]  # from, to, what instead; ascending

    @property
    def key(self):
        """Of UNSEEN."""
        return f"{self.kernel}: {self.name}"

    @property
    def text(self):
        """That of the kernel, with the fault."""
        text = own_text(self.kernel)
        for first, behind, instead in reversed(self.edits):
            text = text[:first] + instead + text[behind:]
        return text


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
    """All that can be planted: orders, bounds, and OTHERS."""
    text = own_text(kernel)
    bare, found, met = comments_blank(text), [], Counter()
    changes = [(pattern, ";", "order") for pattern in ORDERS]
    changes += [(pattern, to, "order") for pattern, to in WEAKER.items()]
    changes += [(pattern, to, "bound") for pattern, to in BOUNDS.items()]
    for pattern, to, kind in changes:
        for match in re.finditer(pattern, bare):
            first = text.rfind("\n", 0, match.start()) + 1
            behind = text.find("\n", match.end())
            if text[first:].startswith("INLINE"):
                continue
            instead = match.expand(to)
            line = (
                text[first : match.start()] + instead + text[match.end() : behind]
            ).strip()
            if instead == ";":
                line = f"without {match[0][:-1]}"
            met[line] += 1
            line += f" ({met[line]})" if met[line] > 1 else ""
            edit = (match.start(), match.end(), instead)
            found.append(Fault(kernel, kind, line, (edit,)))
    found += [
        Fault(kernel, "other", name, _places(text, changes))
        for name, changes in OTHERS.get(kernel, {}).items()
    ]
    return found


def _places(text, changes):
    found = []
    for before, after in changes:
        assert text.count(before) == 1, before
        first = text.index(before)
        found.append((first, first + len(before), after))
    return tuple(sorted(found))


ONCE = (1,)
LONG = ((0, 7, 20), 300)  # more stages than there are at once
TIGHT = ((0, 7, 21), 40, 1)  # rows of whole chunks, more rows than whole blocks have


def _gram(m, text):
    for defines in (m.PLAIN, (*m.PLAIN, "FFMA=1")):
        kernel = m.Kernel("gram", *defines, text=text)
        m.multiply(kernel, m.problem("bf16", 64, *LONG), 64, 1)
        for case in (TIGHT, m.CASES[2]):
            m.agrees("bf16", 64, defines, case, text, ONCE)


def _direct_steps(m, text):
    for sizes in (m.SIZES[2], (20, 128, (32, 8)), (20, 104, (32, 8))):
        m.launches_agree(m.walk_of(*sizes, "bf16"), "bf16", text, seeds=ONCE)
    walk = m.walk_of(20, 512, (33, 8), "bf16")
    m.agree(m.launched(walk, "bf16", text, room=2), walk)


def _gather_steps(m, text):
    for sizes in (m.SIZES[1], (20, 128, (32, 8)), (20, 101, (5, 8))):
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
        m.agrees("logistic", (32,) * 6, "sgd", m.NO_START, cluster, ONCE, text)


def _gram_wgmma(m, text):
    for case in (m.CASES[2], m.CASES[1], m.CASES[0]):
        m.agrees("bf16", case, text, ONCE)


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
    "columns": _each((20, 104, 37, 20), (20, 256, 32, 8), (50, 257, 64, 10)),
    "csr": _csr,
    "direct_steps": _direct_steps,
    "gather_steps": _gather_steps,
    "gram": _gram,
    "gram_wgmma": _gram_wgmma,
    "margin": _each((40, 100, 37), (20, 128, 16)),
    "pack": lambda m, text: [m.agrees(starts, text) for starts in m.STARTS[2:]],
    "parts": lambda m, text: [m.adds_as_the_host(*s, 0, text) for s in m.SIZES],
    "pieces": lambda m, text: m.rows_agree(*m.SIZES[1], "bf16", text),
    "recurrence": _recurrence,
    "round": lambda m, text: m.agrees("bf16", text),
    "rules": lambda m, text: m.check(text),
    "sample": lambda m, text: m.agrees(True, text),
    "softmax": lambda m, text: m.agrees(m.RAGGED, 5, "three", m.SIDES, ONCE, text),
    "update": _each((40, 100, 37), (20, 104, 32), (60, 104, 300)),
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
    text = faults_of(kernel)[number].text
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
    command = [
        sys.executable,
        "-m",
        "tests.helpers.kernels.ptx.planted",
        "--one",
        fault.kernel,
        str(number),
    ]
    wait = {"capture_output": True, "text": True, "timeout": 4 * LIMIT}
    try:
        done = subprocess.run(command, **wait)
    except subprocess.TimeoutExpired:  # it waits, without work
        return "stuck", ""
    if done.returncode == -signal.SIGXCPU:
        return "stuck", ""
    if done.returncode:
        return "crash", done.stderr.strip().splitlines()[-1][:200]
    seen, _, said = done.stdout.strip("\n").rpartition("\n")[2].partition("\t")
    return seen, said


def outcomes(kernels, workers=None):
    """(fault, what is seen, in which words) of all of them, some at a time."""
    some = [
        (fault, number)
        for kernel in kernels
        for number, fault in enumerate(faults_of(kernel))
    ]
    with ThreadPoolExecutor(workers or os.cpu_count()) as pool:
        for (fault, _), found in zip(
            some, pool.map(lambda one: outcome(*one), some), strict=True
        ):
            yield fault, *found


def main(kernels):
    """The table; 1 where somebody planted what nobody saw, for no reason."""
    counts = Counter()
    for fault, seen, said in outcomes(kernels or LAUNCHES):
        is_expected = seen in SILENT and fault.key in UNSEEN
        counts["expected" if is_expected else seen] += 1
        words = UNSEEN.get(fault.key, "no reason is known") if seen in SILENT else said
        print(f"{seen:9s} {fault.kind:5s} {fault.key}\n    {words}", flush=True)
    print(dict(counts))
    return int(any(counts[one] for one in (*SILENT, "crash")))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT + 60))
        print(run_one(sys.argv[2], int(sys.argv[3])))
        sys.exit(0)
    sys.exit(main(sys.argv[1:]))

"""Every kernel of the support table under all four checks, on a processor.

python -m tests.helpers.kernels.ptx.sanitize [ARCH ...]     # as `make sanitize`

Prints a line for each kernel: launches, accesses that were watched, and what memcheck,
racecheck, initcheck and synccheck found; 1 where that is anything.
"""

import os
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from hpcsgd.backends.cuda.kernels import number_of
from tests.helpers.kernels.emulator import source_of
from tests.helpers.kernels.ptx.launches import (
    MODULES,
    launch,
    module_of,
    rows_packed,
    run_by,
    table,
)
from tests.helpers.kernels.ptx.watched import CHECKS, WatchedKernel

# One for each set of instructions that the texts ask for: without cp.async and tensor
# cores, without those of 8 bits and clusters, with all.
ARCHS = ("70", "80", "90")
SEEDS = (0, 2, 5)


def _gram(m):
    """More blocks than one of each: parts of the columns, more and fewer stages."""
    for case in m.CASES[1:]:
        m.agrees("bf16", 64, m.PLAIN, case, None, SEEDS[:2])
    m.agrees("fp32", 128, ("ELEMENT=3", "TB=128", "FFMA=1"), m.CASES[4], None, (1,))
    m.agrees("fp32", 128, ("ELEMENT=3", "TB=128", "TF32=1"), m.CASES[4], None, (1,))
    m.repeated_launches_agree()
    m.margins_need_no_tiles()
    for stages in (2, 5):
        m.any_number_of_stages_agrees(stages)


def _gram_wgmma(m):
    """Cut anywhere, on few and many processors."""
    for case in m.CASES:
        m.agrees("bf16", case, None, SEEDS)
    m.repeated_launches_agree()


def _direct_steps(m):
    for sizes in m.SIZES:
        m.launches_agree(m.walk_of(*sizes, "bf16"), "bf16", seeds=SEEDS)
    for room in (0, 1, 3):
        m.kept_rows_agree(room, 1)


def _recurrence(m):
    for cluster in (1, m.CLUSTER):
        for sizes in m.SIZES:
            m.agrees("logistic", sizes, "three", m.SIDES, cluster, seeds=SEEDS[:2])
        for sizes in (m.RAGGED, (32,) * 5, m.TALL[cluster]):
            m.agrees("logistic", sizes, "sgd", m.NO_START, cluster, seeds=SEEDS[:2])


# Ragged sizes, clusters, parts, several orders of warps, on the newest asked for.
MORE: dict[str, Callable] = {
    "gram": _gram,
    "gram_wgmma": _gram_wgmma,
    "direct_steps": _direct_steps,
    "recurrence": _recurrence,
    **{
        kernel: lambda m, kernel=kernel: m.check(source_of(kernel))
        for kernel in MODULES
        if kernel not in ("gram", "gram_wgmma", "direct_steps", "recurrence")
    },
}

# What those launch has instructions of these: tensor cores, clusters, warpgroups.
SINCE = {"gram": 80, "recurrence": 90, "gram_wgmma": 90}


class Recorded(WatchedKernel):
    """Goes on where something is found."""

    found: Counter[tuple[str, str]] = Counter()
    sentences: dict[str, None] = {}

    def report(self, some):
        for one in some:
            Recorded.found[self.function, one.check] += 1
            Recorded.sentences[self.sentence(one)] = None


def prepare(archs):
    """All builds of the table, on all cores: launches take less time."""
    wanted = [(arch, build) for arch in archs for build in table(arch).values()]

    def build(one):
        arch, build = one
        WatchedKernel(build.source, *build.defines, arch=arch, entry=build.entry)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(build, wanted))


def everything(archs=ARCHS):
    """All launches; the builds that they were of."""
    built = set()
    prepare(archs)

    def kernel(name, *defines, entry=None, **how):
        built.add((arch, name, entry or name, frozenset(defines)))
        return Recorded(name, *defines, arch=arch, entry=entry, **how)

    with run_by(kernel):
        for arch in sorted(archs, key=number_of):
            for name, element in table(arch):
                launch(name, element, arch)
        for source, more in MORE.items():
            if number_of(arch) < SINCE.get(source, 0):
                continue
            more(module_of(source))
            with rows_packed():
                more(module_of(source))
    return built


def missing(built, archs=ARCHS):
    """Builds of the table that nobody launched."""
    return [
        (arch, build)
        for arch in archs
        for build in table(arch).values()
        if (arch, build.source, build.entry, frozenset(build.defines)) not in built
    ]


def main(archs):
    """The table."""
    left_out = missing(everything(archs), archs)
    width = max(map(len, Recorded.launches))
    print(" " * width, "launches    accesses ", *CHECKS)
    for name in sorted(Recorded.launches):
        row = f"{name:{width}} {Recorded.launches[name]:8} {Recorded.accesses[name]:11}"
        found = (f"{Recorded.found[name, check]:{len(check)}}" for check in CHECKS)
        print(row, "", *found)
    for sentence in Recorded.sentences:
        print(sentence)
    for arch, build in left_out:
        print(f"not launched: {build} for sm_{arch}")
    return int(bool(Recorded.sentences or left_out))


if __name__ == "__main__":
    sys.exit(main(tuple(sys.argv[1:]) or ARCHS))

"""What NVRTC made of every kernel, inline assembly and all, run beside float64.

Sums have one order in a kernel's text, which says where a product is not rounded: both
ways to run it give the same bits. Exponentials are others there than in the library of
C; and where the text leaves it open, NVRTC rounds some products once with their sum
(--fmad=true), which --fmad=false undoes.
"""

import re

import numpy as np
import pytest

from tests.helpers.kernels.ptx.beside import Beside, differing
from tests.helpers.kernels.ptx.kernel import PtxKernel, ptx_of
from tests.helpers.kernels.ptx.launches import launch, run_by, table
from tests.helpers.kernels.ptx.watched import WatchedKernel

# Each way to do something once; what older GPUs have instead of it at the end.
LEAN = (
    *(("gram-64", "bf16", "90"), ("gram-wgmma", "bf16", "90")),
    *(("gram-64", "fp8-e5m2", "90"), ("gram-tf32-64", "fp32", "120")),
    *(("recurrence-cluster-logistic", "fp32", "90"), ("softmax", "fp32", "90")),
    *(("direct-steps-gaussian", "fp16", "90"), ("gather-steps-poisson", "fp32", "90")),
    *(("csr_gram_64", "fp32", "90"), ("csr_update_columns", "fp32", "90")),
    *(("narrow", "fp8-e4m3", "90"), ("update", "bf16", "80")),
    ("step_adam", "fp32", "90"),
    *(("margin", "fp8-e4m3", "70"), ("gram-64", "fp32", "70")),
)
ALL = ("70", "75", "80", "89", "90", "100", "120")
HEADER = re.compile(r"^(\.version|\.target|//).*$", re.MULTILINE)
EXPONENTIALS = (
    *("logistic", "poisson", "gamma", "probit", "softmax"),
    *("tweedie", "negative-binomial", "binomial"),
)


@pytest.mark.cases(1)
@pytest.mark.parametrize("name, element, arch", LEAN)
def test_kernels_agree_with_float64_and_bit_for_bit(name, element, arch):
    """And whoever watches the PTX (test_watch.py) finds nothing."""
    agrees_bit_for_bit(name, element, arch, by=WatchedKernel)


def agrees_bit_for_bit(name, element, arch, **how):
    """With float64; and with what a C++ compiler makes of it."""
    built = []

    def kernel(*given, **more):
        built.append(Beside(*given, arch=arch, **more, **how))
        return built[-1]

    with run_by(kernel):
        launch(name, element, arch)
    assert built and sum(one.launched for one in built)
    if not name.endswith(EXPONENTIALS):
        assert not sum(one.differ for one in built), name


@pytest.mark.full
def test_bits_of_the_whole_table():
    for name, element in table("90"):
        agrees_bit_for_bit(name, element, "90", fmad=False)


@pytest.mark.full
def test_the_whole_table_agrees_with_float64():
    """For all GPUs, and no build is left out.

    A text that differs from that for an older GPU by its header alone runs once.
    """
    met = set()
    for arch in ALL:
        wanted = {}
        for both, build in table(arch).items():
            text = HEADER.sub("", ptx_of(build.source, build.defines, arch))
            if (build.entry, text) not in met:
                wanted[both] = build
            met.add((build.entry, text))
        agrees_with_float64(wanted, arch)


def agrees_with_float64(wanted, arch):
    """Every kernel of a table, each built as the table says."""
    built = set()

    def kernel(name, *defines, entry=None, **more):
        built.add((name, entry or name, frozenset(defines)))
        return PtxKernel(name, *defines, arch=arch, entry=entry, **more)

    with run_by(kernel):
        for name, element in wanted:
            launch(name, element, arch)
    assert {(b.source, b.entry, frozenset(b.defines)) for b in wanted.values()} <= built


def test_the_table_is_whole():
    """Every name of the table has a launch, and one build of each is asked for."""
    for arch in ALL:
        assert len(table(arch)) >= (200 if arch in ("90", "100", "120") else 175)


def test_bits_are_told_from_values():
    """The comparison can fail: signs of zeros count, what is no number is one thing."""
    one = np.array([0.0, np.nan, 1.0, 2.0], np.float32)
    other = np.array(
        [-0.0, -np.nan, 1.0, np.nextafter(2.0, 3.0, dtype="f4")], np.float32
    )
    assert differing(one, other) == 2 and differing(one, one.copy()) == 0
    assert differing(np.arange(3), np.array([0, 9, 2])) == 1

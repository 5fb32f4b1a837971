"""What NVRTC made of every kernel, inline assembly and all, run beside float64.

Sums have one order in a kernel's text, which says where a product is not rounded: both
ways to run it give the same bits. Exponentials are others there than in the library of
C; and where the text leaves it open, NVRTC rounds some products once with their sum
(--fmad=true), which --fmad=false undoes.
"""

from functools import partial

import pytest

from tests.kernels.ptx.beside import Beside
from tests.kernels.ptx.kernel import PtxKernel
from tests.kernels.ptx.launches import launch, run_by, table

# Each way to do something once; what older GPUs have instead of it at the end.
LEAN = (
    *(("gram-64", "bf16", "90"), ("gram-128", "fp16", "90")),
    ("gram-wgmma", "bf16", "90"),
    *(("gram-64", "fp8-e5m2", "90"), ("gram-tf32-64", "fp32", "90")),
    *(("recurrence-cluster-logistic", "fp32", "90"), ("softmax", "fp32", "90")),
    *(("direct-steps-gaussian", "fp16", "90"), ("gather-steps-poisson", "fp32", "90")),
    *(("csr_gram_64", "fp32", "90"), ("csr_update_columns", "fp32", "90")),
    *(("narrow", "fp8-e4m3", "90"), ("update", "bf16", "80")),
    ("step_adam", "fp32", "90"),
    *(("margin", "fp8-e4m3", "70"), ("gram-64", "fp32", "70")),
)
ALL = ("70", "75", "80", "89", "90", "100", "120")
EXPONENTIALS = ("logistic", "poisson", "gamma", "probit", "softmax")


@pytest.mark.parametrize("name, element, arch", LEAN)
def test_kernels_agree_with_float64_and_bit_for_bit(name, element, arch):
    agrees_bit_for_bit(name, element, arch)


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
@pytest.mark.parametrize("arch", ALL)
def test_the_whole_table_agrees_with_float64(arch):
    """And no build of it is left out."""
    built = set()

    def kernel(name, *defines, entry=None, **more):
        built.add((name, entry or name, frozenset(defines)))
        return PtxKernel(name, *defines, arch=arch, entry=entry, **more)

    wanted = table(arch)
    with run_by(kernel):
        for name, element in wanted:
            launch(name, element, arch)
    said = {(b.source, b.entry, frozenset(b.defines)) for b in wanted.values()}
    assert said <= built


def test_the_table_is_whole():
    """Every name of the table has a launch, and one build of each is asked for."""
    for arch in ALL:
        assert len(table(arch)) >= (200 if arch in ("90", "100", "120") else 175)


def test_both_ways_differ_where_one_is_wrong():
    """The comparison can fail."""
    one = partial(Beside, arch="90")

    def wrong(*given, **more):
        found = one(*given, **more)
        found.ptx = PtxKernel("margin", "ELEMENT=2")
        made.append(found)
        return found

    made = []
    with run_by(wrong), pytest.raises(AssertionError):
        launch("margin", "bf16", "90")
    assert made[0].differ

"""What NVRTC made of every kernel, inline assembly and all, run beside float64."""

from functools import partial

import pytest

from hpcsgd.backends.kernel_table import number_of
from tests.kernels.ptx.kernel import PtxKernel
from tests.kernels.ptx.launches import launch, run_by, table

# Each way to do something once; what older GPUs have instead of it at the end.
LEAN = (
    *(("gram-64", "bf16", "90"), ("gram-128", "fp16", "90")),
    *(("gram-64", "fp8-e5m2", "90"), ("gram-tf32-64", "fp32", "90")),
    *(("recurrence-cluster-logistic", "fp32", "90"), ("softmax", "fp32", "90")),
    *(("direct-steps-probit", "bf16", "90"), ("gather-steps-poisson", "fp16", "90")),
    *(("csr_gram_64", "fp32", "90"), ("csr_update_columns", "bf16", "90")),
    *(("narrow", "fp8-e4m3", "90"), ("update", "bf16", "80")),
    *(("margin", "fp8-e4m3", "70"), ("gram-64", "fp32", "70")),
)
ALL = ("70", "75", "80", "89", "90", "100", "120")


@pytest.mark.parametrize("name, element, arch", LEAN)
def test_kernels_agree_with_float64(name, element, arch):
    with run_by(partial(PtxKernel, arch=arch)):
        launch(name, element, arch)


@pytest.mark.full
@pytest.mark.parametrize("arch", ALL)
def test_the_whole_table_agrees_with_float64(arch):
    """And no build of it is left out."""
    built = set()

    def kernel(name, *defines, entry=None, text=None):
        built.add((name, entry or name, frozenset(defines)))
        return PtxKernel(name, *defines, arch=arch, entry=entry, text=text)

    wanted = table(arch)
    with run_by(kernel):
        for name, element in wanted:
            launch(name, element, arch)
    said = {(b.source, b.entry, frozenset(b.defines)) for b in wanted.values()}
    assert said <= built and len(said) > 80 + (number_of(arch) >= 90)

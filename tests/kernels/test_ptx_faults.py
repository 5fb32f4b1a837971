"""Faults in what device.cuh writes in PTX, which no C++ compiler ever sees.

Not here, since a run cannot show them: a fence that is left out and an acquire that is
a plain load (memory is in order here; who watches accesses sees them), a prefetch of
another address, a rank of the grid for one of the cluster (a launch has one cluster).
"""

import pytest

from tests.helpers.kernels.checks.ptx_faults import FAULTS, MUTANTS, check
from tests.helpers.kernels.emulator import inlined, source_of
from tests.helpers.kernels.mutants import planted
from tests.helpers.kernels.ptx.kernel import PtxKernel
from tests.helpers.kernels.ptx.launches import module_of, run_by


@pytest.mark.full
@pytest.mark.parametrize("kernel", FAULTS)
def test_kernels_without_a_fault_pass(kernel):
    check(source_of(kernel))


@pytest.mark.full
def test_a_wrong_order_of_operands_is_seen():
    (fault,) = [one for one in MUTANTS if one.name == "PTX: B turned"]
    text = planted(fault, inlined(source_of("gram")))
    module = module_of("gram")
    with run_by(PtxKernel), pytest.raises(AssertionError):
        module.agrees("bf16", 64, module.PLAIN, module.CASES[1], text, (1,))

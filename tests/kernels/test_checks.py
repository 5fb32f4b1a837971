"""All kernels under memcheck, racecheck, initcheck and synccheck, and faults, too.

What is clean in every run of the tests is in test_ptx_kernels.py, whose launches are
watched; here is the whole table, and what shows that the checks would have said so.
"""

from collections import Counter

import pytest

from tests.helpers.kernels.ptx import planted, sanitize
from tests.helpers.kernels.ptx.kernel import ptx_of
from tests.helpers.kernels.ptx.launches import module_of, rows_packed, run_by
from tests.helpers.kernels.ptx.watched import Found, WatchedKernel

# A barrier of a block, one of a warp, a bound, and a fence between blocks.
SOME = (
    *(("update", "without __syncthreads()"), ("csr", "without __syncwarp() (2)")),
    *(("sample", "without __syncthreads()"), ("margin", "if (k + i <= cols)")),
    ("direct_steps", "without __threadfence()"),
)


@pytest.mark.cases(1)
@pytest.mark.parametrize("kernel, name", SOME)
def test_what_is_planted_is_reported(kernel, name):
    (fault,) = [one for one in planted.faults_of(kernel) if one.name == name]
    with run_by(WatchedKernel), rows_packed(), pytest.raises(Found):
        planted.LAUNCHES[kernel](module_of(kernel), fault.text)


def test_a_fence_of_cuda_is_one_that_has_an_order_of_its_own():
    """The last block of a tile relies on fences of threads that do not signal."""
    text = ptx_of("gram", ("ELEMENT=1", "TB=64"))
    assert "membar.gl;" in text and "fence." not in text


def test_every_reason_is_one_of_a_fault():
    every = {
        one.key for kernel in planted.LAUNCHES for one in planted.faults_of(kernel)
    }
    assert set(planted.UNSEEN) <= every and len(every) > 200


@pytest.mark.full
def test_every_fault_is_reported_or_has_a_reason():
    """Removed orders and moved bounds; a reason that is none any more is found, too."""
    seen = {fault.key: seen for fault, seen, _ in planted.outcomes(planted.LAUNCHES)}
    assert not [key for key, what in seen.items() if what == "crash"]
    assert {key for key, what in seen.items() if what in planted.SILENT} == set(
        planted.UNSEEN
    )


@pytest.mark.full
@pytest.mark.parametrize("arch", sanitize.ARCHS)
def test_every_build_of_the_table_is_clean(arch, monkeypatch):
    monkeypatch.setattr(sanitize.Recorded, "sentences", {})
    monkeypatch.setattr(sanitize.Recorded, "found", Counter())
    built = sanitize.everything((arch,))
    assert not sanitize.Recorded.sentences
    assert not sanitize.missing(built, (arch,))

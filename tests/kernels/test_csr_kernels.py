"""Sparse rows: margins, update and the Gram, in every kind of values and columns."""

import pytest

from hpcsgd.backends.cuda import kernels
from hpcsgd.backends.cuda.kernels import ELEMENTS
from tests.helpers.kernels.checks.csr import (
    COLUMNS,
    MANY_ROWS,
    SIZES,
    case_of,
    check,
    gram_agrees,
    margins_agree,
    tiles_agree,
    update_agrees,
)
from tests.helpers.kernels.emulator import source_of

KINDS = [*((name, 32) for name in ELEMENTS), ("fp32", 64), ("bf16", 64)]


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "sizes, kind",
    [
        *((sizes, kind) for sizes in (*SIZES[:3], MANY_ROWS) for kind in KINDS),
        *((SIZES[3], kind) for kind in (KINDS[0], KINDS[-1])),  # they take long
    ],
)
def test_products_are_those_of_float64(kind, sizes):
    case = case_of(kind, sizes)
    margins_agree(case)
    update_agrees(case)


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", [("fp32", 64), ("fp8-e4m3", 32)])
@pytest.mark.parametrize("number", range(len(COLUMNS)))
def test_columns_are_those_of_float64(kind, number):
    case, columns = case_of(kind, (*SIZES, MANY_ROWS)[number]), COLUMNS[number]
    margins_agree(case, columns[0])
    update_agrees(case, *columns)


def test_a_block_may_have_more_columns():
    assert kernels.csr_span(20000) == 64
    update_agrees(case_of(("bf16", 32), (3, 20000, 5, 0.01)))


def test_blocks_stay_within_what_every_gpu_has():
    """Spans cover the columns, and sums fit into 48 KiB."""
    for cols in (1, 31, 123, 47236, 16_609_143, 2**33):
        for wide in range(1, kernels.MOST_COLUMNS + 1):
            span = kernels.csr_span(cols, wide)
            shape = kernels.csr_update(cols, wide)
            assert (shape.grid[0] - 1) * span < cols <= shape.grid[0] * span
            assert shape.shared == 4 * span * wide * shape.block // 32 <= 48 * 1024


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_gram_is_that_of_float64(kind, sizes):
    gram_agrees(case_of(kind, sizes), 64)


def test_tiles_may_be_small():
    gram_agrees(case_of(KINDS[1], SIZES[1]), 16)


@pytest.mark.full
def test_faults_are_told_from_the_kernel():
    """What mutants have to fail, the kernel passes."""
    check(source_of("csr"))


@pytest.mark.parametrize("kind", [("fp32", 64), ("fp8-e4m3", 32)])
def test_some_columns_are_those_of_float64(kind):
    tiles_agree(case_of(kind, SIZES[1]), *COLUMNS[3])

"""What kernels ask of a GPU, counted: nothing twice, one barrier a step."""

import numpy as np
import pytest

from benchmarks.gpu import counted
from hpcsgd.backends.cuda.kernels import RECURRENCE_THREADS
from tests.helpers.kernels.emulator import inlined, source_of
from tests.helpers.kernels.mutants import with_fault
from tests.helpers.kernels.ptx.chain import Interval, Latencies, Warp, steps_of
from tests.helpers.kernels.ptx.counts import CLASSES, class_of, goes_through_l1
from tests.helpers.kernels.ptx.parse import Instruction

SIDE, COLS = 64, 128  # of a tile; two stages


def margins(text=None):
    """Rows once, whole sectors; weights by 16 bytes."""
    found = counted.margin_counts(520, text, 16)
    once = 16 * 520 * 2
    assert found.arrays["matrix"]["read"] <= 1.05 * once
    assert found.useful_share("matrix") >= 0.95
    assert found.useful_share("w") >= 0.5


def updates(text=None):
    """Rows once, whole sectors, parts of the rows or not."""
    for count in (64, 300):
        found = counted.update_counts(count, 128, text)
        assert found.arrays["matrix"]["read"] <= 1.05 * count * 128 * 2
        assert found.useful_share("matrix") >= 0.95


def tiles(text=None):
    """Rows of both sides once, no bank twice, no product that nobody asked for."""
    for diagonal in (True, False):
        found = counted.tile_counts(SIDE, COLS, diagonal, text)
        sides = 1 if diagonal else 2
        assert found.arrays["matrix"]["from_l2"] * 32 == sides * SIDE * COLS * 2
        assert found.useful_share("matrix") == 1.0
        assert found.conflicts("ldmatrix") == 1.0
        assert found.conflicts(r"cp\.async", copied=True) == 1.0
        flops = counted.FLOPS * found.sum("issued", "mma")
        assert flops == 2 * SIDE * SIDE * COLS


def steps(text=None):
    """A barrier a step, and entries of the Gram once."""
    sizes = (8,) * 5
    found = counted.recurrence_counts(sizes, 1, text)
    warps = RECURRENCE_THREADS[1] // 32
    before = 1  # the barrier behind what is known before the first step
    assert found.sum("issued", r"bar\.sync") == warps * (len(sizes) + before)
    gram = found.arrays["0"]
    assert gram["read"] == gram["read_once"] == 4 * 64 * sum(range(len(sizes)))


FAULTS = {
    "weights one by one": (margins, "margin", "is_aligned(weights) ?", "false ?"),
    "lanes in a column": (
        *(updates, "update"),
        "(threadIdx.x & 7) * IN_CHUNK, own = threadIdx.x >> 3",
        "(threadIdx.x >> 5) * IN_CHUNK, own = threadIdx.x & 31",
    ),
    "no XOR": (
        tiles,
        "gram",
        "chunk ^ (row * CHUNKS / 8 & (CHUNKS - 1))",
        "chunk",
    ),
    "the diagonal's rows twice": (tiles, "gram", "(i < EACH / 2 || I != J)", "true"),
    "a barrier too many": (
        *(steps, "recurrence", "        arrive();\n        if (j) {"),
        "        arrive();\n        __syncthreads();\n        if (j) {",
    ),
}


@pytest.mark.cases(1)
@pytest.mark.parametrize("check", [margins, updates, tiles, steps])
def test_nothing_is_asked_for_that_nobody_needs(check):
    check()


@pytest.mark.full
@pytest.mark.cases(1)
@pytest.mark.parametrize("name", FAULTS)
def test_what_is_slow_is_seen(name):
    check, kernel, *change = FAULTS[name]
    text = inlined(source_of(kernel))
    with pytest.raises(AssertionError):
        check(with_fault(text, *change))


@pytest.mark.parametrize(
    "opcode, wanted",
    [
        ("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", "mma"),
        ("ld.global.nc.v4.u32", "global"),
        ("cp.async.cg.shared.global", "copy"),
        ("cp.async.wait_group", "barrier"),
        ("st.shared.f32", "shared"),
        ("bar.sync", "barrier"),
        ("fma.rn.ftz.f32", "float"),
        ("div.rn.ftz.f32", "special"),
        ("add.f64", "double"),
        ("mad.lo.s32", "integer"),
    ],
)
def test_classes_of_instructions(opcode, wanted):
    assert class_of(opcode) == wanted and wanted in (*CLASSES, "integer")


def test_what_others_write_does_not_come_from_l1():
    assert goes_through_l1("ld.global.nc.f32") and goes_through_l1("ld.global.v4.f32")
    assert not goes_through_l1("ld.global.cg.f32") and not goes_through_l1("st.global")


def test_a_chain_is_as_long_as_its_waits():
    """Two loads side by side, a sum of both, and one that depends on nothing."""
    made = [
        ("ld.global.f32", ("%f1", "[%rd1]")),
        ("ld.global.f32", ("%f2", "[%rd2]")),
        ("add.f32", ("%f3", "%f1", "%f2")),
        ("add.f32", ("%f4", "%f5", "%f5")),
        ("bra", ("there",)),
        ("mul.f32", ("%f6", "%f3", "%f4")),
    ]
    instructions = [
        Instruction(n, n, "", "", opcode, operands)
        for n, (opcode, operands) in enumerate(made)
    ]
    kept = Latencies()
    warp, steps = Warp(), steps_of(instructions, kept)
    assert warp.run(np.arange(6), steps, {}) == 6
    assert warp.ready["%f3"] == kept.l2 + kept.arithmetic
    assert warp.ready["%f6"] == kept.l2 + 2 * kept.arithmetic
    assert warp.now >= kept.l2 + kept.arithmetic
    hit = Warp()
    hit.run(np.arange(6), steps, {0: kept.l1, 1: kept.l1})
    assert hit.ready["%f3"] == kept.l1 + kept.arithmetic
    assert Interval(10, 400, 0, kept.barrier).cycles(kept) == kept.barrier + 100
    assert Interval(10, 40, 4800).cycles(kept) == 4800 / kept.l2_bytes

"""wgmma as tests/helpers/kernels/wgmma_on_cpu.h has it: its layout, and every rule."""

from ctypes import c_char_p

import numpy as np
import pytest

from tests.helpers.kernels.emulator import Kernel, build, empty, library, on_device

# One product of 64 columns by a warpgroup: 64 rows of A by 128 of B. `broken` is the
# number of the rule that is not kept.
PROBE = r"""
#include "wgmma.cuh"
extern "C" __global__ void probe(const u16 *a, const u16 *b, float *d, int broken)
{
    SHARED_MEMORY(room);
    u8 *memory = room + (-in_shared(room) & 1023), *right = memory + 64 * 128;
    for (int c = threadIdx.x; c < (64 + 128) * 8; c += blockDim.x) {
        int row = c / 8, chunk = c % 8;
        const u16 *from = (row < 64 ? a + row * 64 : b + (row - 64) * 64) + chunk * 8;
        u8 *to = memory + swizzled(row, chunk);
        if (broken == 11 || broken == 12)
            *(uint4 *)to = *(const uint4 *)from;
        else
            copy_async_16(to, from, 16);
    }
    copy_commit();
    if (broken != 1)
        copy_wait<0>();
    if (broken != 2 && broken != 12)
        fence_for_units();
    __syncthreads();
    float sums[64];
    for (int i = 0; i < 64; i++)
        sums[i] = 0.0f;
    if (broken != 3)
        wgmma_begin();
    u64 left = matrix_at(memory), other = matrix_at(right + (broken == 8) * 64 * 128);
    other |= (u64)(broken == 5) * 3 << 49;
    for (int k = 0; k < 128; k += 32) {
        int lane = broken == 6 && threadIdx.x % 32 == 9;
        int warp = broken == 7 && threadIdx.x / 32 == 2;
        wgmma_bf16(sums, later_by(left, k + lane * 32), later_by(other, k + warp * 32));
        if (broken == 4)
            sums[7] += 1.0f;
    }
    if (broken != 13)
        wgmma_commit();
    if (broken == 9) {
        copy_async_16(memory, a, 16);
        copy_commit();
        copy_wait<0>();
    }
    if (broken != 10)
        wgmma_wait<0>();
    for (int i = 0; i < 64; i++)
        d[(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8) * 128 +
          i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] = sums[i];
}
LAUNCHABLE(probe)
"""
NONE, PLAIN_STORES = 0, 11
BROKEN = {
    1: "is still on its way",
    2: "no fence.proxy.async has followed",
    3: "without wgmma.fence",
    4: "touched before wgmma.wait_group",
    5: "a base offset",
    6: "lanes that ask for different",
    7: "warps that ask for different",
    8: "behind the shared memory",
    9: "written to before wgmma.wait_group",
    10: "",  # sums that nobody waits for
    12: "a store without fence.proxy.async",
    13: "",  # or that are not committed, so that a wait does not mean them
}
SHARED = 192 * 128 + 1024


def probe(broken=NONE, seed=0, block=128):
    """(what it found, what it should have, the rule that it broke)."""
    rng = np.random.default_rng(1)
    values = rng.normal(size=(192, 64)).astype(np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    exact = (bits.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    found = empty((64, 128))
    given = on_device(bits[:64]), on_device(bits[64:]), found, broken
    Kernel("probe", text=PROBE)(1, block, given, shared=SHARED, seed=seed)
    ask = library(build("probe", (), PROBE)).wgmma_said
    ask.restype = c_char_p
    return found, exact[:64] @ exact[64:].T, (ask() or b"").decode()


@pytest.mark.cases(2)
@pytest.mark.parametrize("seed", range(8))
def test_a_product_is_that_of_float64(seed):
    """Wherever shared memory begins."""
    for kept in (NONE, PLAIN_STORES):
        found, wanted, broken = probe(kept, seed)
        assert not broken and np.abs(found - wanted).max() <= 1e-4


@pytest.mark.parametrize("rule", BROKEN)
def test_every_rule_is_watched(rule):
    found, _, broken = probe(rule)
    assert np.isnan(found).any()
    assert BROKEN[rule] in broken and bool(broken) == bool(BROKEN[rule])


def test_four_warps_are_needed():
    assert "fewer than four warps" in probe(block=96)[2]


PLACES = r"""
#include "wgmma.cuh"
extern "C" __global__ void places(int *ours, int *asked, int *last)
{
    SHARED_MEMORY(room);
    u8 *memory = room + (-in_shared(room) & 1023);
    u64 matrix = matrix_at(memory + SIDES);
    for (int row = 0; row < 128; row++)
        for (int chunk = 0; chunk < 8; chunk++) {
            ours[row * 8 + chunk] = SIDES + swizzled(row, chunk);
            u64 later = later_by(matrix, chunk / 2 * 32);
            asked[row * 8 + chunk] =
                (int)(emulated::address_of(later, row, chunk % 2) - in_shared(memory));
        }
    for (int i = 0; i < 4; i++)
        last[i] = (int)(matrix >> 16 * i & 0xffff);
}
LAUNCHABLE(places)
"""


@pytest.mark.cases(1)
@pytest.mark.parametrize("sides", [0, 16384, 3 * 49152])
def test_chunks_lie_where_the_instruction_looks_for_them(sides):
    """Swizzle<3,4,3> of ((8,m),(8,2k)):((64,SBO),(1,8)) of 16-bit values."""
    ours, asked = on_device(np.zeros(1024, "i4")), on_device(np.zeros(1024, "i4"))
    fields = on_device(np.zeros(4, "i4"))
    shared = 4 * 49152 + 1024
    kernel = Kernel("places", f"SIDES={sides}", text=PLACES)
    for seed in range(3):
        kernel(1, 1, (ours, asked, fields), shared=shared, seed=seed)
        np.testing.assert_array_equal(ours, asked)
    row, chunk = np.divmod(np.arange(1024), 8)
    linear = sides + 2 * (row % 8 * 64 + row // 8 * 512 + chunk * 8)
    np.testing.assert_array_equal(ours, linear ^ (linear >> 3 & 0x70))
    # From a multiple of 1024 below 1024 + 896 on, in units of 16 bytes.
    assert fields[0] in ((1024 + sides) // 16, (2048 + sides) // 16)
    assert list(fields[1:]) == [1, 64, 1 << 14]

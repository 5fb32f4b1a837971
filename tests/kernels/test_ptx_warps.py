"""What threads do together: lanes, matrices, copies, clusters, as PTX says it."""

import numpy as np

from tests.helpers.kernels.emulator import empty, on_device
from tests.helpers.kernels.ptx.kernel import Translated
from tests.helpers.kernels.ptx.lines import text_of

LANES = np.arange(32)


def run(body, out, *given, block=32, grid=1, cluster=1, shared=0, seed=1):
    """Launch a few lines."""
    kernel = Translated(text_of(body, cluster=cluster), "one")
    none = empty(1, np.uint64)
    inputs = (*given, none, none, none)[:3]
    how = {"shared": shared, "cluster": cluster, "seed": seed}
    kernel(grid, block, (*inputs, out), **how)
    return out


def asked(way, lane, by, c):
    """(lane that is read, whether it is in reach), by the text of shfl in the ISA."""
    clamp, mask = c & 31, c >> 8 & 31
    most, least = (lane & mask) | (clamp & ~mask & 31), lane & mask
    at, reach = {
        "up": lambda: (lane - by, lane - by >= most),
        "down": lambda: (lane + by, lane + by <= most),
        "bfly": lambda: (lane ^ by, (lane ^ by) <= most),
        "idx": lambda: (
            least | (by & ~mask & 31),
            (least | (by & ~mask & 31)) <= most,
        ),
    }[way]()
    return (at if reach else lane), reach


def test_lanes_read_one_another():
    """With every clamp and segment that compilers write, and odd ones."""
    ways = [
        (way, by, c)
        for way in ("up", "down", "bfly", "idx")
        for by in (1, 3, 16, 31)
        for c in (0x1F, 0x1C1F, 0x181F, 0, 7, 0x1800)
    ]
    lines = ["mov.u32 %r1, %laneid; add.s32 %r1, %r1, 100;"]
    for number, (way, by, c) in enumerate(ways):
        lines.append(f"shfl.sync.{way}.b32 %r2|%p1, %r1, {by}, {c}, -1;")
        lines.append("selp.u32 %r3, 1, 0, %p1;")
        lines.append(f"st.global.v2.u32 [%rd13+{256 * number}], {{%r2, %r3}};")
    out = run("\n".join(lines), empty((len(ways), 32, 2), np.uint32))
    for (way, by, c), found in zip(ways, out, strict=True):
        for lane in range(32):
            at, reach = asked(way, lane, by, c)
            assert tuple(found[lane]) == (100 + at, reach), (way, by, hex(c), lane)


def test_a_part_of_a_warp_is_refused():
    """The emulation knows whole warps: it ends rather than guess."""
    import subprocess
    import sys

    code = (
        "from tests.kernels.test_ptx_warps import *\n"
        "run('bar.warp.sync 255;', empty(1, np.uint64))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode and "a mask that is not the whole warp" in done.stderr


def test_matrices_are_laid_out_over_lanes():
    """Lane l has, of matrix q, row l / 4 and the two words from 2 (l % 4) on."""
    matrices = np.random.default_rng(0).integers(0, 2**16, (4, 8, 8)).astype(np.uint16)
    given = on_device(matrices.view(np.uint64).reshape(-1))  # two words to a row
    body = """
ld.global.u64 %rd20, [%rd10]; ld.global.u64 %rd21, [%rd10+256];
mov.u32 %r1, memory; mad.lo.s32 %r2, %r90, 8, %r1;
st.shared.u64 [%r2], %rd20; st.shared.u64 [%r2+256], %rd21;
bar.warp.sync -1;
mad.lo.s32 %r3, %r90, 16, %r1;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r4,%r5,%r6,%r7}, [%r3];
mad.lo.s32 %r9, %r90, 8, 0; cvt.u64.u32 %rd22, %r9; add.s64 %rd23, %rd13, %rd22;
st.global.v4.u32 [%rd23], {%r4,%r5,%r6,%r7};"""
    out = run(body, empty((32, 4), np.uint32), given, shared=512)
    for lane, registers in enumerate(out):
        for q, found in enumerate(registers):
            pair = matrices[q, lane // 4, lane % 4 * 2 : lane % 4 * 2 + 2]
            assert found == int(pair[0]) | int(pair[1]) << 16


# kind: (columns of A, bits of an element, values of those bits)
KINDS = {
    "bf16": (16, 16, lambda b: (b.astype(np.uint32) << 16).view(np.float32)),
    "f16": (16, 16, lambda b: b.astype(np.uint16).view(np.float16)),
    "tf32": (8, 32, lambda b: (b & 0xFFFFE000).astype(np.uint32).view(np.float32)),
    "e4m3": (32, 8, lambda b: fp8(b, 4)),
    "e5m2": (32, 8, lambda b: fp8(b, 5)),
}


def fp8(bits, exponent):
    """Sign, exponent, what is left, by their weights."""
    mantissa, bias = 7 - exponent, 2 ** (exponent - 1) - 1
    part, power = bits & (2**mantissa - 1), bits >> mantissa & (2**exponent - 1)
    size = np.where(
        power == 0,
        part * 2.0 ** (1 - bias - mantissa),
        (1 + part / 2**mantissa) * 2.0 ** (power.astype(float) - bias),
    )
    return np.where(bits >> 7 & 1, -size, size)


def place_of_a(kind, lane, i):
    """(row, column) of element i of a lane's part of A, as the ISA's tables have it."""
    g, t = lane // 4, lane % 4
    if kind == "tf32":
        return g + (8 if i in (1, 3) else 0), t + (4 if i >= 2 else 0)
    if KINDS[kind][1] == 16:
        low = 0 <= i < 2 or 4 <= i < 6
        return (g if low else g + 8), t * 2 + (i & 1) + (8 if i >= 4 else 0)
    low = 0 <= i < 4 or 8 <= i < 12
    return (g if low else g + 8), t * 4 + (i & 3) + (16 if i >= 8 else 0)


def place_of_b(kind, lane, i):
    """(row, column) of element i of a lane's part of B."""
    g, t = lane // 4, lane % 4
    if kind == "tf32":
        return t + 4 * i, g
    if KINDS[kind][1] == 16:
        return t * 2 + (i & 1) + (8 if i >= 2 else 0), g
    return t * 4 + (i & 3) + (16 if i >= 4 else 0), g


# Which bits of 32 are drawn, and what stands for the others: numbers of the middle of a
# format, nothing that is none, no large powers.
DRAWN = {
    "bf16": (0x80FF80FF, 0x3F003F00),
    "f16": (0x83FF83FF, 0x38003800),
    "tf32": (0x807FFFFF, 0x3F800000),
    "e4m3": (0xBFBFBFBF, 0),
    "e5m2": (0x8F8F8F8F, 0x30303030),
}
# Of each kind 1280 bytes of A, B and C, and 512 of D. Sums may lie in registers of
# integers, as newer compilers have them.
MULTIPLY = """
ld.global.nc.v4.u32 {{%r1,%r2,%r3,%r4}}, [%rd20+{a}];
ld.global.nc.v2.u32 {{%r5,%r6}}, [%rd10+{b}];
ld.global.v4.f32 {{%f1,%r12,%f3,%f4}}, [%rd20+{c}];
mma.sync.aligned.m16n8k{columns}.row.col.f32.{kind}.{kind}.f32 {{%f5,%r16,%f7,%r18}},
 {{%r1,%r2,%r3,%r4}}, {{%r5,%r6}}, {{%f1,%r12,%f3,%f4}};
st.global.v4.b32 [%rd22+{d}], {{%f5,%r16,%f7,%r18}};"""


def test_products_of_matrices():
    """D = A B + C, where D is not C; each of the five kinds."""
    rng, parts, body = np.random.default_rng(1), {}, []
    for number, (kind, (columns, _, _)) in enumerate(KINDS.items()):
        words = rng.integers(0, 2**32, (32, 6), dtype=np.uint64)
        keep, put = DRAWN[kind]
        words = ((words & keep) | put).astype(np.uint32)
        parts[kind] = words, rng.normal(size=(32, 4)).astype(np.float32)
        at, to = 1280 * number, 512 * number
        places = {"a": at, "b": at + 512, "c": at + 768, "d": to}
        body.append(MULTIPLY.format(columns=columns, kind=kind, **places))
    given = [
        np.concatenate(
            [words[:, :4].ravel(), words[:, 4:].ravel(), sums.view("u4").ravel()]
        )
        for words, sums in parts.values()
    ]
    head = "add.s64 %rd20, %rd10, %rd5; add.s64 %rd22, %rd13, %rd5;"
    given = on_device(np.concatenate(given).view(np.uint64))
    out = run(head + "".join(body), empty((5, 32, 4), np.float32), given)
    for found, (kind, (words, sums)) in zip(out, parts.items(), strict=True):
        is_product(found, kind, words, sums)


def is_product(found, kind, words, sums):
    """Element by element, from where the tables of the ISA have each."""
    columns, width, decode = KINDS[kind]
    each = 32 // width
    A, B, C = np.zeros((16, columns)), np.zeros((columns, 8)), np.zeros((16, 8))
    elements = words.view(f"u{width // 8}").reshape(32, 6 * each).astype(np.uint32)
    values = decode(elements).astype(np.float64)
    for lane in range(32):
        for i in range(4 * each):
            A[place_of_a(kind, lane, i)] = values[lane, i]
        for i in range(2 * each):
            B[place_of_b(kind, lane, i)] = values[lane, 4 * each + i]
        for i in range(4):
            C[lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2] = sums[lane, i]
    wanted, size = A @ B + C, np.abs(A) @ np.abs(B) + np.abs(C)
    for lane in range(32):
        for i in range(4):
            at = lane // 4 + i // 2 * 8, lane % 4 * 2 + i % 2
            assert abs(found[lane, i] - wanted[at]) <= 2e-6 * size[at], kind


def test_copies_land_when_they_are_waited_for():
    """Of 16 bytes so many, zeros behind them; not before, and not of a later batch."""
    given = on_device([0x1111111111111111, 0x2222222222222222, 3, 4], np.uint64)
    body = """
mov.u32 %r1, memory;
st.shared.v2.u64 [memory], {%rd5, %rd5}; st.shared.u64 [memory+16], 77;
cp.async.cg.shared.global [%r1], [%rd10], 16, 11;
cp.async.commit_group;
cp.async.cg.shared.global [%r1+16], [%rd10+16], 16;
cp.async.commit_group;
ld.shared.u64 %rd20, [memory];
cp.async.wait_group 1;
ld.shared.v2.u64 {%rd21,%rd22}, [memory]; ld.shared.u64 %rd23, [memory+16];
cp.async.wait_group 0;
ld.shared.u64 %rd24, [memory+16]; ld.shared.u64 %rd25, [%r1+24];
st.global.v2.u64 [%rd13], {%rd20,%rd21}; st.global.v2.u64 [%rd13+16], {%rd22,%rd23};
st.global.v2.u64 [%rd13+32], {%rd24,%rd25};"""
    out = run(body, empty(6, np.uint64), given, block=1, shared=32)
    assert out.tolist() == [0, 0x1111111111111111, 0x222222, 77, 3, 4]


def test_blocks_of_a_cluster_write_to_one_another():
    """Block r writes to block r + 1; an address that is not mapped is of the own."""
    body = """
mov.u32 %r1, %cluster_ctarank; mov.u32 %r2, memory;
add.s32 %r3, %r1, 1; and.b32 %r3, %r3, 3;
st.shared.u32 [%r2+4], 5; st.shared::cluster.u32 [%r2+8], 6;
mapa.shared::cluster.u32 %r4, %r2, %r3;
add.s32 %r5, %r1, 40;
st.shared::cluster.u32 [%r4], %r5;
barrier.cluster.arrive.release.aligned;
barrier.cluster.wait.acquire.aligned;
ld.shared.u32 %r6, [memory]; ld.shared.u32 %r7, [memory+8];
mul.wide.u32 %rd20, %r1, 8; add.s64 %rd21, %rd13, %rd20;
st.global.v2.u32 [%rd21], {%r6, %r7};"""
    out = empty((4, 2), np.uint32)
    run(body, out, block=1, grid=4, cluster=4, shared=16)
    assert out.tolist() == [[43, 6], [40, 6], [41, 6], [42, 6]]


def test_atomics_and_generic_addresses():
    given = on_device(np.zeros(2), np.uint64)
    body = """
atom.global.add.u32 %r1, [%rd0], 2; atom.global.exch.b32 %r2, [%rd0+8], %r90;
mov.u64 %rd20, memory; cvta.shared.u64 %rd21, %rd20;
cvta.to.shared.u64 %rd22, %rd21; setp.eq.s64 %p1, %rd20, %rd22;
add.s64 %rd21, %rd21, %rd5;
cvt.u64.u32 %rd23, %r90; st.u64 [%rd21], %rd23; ld.u64 %rd24, [%rd21];
@!%p1 mov.u64 %rd24, 99;
st.global.u64 [%rd13], %rd24;"""
    out = run(body, empty(32, np.uint64), given, shared=256)
    assert given[0] == 64 and given[1] in range(32)
    assert out.tolist() == list(range(32))

"""PTX as text: what is read of it, and that nothing unknown is passed over."""

import ctypes
import re

import pytest

from tests.helpers.kernels.ptx.kernel import PtxKernel, Translated, ptx_of
from tests.helpers.kernels.ptx.lines import text_of
from tests.helpers.kernels.ptx.opcodes import FORMS
from tests.helpers.kernels.ptx.parse import Unknown, parsed
from tests.helpers.kernels.ptx.translate import translated

UNKNOWN = (
    "add.s32.x %r1, %r2, %r3",
    "add.f32.wide %f1, %f2, %f3",
    "sin.approx.ftz.f32 %f1, %f2",
    "add.s32 %r1, %r2",
    "add.s32 %r1, %r2, other",
    "mov.u32 %r1, %clock",
    "ld.global.v4.u32 {%r1,%r2}, [%rd10]",
    "ld.weak.global.u32 %r1, [%rd10]",
    "ld.param.u64 %rd1, [one_param_0+8]",
    "st.local.u32 [%rd1], %r1",
    "atom.global.min.u32 %r1, [%rd1], 1",
    "bar.sync 1",
    "bar.sync 0, 64",
    "cp.async.ca.shared.global [memory], [%rd10], 8",
    "cp.async.cg.shared.global [memory], [%rd10], 8",
    "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%r1,%r2,%r3,%r4}, [%r5]",
    "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32"
    " {%f1,%f2,%f3,%f4}, {%r1,%r2,%r3,%r4}, {%r5,%r6}, {%f1,%f2,%f3,%f4}",
    "barrier.cluster.arrive.relaxed.aligned",
    "ld.relaxed.gpu.global.u32 %r1, [%rd10]",
    "cvt.rz.f16.f32 %rs1, %f1",
    "%r1",
)


@pytest.mark.parametrize("line", UNKNOWN)
def test_what_nobody_knows_is_an_error_with_its_line(line):
    text = text_of(f"{line};")
    number = next(n for n, row in enumerate(text.splitlines(), 1) if line in row)
    with pytest.raises(Unknown, match=rf"line {number}: {re.escape(line)}"):
        translated(parsed(text), "one")


@pytest.mark.parametrize("line", [".shared .b8 x[64];", ".func f(){}", "nothing"])
def test_nor_is_what_stands_outside(line):
    with pytest.raises(Unknown, match="line 2"):
        parsed(f".version 9.0\n{line}\n")


def test_a_guard_and_a_label():
    text = text_of("$L_a: @!%p1 add.s32 %r1, %r1, 1; @%p1 bra.uni $L_a;")
    said = translated(parsed(text), "one")
    assert "if (!_p1) { ptx::put<s32>(_r1" in said
    assert "L_a:;" in said and "if (_p1) { goto L_a; }" in said


def test_every_instruction_has_its_line():
    """In the shared object, too, for who watches."""
    kernel = PtxKernel("margin", "ELEMENT=1")
    kernel.library.ptx_line.restype = ctypes.c_char_p
    rows = ptx_of("margin", ("ELEMENT=1",)).splitlines()
    instructions = kernel.entry.instructions()
    assert len(instructions) > 100
    for number, one in enumerate(instructions):
        assert one.number == number
        assert one.opcode in rows[one.line - 1]
        said = kernel.library.ptx_line(number).decode()
        assert said == f"{one.line}: {one.text}"
    assert kernel.library.ptx_line(len(instructions)) is None


def test_launches_keep_to_the_limits_of_the_text():
    text = ptx_of("recurrence", ("ELEMENT=3", "FAMILY=0", "NC=8"))
    recurrence = parsed(text).entries["recurrence"]
    assert (recurrence.threads, recurrence.cluster) == (256, 8)
    kernel = Translated(text_of("", threads=256, cluster=8), "one")
    with pytest.raises(AssertionError, match="maxntid"):
        kernel(8, 257, (), cluster=8)
    with pytest.raises(AssertionError, match="cluster"):
        kernel(8, 256, ())


def test_opcodes_are_told_from_their_kinds():
    """No name stands for two kinds by accident."""
    assert FORMS["shr.s32"] != FORMS["shr.u32"] and "fma.rn.f32" not in FORMS
    assert not [name for name in FORMS if name.endswith("ftz.f64")]

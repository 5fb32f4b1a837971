"""What each opcode does, beside a statement of its own of the same: exact fractions,
integers of Python, bits one by one."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, isnan, nan

import numpy as np

from tests.helpers.kernels.emulator import empty, on_device
from tests.helpers.kernels.ptx.exact import (
    COMPARE,
    SIZE,
    Near,
    added_down,
    between,
    compared,
    divided,
    exactly,
    flushed,
    half_of,
    inserted,
    normal,
    of_half,
    one_number,
    permuted,
    power,
    shifted,
    tf32,
    value_of,
    whole,
    wrapped,
)
from tests.helpers.kernels.ptx.kernel import Translated
from tests.helpers.kernels.ptx.lines import text_of

COUNT = 128


@dataclass(frozen=True)
class Case:
    """Instructions from a, b, c to d, the kinds of these, and what they mean."""

    says: str
    kinds: str  # of d, a, b, c: "u32 s32 s32"
    means: Callable

    def body(self, number):
        """Loads, the instructions, a store of 64 bits to the place of the case."""
        to, *of = self.kinds.split()
        names = {"a": "", "b": "", "c": ""}
        lines = []
        for i, (name, kind) in enumerate(zip(names, of, strict=False)):
            names[name] = f"%{PREFIX[kind]}{i + 1}"
            width = f"b{SIZE[kind]}"
            lines.append(f"ld.global.{width} {names[name]}, [%rd{10 + i}];")
        lines.append(self.says.format(d=f"%{PREFIX[to]}7", **names) + ";")
        place = f"[%rd13+{8 * COUNT * number}]"
        if to == "pred":
            lines += ["selp.u32 %r8, 1, 0, %p7;", f"st.global.u32 {place}, %r8;"]
        else:
            lines.append(f"st.global.b{SIZE[to]} {place}, %{PREFIX[to]}7;")
        return "\n".join(lines)

    def wanted(self, words):
        """Of the words of the inputs, as a value of the kind."""
        to, *of = self.kinds.split()
        return self.means(*(value_of(w, k) for w, k in zip(words, of, strict=False)))


PREFIX = {
    **{"u16": "rs", "s16": "rs", "u32": "r", "s32": "r", "u64": "rd", "s64": "rd"},
    **{"f32": "f", "f64": "fd", "pred": "p"},
}


def cases():
    """All of them."""
    for kind in ("s32", "u32", "s64", "u64"):
        width, two = SIZE[kind], f"{kind} {kind} {kind}"
        for name, compute in (
            ("add", lambda a, b: a + b),
            ("sub", lambda a, b: a - b),
            ("mul.lo", lambda a, b: a * b),
            ("min", min),
            ("max", max),
            ("div", divided),
            ("rem", lambda a, b: a - b * divided(a, b)),
        ):
            if name in ("div", "rem"):  # by zero is unspecified
                says = f"or.b{width} {{b}}, {{b}}, 1; {name}.{kind} {{d}}, {{a}}, {{b}}"
                odd = lambda a, b, c=compute: c(a, b | 1)  # noqa: E731
                yield Case(says, two, wrapped(odd, kind))
                continue
            yield Case(
                f"{name}.{kind} {{d}}, {{a}}, {{b}}", two, wrapped(compute, kind)
            )
        yield Case(
            f"mad.lo.{kind} {{d}}, {{a}}, {{b}}, {{c}}",
            f"{two} {kind}",
            wrapped(lambda a, b, c: a * b + c, kind),
        )
        yield Case(
            f"shr.{kind} {{d}}, {{a}}, {{b}}",
            f"{kind} {kind} u32",
            wrapped(lambda a, by, w=width: shifted(a, by, w), kind),
        )
        for name, compute in COMPARE.items():
            yield Case(f"setp.{name}.{kind} {{d}}, {{a}}, {{b}}", f"pred {kind} {kind}",
                       compute)  # fmt: skip
    for kind in ("s32", "s64"):
        yield Case(f"neg.{kind} {{d}}, {{a}}", f"{kind} {kind}",
                   wrapped(lambda a: -a, kind))  # fmt: skip
    for one, two in (("s32", "s64"), ("u32", "u64"), ("s16", "s32"), ("u16", "u32")):
        yield Case(f"mul.wide.{one} {{d}}, {{a}}, {{b}}", f"{two} {one} {one}",
                   lambda a, b: a * b)  # fmt: skip
    yield Case("mul.hi.u32 {d}, {a}, {b}", "u32 u32 u32", lambda a, b: a * b >> 32)
    yield from _words()
    yield from _floats()
    yield from _conversions()


def _words():
    for width in (16, 32, 64):
        kind = f"u{width}"
        for name, compute in (
            ("and", lambda a, b: a & b),
            ("or", lambda a, b: a | b),
            ("xor", lambda a, b: a ^ b),
        ):
            yield Case(f"{name}.b{width} {{d}}, {{a}}, {{b}}", f"{kind} {kind} {kind}",
                       compute)  # fmt: skip
        yield Case(f"not.b{width} {{d}}, {{a}}", f"{kind} {kind}",
                   wrapped(lambda a: ~a, kind))  # fmt: skip
        yield Case(f"shl.b{width} {{d}}, {{a}}, {{b}}", f"{kind} {kind} u32",
                   wrapped(lambda a, by: a << min(by, 64), kind))  # fmt: skip
    for width in (32, 64):
        for place, count in ((0, 32), (7, 25), (5, 70), (31, 1), (40, 3), (3, 0)):
            yield Case(
                f"bfi.b{width} {{d}}, {{a}}, {{b}}, {place}, {count}",
                f"u{width} u{width} u{width}",
                lambda a, b, p=place, c=count, w=width: inserted(a, b, p, c, w),
            )
    yield Case("prmt.b32 {d}, {a}, {b}, {c}", "u32 u32 u32 u32", permuted)
    yield Case("selp.b32 {d}, {a}, {b}, %p1", "u32 u32 u32", lambda a, b: a)
    yield Case("mov.b64 {{%r3,%r4}}, {a}; mov.b64 {d}, {{%r4,%r3}}", "u64 u64",
               lambda a: a >> 32 | (a & 0xFFFFFFFF) << 32)  # fmt: skip


def _floats():
    for name, compute in (
        ("add", lambda a, b: a + b),
        ("sub", lambda a, b: a - b),
        ("mul", lambda a, b: a * b),
    ):
        yield Case(f"{name}.ftz.f32 {{d}}, {{a}}, {{b}}", "f32 f32 f32",
                   exactly(compute))  # fmt: skip
        if name != "sub":
            yield Case(f"{name}.rn.f32 {{d}}, {{a}}, {{b}}", "f32 f32 f32",
                       exactly(compute, flush=False))  # fmt: skip
        yield Case(f"{name}.f64 {{d}}, {{a}}, {{b}}", "f64 f64 f64",
                   lambda a, b, c=compute: normal(c(normal(a), normal(b))))  # fmt: skip
    three = "f32 f32 f32 f32"
    yield Case("fma.rn.ftz.f32 {d}, {a}, {b}, {c}", three,
               exactly(lambda a, b, c: a * b + c))  # fmt: skip
    yield Case("fma.rm.ftz.f32 {d}, {a}, {b}, {c}", three,
               added_down)  # fmt: skip
    yield Case("div.rn.ftz.f32 {d}, {a}, {b}", "f32 f32 f32",
               exactly(lambda a, b: a / b))  # fmt: skip
    yield Case("ex2.approx.ftz.f32 {d}, {a}", "f32 f32", power)
    yield Case("neg.ftz.f32 {d}, {a}", "f32 f32", lambda a: -flushed(a))
    yield Case("abs.ftz.f32 {d}, {a}", "f32 f32", lambda a: abs(flushed(a)))
    yield Case("mov.f32 {d}, {a}", "f32 f32", lambda a: a)
    yield Case("min.ftz.f32 {d}, {a}, {b}", "f32 f32 f32", one_number(min))
    yield Case("max.ftz.f32 {d}, {a}, {b}", "f32 f32 f32", one_number(max))
    for name, compute in COMPARE.items():
        for ending, unordered in (("", False), ("u", True)):
            means = compared(compute, unordered)
            flush = lambda a, b, m=means: m(flushed(a), flushed(b))  # noqa: E731
            both = lambda a, b, m=means: m(normal(a), normal(b))  # noqa: E731
            yield Case(f"setp.{name}{ending}.ftz.f32 {{d}}, {{a}}, {{b}}",
                       "pred f32 f32", flush)  # fmt: skip
            yield Case(f"setp.{name}{ending}.f64 {{d}}, {{a}}, {{b}}",
                       "pred f64 f64", both)  # fmt: skip
    yield Case("setp.num.ftz.f32 {d}, {a}, {b}", "pred f32 f32",
               lambda a, b: not (isnan(a) or isnan(b)))  # fmt: skip
    yield Case("setp.nan.ftz.f32 {d}, {a}, {b}", "pred f32 f32",
               lambda a, b: isnan(a) or isnan(b))  # fmt: skip


def _conversions():
    for to in ("u16", "s16", "u32", "s32", "u64", "s64"):
        for of in ("u16", "s16", "u32", "s32", "u64", "s64"):
            if to != of:
                yield Case(f"cvt.{to}.{of} {{d}}, {{a}}", f"{to} {of}",
                           wrapped(lambda a: a, to))  # fmt: skip
    yield Case("cvt.u16.u8 {d}, {a}", "u16 u16", lambda a: a & 255)
    yield Case("cvt.u32.u8 {d}, {a}", "u32 u16", lambda a: a & 255)
    yield Case("cvt.s32.s8 {d}, {a}", "s32 u16", lambda a: (a & 255 ^ 128) - 128)
    yield Case("cvt.f32.f16 {d}, {a}", "f32 u16", of_half)
    yield Case("cvt.rn.f16.f32 {d}, {a}", "u16 f32", half_of)
    yield Case("cvt.rna.tf32.f32 %r7, {a}; mov.b32 {d}, %r7", "f32 f32", tf32)
    yield Case("cvt.ftz.f64.f32 {d}, {a}", "f64 f32", flushed)
    yield Case("cvt.rn.ftz.f32.f64 {d}, {a}", "f32 f64", exactly(lambda a: a))
    yield Case("cvt.ftz.sat.f32.f32 {d}, {a}", "f32 f32", between)
    yield Case("cvt.rzi.ftz.s32.f32 {d}, {a}", "s32 f32", whole)


CASES = list(cases())


def words():
    """COUNT words for each input: hard numbers of every kind, and any."""
    rng = np.random.default_rng(7)
    singles = [0.0, -0.0, 1.0, -1.0, inf, -inf, nan, 1e-45, -1e-39, 1.17549435e-38]
    singles += [3.4028235e38, -3.4e38, 1e-30, 0.5, 2.5, -2.5, 2147483648.0, 65519.0]
    hard = [struct.unpack("<I", struct.pack("<f", s))[0] for s in singles]
    hard += [0xFFFFFFFF, 0x80000000, 0x7FFFFFFF, 1, 31, 32, 33, 64, 200, 0x3F801000]
    doubles = [0.0, -0.0, 1.0, inf, nan, 1e-40, 3.5e38, 1 + 2.0**-30, -2.5, 1e300]
    wide = [struct.unpack("<Q", struct.pack("<d", d))[0] for d in doubles]
    wide += [0xFFFFFFFFFFFFFFFF, 1 << 63, 63, 0x123456789ABCDEF0]
    found = []
    for turn in range(3):
        some = rng.integers(0, 2**64, COUNT, dtype=np.uint64)
        low = rng.normal(size=COUNT).astype(np.float32).view(np.uint32)
        some[::3] = (some[::3] & ~np.uint64(0xFFFFFFFF)) | low[::3]
        some[1::3] = rng.normal(size=len(some[1::3])).view(np.uint64)
        place = rng.permutation(COUNT)[: 2 * len(hard) + len(wide)]
        some[place] = np.array([*hard, *hard, *wide], np.uint64)
        found.append(on_device(np.roll(some, turn)))
    return found


@np.errstate(all="ignore")
def test_opcodes_do_what_is_said_of_them():
    """All in one entry: thread i takes the i-th of the inputs."""
    given, out = words(), empty((len(CASES), COUNT), np.uint64)
    body = "setp.eq.u32 %p1, 0, 0;\n"
    body += "\n".join(case.body(number) for number, case in enumerate(CASES))
    Translated(text_of(body), "one")(1, COUNT, (*given, out))
    wrong = []
    for case, found in zip(CASES, out, strict=True):
        kind = case.kinds.split()[0]
        for i in range(COUNT):
            wanted = case.wanted([int(w[i]) for w in given])
            got = value_of(int(found[i]), "u32" if kind == "pred" else kind)
            if not same(got, wanted):
                wrong.append((case.says, [hex(int(w[i])) for w in given], got, wanted))
                break
    assert not wrong, wrong[:5]


def same(got, wanted):
    """Signs of zeros, too; all that are no numbers are one."""
    if isinstance(wanted, Near):
        return abs(got - wanted.value) <= wanted.value * 2.0**-22
    if isinstance(wanted, float) and isnan(wanted):
        return isnan(got)
    return got == wanted and np.signbit(got) == np.signbit(wanted)

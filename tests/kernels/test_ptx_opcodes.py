"""What each opcode does, beside a statement of its own of the same: exact fractions,
integers of Python, bits one by one."""

import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import floor, inf, isnan, nan

import numpy as np

from tests.kernels.emulator import empty, on_device
from tests.kernels.ptx.kernel import Translated
from tests.kernels.ptx.lines import text_of

COUNT = 128
SMALLEST = Fraction(2) ** -126
LARGEST = float((2 - 2.0**-23) * 2.0**127)


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
SIZE = {kind: int(kind[1:]) for kind in PREFIX if kind != "pred"}
PACKED = {
    **{"u16": "H", "s16": "h", "u32": "I", "s32": "i", "u64": "Q", "s64": "q"},
    **{"f32": "f", "f64": "d"},
}


def value_of(word, kind):
    """What the lower bits of a word are."""
    (value,) = struct.unpack_from("<" + PACKED[kind], struct.pack("<Q", word))
    return value


# ---- floats, exactly ----


def flushed(value):
    """Zero where it is below 2^-126, with its sign."""
    tiny = 0 < abs(value) < SMALLEST
    return value * 0.0 if tiny else value


def normal(value):
    """Doubles below 2^-1022 are zeros here, and on no GPU: nobody comes near."""
    return value * np.float64(0.0) if 0 < abs(value) < 2.0**-1022 else np.float64(value)


def nearest(exact):
    """A fraction as float32: to nearest even."""
    return _rounded(exact, lambda x: round(x))


def below(exact):
    """The next float32 that is not above."""
    return min(_rounded(exact, floor), LARGEST) if exact < inf else inf


def _rounded(exact, whole):
    if exact == 0:
        return 0.0
    exponent = 0
    while abs(exact) >= Fraction(2) ** (exponent + 1):
        exponent += 1
    while abs(exact) < Fraction(2) ** exponent:
        exponent -= 1
    step = Fraction(2) ** (max(exponent, -126) - 23)
    found = whole(exact / step) * step
    size = float(abs(found)) if abs(found) <= LARGEST else inf
    return size if exact > 0 else -size


def exactly(compute, to=nearest, flush=True):
    """`compute` on fractions; what is no finite number by the floats of Python."""

    def means(*values):
        if flush:
            values = [flushed(v) for v in values]
        if not all(map(np.isfinite, values)):
            return plainly(compute, values)
        try:
            found = compute(*map(Fraction, values))
        except ZeroDivisionError:
            return plainly(compute, values)
        if found == 0:
            return plainly(compute, values)
        found = to(found)
        return flushed(found) if flush else found

    return means


def plainly(compute, values):
    """With signs of zeros and infinities as IEEE has them."""
    return float(compute(*map(np.longdouble, values)))


def added_down(a, b, c):
    """fma.rm: zeros of both signs are -0."""
    found = exactly(lambda x, y, z: x * y + z, below)(a, b, c)
    a, b, c = map(flushed, (a, b, c))
    if found == 0 and np.signbit(a) ^ np.signbit(b) | np.signbit(c):
        return -0.0
    return found


def one_number(choose):
    """min and max: the one that is a number, zeros by their signs."""

    def means(a, b):
        a, b = flushed(a), flushed(b)
        if isnan(a) or isnan(b):
            return b if isnan(a) else a
        return choose((a, b), key=lambda x: (x, np.copysign(1, x)))

    return means


# ---- integers ----


def wrapped(compute, kind):
    """Modulo 2^width, as a value of the kind."""

    def means(*values):
        word = compute(*values) % 2 ** SIZE[kind]
        return value_of(word, kind)

    return means


def divided(a, b):
    """Towards zero."""
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def shifted(a, by, width):
    """To the right; the sign comes in."""
    return a >> min(by, width)


def inserted(a, b, place, count, width):
    """Bit by bit."""
    place, count = place & 255, count & 255
    bits = [b >> i & 1 for i in range(width)]
    for i in range(count):
        if place + i < width:
            bits[place + i] = a >> i & 1
    return sum(bit << i for i, bit in enumerate(bits))


def permuted(a, b, choice):
    """Bytes by name."""
    stored, found = struct.pack("<II", a, b), []
    for i in range(4):
        name = choice >> 4 * i & 15
        byte = stored[name & 7]
        found.append(255 * (byte >> 7) if name & 8 else byte)
    return struct.unpack("<I", bytes(found))[0]


# ---- conversions ----


def half_of(value):
    if isnan(value):
        return 0x7FFF
    with np.errstate(over="ignore"):
        return int(np.float16(np.float32(value)).view(np.uint16))


def of_half(bits):
    return float(np.uint16(bits).view(np.float16))


def tf32(value):
    """Halves away from zero."""
    if not np.isfinite(value):
        return value
    part, exponent = np.frexp(np.float64(value))
    if value == 0 or exponent < -125:
        exponent, part = -125, np.float64(value) * 2.0**125
    part = np.copysign(np.floor(np.abs(part) * 2048 + 0.5), part)
    found = float(np.ldexp(part, exponent - 11))
    return found if abs(found) < 2.0**128 else float(np.copysign(inf, found))


def whole(value):
    """Towards zero, to the end of what is there."""
    if isnan(value):
        return 0
    return int(max(-(2.0**31), min(2.0**31 - 1, np.trunc(value))))


def between(value):
    """0 to 1; what is no number is 0."""
    return 0.0 if isnan(value) else max(0.0, min(1.0, flushed(value)))


def compared(compute, unordered):
    return lambda a, b: unordered if isnan(a) or isnan(b) else compute(a, b)


COMPARE = {
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
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
    if isinstance(wanted, float) and isnan(wanted):
        return isnan(got)
    return got == wanted and np.signbit(got) == np.signbit(wanted)


def test_powers_of_two():
    """Within two units of the last place, as it is said of ex2.approx."""
    x = on_device(np.linspace(-140, 130, COUNT), np.float32)
    given, out = on_device(x.view(np.uint32), np.uint64), empty(COUNT, np.uint64)
    body = "ld.global.b32 %f1, [%rd10]; ex2.approx.ftz.f32 %f2, %f1;"
    text = text_of(body + "st.global.b32 [%rd13], %f2;")
    Translated(text, "one")(1, COUNT, (given, given, given, out))
    found = out.view(np.float32)[::2].astype(np.float64)
    wanted = np.where(x < -126, 0.0, np.exp2(x.astype(np.float64)))
    wanted = np.where(x >= 128, np.inf, wanted)
    np.testing.assert_allclose(found, wanted, rtol=2.0**-22)

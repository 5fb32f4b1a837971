"""Opcodes of PTX by other means: fractions, integers of Python, bits one by one."""

import struct
from dataclasses import dataclass
from fractions import Fraction
from math import floor, inf, isnan

import numpy as np

SMALLEST = Fraction(2) ** -126
LARGEST = float((2 - 2.0**-23) * 2.0**127)
PACKED = {
    **{"u16": "H", "s16": "h", "u32": "I", "s32": "i", "u64": "Q", "s64": "q"},
    **{"f32": "f", "f64": "d"},
}
SIZE = {kind: int(kind[1:]) for kind in PACKED}


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


@dataclass(frozen=True)
class Near:
    """A result that may be two units of the last place off."""

    value: float


def power(a):
    """2^a, as it is said of ex2.approx."""
    found = np.exp2(np.float64(flushed(a)))
    if found < SMALLEST or not found < 2.0**128:
        return flushed(float(nearest(Fraction(found)))) if found < 1 else float(found)
    return Near(float(found))


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

"""Valid texts, and how they are damaged."""

import math
import random
from decimal import Decimal, localcontext

from tests.fuzz.compare import FOUND

LONGEST = 600  # bytes of most texts: short ones are tried more often
HUGE = 200_000
WORDS = (
    *b'0 1 9 . e E + - : # , ; \t nan inf -NaN NA ? qid: " \v \f'.split(b" "),
    *(b"\n", b"\r", b"\r\n"),
    *(b" ", b"\x00", b"\xff", b"\xef\xbb\xbf", "\u0661\u2009\u2212".encode()),
    *(b"1e22", b"5e-324", b"2.4703282292062327e-324", b"1.7976931348623159e308"),
    *(b"9007199254740993", b"9007199254740992.9999999999999999999", b"0x1p3"),
    *(b"1e-342", b"1e309", b"1e99999999999999999999", b"1e-99999999999999999999"),
    *(b"18446744073709551617:1", b"2147483647:1", b"2147483648:1", b"infinity"),
    *(b"0.000000000000000000000000000000000001", b"1_000", b"1d5", b"1,5", b"-0"),
    *(b"100000000000000000000000000000000000000000", b"00000000000000000000001"),
)


def seeds() -> list[bytes]:
    """The texts that are kept: valid ones, and all that once went wrong."""
    return [path.read_bytes() for path in sorted(FOUND.glob("*.txt"))]


def mutate(text: bytes, pool: list[bytes], rng: random.Random) -> bytes:
    """A few changes, one after the other; now and then a very long text."""
    data = text
    for _ in range(rng.randrange(1, 6)):
        data = rng.choice(CHANGES)(data, pool, rng)
    return data[: HUGE if rng.random() < 0.001 else LONGEST]


def _flip(data: bytes, pool: list[bytes], rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.randbytes(1) + data[at + 1 :]


def _cut(data: bytes, pool: list[bytes], rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _drop(data: bytes, pool: list[bytes], rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.randrange(1, 9) :]


def _insert(data: bytes, pool: list[bytes], rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(WORDS) + data[at + rng.randrange(3) :]


def _number(data: bytes, pool: list[bytes], rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + number(rng) + data[at + rng.randrange(6) :]


def _splice(data: bytes, pool: list[bytes], rng: random.Random) -> bytes:
    other = rng.choice(pool)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _repeat(data: bytes, pool: list[bytes], rng: random.Random) -> bytes:
    at, end = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    times = rng.choice((2, 3, 40, 5000 if end - at < 40 else 2))
    return data[:at] + data[at:end] * times + data[end:]


def _windows(data: bytes, pool: list[bytes], rng: random.Random) -> bytes:
    return data.replace(b"\n", rng.choice((b"\r\n", b"\r", b" \n", b"\n\n")))


def number(rng: random.Random) -> bytes:
    """Digits of any count, a point anywhere, any exponent; or half way between two."""
    if rng.random() < 0.1:
        value = rng.uniform(1, 2) * 2.0 ** rng.randrange(-60, 80)
        with localcontext(prec=400):  # exactly
            half = (Decimal(value) + Decimal(math.nextafter(value, math.inf))) / 2
        return f"{half:f}".encode()
    count = rng.choice((1, 3, 8, 16, 17, 18, 19, 20, 21, 40, 800))
    digits = "".join(rng.choices("0123456789", k=count))
    if rng.random() < 0.2:
        digits = rng.choice("09") * rng.randrange(30) + digits
    if rng.random() < 0.8:
        at = rng.randrange(len(digits) + 1)
        digits = f"{digits[:at]}.{digits[at:]}"
    if rng.random() < 0.5:
        digits += f"{rng.choice('eE')}{rng.choice(('', '+', '-'))}{rng.randrange(400)}"
    return (rng.choice(("", "", "-", "+")) + digits).encode()


CHANGES = (_flip, _cut, _drop, _insert, _insert, _number, _splice, _repeat, _windows)

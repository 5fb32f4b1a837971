"""Damaged text for minutes: the compiled parser and its twin must agree on it."""

import argparse
import random
import sys
import time
from pathlib import Path

import numpy as np

from hpcsgd.data import parse_native, parse_python
from hpcsgd.data.faults import Fault
from hpcsgd.data.parse_python import Layout

FOUND = Path(__file__).parents[1] / "data_regressions"
PLACES = np.array([-1, 0, 1], dtype=np.int32)
SEEDS = (
    b"1 1:2 3:4.5e-3\n-1 qid:3 2:.5 # c\n\n0 7:1e308\n",
    b'1,2,3\n4.25,-0,1e-320\n?,"5", 6 \n',
    b"1\t2\t3\nNA\t1e400\t9007199254740993\n",
)
WORDS = b'0 1 9 . e E + - : # , ; \t nan inf qid: \n \r " \x00 \xff 1e22 5e-324'.split(
    b" "
)


def outcomes(text: bytes) -> list[tuple]:
    """(name, compiled, twin) of every way to read `text`."""
    ways = [("libsvm", "parse_libsvm", (base,)) for base in (0, 1)]
    for mark in (b",", b"\t", b";"):
        for allowed in (False, True):
            ways.append(("csv", "parse_csv", (Layout(mark, PLACES, 2, 1, allowed),)))
        ways.append(("lines", "count_lines", (mark,)))
    pairs = (parse_native, parse_python)
    return [(n, *(_outcome(getattr(m, f), text, a) for m in pairs)) for n, f, a in ways]


def _outcome(function, text, arguments):
    try:
        found = function(text, *arguments)
    except Fault as fault:
        return fault.kind, fault.position
    if isinstance(found, int):
        return found
    values = found if isinstance(found, tuple) else vars(found).values()
    return [v.tobytes() if isinstance(v, np.ndarray) else v for v in values]


def mutate(text: bytes, rng: random.Random) -> bytes:
    """A few bytes or words changed, taken out or put in."""
    data = bytearray(text)
    for _ in range(rng.randrange(1, 6)):
        at, end = (rng.randrange(len(data) + 1) for _ in range(2))
        word = rng.choice((rng.choice(WORDS), rng.randbytes(1), bytes(data[at:end])))
        data[at : at + rng.randrange(3)] = word[:200]
    return bytes(data[:2000]) + b"\n"


def main() -> int:
    """0 if all agreed; what did not is kept as a regression test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if not parse_native.available():
        print(f"nothing to compare: {parse_native.why()}", file=sys.stderr)
        return 2
    rng, tried, pool = random.Random(options.seed), 0, list(SEEDS)
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        text = mutate(rng.choice(pool), rng)
        tried += 1
        if any(first != second for _, first, second in outcomes(text)):
            FOUND.mkdir(exist_ok=True)
            (FOUND / f"text-{tried}.bin").write_bytes(text)
            print(f"disagreement on {text!r}", file=sys.stderr)
            return 1
        if rng.random() < 0.01:
            pool = [*SEEDS, *pool[-50:], text]
    print(f"{tried} texts, all read alike")
    return 0


if __name__ == "__main__":
    sys.exit(main())

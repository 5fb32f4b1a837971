"""Damaged text for minutes: both parsers take the same lines, for the same values.

The compiled parser alone runs beside them under the sanitizers (tests/fuzz/harness.c).
What goes wrong is kept in tests/data_regressions, where `make test` reads it again.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from hashlib import sha256
from pathlib import Path

from hypothesis import seed as seeded
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from hpcsgd.data.convert import parsers
from tests.fuzz.compare import FOUND, cuts, differences, differences_in_files
from tests.fuzz.machine import OPTIONS, Damage
from tests.fuzz.mutate import mutate, seeds

EVERY = 25  # one text of so many is read as a file, too
BATCH = 20  # examples of hypothesis between looks at the clock
GRACE = 60  # seconds that the harness may take longer


def main() -> int:
    """0 if all agreed; what did not is kept as a regression test."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--harness", type=Path, help="what make built of harness.c")
    options = parser.parse_args()
    if not parsers.available():
        print(f"nothing to compare: {parsers.why()}", file=sys.stderr)
        return 2
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        beside = _start(options, Path(folder)) if options.harness else None
        try:
            bad = _compare(options.seconds, options.seed)
            return _ended(beside, Path(folder)) | bad
        finally:
            if beside is not None and beside.poll() is None:
                beside.kill()


def _start(options: argparse.Namespace, folder: Path) -> subprocess.Popen:
    powers = folder / "powers"
    powers.write_bytes(parsers.powers_of_five().tobytes())
    texts = sorted(FOUND.glob("*.txt"))
    how = [options.seconds, options.seed % 2**31, powers, folder / "crash", *texts]
    return subprocess.Popen([options.harness, *map(str, how)])


def _ended(beside: subprocess.Popen | None, folder: Path) -> int:
    if beside is None:
        return 0
    code = beside.wait(GRACE)
    if (folder / "crash").exists():
        _keep((folder / "crash").read_bytes(), "the sanitizers stopped at it")
    return int(code != 0)


def _compare(seconds: int, seed: int) -> int:
    """Random changes and steps of hypothesis in turns; 1 where parsers differ."""
    rng, pool, tried = random.Random(seed), seeds(), [0, 0]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for number in range(20 * EVERY):
            text = mutate(rng.choice(pool), pool, rng)
            found = differences(text)
            if number % EVERY == 0:
                found += differences_in_files(text, cuts(text, rng.random()))
            if found:
                return _keep(text, found)
        tried[0] += 20 * EVERY
        bad = _steps(rng.randrange(2**32))
        if bad:
            return _keep(*bad)
        tried[1] += BATCH
    print(f"{tried[0]} texts and {tried[1]} of hypothesis, all read alike", flush=True)
    return 0


def _steps(seed: int) -> tuple[bytes, object] | None:
    """(text, what differs) of the shortest text that hypothesis finds in a batch."""
    seeded(seed)(Damage)
    try:
        options = settings(OPTIONS, max_examples=BATCH)
        run_state_machine_as_test(Damage, settings=options)
    except AssertionError as error:
        found, text = error.args[0]
        return text, found
    return None


def _keep(text: bytes, why: object) -> int:
    path = FOUND / f"found-{sha256(text).hexdigest()[:12]}.txt"
    path.write_bytes(text)
    print(f"{why}: {text[:200]!r}, kept as {path}", file=sys.stderr, flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())

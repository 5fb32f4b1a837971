"""Starts ranks without MPI, all on this machine: what mpiexec does, in small.

    python -m hpcsgd.cli.spawn -n N COMMAND...

Ends with 0 where all ranks do, with 128 + signal where one was killed, else with the
largest exit code. One that fails leaves the others a while to end by themselves.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence

from hpcsgd.comm.launched import EXPECTED, OWN_RANK, end_with_parent
from hpcsgd.comm.tcp.where import FILE, STORE
from hpcsgd.ends import note_end

GRACE = 10.0  # seconds for the others to end where one has failed
LOOK = 0.05  # seconds between looks at the ranks


def run(ranks: int, command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Start them, and wait for all."""
    with tempfile.TemporaryDirectory(prefix="hpcsgd-") as folder:
        place = {STORE: f"{FILE}{folder}/store", **environment}
        started = [
            subprocess.Popen(
                list(command),
                env={**place, **_own(rank, ranks)},
                preexec_fn=end_with_parent,
            )
            for rank in range(ranks)
        ]
        return _code(_ends(started))


def _own(rank: int, ranks: int) -> dict[str, str]:
    local = {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks)}
    return {OWN_RANK: str(rank), EXPECTED: str(ranks), **local}


def _ends(started: Sequence["subprocess.Popen[bytes]"]) -> list[int]:
    """Their exit codes; who is still there some time after a failure is killed."""
    failed = 0.0
    left = dict(enumerate(started))
    while left:
        time.sleep(LOOK)
        for rank, one in list(left.items()):
            if one.poll() is not None:
                note_end(rank, one.returncode)
                del left[rank]
        if not failed and any(one.poll() for one in started):
            failed = time.monotonic()
        if failed and time.monotonic() - failed > GRACE:
            for one in started:
                one.kill()
    return [one.returncode for one in started]


def _code(ends: Sequence[int]) -> int:
    killed = [128 - code for code in ends if code < 0]
    return killed[0] if killed else max(ends)


def main(argv: Sequence[str]) -> int:
    """-n N COMMAND..."""
    flag, ranks, *command = argv
    assert flag == "-n" and command
    return run(int(ranks), command, os.environ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

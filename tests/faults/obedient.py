"""A rank that notes the signals it gets and ends in order, or as it is told.

python -m tests.faults.obedient FOLDER [HOW]
"""

import os
import signal
import sys
import time
from pathlib import Path

from tests.helpers.limits import HANG

CODES = {signal.SIGINT: 130, signal.SIGTERM: 75, signal.SIGUSR2: 75}
ORDERLY = 1.0  # seconds that a checkpoint takes
LONG = 2 * HANG  # a test would say that it hangs


def main(folder, how="obeys"):
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    got = []
    for number in CODES:
        signal.signal(number, lambda number, frame: got.append(number))
    if how == "starts":
        for number in CODES:
            signal.signal(number, signal.SIG_DFL)
    if how == "leaves-a-child" and world.rank == 0:
        _leave_a_child(folder)
    world.Barrier()
    (Path(folder) / f"pid{world.rank}").write_text(str(os.getpid()))
    world.Barrier()  # whoever dies now has let the others say who they are
    end = time.monotonic() + LONG
    while not got and time.monotonic() < end and how in ("obeys", "ignores"):
        time.sleep(0.02)
    if how.isdigit() and world.rank == 1:
        os.kill(os.getpid(), int(how))
    if how.startswith("exits") and world.rank == 1:
        os._exit(int(how.removeprefix("exits")))
    is_long = how in ("ignores", "starts") or how.isdigit()
    time.sleep(LONG if is_long else ORDERLY)
    names = " ".join(signal.Signals(number).name for number in got)
    (Path(folder) / f"got{world.rank}").write_text(names)
    sys.exit(CODES[got[0]] if got else 0)


def _leave_a_child(folder):
    """In a session of its own, as far from us as a process can get."""
    import subprocess

    # Not on our output: a launcher reads that to its end.
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    child = subprocess.Popen(["sleep", "100"], start_new_session=True, **silent)
    (Path(folder) / "child").write_text(str(child.pid))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Starts a Slurm of this machine alone, and ends all of it when its input closes.

    python keeper.py FOLDER n1 n2 ...

Its input is a pipe that only the process of the tests holds: however that one ends, the
pipe closes, and nothing of the cluster is left. The daemons stay in the foreground, so
they are children; what slurmd starts is not (a step outlives its slurmd on purpose) and
is found by the SLURM_CONF that it was born with. Standard library only.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
DAEMON = "HPCSGD_TEST_DAEMON"  # of whom a process is, in its environment
PATIENCE = 10.0  # seconds for killed processes to be gone
WHERE = "/usr/sbin:/usr/local/sbin:/sbin"  # a plain user's PATH may lack them


def main(folder, nodes):
    """Start, wait for the end of the input, end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the tests
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    try:
        for name, command in commands(folder, nodes):
            start(folder, name, command)
            if name == "munged":
                wait_for(folder / "munge.socket")
        sys.stdin.read()
    finally:
        end(folder)
        shutil.rmtree(folder, ignore_errors=True)


def commands(folder, nodes):
    """(name, command) of every daemon, in the order in which they are needed."""
    at = {"key-file": "munge.key", "socket": "munge.socket", "pid-file": "munged.pid"}
    at |= {"seed-file": "munge.seed", "log-file": "munged.file"}
    places = [f"--{option}={folder / name}" for option, name in at.items()]
    # A folder in /tmp is one of everybody's; without --force that is an error.
    yield "munged", ["munged", "--foreground", "--force", *places]
    yield "slurmctld", ["slurmctld", "-D", "-i"]
    for node in nodes:
        yield node, ["slurmd", "-D", "-N", node]


def start(folder, name, command):
    """One daemon, its words in FOLDER/NAME.log and its number in FOLDER/NAME.child."""
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    environment[DAEMON] = name
    environment["PATH"] = os.environ.get("PATH", "") + os.pathsep + WHERE
    with open(folder / f"{name}.log", "ab") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent,
        )
    (folder / f"{name}.child").write_text(str(process.pid))


def end_with_parent():
    """Whoever kills the keeper itself ends the daemons too."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def wait_for(path):
    """Until it is there, or for ten seconds: the log says why it is not."""
    for _ in range(200):
        if path.exists():
            return
        time.sleep(0.05)


def end(folder):
    """Kill everything of this cluster until nothing is left of it."""
    limit = time.monotonic() + PATIENCE
    while family(folder) and time.monotonic() < limit:
        kill(family(folder))
        time.sleep(0.05)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def kill(pids, sign=signal.SIGKILL):
    """At once, those that are still there."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, sign)


def family(folder):
    """Numbers of all processes that were started with this cluster's SLURM_CONF."""
    return with_variable("SLURM_CONF", folder / "slurm.conf")


def with_variable(name, value):
    """Numbers of the processes that were born with NAME=value in their environment."""
    wanted, found = f"{name}={value}".encode(), []
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if wanted in (path / "environ").read_bytes().split(b"\0"):
                found.append(int(path.name))
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])

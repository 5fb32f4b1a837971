"""Ranks without MPI: as processes, which are ended by their ids, and as threads."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from hpcsgd.comm.launched import Launched
from hpcsgd.comm.tcp.mesh import connect_all
from hpcsgd.comm.tcp.moves import Group
from hpcsgd.comm.tcp.world import Ends, TcpCommunicator
from tests.helpers import launcher

ROOT = Path(__file__).parents[2]
AROUND = ("SLURM", "PMI", "OMPI_", "MASTER_", "HPCSGD_", "TORCHELASTIC")
LIMIT = 600.0  # seconds that any test's ranks may take on a busy machine


def clean_environment(folder):
    """Nobody's variables, and a home of its own for the key."""
    kept = launcher.launch_environment()
    kept = {k: v for k, v in kept.items() if not k.startswith(AROUND)}
    own = {"PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": str(folder)}
    return {**kept, **own, "HPCSGD_STORE_SECONDS": "30"}


class Ranks:
    """Processes of one program; whoever is left at the end is killed, one by one."""

    def __init__(self, folder, size, words, variables=lambda rank: {}):
        base = clean_environment(folder)
        place = {"HPCSGD_STORE": f"file:{folder}/store", "HPCSGD_EXPECT_RANKS": size}
        self.processes = []
        for rank in range(size):
            own = {**place, "HPCSGD_RANK": rank, **variables(rank)}
            own = {k: str(v) for k, v in own.items() if v is not None}
            self.processes.append(
                subprocess.Popen(
                    [sys.executable, *words],
                    env={**base, **own},
                    cwd=ROOT,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in self.processes:
            with suppress(ProcessLookupError):
                one.send_signal(signal.SIGCONT)
                one.kill()
            one.wait()
            one.stdout.close()

    def said(self, rank):
        """The next line of a rank."""
        return self.processes[rank].stdout.readline().strip()

    def ends(self, limit=LIMIT):
        """(exit codes, what each has said), within so many seconds for all."""
        until = time.monotonic() + limit
        texts = []
        for one in self.processes:
            texts.append(one.communicate(timeout=max(0.1, until - time.monotonic()))[0])
        return [one.returncode for one in self.processes], texts


def on_threads(size, function, place, environ=os.environ):
    """function(world) on threads of this process, each with sockets of its own."""
    results, failures = [None] * size, []

    def run(rank):
        ends = None
        try:
            own = Launched(rank, size, "a test")
            ends = Ends(connect_all(own, place, environ), at_exit=False)
            group = Group(ends.engine, 1, range(size), rank)
            results[rank] = function(TcpCommunicator(ends, group))
            ends.leave()
        except BaseException as error:
            failures.append(error)
        finally:
            if ends is not None:
                ends.drop()

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    if failures:
        raise failures[0]
    return results

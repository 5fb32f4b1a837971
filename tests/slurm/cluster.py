"""A whole Slurm on this machine: one slurmctld, several slurmd, a munged.

All of it lies in one temporary folder, listens on the loopback at ports that were free,
and belongs to the user who runs the tests; /etc and /run are not touched.
"""

import getpass
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.helpers import launcher
from tests.slurm import keeper

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
AROUND = ("SLURM", "SBATCH", "SRUN", "PMI")  # of a job that these tests run in
NODES = ("n1", "n2", "n3", "n4")
FRAIL = ("f1", "f2", "f3", "f4", "f5", "f6")  # those that tests lose
CPUS = dict.fromkeys(NODES, 4) | dict.fromkeys(FRAIL, 2)
START = 300.0  # seconds for all nodes to be idle
CALL = 600.0  # seconds for any one command of Slurm
CONFIGURATION = """\
ClusterName=hpcsgdtest
SlurmctldHost={host}({address})
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
# A job that was requeued waits as long as a credential lives: 120 s unless told.
AuthInfo=socket={folder}/munge.socket,cred_expire={requeue_wait}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldPort={controller}
{listen}
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=1,sched_min_interval=100000,bf_interval=1,batch_sched_delay=0
MessageTimeout=30
SlurmdTimeout=300
MinJobAge=600
# MPICH names shared memory by a job's number, and there may be other clusters.
FirstJobId={first}
KillWait=3
InactiveLimit=0
ReturnToService=2
MpiDefault=pmi2
JobRequeue=1
{nodes}
PartitionName=main Nodes={main} Default=YES MaxTime=INFINITE State=UP
PartitionName=frail Nodes={frail} Default=NO MaxTime=INFINITE State=UP
"""
NODE = "NodeName={} NodeHostname={} NodeAddr={} Port={} CPUs={} RealMemory=4000"
REQUEUE_WAIT = 5
USUAL = ("Unauthorized cred", "Replayed cred", "differs from hardware", "CPU frequency")
USUAL += (
    "slurmd version",
    "slurmd started",
    "CPUSpecList",
    "state file",
    "Trying backup",
)


class Cluster:
    """Started by `with`; everything of it is gone afterwards."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="slurm-"))
        self.configuration = self.folder / "slurm.conf"
        self._keeper = None

    def __enter__(self):
        self._write()
        self._keeper = subprocess.Popen(
            [sys.executable, str(HERE / "keeper.py"), self.folder, *CPUS],
            stdin=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C is not for it: it cleans up after one
        )
        try:
            self._wait_until_idle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._keeper.stdin.close()
        self._keeper.wait(2 * keeper.PATIENCE)

    @property
    def environment(self):
        """Where the tools find this cluster, and the jobs this Python."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(AROUND)}
        own = {"SLURM_CONF": str(self.configuration), "PYTHONPATH": str(ROOT)}
        return {**kept, **own}

    def call(self, *command, code=0, cwd=None, limit=CALL, **variables):
        """What a command printed, its words on failure; it has to end with `code`."""
        done = subprocess.run(
            list(map(str, command)),
            env={**self.environment, **variables},
            cwd=cwd or self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=limit,
        )
        assert code in (None, done.returncode), (
            f"{' '.join(map(str, command))} ended with {done.returncode}:\n"
            f"{done.stdout}{done.stderr}"
        )
        return done.stdout

    def hosts(self, nodes):
        """Names of n[1-2],n4 one by one."""
        return self.call("scontrol", "show", "hostnames", nodes).split()

    def kill_node(self, node):
        """As if it had lost its power: its slurmd, and all that runs there."""
        own = set(keeper.family(self.folder))
        daemons = own & set(keeper.with_variable(keeper.DAEMON, node))
        found = daemons.union(*map(launcher.descendants, daemons))
        keeper.kill(found, signal.SIGSTOP)  # without power nobody tells of the others
        keeper.kill(found)

    def ranks(self, job):
        """Number of a rank -> its processes, of a job that runs."""
        own = set(keeper.with_variable("SLURM_JOB_ID", job))
        ranks = {}
        for rank in range(64):
            found = own & set(keeper.with_variable("SLURM_PROCID", rank))
            if found:
                ranks[rank] = found
        return ranks

    def segments(self, job):
        """What MPICH's ranks of a job share memory through."""
        found = set()
        for pid in set().union(*self.ranks(job).values()):
            with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
                words = Path(f"/proc/{pid}/maps").read_text().split()
                found |= {Path(word) for word in words if "/mpich_shm_" in word}
        return found

    def logs(self, lines=40):
        """The last words of every daemon, less what each says whenever it starts."""
        parts = []
        for path in sorted(self.folder.glob("*.log")):
            text = path.read_text(errors="replace").splitlines()
            said = [line for line in text if not any(word in line for word in USUAL)]
            parts += [f"--- {path.name}", *said[-lines:]]
        return "\n".join(parts)

    def _write(self):
        """The key and the configuration."""
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        (self.folder / "state").mkdir()
        host = socket.gethostname().partition(".")[0]
        address, listen = loopback(host)
        controller, *ports = free_ports(1 + len(CPUS))
        for name in CPUS:
            (self.folder / name).mkdir()
        nodes = [
            NODE.format(name, host, address, port, cpus)
            for (name, cpus), port in zip(CPUS.items(), ports, strict=True)
        ]
        self.configuration.write_text(
            CONFIGURATION.format(
                host=host,
                address=address,
                listen=listen,
                user=getpass.getuser(),
                folder=self.folder,
                requeue_wait=REQUEUE_WAIT,
                controller=controller,
                first=random.SystemRandom().randrange(1000, 2**25),
                nodes="\n".join(nodes),
                main=",".join(NODES),
                frail=",".join(FRAIL),
            )
        )
        # Without this file the daemons look for control groups, as only root may.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")

    def _wait_until_idle(self):
        limit = time.monotonic() + START
        while time.monotonic() < limit and self._keeper.poll() is None:
            shown = self.call("sinfo", "-h", "-N", "-t", "idle", "-o", "%N", code=None)
            if set(shown.split()) == {*CPUS}:
                return
            time.sleep(0.1)
        raise RuntimeError(f"Slurm did not start:\n{self.logs()}")


def loopback(host):
    """(the address to listen at, the line that says so).

    Slurm listens at what the machine's own name resolves to, or else at every address.
    Where the name is not one of the loopback there is only the latter, behind a key of
    this cluster's own.
    """
    with suppress(OSError):
        address = socket.gethostbyname(host)
        if address.startswith("127."):
            return address, "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny"
    return "127.0.0.1", ""


def free_ports(count):
    """Ports of 127.0.0.1 that nobody has."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]

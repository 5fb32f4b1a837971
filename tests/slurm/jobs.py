"""The jobs of the tests, what happens to them, and in which order they are sent."""

import shutil
from pathlib import Path

from tests.helpers.file_calls import STRACE
from tests.slurm import keeper

ACROSS = ("--nodes", "2", "--tasks", "4")
PAIR = ("--tasks", "2")
# An exchange is a wait asleep, so that many jobs share two cores. 190 of 0.16 s are
# longer than the 30 s from one of Slurm's looks at time limits to the next.
SLOW = ("--network", "alpha=0.08,bandwidth=1e9")


def limited(desk, sent):
    """Has one minute, and is told to save 6 s ahead of its end, or 30 s earlier."""
    flags = (*ACROSS, "--walltime", "00:01:00", "--signal", "6")
    return desk.submit("train", "limited", desk.run, *SLOW, flags=flags)


def loses_first(desk, sent):
    """Will lose the node on which its script runs."""
    flags = (*ACROSS, "--partition", "frail")
    return desk.submit("train", "loses_first", desk.run, *SLOW, flags=flags)


def loses_last(desk, sent):
    """Will lose another node than that of its script."""
    flags = (*ACROSS, "--partition", "frail")
    return desk.submit("train", "loses_last", desk.run, *SLOW, flags=flags)


def sweep(desk, sent):
    """Three rates, one of which is told to save."""
    flags = (*PAIR, "--vary", "rate.value=0.02,0.05,0.1")
    return desk.submit("sweep", "sweep", desk.run, *SLOW, flags=flags)


SITE = """
summary = "generic-cpu, with every kind of line that a site may add"
[launcher]
mpi = "pmi2"
export = "NONE"
[[sbatch]]
value = '--comment="of a site"'
why = "as a reservation would be"
[[shell]]
value = "ulimit -c 7 && cd ."
why = "a limit that ranks inherit"
[[shell]]
value = 'export CAST="{text}.cast" && sbcast --force "{text}" "$CAST"'
why = "a file on each node"
[[wrapper]]
value = "{wrapper} 'one word'"
why = "a container starts the interpreter"
[[env]]
name = "MPIR_CVAR_CH4_NETMOD"
value = "ofi"
why = "as generic-cpu"
[[env]]
name = "PYTHONPATH"
value = "{path}"
why = "the sender's variables stay behind"
[[env]]
name = "SLURM_CONF"
value = "{conf}"
why = "this Slurm is not the one of /etc"
"""
# It notes what reached it, and becomes what is behind its own word.
WRAPPER = """#!/bin/bash
echo "$1|$(ulimit -c)|$([ -f "$CAST" ] && echo cast)|${{SENDER-none}}" >> "{seen}"
exec "${{@:2}}"
"""


def sited(desk, sent):
    """Several launches, on nodes of their own, at a site of one's own."""
    wrapper = desk.folder / "wrapper"
    wrapper.write_text(WRAPPER.format(seen=desk.folder / "seen.txt"))
    wrapper.chmod(0o755)
    site = desk.folder / "ours.toml"
    own = desk.cluster.environment
    site.write_text(
        SITE.format(
            text=desk.text,
            wrapper=wrapper,
            path=own["PYTHONPATH"],
            conf=own["SLURM_CONF"],
        )
    )
    flags = ("--ranks", "1,2", "--exclusive")
    scaling = ("scaling", "sited", desk.run)
    return desk.submit(*scaling, flags=flags, site=site, SENDER="not for the job")


STAGED = """
summary = "generic-cpu, with a look at the files that ranks ask for"
[launcher]
mpi = "pmi2"
[[env]]
name = "MPIR_CVAR_CH4_NETMOD"
value = "ofi"
why = "as generic-cpu"
"""
# Words of srun end where the command begins, which is then this one.
TRACED = """
[[flag]]
value = "{word}"
why = "notes every file that a rank asks for"
"""


def staged(desk, sent):
    """From an archive of this environment, under strace where there is one."""
    archive = desk.folder / "environment.tar.gz"
    assert desk.hpcsgd("jobs", "stage", archive).strip() == str(archive)
    site = desk.folder / "traced.toml"
    words = [*STRACE, "-ff", "-o", desk.folder / "trace"]
    words = words if shutil.which("strace") else []
    lines = (TRACED.format(word=word) for word in words)
    site.write_text("".join([STAGED, *lines]))
    flags = (*PAIR, "--stage", archive)
    return desk.submit("train", "staged", desk.run, flags=flags, site=site)


def train(desk, sent):
    """Four ranks on two nodes, to the goal."""
    return desk.submit("train", "train", desk.run, flags=ACROSS)


def converted(desk, sent):
    """The first of a chain: text to a data file."""
    return desk.submit("convert", "converted", desk.text, desk.folder / "text.h5")


def trained(desk, sent):
    """The second, on what the first makes."""
    flags = (*PAIR, "--after", sent.sent("converted").job)
    words = (desk.run, "--data", desk.folder / "text.h5")
    return desk.submit("train", "trained", *words, flags=flags)


def reported(desk, sent):
    """The third, about what the second leaves."""
    flags = ("--after", sent.sent("trained").job)
    run = sent.sent("trained").out / "run"
    words = ("report", run, "--out", desk.folder / "report.html")
    return desk.submit("command", "reported", *words, flags=flags)


def unconverted(desk, sent):
    """The first of a chain that breaks: there is no such text."""
    missing = desk.folder / "missing.csv"
    return desk.submit("convert", "unconverted", missing, desk.folder / "missing.h5")


def never(desk, sent):
    """Waits for what never comes."""
    flags = ("--after", sent.sent("unconverted").job)
    words = (desk.run, "--data", desk.folder / "missing.h5")
    return desk.submit("train", "never", *words, flags=flags)


def failing(desk, sent):
    """One of its ranks will be killed."""
    return desk.submit("train", "failing", desk.run, *SLOW, flags=ACROSS)


def unwanted(desk, sent):
    """Will be cancelled while it runs, however long that takes on a busy machine."""
    train = ("train", "unwanted", desk.run, *SLOW, "--epochs", "5000")
    return desk.submit(*train, flags=PAIR)


def smoke(desk, sent):
    """Looks whether all is well."""
    return desk.submit("smoke", "smoke", flags=ACROSS)


def kill_a_rank(job, cluster):
    """As a node short of memory would."""
    job.until(job.checkpoints, "saved anything")
    keeper.kill(cluster.ranks(job.job)[2])


def cancel(job, cluster):
    """As a user does."""
    job.until(job.checkpoints, "saved anything")
    assert job.desk.hpcsgd("jobs", "cancel", job.out).split() == [job.job]


def tell_an_element(job, cluster):
    """As Slurm does ahead of a time limit, or of preemption."""
    run = job.out / "runs/1"
    job.until(lambda: list(run.glob("checkpoints/*.h5")), "saved anything")
    cluster.call("scancel", "--signal=USR2", f"{job.job}_1")


def lose_first(job, cluster, which=0):
    """A node goes off, and whoever looks after nodes says so.

    Its ranks leave shared memory in a state in which the next start must not find it.
    """
    job.until(lambda: len(job.checkpoints()) == 2, "saved anything")
    job.lost = cluster.hosts(job.show()[0]["NodeList"])[which]
    segments = cluster.segments(job.job)
    cluster.kill_node(job.lost)
    for path in filter(Path.exists, segments):
        path.write_bytes(bytes(path.stat().st_size))
    down = ("state=down", "reason=test")
    cluster.call("scontrol", "update", f"nodename={job.lost}", *down)


def lose_last(job, cluster):
    """The same of the other node."""
    lose_first(job, cluster, -1)


ORDER = (
    limited,
    loses_first,
    loses_last,
    sweep,
    unconverted,
    never,
    converted,
    trained,
)
ORDER += (reported, failing, unwanted, train, smoke, sited, staged)
JOBS = {send.__name__: send for send in ORDER}
BEFORE = {  # what a job waits for
    "trained": {"converted"},
    "reported": {"converted", "trained"},
    "never": {"unconverted"},
}
ACTS = {  # what happens to a job while it runs
    "failing": kill_a_rank,
    "unwanted": cancel,
    "sweep": tell_an_element,
    "loses_first": lose_first,
    "loses_last": lose_last,
}

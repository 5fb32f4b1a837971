"""What Slurm knows of jobs: the queue, and the accounting where a site keeps it."""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

from hpcsgd.jobs.slurm import ask

ACTIVE = (
    "PENDING",
    "CONFIGURING",
    "RUNNING",
    "COMPLETING",
    "SUSPENDED",
    "STOPPED",
    "STAGE_OUT",
    "SIGNALING",
    "RESIZING",
    "REQUEUED",
    "REQUEUE_HOLD",
    "REQUEUE_FED",
    "SPECIAL_EXIT",
)
WAITING = ("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT")


@dataclass(frozen=True)
class Seen:
    """One job, or one element of an array, as Slurm shows it."""

    job: str  # 12, or 12_3
    state: str  # a word of Slurm, in capitals
    reason: str = ""
    elapsed: str = ""
    nodes: str = ""
    code: int | None = None

    @property
    def is_active(self) -> bool:
        """Whether it waits or runs."""
        return self.state in ACTIVE


def queued() -> dict[str, Seen] | None:
    """Job -> what the queue says of this user's, ended ones for some minutes too.

    None where there is no queue to ask.
    """
    shown = "%i|%T|%M|%N|%r"
    user = str(os.getuid())
    command = ["squeue", "--noheader", "--array", "--states=all", f"--user={user}"]
    answer = ask([*command, f"--format={shown}"])
    if answer is None or answer.code:
        return None
    found = {}
    for line in answer.out.splitlines():
        job, state, elapsed, nodes, reason = (*line.strip().split("|", 4), *[""] * 5)[
            :5
        ]
        if re.fullmatch(r"\d+(_\d+)?", job):
            found[job] = Seen(job, state, reason, elapsed, nodes)
    return found


def accounted(jobs: Iterable[str]) -> dict[str, Seen]:
    """Job -> what the accounting says; nothing where there is none, or it is off."""
    numbers = ",".join(sorted({job.partition("_")[0] for job in jobs}))
    if not numbers:
        return {}
    columns = "JobID,State,ExitCode,Elapsed,NodeList"
    options = ["--noheader", "--parsable2", "--allocations"]
    answer = ask(["sacct", *options, f"--jobs={numbers}", f"--format={columns}"])
    if answer is None or answer.code:
        return {}
    found = {}
    for line in answer.out.splitlines():
        job, state, code, elapsed, nodes = (*line.split("|", 4), *[""] * 5)[:5]
        if re.fullmatch(r"\d+(_\d+)?", job) and state:
            # "CANCELLED by 1000"; a code as 1:0, the second being a signal.
            word = state.split()[0].rstrip("+")
            found[job] = Seen(job, word, "", elapsed, nodes, _code(code))
    return found


def _code(text: str) -> int | None:
    """1 of 1:0, 137 of 0:9."""
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if not found:
        return None
    code, signal = int(found[1]), int(found[2])
    return code or (128 + signal if signal else 0)

"""Commands of Slurm that are run from here, and what they say of jobs."""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcsgd.errors import ConfigError, TransportError
from hpcsgd.files import append_line, own_folder, parse_object, read_entry_text

# Slurm's own programs: asked, and read.

PATIENCE = 60.0  # seconds for a busy controller


@dataclass(frozen=True)
class CommandOutput:
    """What a program said."""

    code: int
    out: str
    err: str


def run_command(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> CommandOutput | None:
    """Run it; None where it is not there, or says nothing for a minute."""
    if shutil.which(command[0]) is None:
        return None
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            timeout=PATIENCE,
            env=None if environment is None else dict(environment),
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return CommandOutput(done.returncode, done.stdout, done.stderr)


def need(program: str) -> None:
    """Refuse where Slurm is not installed."""
    if shutil.which(program) is None:
        raise ConfigError(
            f"there is no {program} on PATH: Slurm is not here; log in where it is,"
            " load its module, or take --site workstation"
        )


def clean_environment(directives: Sequence[str]) -> dict[str, str]:
    """The environment without what would win over the script's own lines.

    Nor has a job that is submitted from inside of another anything of that one.
    """
    said = {line.partition("=")[0].removeprefix("--") for line in directives}
    names = {f"SBATCH_{name.replace('-', '_').upper()}" for name in said} | ALWAYS
    names |= {other for name in said for other in OTHERS.get(name, ())}
    around = AROUND if "SLURM_JOB_ID" in os.environ else ()
    return {
        name: value
        for name, value in os.environ.items()
        if name not in names and (name in KEPT or not name.startswith(around))
    }


# What a job leaves in the environment of those inside; and what is the site's own.
AROUND = ("SLURM_", "SRUN_", "PMI_", "PMIX_", "OMPI_COMM_WORLD", "HPCSGD_EXPECT")
KEPT = ("SLURM_CONF", "SLURM_CLUSTERS")


# With it sbatch would say no number before the job is over.
ALWAYS = {"SBATCH_WAIT"}
# Where sbatch's variable is not called as its option is, or says the contrary.
OTHERS = {
    "array": ("SBATCH_ARRAY_INX",),
    "time": ("SBATCH_TIMELIMIT",),
    "mem": ("SBATCH_MEM_PER_NODE", "SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU"),
    "requeue": ("SBATCH_NO_REQUEUE",),
    "no-requeue": ("SBATCH_REQUEUE",),
}


# What Slurm knows of jobs: the queue, and the accounting where a site keeps it.

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
class QueueEntry:
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


def queued() -> dict[str, QueueEntry] | None:
    """Job -> what the queue says of this user's, ended ones for some minutes too.

    None where there is no queue to ask.
    """
    shown = "%i|%T|%M|%N|%r"
    user = str(os.getuid())
    command = ["squeue", "--noheader", "--array", "--states=all", f"--user={user}"]
    answer = run_command([*command, f"--format={shown}"])
    if answer is None or answer.code:
        return None
    found = {}
    for line in answer.out.splitlines():
        job, state, elapsed, nodes, reason = (*line.strip().split("|", 4), *[""] * 5)[
            :5
        ]
        if re.fullmatch(r"\d+(_\d+)?", job):
            found[job] = QueueEntry(job, state, reason, elapsed, nodes)
    return found


def need_queue(jobs: Iterable[str], what: str) -> None:
    """Refuse to act on jobs of which nobody knows whether they wait or run."""
    unknown = list(jobs)
    if unknown and queued() is None:
        raise TransportError(
            f"squeue does not answer, so job {unknown[0]} may wait or run; {what} when"
            " it does"
        )


def accounted(jobs: Iterable[str]) -> dict[str, QueueEntry]:
    """Job -> what the accounting says; nothing where there is none, or it is off."""
    own = {job.partition("_")[0] for job in jobs}
    numbers = ",".join(sorted(filter(str.isdigit, own)))
    if not numbers:
        return {}
    columns = "JobID,State,ExitCode,Elapsed,NodeList"
    options = ["--noheader", "--parsable2", "--allocations"]
    answer = run_command(
        ["sacct", *options, f"--jobs={numbers}", f"--format={columns}"]
    )
    if answer is None or answer.code:
        return {}
    found = {}
    for line in answer.out.splitlines():
        job, state, code, elapsed, nodes = (*line.split("|", 4), *[""] * 5)[:5]
        if re.fullmatch(r"\d+(_\d+)?", job) and state:
            # "CANCELLED by 1000"; a code as 1:0, the second being a signal.
            word = state.split()[0].rstrip("+")
            found[job] = QueueEntry(job, word, "", elapsed, nodes, _code(code))
    return found


def _code(text: str) -> int | None:
    """1 of 1:0, 137 of 0:9."""
    found = re.fullmatch(r"(\d+):(\d+)", text)
    if not found:
        return None
    code, signal = int(found[1]), int(found[2])
    return code or (128 + signal if signal else 0)


# What is known of a job in its folder: what was submitted, and what became of it.

LOG, SCRIPT, STATE = "jobs.jsonl", "job.sbatch", "state"
SCHEMA = 1


def add_record(folder: Path, event: str, **said: Any) -> dict[str, Any]:
    """Append one line to the jobs of a folder, whole and flushed to disk."""
    at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    record = {"schema": SCHEMA, "event": event, "at": at, **said}
    try:
        append_line(folder / LOG, json.dumps(record, ensure_ascii=False))
    except OSError as error:
        job = f", and job {said['job']} is not noted there" if "job" in said else ""
        raise ConfigError(
            f"{folder / LOG} cannot be written ({error.strerror}){job}; make room, or"
            " remove that entry"
        ) from error
    return record


def records(folder: Path) -> list[dict[str, Any]]:
    """Every line, oldest first."""
    try:
        text = read_entry_text(folder / LOG, "replace")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(
            f"{folder} is not the folder of a job: it has no {LOG}; name what --out of"
            " hpcsgd jobs submit was"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{folder / LOG} cannot be read ({error.strerror}); bring the file back, or"
            " submit into another folder"
        ) from error
    return list(_objects(text))


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a file that may still be written, or be missing."""
    with suppress(OSError):
        yield from _objects(read_entry_text(path, "replace"))


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """The lines that are whole, and objects."""
    objects = (parse_object(line) for line in text.splitlines())
    return (entry for entry in objects if entry is not None)


def submitted(folder: Path) -> list[dict[str, Any]]:
    """What was submitted from here, oldest first."""
    return [r for r in records(folder) if r.get("event") == "submitted"]


def notes(folder: Path, job: str) -> list[dict[str, Any]]:
    """What the script of a job, or of an element as 12_3, wrote of itself."""
    with suppress(OSError):
        return list(lines(own_folder(folder, STATE) / f"{job}.jsonl"))
    return []

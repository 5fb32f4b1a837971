"""Commands of Slurm, their output on jobs, and the records of a job's folder."""

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

# The programs of Slurm: calls of them, and their output.

PATIENCE = 60.0  # seconds for a busy controller


@dataclass(frozen=True)
class CommandOutput:
    """The exit code and the output of a program."""

    code: int
    out: str
    err: str


def run_command(
    command: Sequence[str], environment: Mapping[str, str] | None = None
) -> CommandOutput | None:
    """Run `command`; return None if it cannot be started or takes over a minute.

    Without `environment`, it inherits that of this process.
    """
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
    """Raise ConfigError if `program` of Slurm is not on PATH."""
    if shutil.which(program) is None:
        raise ConfigError(
            f"there is no {program} on PATH: Slurm is not here; log in where it is,"
            " load its module, or submit to --site workstation"
        )


def mpi_plugins() -> list[str]:
    """Return the values that srun --mpi takes here; [] if srun does not list them."""
    answer = run_command(["srun", "--mpi=list"])
    if answer is None or answer.code:
        return []
    shown = f"{answer.out}\n{answer.err}"
    return re.findall(r"(?m)^(?:srun: )?\s*([a-z][a-z0-9_]*)$", shown)


def clean_environment(directives: Sequence[str]) -> dict[str, str]:
    """Return the environment for sbatch, without variables that override `directives`.

    If this process runs in a job, variables that Slurm and MPI set there are removed as
    well.
    """
    options = {line.partition("=")[0].removeprefix("--") for line in directives}
    names = {f"SBATCH_{name.replace('-', '_').upper()}" for name in options} | ALWAYS
    names |= {other for name in options for other in OTHERS.get(name, ())}
    around = AROUND if "SLURM_JOB_ID" in os.environ else ()
    return {
        name: value
        for name, value in os.environ.items()
        if name not in names and (name in KEPT or not name.startswith(around))
    }


# Prefixes of variables that Slurm and MPI set in a job, and the variables of the site.
AROUND = ("SLURM_", "SRUN_", "PMI_", "PMIX_", "OMPI_COMM_WORLD", "HPCSGD_EXPECT")
KEPT = ("SLURM_CONF", "SLURM_CLUSTERS")


# With this variable, sbatch returns no job number before the job has ended.
ALWAYS = {"SBATCH_WAIT"}
# Options of sbatch whose variables have other names, or the opposite meaning.
OTHERS = {
    "array": ("SBATCH_ARRAY_INX",),
    "time": ("SBATCH_TIMELIMIT",),
    "mem": ("SBATCH_MEM_PER_NODE", "SBATCH_MEM_PER_CPU", "SBATCH_MEM_PER_GPU"),
    "requeue": ("SBATCH_NO_REQUEUE",),
    "no-requeue": ("SBATCH_REQUEUE",),
}


# The state of jobs in Slurm: the queue, and the accounting if a site has it.

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
    state: str  # a state of Slurm, in capitals
    reason: str = ""
    elapsed: str = ""
    nodes: str = ""
    code: int | None = None

    @property
    def is_active(self) -> bool:
        """Return whether the job waits or runs."""
        return self.state in ACTIVE


def queued() -> dict[str, QueueEntry] | None:
    """Return job -> entry of the queue, for the jobs of this user.

    Slurm shows ended jobs for some minutes. Return None if squeue fails.
    """
    shown = "%i|%T|%M|%N|%r"
    user = str(os.getuid())
    command = ["squeue", "--noheader", "--array", "--states=all", f"--user={user}"]
    answer = run_command([*command, f"--format={shown}"])
    if answer is None or answer.code:
        return None
    entries = {}
    for line in answer.out.splitlines():
        job, state, elapsed, nodes, reason = (*line.strip().split("|", 4), *[""] * 5)[
            :5
        ]
        if re.fullmatch(r"\d+(_\d+)?", job):
            entries[job] = QueueEntry(job, state, reason, elapsed, nodes)
    return entries


def need_queue(jobs: Iterable[str], what: str) -> None:
    """Raise TransportError if squeue fails and `jobs` is not empty.

    The state of `jobs` is unknown. `what` is the advice in the message: "submit again".
    """
    unknown = list(jobs)
    if unknown and queued() is None:
        raise TransportError(
            f"squeue does not answer, so that job {unknown[0]} may still wait or run;"
            f" {what} when squeue answers"
        )


def accounted(jobs: Iterable[str]) -> dict[str, QueueEntry]:
    """Return job -> entry of the accounting; empty if there is none or sacct fails.

    For an element of an array, all elements of this array are included.
    """
    base_ids = {job.partition("_")[0] for job in jobs}
    numbers = ",".join(sorted(filter(str.isdigit, base_ids)))
    if not numbers:
        return {}
    columns = "JobID,State,ExitCode,Elapsed,NodeList"
    options = ["--noheader", "--parsable2", "--allocations"]
    answer = run_command(
        ["sacct", *options, f"--jobs={numbers}", f"--format={columns}"]
    )
    if answer is None or answer.code:
        return {}
    entries = {}
    for line in answer.out.splitlines():
        job, state, code, elapsed, nodes = (*line.split("|", 4), *[""] * 5)[:5]
        if re.fullmatch(r"\d+(_\d+)?", job) and state:
            # The state may be "CANCELLED by 1000"; the code is CODE:SIGNAL, as 1:0.
            word = state.split()[0].rstrip("+")
            entries[job] = QueueEntry(job, word, "", elapsed, nodes, _code(code))
    return entries


def _code(text: str) -> int | None:
    """Return the exit code of CODE:SIGNAL: 1 for 1:0, 137 for 0:9; None for others."""
    match = re.fullmatch(r"(\d+):(\d+)", text)
    if not match:
        return None
    code = int(match[1])
    signal = int(match[2])
    return code or (128 + signal if signal else 0)


# The records of a job in its folder: its submission, its starts and its end.

LOG = "jobs.jsonl"
SCRIPT = "job.sbatch"
STATE = "state"
SCHEMA = 1


def add_record(folder: Path, event: str, **said: Any) -> dict[str, Any]:
    """Append a record to jobs.jsonl in a job's folder, flushed to disk; return it.

    `said` has the facts of the record beside schema, event and time.
    """
    at = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    record = {"schema": SCHEMA, "event": event, "at": at, **said}
    try:
        append_line(folder / LOG, json.dumps(record, ensure_ascii=False))
    except OSError as error:
        job = f", and job {said['job']} is not noted there" if "job" in said else ""
        raise ConfigError(
            f"{folder / LOG} cannot be written ({error.strerror}){job}; free disk"
            " space, or remove that file or link"
        ) from error
    return record


def records(folder: Path) -> list[dict[str, Any]]:
    """Return the records in jobs.jsonl of a job's folder, oldest first."""
    try:
        text = read_entry_text(folder / LOG, "replace")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(
            f"{folder} is not the folder of a job: it has no {LOG}; name the --out"
            " folder of hpcsgd jobs submit"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{folder / LOG} cannot be read ({error.strerror}); restore the file, or"
            " submit the job with another --out"
        ) from error
    return list(_objects(text))


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects in the lines of a file, which may be missing.

    Lines that are incomplete or contain no object are left out.
    """
    with suppress(OSError):
        yield from _objects(read_entry_text(path, "replace"))


def _objects(text: str) -> Iterator[dict[str, Any]]:
    """Return the lines of `text` that are complete JSON objects, parsed."""
    objects = (parse_object(line) for line in text.splitlines())
    return (entry for entry in objects if entry is not None)


def submitted(folder: Path) -> list[dict[str, Any]]:
    """Return the records of submissions in a folder, oldest first."""
    return [r for r in records(folder) if r.get("event") == "submitted"]


def notes(folder: Path, job: str) -> list[dict[str, Any]]:
    """Return the records that the script of a job (12), or of an element (12_3), wrote.

    Return an empty list if the file is missing.
    """
    with suppress(OSError):
        return list(lines(own_folder(folder, STATE) / f"{job}.jsonl"))
    return []

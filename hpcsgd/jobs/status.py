"""The states of jobs, and the causes of their failures."""

import csv
import io
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcsgd.files import (
    is_abandoned,
    open_entry,
    own_folder,
    parse_object,
    read_entry_text,
    toml_value,
    user_of,
)
from hpcsgd.jobs.job import option_values
from hpcsgd.jobs.queue import (
    WAITING,
    QueueEntry,
    accounted,
    lines,
    notes,
    queued,
    records,
    submitted,
)
from hpcsgd.jobs.resources import JobArray, written
from hpcsgd.runs.result import REQUEUE

# The state of a job in one word, from the notes of its script and from Slurm.

Notes = Sequence[dict[str, Any]]
# Ends that only Slurm records, with the state and a remedy.
ENDS = {
    "TIMEOUT": (
        "timeout",
        "the time limit came before its end; submit it again to go on, with a longer"
        " --walltime, or with an earlier --signal where it had no time to save",
    ),
    "DEADLINE": (
        "timeout",
        "its deadline came before its end; submit it again to go on",
    ),
    "NODE_FAIL": ("failed", "a node failed; submit it again to go on"),
    "BOOT_FAIL": ("failed", "a node did not start; submit it again"),
    "OUT_OF_MEMORY": (
        "failed",
        "memory ran out; ask for more --memory, or for more --nodes",
    ),
    "CANCELLED": ("cancelled", ""),
    "REVOKED": ("cancelled", ""),
    "PREEMPTED": ("preempted", "preempted; submit it again to go on"),
}
SAID = {"COMPLETED": "completed", "FAILED": "failed"}


def judge(notes: Notes, seen: QueueEntry | None, has_queue: bool) -> tuple[str, str]:
    """Return the state of a job, and a sentence on it, which may be empty.

    The state is pending, running, requeued, completed, preempted, failed, timeout,
    cancelled, terminated, lost or unknown. `notes` are the records of the job's script,
    `seen` is the entry of the job in Slurm, and `has_queue` is False if Slurm does not
    answer.
    """
    if seen is not None and seen.is_active:
        active = _of_active(notes, seen)
        if active:
            return active
    last = last_event(notes)
    is_good = last.get("event") == "ended" and last["code"] == 0
    if seen is not None and seen.state in ENDS and not is_good:
        return ENDS[seen.state]
    if last:
        return _of_notes(last, has_queue)
    if seen is not None and seen.state in SAID:
        return SAID[seen.state], ""
    if has_queue:
        why = (
            "it never began, and Slurm knows it no more: cancelled, or waiting in vain"
        )
        return "unknown", why
    return "unknown", "it has not begun, and squeue does not answer here"


def _of_active(notes: Notes, seen: QueueEntry) -> tuple[str, str] | None:
    """Return (state, reason) of a job that waits or runs, by its entry in Slurm.

    The result is None if the job is completing and its script has ended.
    """
    if seen.state in WAITING:
        reason = seen.reason if seen.reason not in ("", "None") else ""
        return ("requeued" if notes else "pending", reason)
    over = last_event(notes).get("event") in ("ended", "given-up", "terminated")
    return None if over and seen.state == "COMPLETING" else ("running", "")


def _of_notes(last: dict[str, Any], has_queue: bool) -> tuple[str, str]:
    """Return (state, reason) of a job by the last note of its script."""
    event = last["event"]
    code = last.get("code", 0)
    if event == "ended" and code == REQUEUE:
        return "preempted", "its state is saved; submit it again to go on"
    if event == "ended":
        return ("failed", "") if code else ("completed", "")
    if event == "given-up":
        return "failed", "start after start saved nothing new; ask for more --walltime"
    if event == "terminated":
        return "terminated", "ended from outside: a time limit, or somebody"
    if not has_queue:
        return "unknown", "it has begun, and squeue does not answer here"
    if event == "requeued":
        return "lost", "it was requeued and is not in the queue; submit it again"
    why = "its script ended without a word: a node, its memory or a kill"
    return "lost", f"{why}; submit it again to go on"


def last_event(notes: Notes) -> dict[str, Any]:
    """Return the last note on the job as a whole, not on a step; {} without one."""
    whole = [n for n in notes if n.get("event") not in (None, "step")]
    return whole[-1] if whole else {}


# The rank that made a job fail, by the job's log.

MOST = 4 * 2**20  # bytes of a log that are read, from its end
BEGINS = re.compile(r"(?m)^hpcsgd: job \S+: begins .*$")


@dataclass(frozen=True)
class Blame:
    """The rank that made a job fail, if the log names it, and a line of the log."""

    rank: int | None
    text: str


# The death of a rank precedes other signs: other ranks then fail by a broken connection
# and write more. When Slurm ends the step it kills all ranks, which shows no cause.
DEATH = re.compile(
    r"^(?P<text>srun: error: \S+: task (?P<rank>\d+): (?!Exited with|Terminated).*)$",
    re.MULTILINE,
)
ENDING = re.compile(r"(?m)^(srun: Job step aborted|slurmstepd\S*: error: \*\*\* STEP)")
# The clearest sign is first; `rank` and `text` are groups.
SIGNS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^hpcsgd: rank (?P<rank>\d+): error: (?P<text>.*)$",
        r"^hpcsgd: rank (?P<rank>\d+) of \d+ failed:\n(?P<text>(?:.*\n)*?\S*(?:Error|"
        r"Exception|Interrupt|Lost|Exit)\b.*)$",
        r"^hpcsgd: (?P<text>rank \d+ of \d+ has waited .*?\brank (?P<rank>\d+)"
        r" (?:is not there|does not answer).*)$",
        r"^hpcsgd: (?P<text>.*the memory of rank (?P<rank>\d+) holds a value.*)$",
        r"^(?P<text>.*application called MPI_Abort\(.*\) - process (?P<rank>\d+).*)$",
        r"^(?P<text>Abort\(\d+\) on node (?P<rank>\d+) .*)$",
        r"^hpcsgd: error: (?P<text>.*)$",
        r"^(?P<text>srun: error: \S+: task (?P<rank>\d+): .*)$",
        r"^hpcsgd: (?P<text>diverged: .*)$",
        r"^(?P<text>srun: error: .*)$",
        r"^(?P<text>slurmstepd: error: .*)$",
    )
)
ENDED_WELL = "Exited with exit code 75"  # preempted: the state is saved


def find_culprit(log: Path) -> Blame | None:
    """Return the rank or the cause that the log of a failed job blames, or None.

    Only the text after the last start of the job is searched. The death of a rank that
    Slurm reports comes first, then the clearest of `SIGNS`.
    """
    text = last_start(log)
    death = DEATH.search(ENDING.split(text, maxsplit=1)[0])
    if death:
        return _as_blame(death)
    for sign in SIGNS:
        for match in sign.finditer(text):
            if ENDED_WELL not in match[0]:
                return _as_blame(match)
    return None


def last_start(log: Path) -> str:
    """Return the text of a log after the last start of its job; "" without a log.

    Only the last `MOST` bytes of the log are read.
    """
    try:
        own_folder(log.parents[1], log.parent.name)
        with open(open_entry(log), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MOST))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    starts = list(BEGINS.finditer(text))
    return text[starts[-1].end() :] if starts else text


def _as_blame(found: "re.Match[str]") -> Blame:
    """Return the rank of a match, and the last line of its text (of a traceback)."""
    rank = found.groupdict().get("rank")
    text = found["text"].rstrip().rsplit("\n", 1)[-1]
    return Blame(int(rank) if rank is not None else None, text.strip())


# The progress of a run, from its folder only.


def run_facts(folder: Path, is_over: bool = False) -> dict[str, Any]:
    """Return status, epoch and loss of a run; empty before its first recorded loss.

    With a result, there are also iterations, seconds_total and weights_sha256.

    Parameters
    ----------
    folder : of the run
    is_over : whether the job that trained there has ended

    A run without a result is "unfinished" if its process or job is known to have ended,
    else "running".
    """
    result = read_result(folder)
    if result:
        names = ("status", "loss", "iterations", "seconds_total", "weights_sha256")
        facts = {name: result.get(name) for name in names}
        history = result.get("history") or [{}]
        return {**facts, "epoch": history[-1].get("epoch")}
    seen = [r for r in lines(folder / "history.jsonl") if "loss" in r and "epoch" in r]
    if not seen:
        return {}
    has_ended = not user_of(folder) and (is_over or is_abandoned(folder))
    status = "unfinished" if has_ended else "running"
    return {"status": status, "epoch": seen[-1]["epoch"], "loss": seen[-1]["loss"]}


def read_result(folder: Path) -> dict[str, Any]:
    """Return the contents of result.json; empty if it cannot be read."""
    try:
        return parse_object(read_entry_text(folder / "result.json")) or {}
    except (OSError, ValueError):  # it is missing, or no text
        return {}


# The states of jobs, by their folders, the queue, and accounting if a site has it.

BAD = ("failed", "lost", "timeout")
ACTIVE = ("pending", "running", "requeued")


@dataclass(frozen=True)
class JobExecution:
    """The execution of a job on its nodes.

    Attributes
    ----------
    code : int or None
        Exit code; None if it is not known.
    restarts : int
        How often the job was started again.
    nodes : str
        Names of its nodes, as Slurm writes them.
    elapsed : str
        Time from its last start to now or to its end, as Slurm writes it.
    """

    code: int | None
    restarts: int
    nodes: str
    elapsed: str


@dataclass(frozen=True)
class JobRun:
    """A run of a job.

    Attributes
    ----------
    folder : str
        Path of the run folder.
    facts : dict
        Status, epoch and loss, as `run_facts` returns them.
    """

    folder: str
    facts: dict[str, Any]


@dataclass(frozen=True)
class JobState:
    """The state of one job, or of one element of an array, as `judge` names it.

    Attributes
    ----------
    job : str
        Number of the job in Slurm.
    name : str
        Name of the job.
    template : str
        Template from which the job was made.
    state : str
        State of the job, as `judge` names it.
    execution : JobExecution
        Exit code, restarts, nodes and time of the job.
    why : str
        Why the job waits, as Slurm names it; or why it did not end well, or why its
        state is not known; else "".
    rank : int or None
        The rank that failed, if the log names it.
    runs : tuple of JobRun
        The runs of the job that have a folder.
    log : str
        Path of the log; "" if there is none.
    """

    job: str
    name: str
    template: str
    state: str
    execution: JobExecution
    why: str
    rank: int | None
    runs: tuple[JobRun, ...]
    log: str

    def as_dict(self) -> dict[str, Any]:
        """Return the attributes as a dict for JSON, with those of `execution` in it.

        "runs" has the folders of the runs, and "facts" their facts.
        """
        return {
            "job": self.job,
            "name": self.name,
            "template": self.template,
            "state": self.state,
            **vars(self.execution),
            "why": self.why,
            "rank": self.rank,
            "runs": [run.folder for run in self.runs],
            "facts": [run.facts for run in self.runs],
            "log": self.log,
        }


@dataclass(frozen=True)
class SlurmFacts:
    """The entries of jobs in Slurm's queue and accounting.

    `queue` is None if squeue fails; `cancelled` has the jobs that hpcsgd has cancelled.
    """

    queue: Mapping[str, QueueEntry] | None
    account: Mapping[str, QueueEntry] = field(default_factory=dict)
    cancelled: frozenset[str] = frozenset()

    def seen(self, job: str) -> QueueEntry | None:
        """Return the newest entry of a job, or None.

        It is the queue's entry while the job is active, else that of the accounting;
        without that, the queue's entry of the ended job.
        """
        queued = (self.queue or {}).get(job)
        if queued is not None and queued.is_active:
            return queued
        return self.account.get(job) or queued

    def was_cancelled(self, job: str) -> bool:
        """Return whether `hpcsgd jobs cancel` cancelled the job, or its whole array."""
        return bool({job, job.partition("_")[0]} & self.cancelled)


def states(folder: Path) -> list[JobState]:
    """Return the state of every job of `folder`, one for each element of an array."""
    events = records(folder)
    # A script that is run by hand has the same job name for all its submissions.
    sent = {r["job"]: r for r in events if r.get("event") == "submitted"}.values()
    jobs = [(job, number, r) for r in sent for number, job in elements(r)]
    facts = query_slurm([job for job, _, _ in jobs], events)
    return [_state(folder, job, n, record, facts) for job, n, record in jobs]


def query_slurm(
    jobs: Sequence[str], said: Sequence[Mapping[str, Any]] = ()
) -> SlurmFacts:
    """Query Slurm's queue, and its accounting for jobs not active in the queue.

    `said` are the records of the folder, which name the jobs that were cancelled.
    """
    queue = queued()
    active = {job for job, seen in (queue or {}).items() if seen.is_active}
    cancelled = {str(r.get("job")) for r in said if r.get("event") == "cancelled"}
    return SlurmFacts(queue, accounted(set(jobs) - active), frozenset(cancelled))


def elements(record: Mapping[str, Any]) -> list[tuple[int, str]]:
    """Return (number, Slurm's job number) of each element that a submission started."""
    job = str(record["job"])
    if not record.get("array"):
        return [(0, job)]
    return [(n, f"{job}_{n}") for n in JobArray.parse(record["array"]).numbers]


def _state(
    folder: Path, job: str, number: int, record: Mapping[str, Any], known: SlurmFacts
) -> JobState:
    """Return the state of one job, with the rank that made it fail.

    `record` is that of its submission, `number` its element of the array (0 without an
    array), and `known` has its entries in Slurm.
    """
    job_notes = notes(folder, job)
    seen = known.seen(job)
    word, why = judge(job_notes, seen, known.queue is not None)
    if word not in (*ACTIVE, "completed") and known.was_cancelled(job):
        word = "cancelled"
        why = ""
    log = folder / "log" / f"{job}.log"
    blamed = find_culprit(log) if word in BAD else None
    execution = JobExecution(
        code=_code(job_notes, seen),
        restarts=max((n.get("restarts", 0) for n in job_notes), default=0),
        nodes=(seen.nodes if seen else "")
        or str(last_event(job_notes).get("nodes", "")),
        elapsed=(seen.elapsed if seen else "") or _elapsed(job_notes),
    )
    is_over = word not in (*ACTIVE, "unknown")
    return JobState(
        job=job,
        name=str(record.get("name", "")),
        template=str(record.get("template", "")),
        state=word,
        execution=execution,
        why="; ".join(filter(None, (blamed.text if blamed else "", why))),
        rank=blamed.rank if blamed else None,
        runs=tuple(
            JobRun(folder, run_facts(Path(folder), is_over))
            for folder in _run_folders(record, number)
        ),
        log=str(log) if log.exists() else "",
    )


def _run_folders(record: Mapping[str, Any], number: int) -> tuple[str, ...]:
    """Return the run folders of a job; for an array element, that of its own run."""
    steps = record.get("steps", [])
    mine = steps[number : number + 1] if record.get("array") else steps
    place = Path(record.get("workplace", "."))
    return tuple(str(place / step["run"]) for step in mine if step.get("run"))


def _code(said: Notes, seen: QueueEntry | None) -> int | None:
    """Return the exit code of a job, from its notes if they have one, else from Slurm.

    The accounting does not contain the code 75 of a job that was requeued.
    """
    last = last_event(said)
    if last and last["event"] != "began":
        return int(last["code"])
    return seen.code if seen else None


def _elapsed(said: Notes) -> str:
    """Return the time from the last start of a job to its last note as text.

    It is "" if the script has not begun, or has noted nothing since it began.
    """
    began = [n["at"] for n in said if n.get("event") == "began"]
    last = last_event(said)
    if not began or last.get("event") == "began":
        return ""
    return written(max(0, last["at"] - began[-1]))


# The results of jobs in one table: a row for each run.

OF_RESULT = ("status", "loss", "iterations", "seconds_total", "ranks")
COLUMNS = ("job", "state", "run", *OF_RESULT)


def collect(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each run of the jobs of `folder`, as dicts.

    A row has the state of the newest job that used the run, the figures of the result,
    and the settings that differ between the runs.
    """
    settings = _settings(folder)
    differing = _differing(list(settings.values()))
    rows: dict[str, dict[str, Any]] = {}
    for state in states(folder):
        for run in state.runs:
            run_settings = settings.get(run.folder, {})
            varied = {key: run_settings.get(key) for key in differing}
            rows[run.folder] = {**_row(state, run.folder), **varied}
    return list(rows.values())


def _row(state: JobState, run: str) -> dict[str, Any]:
    """Return job, state, folder and figures of one run, for the table."""
    result = read_result(Path(run))
    figures = {name: result.get(name) for name in OF_RESULT}
    return {"job": state.job, "state": state.state, "run": run, **figures}


def _settings(folder: Path) -> dict[str, dict[str, Any]]:
    """Return run folder -> the settings that --set names in the command of the run."""
    settings = {}
    for record in submitted(folder):
        place = Path(record.get("workplace", "."))
        for step in record.get("steps", []):
            settings[str(place / step["run"])] = _sets(step["command"])
    return settings


def _sets(command: Sequence[str]) -> dict[str, Any]:
    """Return section.key -> value of every `--set section.key=value` in a command."""
    settings = {}
    for assignment in option_values(command, "--set"):
        key, _, value = assignment.partition("=")
        settings[key] = toml_value(value)
    return settings


def _differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the keys whose values differ between `settings`, in their order."""
    keys = dict.fromkeys(key for run_settings in settings for key in run_settings)
    return [
        k
        for k in keys
        if len({repr(run_settings.get(k)) for run_settings in settings}) > 1
    ]


def as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the rows as CSV with a header."""
    names = list(dict.fromkeys(key for row in rows for key in row)) or list(COLUMNS)
    file = io.StringIO()
    writer = csv.DictWriter(file, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return file.getvalue()

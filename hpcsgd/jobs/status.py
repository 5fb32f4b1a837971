"""What became of jobs: by their folders, the queue, and accounting if there is any."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpcsgd.jobs.blame import blame
from hpcsgd.jobs.queue import Seen, accounted, queued
from hpcsgd.jobs.records import notes, records
from hpcsgd.jobs.runs import run_facts
from hpcsgd.jobs.syntax import Array, written
from hpcsgd.jobs.verdict import Notes, judge, last_event

BAD = ("failed", "lost", "timeout")
ACTIVE = ("pending", "running", "requeued")


@dataclass(frozen=True)
class State:
    """One job, or one element of an array; `state` as `hpcsgd.jobs.verdict` has it."""

    job: str
    name: str
    template: str
    state: str
    code: int | None = None
    restarts: int = 0
    nodes: str = ""
    elapsed: str = ""
    why: str = ""  # one sentence, where it did not end well
    rank: int | None = None  # the one that failed, where the log names it
    runs: tuple[str, ...] = ()
    facts: tuple[dict[str, Any], ...] = ()  # of each run folder
    log: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return dict(vars(self))


@dataclass(frozen=True)
class Known:
    """What Slurm says; without a queue `queue` is None."""

    queue: Mapping[str, Seen] | None
    account: Mapping[str, Seen] = field(default_factory=dict)
    cancelled: frozenset[str] = frozenset()

    def seen(self, job: str) -> Seen | None:
        """The newest word: the queue's while it is active, then the accounting's."""
        queued = (self.queue or {}).get(job)
        if queued is not None and queued.is_active:
            return queued
        return self.account.get(job) or queued

    def was_cancelled(self, job: str) -> bool:
        """By `hpcsgd jobs cancel`, as a whole or this element."""
        return bool({job, job.partition("_")[0]} & self.cancelled)


def states(folder: Path) -> list[State]:
    """Every job that was submitted from `folder`, elements of arrays apart."""
    said = records(folder)
    # A script that is run by hand has one name however often it is written.
    sent = {r["job"]: r for r in said if r.get("event") == "submitted"}.values()
    jobs = [(job, number, r) for r in sent for number, job in elements(r)]
    known = look_up([job for job, _, _ in jobs], said)
    return [_state(folder, job, n, record, known) for job, n, record in jobs]


def look_up(jobs: Sequence[str], said: Sequence[Mapping[str, Any]] = ()) -> Known:
    """Ask Slurm; the accounting only of what the queue does not show as active."""
    queue = queued()
    active = {job for job, seen in (queue or {}).items() if seen.is_active}
    cancelled = {str(r.get("job")) for r in said if r.get("event") == "cancelled"}
    return Known(queue, accounted(set(jobs) - active), frozenset(cancelled))


def elements(record: Mapping[str, Any]) -> list[tuple[int, str]]:
    """(number, job) of what one submission started."""
    job = str(record["job"])
    if not record.get("array"):
        return [(0, job)]
    return [(n, f"{job}_{n}") for n in Array.parse(record["array"]).numbers]


def _state(
    folder: Path, job: str, number: int, record: Mapping[str, Any], known: Known
) -> State:
    """The verdict on one job, and who is to blame."""
    said, seen = notes(folder, job), known.seen(job)
    word, why = judge(said, seen, known.queue is not None)
    if word not in (*ACTIVE, "completed") and known.was_cancelled(job):
        word, why = "cancelled", ""
    log = folder / "log" / f"{job}.log"
    blamed = blame(log) if word in BAD else None
    runs = _runs(record, number)
    is_over = word not in (*ACTIVE, "unknown")
    return State(
        job=job,
        name=str(record.get("name", "")),
        template=str(record.get("template", "")),
        state=word,
        code=_code(said, seen),
        restarts=max((n.get("restarts", 0) for n in said), default=0),
        nodes=(seen.nodes if seen else "") or str(last_event(said).get("nodes", "")),
        elapsed=(seen.elapsed if seen else "") or _elapsed(said),
        why="; ".join(filter(None, (blamed.text if blamed else "", why))),
        rank=blamed.rank if blamed else None,
        runs=runs,
        facts=tuple(run_facts(Path(run), is_over) for run in runs),
        log=str(log) if log.exists() else "",
    )


def _runs(record: Mapping[str, Any], number: int) -> tuple[str, ...]:
    """Run folders of this job: of its own element alone where it is one of an array."""
    steps = record.get("steps", [])
    mine = steps[number : number + 1] if record.get("array") else steps
    place = Path(record.get("workplace", "."))
    return tuple(str(place / step["run"]) for step in mine if step.get("run"))


def _code(said: Notes, seen: Seen | None) -> int | None:
    """Its own word first: accounting has no 75 of a job that was requeued."""
    last = last_event(said)
    if last and last["event"] != "began":
        return int(last["code"])
    return seen.code if seen else None


def _elapsed(said: Notes) -> str:
    """Of the last start."""
    began = [n["at"] for n in said if n.get("event") == "began"]
    last = last_event(said)
    if not began or last.get("event") == "began":
        return ""
    return written(max(0, last["at"] - began[-1]))

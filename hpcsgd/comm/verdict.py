"""What to make of a wait that is too long, from what the others answered.

A rank that moves has changed its place within the timeout; a busy one burns CPU or
reads and writes; an idle one does neither. Slow work is no stall: it gets patience.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from hpcsgd.comm.place import Spot

PATIENCE = 10  # times the timeout that a rank is waited for while it works
NAMED = 8  # ranks that a report names one by one
WORKS, STOPPED, GONE = "RD", "Tt", "ZX-"  # states of a process, as in /proc


@dataclass(frozen=True)
class Answer:
    """Where the main thread of a rank is."""

    spot: Spot | None
    before: Spot | None  # the last collective that it left
    since: float  # seconds that it has been there
    awake: float  # of which its process surely was not suspended
    busy: bool
    looks: Mapping[int, str] = field(default_factory=dict)  # silent ranks it can see


class Action(Enum):
    """What to do with the job."""

    GO_ON = "go on"  # the others move
    BE_PATIENT = "be patient"  # somebody works
    END = "end"


@dataclass(frozen=True)
class Verdict:
    """What to do, why, and whose stack says more."""

    action: Action
    reasons: tuple[str, ...] = ()
    suspects: tuple[int, ...] = ()


def judge(
    own: Spot,
    waited: float,
    timeout: float,
    answers: Mapping[int, Answer],
    silent: Mapping[int, str],
) -> Verdict:
    """The verdict of a rank that has `waited` in `own`; rank -> state of the silent."""
    moving = [r for r, a in answers.items() if a.since < timeout]
    away = {r: a for r, a in answers.items() if a.spot is None and a.since >= timeout}
    idle = [r for r, a in away.items() if not a.busy and a.awake >= timeout]
    dead = [r for r, state in silent.items() if not is_of(state, WORKS)]
    reasons = _reasons(away, silent)
    if idle or dead:
        return Verdict(Action.END, reasons, tuple(idle))
    working = {**away, **silent}
    if moving and not working:
        return Verdict(Action.GO_ON)
    if not working:
        return _all_wait(own, waited, timeout, answers)
    action = Action.END if waited >= PATIENCE * timeout else Action.BE_PATIENT
    return Verdict(action, reasons, tuple(away))


def _all_wait(
    own: Spot, waited: float, timeout: float, answers: Mapping[int, Answer]
) -> Verdict:
    """Nobody is missing: a slow network, or ranks that called different collectives."""
    spots = {r: a.spot for r, a in sorted(answers.items()) if a.spot is not None}
    present = Counter([own, *spots.values()])
    if any(count >= spot.size for spot, count in present.items()):
        action = Action.END if waited >= PATIENCE * timeout else Action.BE_PATIENT
        return Verdict(action, ("all ranks are there, the network is slow or stuck",))
    places = _some([f"rank {r} waits in {spot}" for r, spot in spots.items()])
    said = f"nobody is missing, ranks wait for different things: {places}"
    return Verdict(Action.END, (said,), tuple(spots))


def _reasons(away: Mapping[int, Answer], silent: Mapping[int, str]) -> tuple[str, ...]:
    said = {r: f"rank {r} is not there: {_absence(a)}" for r, a in away.items()}
    said |= {r: f"rank {r} does not answer{_look(s)}" for r, s in silent.items()}
    return (_some([said[r] for r in sorted(said)]),)


def _absence(answer: Answer) -> str:
    does = "busy" if answer.busy else "idle"
    after = f", after {answer.before}" if answer.before else ""
    return f"{does} outside of a collective for {answer.since:.0f} s{after}"


def is_of(state: str, kind: str) -> bool:
    """True for a state that is known and one of the kind."""
    return state != "" and state in kind


def _look(state: str) -> str:
    if is_of(state, GONE):
        return ": its process is gone"
    if is_of(state, WORKS):
        return ": its process works and does not let go of the interpreter"
    return ": its process is stopped" if is_of(state, STOPPED) else ""


def _some(sentences: list[str]) -> str:
    """The first of them, and how many more there are."""
    more = len(sentences) - NAMED
    shown = sentences[:NAMED] + ([f"and {more} more"] if more > 0 else [])
    return "; ".join(shown)

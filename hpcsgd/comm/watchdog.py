"""The watchdog: which rank makes no progress, and where it is."""

import atexit
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Protocol

from hpcsgd.comm.ledger import Spot, ThreadLocation

# The verdict on a wait that is too long, by the answers of the other ranks.
#
# A rank that moves has changed its place within the timeout; a busy one burns CPU or
# reads and writes; an idle one does neither. Slow work is no stall: it gets patience.

PATIENCE = 10  # times the timeout that a rank is waited for while it works
NAMED = 8  # ranks that a report names one by one
WORKS, STOPPED, GONE = "RD", "Tt", "ZX-"  # states of a process, as in /proc


@dataclass(frozen=True)
class RankLocation:
    """The collective in which the main thread of a rank waits, and for how long.

    It is a rank's answer to a roll call. `spot` is None outside of collectives.
    """

    spot: Spot | None
    before: Spot | None  # the last collective that it left
    since: float  # seconds that it has been there
    awake: float  # of which its process surely was not suspended
    busy: bool
    visible_states: Mapping[int, str] = field(
        default_factory=dict
    )  # silent ranks it can see


class Action(Enum):
    """The decision of a watchdog about the job: wait on, warn, or end it."""

    GO_ON = "go on"  # the others move
    BE_PATIENT = "be patient"  # some rank works
    END = "end"


@dataclass(frozen=True)
class Verdict:
    """A watchdog's action, its reasons, and the ranks that are to print stacks."""

    action: Action
    reasons: tuple[str, ...] = ()
    suspects: tuple[int, ...] = ()


def judge(
    own: Spot,
    waited: float,
    timeout: float,
    answers: Mapping[int, RankLocation],
    silent: Mapping[int, str],
) -> Verdict:
    """Return the verdict of a rank that has waited in the collective `own`.

    `waited` and `timeout` are in seconds. `answers` has the location of each rank that
    answered, and `silent` the process state of each other rank that did not.
    """
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
    own: Spot, waited: float, timeout: float, answers: Mapping[int, RankLocation]
) -> Verdict:
    """Return the verdict if all ranks wait in collectives.

    If one collective has all its ranks, the network is slow: the action is to be
    patient, or to end if `waited` is PATIENCE times `timeout`. Otherwise the program
    calls different collectives, and the action is to end.
    """
    spots = {r: a.spot for r, a in sorted(answers.items()) if a.spot is not None}
    present = Counter([own, *spots.values()])
    if any(count >= spot.size for spot, count in present.items()):
        action = Action.END if waited >= PATIENCE * timeout else Action.BE_PATIENT
        return Verdict(action, ("all ranks are there, the network is slow or stuck",))
    places = _some([f"rank {r} waits in {spot}" for r, spot in spots.items()])
    reason = f"nobody is missing, ranks wait for different things: {places}"
    return Verdict(Action.END, (reason,), tuple(spots))


def _reasons(
    away: Mapping[int, RankLocation], silent: Mapping[int, str]
) -> tuple[str, ...]:
    sentences = {r: f"rank {r} is not there: {_absence(a)}" for r, a in away.items()}
    sentences |= {r: f"rank {r} does not answer{_look(s)}" for r, s in silent.items()}
    return (_some([sentences[r] for r in sorted(sentences)]),)


def _absence(answer: RankLocation) -> str:
    does = "busy" if answer.busy else "idle"
    after = f", after {answer.before}" if answer.before else ""
    return f"{does} outside of a collective for {answer.since:.0f} s{after}"


def is_of(state: str, kind: str) -> bool:
    """Return whether a process state is known and one of the letters of `kind`."""
    return state != "" and state in kind


def _look(state: str) -> str:
    if is_of(state, GONE):
        return ": its process is gone"
    if is_of(state, WORKS):
        return ": its process works and does not let go of the interpreter"
    return ": its process is stopped" if is_of(state, STOPPED) else ""


def _some(sentences: list[str]) -> str:
    """Return the first NAMED sentences in one text, and how many more there are."""
    more = len(sentences) - NAMED
    shown = sentences[:NAMED] + ([f"and {more} more"] if more > 0 else [])
    return "; ".join(shown)


# Whether a thread works: its CPU time, what its process reads and writes.

SAMPLES = 4  # a second or so apart
SHARE = 0.05  # of a core; many ranks may share one
TRAFFIC = 1 << 16  # bytes; the samples themselves read some hundred


class Usage:
    """Samples of CPU time and of bytes read and written.

    The CPU time is that of the thread that creates the object, the bytes are those of
    its process.
    """

    def __init__(self) -> None:
        self._cpu_clock = _cpu_clock(threading.get_ident())
        self._samples: deque[tuple[float, float, int]] = deque(maxlen=SAMPLES)
        self.sample()

    def sample(self) -> None:
        """Store the CPU time and the traffic so far; old samples are dropped."""
        self._samples.append(self._read())

    def is_busy(self) -> bool:
        """Return whether CPU time or traffic since the oldest sample shows work.

        A process that waits for a disk now is busy, too.
        """
        began, cpu, traffic = self._samples[0]
        now, cpu_now, traffic_now = self._read()
        share = (cpu_now - cpu) / max(now - began, 1e-9)
        return (
            share > SHARE or traffic_now - traffic > TRAFFIC or process_state() == "D"
        )

    def _read(self) -> tuple[float, float, int]:
        cpu = time.clock_gettime(self._cpu_clock) if self._cpu_clock else 0.0
        return time.perf_counter(), cpu, _traffic()


def process_state(pid: int | str = "self") -> str:
    """Return the letter of a process state in /proc, such as R, S, D, T or Z.

    Return "-" for a process that is gone, and "" on a system without /proc.
    """
    if not os.path.exists("/proc/self/stat"):
        return ""
    with suppress(OSError), open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
    return "-"


def node() -> str:
    """Return a text that is equal for two processes that see each other in /proc."""
    with suppress(OSError):
        return f"{os.uname().nodename} {os.readlink('/proc/self/ns/pid')}"
    return f"{os.uname().nodename} {os.getpid()}"


def _cpu_clock(thread: int) -> int | None:
    # Not every system has clocks of other threads; traffic alone has to do there.
    if not hasattr(time, "pthread_getcpuclockid"):
        return None
    return time.pthread_getcpuclockid(thread)


def _traffic() -> int:
    """Return the bytes that this process has read and written; 0 if not known."""
    with suppress(OSError, ValueError), open("/proc/self/io") as file:
        return sum(int(line.split()[1]) for line in list(file)[:2])
    return 0


# Messages between watchdogs of one node, without a call of MPI.


class PipeMail:
    """Messages of a watchdog to those of other ranks, all of them on one node.

    Every rank reads from a pipe of its own, into which the others write through /proc.
    No socket listens, no file is left behind, and no thread but the main thread of a
    rank calls MPI.

    Parameters
    ----------
    rank : int
        Number of the rank.
    pids : sequence of int
        Process of each rank.
    pipes : sequence of int
        Number of the file, in the process of each rank, that is its pipe's write end.
    reader : int
        Number of the file that is the read end of the pipe of this rank.
    """

    def __init__(
        self, rank: int, pids: Sequence[int], pipes: Sequence[int], reader: int
    ) -> None:
        self.rank = rank
        self.size = len(pids)
        self._pids = pids
        self._pipes = pipes
        self._reader = reader
        self._arrived = b""
        os.set_blocking(reader, False)

    def can_reach(self, rank: int) -> bool:
        """Return whether this process may write into the pipe of `rank`."""
        with suppress(OSError):
            os.close(self._open(rank))
            return True
        return False

    def post(self, rank: int, message: tuple[str, int, Any]) -> None:
        """Write `message` into the pipe of `rank`; drop it if that is impossible."""
        # Shorter than PIPE_BUF: messages of several ranks do not mix.
        line = _as_line(self.rank, message)
        with suppress(OSError):  # the rank is gone, or its pipe is full
            pipe = self._open(rank)
            try:
                os.write(pipe, line)
            finally:
                os.close(pipe)

    def fetch(self) -> tuple[int, Any] | None:
        """Return (sender, message) of the next message, or None. It never waits."""
        with suppress(BlockingIOError):
            self._arrived += os.read(self._reader, 1 << 16)
        line, end, rest = self._arrived.partition(b"\n")
        if not end:
            return None
        self._arrived = rest
        return _from_line(line)

    def poll(self, rank: int) -> str:
        """Return the state of a rank's process, from /proc."""
        return process_state(self._pids[rank])

    def close(self) -> None:
        """Close both ends of the pipe of this rank."""
        os.close(self._reader)
        os.close(self._pipes[self.rank])

    def _open(self, rank: int) -> int:
        path = f"/proc/{self._pids[rank]}/fd/{self._pipes[rank]}"
        return os.open(path, os.O_WRONLY | os.O_NONBLOCK)


def _as_line(sender: int, message: tuple[str, int, Any]) -> bytes:
    """Return a line of JSON with the message, as `_from_line` reads it.

    Sets of silent ranks and states of their processes are left out: every rank of the
    node reads these states itself.
    """
    kind, number, content = message
    place = None
    if kind == "here":
        place = asdict(content) | {"visible_states": {}}
    return json.dumps([sender, kind, number, place]).encode() + b"\n"


def _from_line(line: bytes) -> tuple[int, tuple[str, int, Any]]:
    sender, kind, number, place = json.loads(line)
    content: Any = frozenset() if kind == "where" else None
    if place is not None:
        for name in ("spot", "before"):
            place[name] = None if place[name] is None else Spot(**place[name])
        content = RankLocation(**place)
    return sender, (kind, number, content)


# No rank waits for ever: a thread beside each main thread checks the time.
#
# Nothing is sent while all is well. A rank that is late in a collective calls the roll:
# every watchdog answers where its main thread is, also while that one sleeps or loops.
# Of several late ranks, the lowest calls.

log = logging.getLogger("hpcsgd")
TICK = 1.0  # seconds between checks while all is well
ALERT = 0.05  # and while a roll is called
HEARING = 2.0  # seconds that an answer may take
MANNERS = 5.0  # seconds for which a roll call of a lower rank delays ours
STAGGER = 0.1  # seconds by which each rank calls after the one below it, up to 2 s
STACKS = 1.0  # seconds for the suspects to print their stacks


class Mail(Protocol):
    """The protocol of short messages between watchdogs; no method ever waits."""

    rank: int
    size: int

    def post(self, rank: int, message: Any) -> None:
        """Begin to send `message` to `rank`."""

    def fetch(self) -> tuple[int, Any] | None:
        """Return (sender, message), if one has arrived, else None."""

    def poll(self, rank: int) -> str:
        """Return the state of a rank's process; "" if it is not visible here."""


@dataclass
class RollCall:
    """A roll call: the request for locations that a late rank sends to all others.

    `answers` collects the locations that arrive.
    """

    number: int
    spot: tuple[Spot | None, float]  # the wait that it is about
    started_at: float
    silent_before: frozenset[int]  # ranks that did not answer the roll before
    answers: dict[int, RankLocation] = field(default_factory=dict)


@dataclass(frozen=True)
class WatchedRank:
    """The rank that a watchdog watches, as a part of its job.

    Attributes
    ----------
    place : ThreadLocation
        The collective that the main thread of the rank is in.
    rank : int
        Number of the rank.
    size : int
        Number of ranks of the job.
    abort : callable
        Ends the job on all ranks, with the exit code that it is called with.
    """

    place: ThreadLocation
    rank: int
    size: int
    abort: Callable[[int], object]

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size}"


class Watchdog:
    """Watches the main thread of one rank, from a thread of its own.

    That thread calls `step` repeatedly.
    """

    def __init__(
        self,
        watched: WatchedRank,
        timeout: float,
        mail: Mail | None = None,
        *,
        usage: Usage | None = None,
        clock: Callable[[], float] = time.perf_counter,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.watched = watched
        self.place = watched.place
        self.timeout = timeout
        self.mail = mail
        self.usage = usage or Usage()
        self.clock = clock
        self.say = say or _say
        self.thread = threading.get_ident()
        self.tick = min(TICK, timeout / 4)
        self.call: RollCall | None = None
        self.calls = 0
        self.silent: frozenset[int] = frozenset()
        self.looked = self.resumed = self.sampled = clock()
        self.quiet_until = self.alert_until = 0.0
        self.warned_of: tuple[Spot | None, float] | None = None
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        """Start the thread, which runs until `stop` or the end of the program."""
        atexit.register(self.stop)  # before MPI is finalised
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread, and wait until it has ended."""
        atexit.unregister(self.stop)
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join()

    def step(self) -> None:
        """Check how long the main thread waits, answer messages, and act.

        It acts, by a roll call, a warning or the end of the job, on a wait longer than
        `timeout`.
        """
        now = self.clock()
        if now - self.looked > max(4 * self.tick, 2.0):
            self.resumed = now  # this process was stopped: no time to be blamed for
        self.looked = now
        if now - self.sampled >= TICK:
            self.sampled = now
            self.usage.sample()
        self._answer()
        if not self._is_late():
            self.call = None
            self.silent = frozenset()
        elif self.mail is None:
            self._alone()
        elif self.call is None:
            self._ask()
        elif self._is_heard(self.call):
            self._judge(self.call)

    def _run(self) -> None:
        while not self._stopped.wait(self._pause()):
            self.step()

    def _pause(self) -> float:
        alert = self.call is not None or self.clock() < self.alert_until
        return min(ALERT, self.tick) if alert else self.tick

    def _waited(self) -> float:
        spot, since = self.place.spot()
        return 0.0 if spot is None else self.clock() - max(since, self.resumed)

    def _is_late(self) -> bool:
        if self.call is not None and self.place.spot() != self.call.spot:
            return False  # that wait is over
        return self._waited() >= self.timeout

    def _answer(self) -> None:
        """Receive all messages of other watchdogs, and answer those that ask for it."""
        while self.mail is not None and (letter := self.mail.fetch()) is not None:
            sender, (kind, number, content) = letter
            self.alert_until = self.clock() + MANNERS
            if kind == "where":
                if sender < self.watched.rank:  # the lowest rank calls for all
                    self.quiet_until = self.clock() + MANNERS
                    self.call = None
                self.mail.post(sender, ("here", number, self._here(content)))
            elif kind == "here" and self.call and number == self.call.number:
                self.call.answers[sender] = content
            elif kind == "stack":
                self.say(self._stack())

    def _here(self, silent: frozenset[int]) -> RankLocation:
        spot, since = self.place.spot()
        now = self.clock()
        states = {r: self._look(r) for r in silent}
        return RankLocation(
            spot=spot,
            before=self.place.before(),
            since=now - since,
            awake=now - max(since, self.resumed),
            busy=self.place.task is not None or self.usage.is_busy(),
            visible_states={r: state for r, state in states.items() if state},
        )

    def _look(self, rank: int) -> str:
        return self.mail.poll(rank) if self.mail is not None else ""

    def _ask(self) -> None:
        stagger = min(STAGGER * self.watched.rank, 2.0)
        if self.clock() < self.quiet_until or self._waited() < self.timeout + stagger:
            return
        self.calls += 1
        spot = self.place.spot()
        self.call = RollCall(self.calls, spot, self.clock(), self.silent)
        for other in self._others():
            if self.mail is not None:
                self.mail.post(other, ("where", self.calls, self.silent))

    def _others(self) -> list[int]:
        ranks = range(self.watched.size)
        return [rank for rank in ranks if rank != self.watched.rank]

    def _is_heard(self, call: RollCall) -> bool:
        complete = len(call.answers) == self.watched.size - 1
        return complete or self.clock() - call.started_at >= HEARING

    def _judge(self, call: RollCall) -> None:
        """Act on the answers to a roll call.

        A rank that did not answer is judged only after a second roll call, or if its
        process is stopped or gone.
        """
        self.call = None
        silent = {
            r: self._state(r, call) for r in self._others() if r not in call.answers
        }
        self.silent = frozenset(silent)
        unproved = self.silent - call.silent_before
        if any(not is_of(silent[r], STOPPED + GONE) for r in unproved):
            return  # perhaps its answer is only late
        spot, _ = call.spot
        if spot is None:
            return
        verdict = judge(spot, self._waited(), self.timeout, call.answers, silent)
        if self.place.spot() != call.spot:
            return
        if verdict.action is Action.END:
            self._end(verdict)
        elif verdict.action is Action.BE_PATIENT:
            self._warn(verdict.reasons)
        if verdict.action is not Action.END:
            self.quiet_until = self.clock() + self.tick  # one roll a tick is enough

    def _state(self, rank: int, call: RollCall) -> str:
        """Return the process state of a rank that did not answer; "" if not known.

        This rank, or a rank on the same node that answered, reads it.
        """
        seen = [
            a.visible_states[rank]
            for a in call.answers.values()
            if rank in a.visible_states
        ]
        return self._look(rank) or next(iter(seen), "")

    def _end(self, verdict: Verdict) -> None:
        stacks = " (stacks follow)" if verdict.suspects else ""
        reasons = "; ".join(verdict.reasons) + stacks
        self.say(f"hpcsgd: {self._wait_said()}: {reasons}; {self._remedy()}")
        for rank in verdict.suspects[:NAMED]:
            if self.mail is not None:
                self.mail.post(rank, ("stack", 0, None))
        # Posted messages leave, and the suspects' stacks arrive, before the end.
        self._stopped.wait(STACKS)
        self._answer()
        self.watched.abort(1)

    def _alone(self) -> None:
        """Warn or end the job without a roll call, since no messages can be sent.

        Which rank is missing, and whether it works, is then not known.
        """
        reasons = (
            "who is missing is not known and cannot be asked (a run that has not begun"
            " on all ranks, or several nodes and an MPI without MPI_THREAD_MULTIPLE);"
            " it is whoever does not report",
        )
        if self._waited() < PATIENCE * self.timeout:
            self._warn(reasons)
            return
        self._end(Verdict(Action.END, reasons))

    def _warn(self, reasons: tuple[str, ...]) -> None:
        """Log a warning with the reasons, once for each wait."""
        if self.warned_of == self.place.spot():
            return
        self.warned_of = self.place.spot()
        limit = PATIENCE * self.timeout
        text = "; ".join(reasons)
        log.warning("%s: %s; the limit is %g s", self._wait_said(), text, limit)

    def _wait_said(self) -> str:
        spot, _ = self.place.spot()
        return f"{self.watched} has waited {self._waited():.0f} s in {spot}"

    def _remedy(self) -> str:
        return (
            f"the job ends ({self.timeout:g} s are allowed; --timeout SECONDS changes"
            " it, 0 = wait for ever)"
        )

    def _stack(self) -> str:
        frame = sys._current_frames().get(self.thread)
        stack = "".join(traceback.format_stack(frame)) if frame else "  (gone)\n"
        return f"hpcsgd: {self.watched} is here:\n{stack}".rstrip()


def _say(text: str) -> None:
    """Write a text to stderr at once, bypassing Python's buffers.

    A thread that hangs may hold the locks of the buffers.
    """
    os.write(2, (text + "\n").encode())

"""The watchdog's logic, with a clock and a post office of our own."""

import logging
import os
import subprocess
import sys
import time

import pytest

from hpcsgd.comm.communicator import Pending
from hpcsgd.comm.ledger import Ledger, Spot, ThreadLocation
from hpcsgd.comm.mpi import MpiMail
from hpcsgd.comm.threads import SerialCommunicator, run_ranks
from hpcsgd.comm.watchdog import (
    Action,
    PipeMail,
    RankLocation,
    Usage,
    Watchdog,
    WatchedRank,
    judge,
    process_state,
)
from hpcsgd.errors import TransportError

SUM = Spot("sum for products", 7, 3)
TIMEOUT = 10.0


class Ended(BaseException):
    """The job is over."""


class Office:
    """Letters of all ranks; `deaf` ranks never read theirs."""

    def __init__(self, size):
        self.boxes = [[] for _ in range(size)]
        self.states = {}
        self.sent = 0


class Box:
    def __init__(self, office, rank):
        self.office, self.rank, self.size = office, rank, len(office.boxes)

    def post(self, rank, message):
        self.office.sent += 1
        self.office.boxes[rank].append((self.rank, message))

    def fetch(self):
        return self.office.boxes[self.rank].pop(0) if self._has() else None

    def poll(self, rank):
        return self.office.states.get(rank, "")

    def _has(self):
        return bool(self.office.boxes[self.rank])


class FakeUsage:
    busy = False

    def sample(self):
        """Nothing to note."""

    def is_busy(self):
        return self.busy


class Job:
    """Watchdogs of some ranks, stepped together through made-up time."""

    def __init__(self, size, monkeypatch, mail=True, timeout=TIMEOUT):
        self.now, self.said, self.code = 100.0, [], None
        monkeypatch.setattr("hpcsgd.comm.ledger.perf_counter", lambda: self.now)
        monkeypatch.setattr("hpcsgd.comm.watchdog.STACKS", 0.0)
        self.office = Office(size)
        self.places = [ThreadLocation() for _ in range(size)]
        self.usages = [FakeUsage() for _ in range(size)]
        self.deaf = set()
        self.dogs = [
            Watchdog(
                WatchedRank(self.places[rank], rank, size, self._end),
                timeout,
                Box(self.office, rank) if mail else None,
                usage=self.usages[rank],
                clock=lambda: self.now,
                say=self.said.append,
            )
            for rank in range(size)
        ]

    def wait(self, *ranks, what="sum", number=7, size=None):
        for rank in ranks:
            size = size or len(self.dogs)
            self.places[rank].enter(what, "products", number, size)

    def move(self, rank):
        """The main thread leaves one collective and is out again."""
        self.places[rank].enter("sum", "control", 1, 1)
        self.places[rank].__exit__()

    def pass_time(self, seconds, step=0.5, meanwhile=lambda: None):
        """When the job ended, in seconds from now; None where it did not."""
        began = self.now
        while self.now < began + seconds:
            self.now += step
            meanwhile()
            try:
                for rank, dog in enumerate(self.dogs):
                    if rank not in self.deaf:
                        dog.step()
            except Ended:
                for rank, dog in enumerate(self.dogs):  # the last letters arrive
                    if rank not in self.deaf:
                        dog._answer()
                return self.now - began
        return None

    def _end(self, code):
        self.code = code
        raise Ended


@pytest.fixture
def job(monkeypatch):
    return lambda size, **options: Job(size, monkeypatch, **options)


def test_nothing_is_sent_while_all_is_well(job):
    three = job(3)
    three.wait(0, 1)
    assert three.pass_time(TIMEOUT - 1) is None
    assert three.office.sent == 0 and not three.said


def test_an_idle_rank_is_named_and_shows_its_stack(job):
    three = job(3)
    three.move(2)
    three.wait(0, 1)
    ended = three.pass_time(60)
    assert TIMEOUT <= ended <= TIMEOUT + 3 and three.code == 1
    report, stack = three.said
    assert report.startswith("hpcsgd: rank 0 of 3 has waited 1")
    assert "in the sum for products (collective 7): rank 2 is not there: idle" in report
    assert "after the sum for control (collective 1)" in report
    assert "rank 1" not in report
    assert stack.startswith("hpcsgd: rank 2 of 3 is here:\n") and __file__ in stack


def test_of_those_who_wait_the_lowest_speaks(job):
    four = job(4)
    four.wait(1, 2, 3)
    assert four.pass_time(60)
    assert [s for s in four.said if "has waited" in s] == [four.said[0]]
    assert four.said[0].startswith("hpcsgd: rank 1 of 4")


def test_a_busy_rank_is_waited_for_ten_times_as_long(job, caplog):
    # A quiet command that ran in this process before has left its level.
    caplog.set_level(logging.WARNING, logger="hpcsgd")
    two = job(2)
    two.usages[1].busy = True
    two.wait(0)
    ended = two.pass_time(20 * TIMEOUT)
    assert 10 * TIMEOUT <= ended <= 10 * TIMEOUT + 3
    warnings = [r for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 1 and "the limit is 100 s" in warnings[0].getMessage()
    assert "rank 1 is not there: busy" in two.said[0]


def test_a_busy_rank_that_comes_back_ends_nothing(job):
    two = job(2)
    two.usages[1].busy = True
    two.wait(0)
    assert two.pass_time(5 * TIMEOUT) is None
    two.places[0].__exit__()
    two.usages[1].busy = False
    two.move(1)
    two.wait(0, 1, number=8)
    assert two.pass_time(TIMEOUT - 1) is None and not two.said


def test_ranks_that_move_are_no_stall(job):
    """A slow replica among others, however long one waits for it."""
    three = job(3)
    three.wait(0)
    ended = three.pass_time(
        30 * TIMEOUT, meanwhile=lambda: (three.move(1), three.move(2))
    )
    assert ended is None and not three.said


def test_a_silent_rank_is_asked_twice(job):
    three = job(3)
    three.deaf = {1}
    three.wait(0, 2)
    ended = three.pass_time(60)
    assert TIMEOUT + 4 <= ended <= TIMEOUT + 7
    asked = [m for m in three.office.boxes[1] if m[1][0] == "where"]
    assert len(asked) == 2
    assert "rank 1 does not answer;" in three.said[0]


def test_an_answer_that_is_late_once_ends_nothing(job):
    two = job(2)
    two.deaf = {1}
    two.wait(0)
    assert two.pass_time(TIMEOUT + 3) is None
    two.deaf = set()
    two.move(1)
    assert two.pass_time(2, meanwhile=lambda: two.move(1)) is None
    assert not two.said


@pytest.mark.parametrize(
    "state, said", [("T", "its process is stopped"), ("-", "its process is gone")]
)
def test_a_process_seen_stopped_or_gone_is_not_asked_again(job, state, said):
    two = job(2)
    two.deaf, two.office.states = {1}, {1: state}
    two.wait(0)
    assert TIMEOUT + 2 <= two.pass_time(60) < TIMEOUT + 4
    assert f"rank 1 does not answer: {said}" in two.said[0]


def test_a_silent_process_that_runs_gets_patience(job):
    """A long call that keeps the interpreter is slow work, not a stall."""
    two = job(2)
    two.deaf, two.office.states = {1}, {1: "R"}
    two.wait(0)
    assert 10 * TIMEOUT <= two.pass_time(20 * TIMEOUT) <= 10 * TIMEOUT + 8
    assert "does not let go of the interpreter" in two.said[0]


def test_a_job_that_was_suspended_starts_to_count_anew(job):
    two = job(2)
    two.wait(0)
    assert two.pass_time(TIMEOUT - 1) is None
    two.now += 1000.0
    assert two.pass_time(TIMEOUT - 1) is None
    assert two.pass_time(10) is not None  # and yet it is a stall


def test_different_collectives_are_a_deadlock(job):
    two = job(2)
    two.wait(0)
    two.wait(1, what="gather")
    assert TIMEOUT <= two.pass_time(60) <= TIMEOUT + 3
    assert "rank 1 waits in the gather for products (collective 7)" in two.said[0]


def test_a_slow_network_gets_patience(job):
    """All ranks are in one collective: a large message on a thin line."""
    two = job(2)
    two.wait(0, 1)
    assert 10 * TIMEOUT <= two.pass_time(20 * TIMEOUT) <= 10 * TIMEOUT + 3
    assert "all ranks are there" in two.said[0]


def test_without_threads_in_mpi_nobody_is_asked(job, caplog):
    two = job(2, mail=False)
    two.wait(0)
    assert 10 * TIMEOUT <= two.pass_time(20 * TIMEOUT) <= 10 * TIMEOUT + 3
    assert "who is missing is not known" in two.said[0]
    assert "in the sum for products (collective 7)" in two.said[0]
    assert sum(r.levelname == "WARNING" for r in caplog.records) == 1


def test_many_missing_ranks_are_not_all_named():
    silent = dict.fromkeys(range(1, 30), "")
    verdict = judge(SUM, TIMEOUT, TIMEOUT, {}, silent)
    assert verdict.action is Action.END
    assert verdict.reasons[0].endswith("rank 8 does not answer; and 21 more")


def test_an_idle_rank_counts_even_where_another_works():
    away = {
        1: RankLocation(None, None, 50.0, 50.0, busy=True),
        2: RankLocation(None, None, 50.0, 50.0, busy=False),
    }
    assert judge(SUM, 50.0, TIMEOUT, away, {}).suspects == (2,)
    del away[2]
    assert judge(SUM, 50.0, TIMEOUT, away, {}).action is Action.BE_PATIENT


def test_a_rank_that_was_suspended_is_not_idle_at_once():
    woken = {1: RankLocation(None, None, 50.0, 1.0, busy=False)}
    assert judge(SUM, 50.0, TIMEOUT, woken, {}).action is Action.BE_PATIENT


def test_a_rank_that_left_a_moment_ago_is_no_suspect():
    fresh = {1: RankLocation(None, None, 1.0, 1.0, busy=False)}
    assert judge(SUM, 99.0, TIMEOUT, fresh, {}).action is Action.GO_ON


def test_a_place_is_left_however_a_collective_ends():
    place = Ledger().place
    with pytest.raises(KeyError), place.enter("sum", "products", 1, 2):
        assert place.spot()[0] == Spot("sum for products", 1, 2)
        raise KeyError
    assert place.spot()[0] is None and place.before().number == 1


def test_every_collective_says_where_it_is():
    """Seen from inside, on thread ranks: what a report will name."""
    import numpy as np

    def on_rank(world):
        seen = []
        enter = world.ledger.place.enter

        class Spy(ThreadLocation):
            def enter(self, what, purpose, number, size):
                seen.append(f"{what} for {purpose}")
                return enter(what, purpose, number, size)

        world.ledger.place = Spy()
        world.sum(np.ones(2), "products")
        pending = world.start_sum(np.ones(2), "agreement")
        assert isinstance(pending, Pending)
        pending.wait()
        world.gather(np.ones(1), [1, 1], np.ones(2), "products")
        world.broadcast(np.ones(1))
        world.max_flag(1)
        world.exchange_objects(1)
        world.split(0, 0)
        with world.ordered_sums():
            world.sum(np.ones(2), "products")
        return seen

    expected = [
        "sum for products",
        "start of the sum for agreement",
        "sum for agreement",
        "gather for products",
        "broadcast for control",
        "largest flag for control",
        "exchange of objects for control",
        "split for control",
        "reduction for products",
        "broadcast for products",
    ]
    assert run_ranks(2, on_rank) == [expected, expected]


def test_thread_ranks_name_who_did_not_come():
    def on_rank(world):
        import time

        import numpy as np

        world.watch(0.3)
        part = world.split(0, 0)
        if world.rank == 1:
            time.sleep(1.5)
        part.sum(np.ones(2), "products")

    expected = r"in the sum for products \(collective 1\): rank 1 did not come"
    with pytest.raises(TransportError, match=expected):
        run_ranks(3, on_rank)


def test_thread_ranks_that_work_are_waited_for():
    def on_rank(world):
        import time

        world.watch(0.3)
        if world.rank == 1:
            until = time.monotonic() + 1.0
            while time.monotonic() < until:
                pass
        return world.max_flag(world.rank)

    assert run_ranks(2, on_rank) == [1, 1]


def test_usage_tells_work_from_sleep():
    import time

    usage = Usage()
    time.sleep(0.2)
    usage.sample()
    assert not usage.is_busy()
    until = time.thread_time() + 0.1
    while time.thread_time() < until:
        pass
    usage.sample()
    assert usage.is_busy()


def test_usage_sees_what_is_read(tmp_path):
    import time

    if process_state() == "":
        pytest.skip("no /proc")
    file = tmp_path / "large"
    file.write_bytes(bytes(1 << 20))
    usage = Usage()
    file.read_bytes()
    time.sleep(0.2)
    usage.sample()
    assert usage.is_busy()
    assert process_state() == "R" and process_state(2**22 + 1) == "-"


def test_one_rank_needs_no_watch():
    world = SerialCommunicator()
    world.watch(0.1)
    world.unwatch()


class LossyComm:
    """Calls of a communicator of MPI that fail once the receiver is gone."""

    rank, size = 0, 3

    def __init__(self):
        self.gone, self.sent = set(), []

    def isend(self, message, rank):
        if rank in self.gone:
            raise RuntimeError("MPI_ERR_OTHER: the receiver cannot be reached")
        self.sent.append(rank)
        return LossyRequest(self, rank)


class LossyRequest:
    def __init__(self, comm, rank):
        self.comm, self.rank = comm, rank

    def Test(self):
        if self.rank in self.comm.gone:
            raise RuntimeError("MPI_ERR_OTHER: the message cannot be delivered")
        return False


def test_a_rank_that_cannot_be_reached_does_not_end_the_watchdog():
    """An error of MPI in its thread would leave nobody to judge the wait."""
    comm = LossyComm()
    mail = MpiMail(comm, {})
    mail.post(1, "before")
    comm.gone.add(1)
    mail.post(1, "to a rank that is gone")
    mail.post(2, "behind it")
    assert comm.sent == [1, 2]


@pytest.fixture
def mailboxes():
    """Pipes of three ranks, all of them in this process."""
    readers, pipes = zip(*[os.pipe() for _ in range(3)], strict=True)
    pids = [os.getpid()] * 3
    mails = [PipeMail(r, pids, pipes, readers[r]) for r in range(3)]
    yield mails
    for mail in mails:
        mail.close()


def test_messages_through_pipes_arrive_whole_and_in_order(mailboxes):
    zero, one, two = mailboxes
    location = RankLocation(SUM, None, 3.5, 2.5, busy=True)
    left = RankLocation(None, SUM, 1.0, 1.0, busy=False)
    assert zero.fetch() is None
    one.post(0, ("where", 1, frozenset()))
    two.post(0, ("here", 2, location))
    two.post(0, ("here", 3, left))
    one.post(0, ("stack", 0, None))
    assert [zero.fetch() for _ in range(5)] == [
        (1, ("where", 1, frozenset())),
        (2, ("here", 2, location)),
        (2, ("here", 3, left)),
        (1, ("stack", 0, None)),
        None,
    ]
    assert one.fetch() is None and two.fetch() is None


def test_the_answers_of_a_pipe_leave_out_what_every_rank_of_the_node_sees(mailboxes):
    zero, one, _ = mailboxes
    states = dict.fromkeys(range(10_000), "T")
    zero.post(1, ("where", 1, frozenset(states)))
    assert one.fetch() == (0, ("where", 1, frozenset()))
    one.post(0, ("here", 1, RankLocation(SUM, SUM, 1.0, 1.0, True, states)))
    _, (_, _, content) = zero.fetch()
    assert content.visible_states == {}
    assert zero.poll(1) == "R"


def test_a_post_to_a_rank_that_reads_nothing_does_not_wait(mailboxes):
    """More than a pipe has room for: whole messages are dropped."""
    zero, one, _ = mailboxes
    for number in range(20_000):
        zero.post(1, ("where", number, frozenset()))
    arrived = []
    while (letter := one.fetch()) is not None:
        arrived.append(letter[1][1])
    assert arrived == list(range(len(arrived))) and 1000 < len(arrived) < 20_000
    zero.post(1, ("stack", 0, None))
    assert one.fetch() == (0, ("stack", 0, None))


def test_a_rank_that_has_ended_cannot_be_reached():
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    reader, pipe = os.pipe()
    mail = PipeMail(0, [os.getpid(), ended.pid], [pipe, 5], reader)
    assert mail.can_reach(0) and not mail.can_reach(1)
    mail.post(1, ("stack", 0, None))
    assert mail.poll(1) == "-"
    mail.close()


def test_watchdogs_with_pipes_name_the_missing_rank(mailboxes, monkeypatch):
    """The verdict is that of any other way of messages."""
    monkeypatch.setattr("hpcsgd.comm.watchdog.STACKS", 0.0)
    places = [ThreadLocation() for _ in mailboxes]
    said, codes, now = [], [], [time.perf_counter()]
    dogs = [
        Watchdog(
            WatchedRank(places[rank], rank, 3, codes.append),
            TIMEOUT,
            mail,
            usage=FakeUsage(),
            clock=lambda: now[0],
            say=said.append,
        )
        for rank, mail in enumerate(mailboxes)
    ]
    places[0].enter("sum", "products", 7, 3)
    places[1].enter("sum", "products", 7, 3)
    until = now[0] + 60
    while not codes and now[0] < until:
        now[0] += 0.5
        for dog in dogs:
            dog.step()
    assert codes == [1] and now[0] < until - 40
    report = next(text for text in said if "has waited" in text)
    assert report.startswith("hpcsgd: rank 0 of 3 has waited 1")
    assert "rank 2 is not there: idle" in report and "rank 1" not in report

"""When all ranks look up: the same on all of them, about once a second if slow."""

import pytest

from hpcsgd.comm.threads import SerialCommunicator, run_ranks
from hpcsgd.runs.loop import BROKEN, PollSchedule
from hpcsgd.solvers.callbacks import Request


def looks_of(seconds_each, every, exchanges=400):
    """The exchanges after which a rank looks, each taking that long."""
    looks, found = PollSchedule(SerialCommunicator(), every), []
    for number in range(1, exchanges + 1):
        if looks.is_due(number, False):
            found.append(number)
            looks.ask(Request.NONE, number, number * seconds_each)
    return found


def test_the_first_exchange_says_how_slow_they_are():
    assert looks_of(1e-4, 64)[:4] == [1, 65, 129, 193]
    assert looks_of(0.25, 64)[:4] == [1, 5, 9, 13]
    assert looks_of(3.0, 64)[:4] == [1, 2, 3, 4]


def test_exchanges_that_become_slow_are_noticed():
    looks = PollSchedule(SerialCommunicator(), 10)
    looks.ask(0, 1, 1e-3)
    assert looks.next_poll == 11
    looks.ask(0, 11, 5.0)  # half a second each by now
    assert looks.next_poll == 13


def test_a_run_that_goes_on_is_looked_at_at_once():
    looks = PollSchedule(SerialCommunicator(), 64)
    looks.begin(500, 1000.0)
    assert not looks.is_due(500, False) and looks.is_due(501, False)
    looks.ask(0, 501, 1000.001)
    assert looks.next_poll == 501 + 64


@pytest.mark.parametrize("rank", [0, 2])
@pytest.mark.parametrize(
    "flag", [Request.SAVE, Request.STOP, Request.INTERRUPT, BROKEN]
)
def test_the_gravest_flag_wins_and_all_look_again_together(rank, flag):
    def on_rank(world):
        looks = PollSchedule(world, 64)
        # Ranks find their exchanges to take from 10 ms to 0.5 s.
        seconds = {0: 0.01, 1: 0.5, 2: 0.1}[world.rank]
        answer = looks.ask(flag if world.rank == rank else 0, 1, seconds)
        return answer, looks.next_poll

    answers = set(run_ranks(3, on_rank))
    assert len(answers) == 1
    answer, following = answers.pop()
    assert answer == flag and 2 <= following <= 65


def test_with_nothing_to_say_the_slowest_rank_sets_the_pace():
    def on_rank(world):
        looks = PollSchedule(world, 64)
        return looks.ask(0, 1, {0: 0.001, 1: 0.5}[world.rank]), looks.next_poll

    assert run_ranks(2, on_rank) == [(0, 3), (0, 3)]


def test_the_end_of_an_epoch_is_polled_where_that_is_asked_for():
    """SGD evaluates behind it; coordinate descent polls no more often than is due."""
    sgd = PollSchedule(SerialCommunicator(), 64)
    descent = PollSchedule(SerialCommunicator(), 64, at_epoch_end=False)
    for polls in (sgd, descent):
        polls.ask(0, 1, 1e-3)
    assert sgd.is_due(10, True) and not sgd.is_due(10, False)
    assert not descent.is_due(10, True) and descent.is_due(65, False)

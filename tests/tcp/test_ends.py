"""No rank without MPI outlives another one that died, and none hangs."""

import os
import signal
import time

import pytest

from tests.helpers.limits import HANG
from tests.tcp.harness import Ranks
from tests.tcp.meetings import free_port

CHILD = ["-m", "tests.tcp.child"]


@pytest.mark.parametrize("victim", [0, 2])
def test_a_killed_rank_is_named_by_all_others(victim, tmp_path):
    """They end at once, without a limit of time that had to pass, and not well."""
    with Ranks(tmp_path, 3, [*CHILD, "sums", "tcp"]) as ranks:
        pids = [int(ranks.said(rank)) for rank in range(3)]
        time.sleep(0.05)
        os.kill(pids[victim], signal.SIGKILL)
        codes, texts = ranks.ends()
    said = f"rank {victim} of 3 (process {pids[victim]} on "
    for rank in {0, 1, 2} - {victim}:
        assert codes[rank] == 1 and said in texts[rank], texts[rank]
        assert "is gone: its connections closed without a word" in texts[rank]
    assert codes[victim] == -signal.SIGKILL


def test_a_rank_that_is_stopped_is_found_by_the_watchdog(tmp_path):
    """Its connections are open; it answers no letters."""
    with Ranks(tmp_path, 2, [*CHILD, "stalls", "tcp"]) as ranks:
        pids = [int(ranks.said(rank)) for rank in range(2)]
        os.kill(pids[1], signal.SIGSTOP)
        text = ranks.processes[0].communicate(timeout=HANG)[0]
        assert ranks.processes[0].returncode == 1
    assert "rank 1 does not answer: its process is stopped" in text


@pytest.mark.cases(2)
@pytest.mark.parametrize("what, codes, said", [
    ("computes", [3, 3], "rank 1 of 2 (process"),
    ("leaves", [1, 1], "has ended its program while others wait for it"),
    ("fails", [1, 1], "rank 1 of 2 failed"),
])  # fmt: skip
def test_an_end_is_everybodys(what, codes, said, tmp_path):
    """Also of those that are in no collective."""
    with Ranks(tmp_path, 2, [*CHILD, what, "tcp"]) as ranks:
        found, texts = ranks.ends()
    assert found == codes, texts
    assert said in texts[0] + texts[1]
    if what == "fails":
        assert "boom on rank one" in texts[1]


def test_a_command_says_what_this_rank_alone_knows(tmp_path):
    """Rank 0 speaks for all; of what it cannot know it sends its reader to them."""
    own = [{"HPCSGD_KEY": "k" * 16}, {"HPCSGD_KEY": "short"}]
    common = {"HPCSGD_STORE": f"127.0.0.1:{free_port()}", "HPCSGD_STORE_SECONDS": 2}
    (tmp_path / "some.h5").touch()  # a file that is missing is said before ranks meet
    data = ("--data", str(tmp_path / "some.h5"))
    words = ["-m", "hpcsgd", "train", *data, "--comm", "tcp"]
    with Ranks(tmp_path, 2, words, lambda rank: {**common, **own[rank]}) as ranks:
        codes, texts = ranks.ends()
    assert codes == [1, 2]
    assert "their own errors say more" in texts[0]
    assert "hpcsgd: rank 1: error: HPCSGD_KEY must have at least" in texts[1]


def test_a_rank_that_never_starts(tmp_path):
    """The others say who it is, each for itself; none waits for ever."""
    words = [*CHILD, "sums", "tcp"]
    limit = {"HPCSGD_STORE_SECONDS": "15"}  # in which the other two surely come
    with Ranks(tmp_path, 2, words, lambda _: {**limit, "HPCSGD_EXPECT_RANKS": 3}) as r:
        codes, texts = r.ends()
    assert codes == [1, 1]
    assert all("rank 2 of 3 did not come" in text for text in texts), texts

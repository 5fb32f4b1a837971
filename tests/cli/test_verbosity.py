"""What is said while it runs, by whom, and how loud."""

import logging
import subprocess
import sys

import pytest

from hpcsgd.cli.parser import RankHandler
from tests.helpers.command_line import only_json
from tests.helpers.limits import HANG


def train(data, *more):
    return ["train", "--data", data, "--rate", 0.5, "--epochs", 2, *more]


SLOW = ("--network", "alpha=2e-3,bandwidth=1e9", "--products", "gram")


def test_quiet_leaves_errors_alone(hpcsgd, susy):
    done = hpcsgd(*train(susy, "--ranks", 2, *SLOW, "--progress", 0.01, "--quiet"))
    assert done.returncode == 0 and done.stderr == ""
    assert "completed" in done.stdout, "the result is not noise"
    bad = hpcsgd(*train("none.h5", "-q"))
    assert bad.returncode == 2 and "none.h5" in bad.stderr


def test_by_default_rank_0_says_what_was_chosen_once(hpcsgd, susy):
    done = hpcsgd(*train(susy, "--ranks", 2, "--products", "gram"))
    (line,) = done.stderr.strip().splitlines()
    assert line.startswith("hpcsgd[rank 0/2]: 2000 x 18 on 2 ranks as 1 x 2")
    for word in ("logistic", "gram", "batch 32", "steps 8", "fp32"):
        assert word in line, line


def test_one_rank_has_no_number(hpcsgd, susy):
    (line,) = hpcsgd(*train(susy)).stderr.strip().splitlines()
    assert line.startswith("hpcsgd: 2000 x 18 on 1 rank as 1 x 1")


def test_verbose_shows_what_every_rank_does(hpcsgd, susy):
    done = hpcsgd(*train(susy, "--ranks", 2, "--products", "gram", "-v"))
    lines = done.stderr.strip().splitlines()
    for rank, columns in ((0, "columns 0 to 9"), (1, "columns 9 to 18")):
        own = [x for x in lines if x.startswith(f"hpcsgd[rank {rank}/2]: DEBUG: ")]
        assert any(columns in line for line in own), done.stderr
        assert any("set-up: open" in line and "warm_up" in line for line in own)
        assert any("training: " in line and "gram" in line for line in own)
    losses = [line for line in lines if "epoch 2, exchange" in line]
    assert len(losses) == 1, "all ranks know the same loss"
    assert all(line.startswith("hpcsgd[rank ") for line in lines), done.stderr


def test_quiet_and_verbose_exclude_each_other(hpcsgd, susy):
    done = hpcsgd(*train(susy, "-q", "-v"))
    assert done.returncode == 2 and "not allowed with" in done.stderr


def test_the_same_warning_of_all_ranks_is_shown_once(hpcsgd, tmp_path):
    """Poisson scores beyond the range of exp: every rank counts the same ones."""
    data = tmp_path / "p.h5"
    made = ("--shape", "poisson-synth", "--rows", 200, "--cols", 8, "--out", data)
    assert hpcsgd("data", "synth", *made).returncode == 0
    done = hpcsgd(
        *("train", "--data", data, "--family", "poisson", "--rate", 1e5),
        *("--epochs", 1, "--ranks", 2, "--products", "gram", "--no-fall-back"),
    )
    clipped = [line for line in done.stderr.splitlines() if "were clipped" in line]
    assert len(clipped) == 1, done.stderr
    assert clipped[0].startswith("hpcsgd[rank 0/2]: WARNING: ")


def says(rank, level, record_level, **more):
    """Whether the handler of `rank` shows a record."""
    handler = RankHandler()
    handler.rank, handler.size = rank, 4
    handler.setLevel(level)
    record = logging.LogRecord("hpcsgd.x", record_level, "f", 1, "said", (), None)
    record.__dict__.update(more)
    return handler.says(record), handler.line(record)


@pytest.mark.parametrize(
    "rank, level, record, shown",
    [
        (0, logging.INFO, logging.INFO, True),
        (2, logging.INFO, logging.INFO, False),
        (2, logging.INFO, logging.WARNING, True),
        (2, logging.DEBUG, logging.DEBUG, True),
    ],
)
def test_who_says_what(rank, level, record, shown):
    assert says(rank, level, record)[0] is shown
    alike = says(rank, level, record, on_all_ranks=True)[0]
    assert alike is (rank == 0)


def test_a_record_carries_its_rank_and_what_is_loud():
    assert says(2, logging.INFO, logging.WARNING)[1] == (
        "hpcsgd[rank 2/4]: WARNING: said"
    )
    assert says(0, logging.INFO, logging.INFO)[1] == "hpcsgd[rank 0/4]: said"


LIBRARY = """
import logging, numpy as np, hpcsgd
X = np.random.default_rng(0).normal(size=(64, 3))
hpcsgd.train(X=X, y=X[:, 0] > 0)
print(logging.getLogger().handlers, logging.getLogger("hpcsgd").handlers)
logging.getLogger("hpcsgd.anywhere").warning("something is wrong")
"""


def test_a_library_installs_nothing_and_keeps_no_warning_to_itself():
    """Python shows the warnings of a program that has said nothing about its log."""
    done = subprocess.run(
        [sys.executable, "-c", LIBRARY], capture_output=True, text=True, timeout=HANG
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[] []"
    assert done.stderr.splitlines() == ["something is wrong"]


def test_the_profile_is_a_table_on_standard_error(hpcsgd, susy):
    flags = ("--ranks", 2, "--products", "gram", "-q")
    done = hpcsgd(*train(susy, *flags, "--profile", "--json"))
    assert "µs/exchange" not in done.stdout
    for word in ("training / gram", "communication / products", "setup / read", "on"):
        assert word in done.stderr, done.stderr
    assert set(only_json(done)["profile"]) == {
        "whole",
        "training",
        "communication",
        "setup",
    }
    plain = hpcsgd(*train(susy, "-q", "--json"))
    assert "profile" not in only_json(plain) and plain.stderr == ""


def test_three_lines_end_the_summary(hpcsgd, susy):
    done = hpcsgd(*train(susy, "-q"))
    reached, cost, advice = done.stdout.splitlines()[-3:]
    assert reached.startswith("reached") and "after 2 epochs" in reached
    assert cost.startswith("cost") and "126 steps in 16 exchanges" in cost
    assert advice.startswith("next") and "--" in advice
    only_json(hpcsgd(*train(susy, "-q", "--json")))

"""Every row of METHODS loses a rank, or has one that fails: nobody waits for ever.

What a rank leaves behind depends on the message that the others wait in, so one launch
a kind of message is enough by default; `-m full` hits every row.
"""

import json
import sys
from pathlib import Path

import pytest

from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import METHODS
from hpcsgd.data.synthetic import write_synthetic
from tests.faults.agreeing import PURPOSE, Faulty, train
from tests.faults.processes import all_gone, written_pids
from tests.helpers import launcher
from tests.helpers.kernels.emulator import COMPILER

ROOT = Path(__file__).parents[2]
LIMIT = 600.0  # seconds in which every launch has to have ended
LONG = 120.0  # and one of all rows, one after the other
pytestmark = pytest.mark.skipif(launcher.mpiexec() is None, reason="no mpiexec")

# Of each kind: a row, its settings, the message and how many of them come; ranks.
REPRODUCIBLE = {"run": {"reproducible": True}}
PERIOD = {"schedule": {"period": 1}}
ON_GPUS = {
    "run": {"device": "cuda", "transport": "mpi-host"},
    "precision": {"recipe": "fp32"},
}
KINDS = {
    "sum-under-way": ("ddp", {}, "start of the sum", 7, 2),
    "sum": ("local", PERIOD, "sum", 5, 2),
    "coded-average": (
        "local",
        {**PERIOD, "agreement": {"codec": "sign"}},
        "start of the gather",
        5,
        2,
    ),
    "broadcast": ("ddp", REPRODUCIBLE, "broadcast", 7, 2),
    "gather": ("sign", {}, "start of the gather", 9, 2),
    "unequal-gather": ("threshold", {}, "start of the gather", 10, 4),
    "two-sums": ("powersgd", {}, "sum", 6, 2),
    "pieces": ("fp8", {}, "start of the exchange of pieces", 5, 4),
    "gather-of-pieces": ("bf16", {}, "gather", 5, 2),
    "nested-groups": ("hierarchical", {}, "sum", 3, 4),
    "parts-of-a-sum": ("slowmo", PERIOD, "exchange of pieces", 3, 2),
    "swap": ("decentralized-low", {}, "start of the swap", 5, 4),
    "mixing": ("anybatch", {}, "start of the swap", 3, 4),
    "leaders": ("bagua", {"agreement": {"hierarchical": "2"}}, "reduction", 7, 4),
    "sum-of-parts": ("zero2", {}, "start of the sum of parts", 5, 2),
    "sum-of-parts-of-gpus": ("zero2", ON_GPUS, "start of the sum of parts", 5, 2),
    "gather-of-gpus": ("zero3", ON_GPUS, "start of the gather", 8, 2),
}
KINDS = {name: kind for name, kind in KINDS.items() if kind[0] in METHODS}
if COMPILER is None:  # of kernels for GPUs that are made of NumPy
    KINDS = {name: kind for name, kind in KINDS.items() if kind[1] is not ON_GPUS}
SAID = {
    "dies": ("signal 9",),
    "raises": ("RuntimeError: a method failed", "hpcsgd: rank"),
}


def sections_of(row, folder):
    """Settings that a row needs besides its name: where it may keep its files."""
    return {"agreement": {"store": str(folder / "store")}} if row == "infinity" else {}


def environment():
    return {
        **launcher.launch_environment(),
        "PYTHONPATH": str(ROOT),
        "OPENBLAS_NUM_THREADS": "1",
    }


def launch(ranks, cases, folder, limit=LIMIT):
    """(exit code, output) of tests/faults/agreeing.py, and nobody of it is left."""
    program = [sys.executable, "-m", "tests.faults.agreeing", str(folder)]
    command = [*launcher.mpiexec(), "-n", str(ranks), *program, json.dumps(cases)]
    known = launcher.segments()
    code, output = launcher.run(command, limit, ROOT, environment())
    assert code is not None, f"still there after {limit} s:\n{output}"
    assert all_gone(written_pids(folder, ranks))
    launcher.sweep(known)
    return code, output


def ends(how, kind, folder):
    row, sections, what, number, ranks = kind
    code, output = launch(ranks, [[row, sections, [how, what, number]]], folder)
    # Of a rank that was killed the launcher speaks: 128 + 9, or 9 itself.
    assert code in {"dies": (9, 137), "raises": (1,)}[how], output
    assert all(words in output for words in SAID[how]), output
    assert not list(folder.glob(f"{row}-*")), "some rank came to the end"


@pytest.mark.cases(1)
@pytest.mark.parametrize("name", KINDS)
def test_a_rank_is_killed_amid_an_exchange(name, tmp_path):
    ends("dies", KINDS[name], tmp_path)


def test_a_rank_raises_amid_an_exchange(tmp_path):
    ends("raises", KINDS["gather"], tmp_path)


@pytest.mark.cases(1)
@pytest.mark.parametrize("ranks", [4, 2])
def test_what_one_rank_refuses_all_hear_of_and_the_next_row_begins(ranks, tmp_path):
    """Every row in one launch: the sentence on all ranks, and then the run itself."""
    cases = [[r, sections_of(r, tmp_path), ["refuses", "", 0]] for r in METHODS]
    code, output = launch(ranks, cases, tmp_path, LONG)
    assert code == 0, output
    for row in METHODS:
        found = [tmp_path / f"{row}-refuses-{rank}" for rank in range(ranks)]
        assert len({path.read_text() for path in found}) == 1, row


def messages_of(row, folder, ranks=4):
    """Messages of agreement of the last rank, by name."""
    found = {}

    class Listening(Faulty):
        def __call__(self, group, what, purpose):
            if purpose == PURPOSE and group.ledger.place is here[0]:
                kind = what.partition(" with rank ")[0]
                found[kind] = found.get(kind, 0) + 1
            return self.enter(group, what, purpose)

    here, listening = [None], Listening()

    def on_rank(world):
        if world.rank == ranks - 1:
            here[0] = world.ledger.place
        return train(world, row, sections_of(row, folder))

    Communicator.enter = lambda *said: listening(*said)
    try:
        run_ranks(ranks, on_rank)
    finally:
        Communicator.enter = listening.enter
    return found


@pytest.mark.cases(10)
@pytest.mark.parametrize("row", METHODS)
def test_every_kind_of_message_is_among_those_that_are_hit(row, tmp_path):
    """A row that speaks otherwise needs a line in KINDS."""
    known = {what for _, _, what, _, _ in KINDS.values()}
    assert set(messages_of(row, tmp_path)) <= known


@pytest.mark.full
@pytest.mark.parametrize("how", ["dies", "raises"])
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("row", METHODS)
def test_every_row(row, ranks, how, tmp_path):
    """In the middle of the messages that it sends most often."""
    found = messages_of(row, tmp_path, ranks)
    assert found, f"{row} says nothing to anybody"
    what = max(found, key=found.get)
    number = (found[what] + 1) // 2
    ends(how, (row, sections_of(row, tmp_path), what, number, ranks), tmp_path)


def test_segments_of_other_settings_are_told_apart(tmp_path):
    """One launch, two segments: all ranks end with 2, and what differs is named."""
    data = tmp_path / "d.h5"
    write_synthetic(data, "susy", 300, 5, 0)
    one = [sys.executable, "-m", "hpcsgd", "train", "--data", str(data), "--method"]
    one += ["topk", "--grid", "2x1", "--set", "codec.share=0.5"]
    other = [*one[:-1], "codec.share=0.25"]
    command = [*launcher.mpiexec(), "-n", "1", *one, ":", "-n", "1", *other]
    code, output = launcher.run(command, LIMIT, ROOT, environment())
    assert code == 2, output
    said = "codec.share is 0.5 on rank 0 and 0.25 on rank 1; give all ranks the same"
    assert output.count(said) == 1, output

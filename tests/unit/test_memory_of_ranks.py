"""What each of many ranks holds, sends and reads, and the formulas for more ranks."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import pytest

from hpcsgd.agreements.base import StateShape, get_agreement
from hpcsgd.api import train
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.data.sampling import Sampler
from hpcsgd.data.shard import split_range
from hpcsgd.runs import memory
from hpcsgd.runs.checkpoint import Capture, CheckpointStore
from hpcsgd.solvers import evaluation
from hpcsgd.solvers.evaluation import Columns
from tests.helpers.harness import config_for, make_problem
from tests.helpers.resumed import PreemptAt

# ----------------------------------------------------- a checkpoint, and who holds it

SCHEDULE = {"batch": 4, "steps": 3, "epochs": 3, "period": 4}
SINGLE = {"batch": 4, "steps": 1, "epochs": 3}
SHARED = {"schedule": SINGLE, "products": {"kind": "direct"}}
KINDS = {
    "one replica": {"grid": {"members": 4}},
    "averages": {"schedule": SCHEDULE, "problem": {"intercept": True}},
    "all columns": {"schedule": SCHEDULE, "products": {"kind": "gather"}},
    "momenta": {"schedule": SCHEDULE, "update": {"kind": "momentum", "momentum": 0.5}},
    "adam": {"agreement": {"kind": "gradient"}, "update": {"kind": "adam"}, **SHARED},
    "codec": {"agreement": {"kind": "gradient", "codec": "topk"}, **SHARED},
    "slices": {
        "agreement": {"method": "zero3"},
        "update": {"kind": "momentum", "momentum": 0.5},
        "grid": {"replicas": 4},
        **SHARED,
    },
    "slow momenta": {"schedule": SCHEDULE, "agreement": {"kind": "slowmo"}},
    "gossip": {"agreement": {"kind": "decentralized"}, **SHARED},
    "late averages": {"schedule": SCHEDULE, "agreement": {"kind": "async-average"}},
}


def stopped(sections, folder):
    """The settings and results of a run on 4 ranks that is saved after exchange 6."""
    problem = make_problem("logistic", n=96, d=60)
    tables = {"grid": {"replicas": 2, "members": 2}, **sections}
    run = {"out": str(folder), "check_every": 1, "evaluate_every": 1}
    config = config_for(problem, run=run, **tables)

    def on_rank(world):
        calls = [PreemptAt(6)] if world.rank == 0 else []
        return train(config, X=problem.X, y=problem.y, world=world, callbacks=calls)

    return config, run_ranks(4, on_rank)


@pytest.mark.parametrize("most", [2**30, 70])
@pytest.mark.parametrize("kind", KINDS)
def test_the_writer_has_what_all_ranks_would_have(kind, most, tmp_path, monkeypatch):
    """In messages of several sizes; the other ranks have nothing."""
    monkeypatch.setattr(evaluation, "MOST_WORDS", most)
    found = []
    take_to_write = Capture.take_to_write

    def both(self, state, view):
        everywhere, mine = self.take(state, view), take_to_write(self, state, view)
        own = self.take(state, view, on_any_grid=False)
        found.append((self.grid, everywhere.arrays, mine, own.arrays))
        return mine

    monkeypatch.setattr(Capture, "take_to_write", both)
    stopped(KINDS[kind], tmp_path)
    assert len(found) == 4
    for grid, everywhere, mine, own in found:
        assert (mine is None) == (grid.world.rank > 0)
        for name, array in everywhere.items():
            if mine is not None:
                np.testing.assert_array_equal(mine.arrays[name], array)
            if own[name].shape != array.shape:  # of the replica of this rank alone
                array = array[grid.replica : grid.replica + 1]
            np.testing.assert_array_equal(own[name], array)


@pytest.mark.parametrize("kind", KINDS)
def test_the_size_of_a_checkpoint_is_predicted(kind, tmp_path):
    config, results = stopped(KINDS[kind], tmp_path)
    _, checkpoint = CheckpointStore(tmp_path, 2).newest()
    # Intercepts, of which there are few, are left out.
    arrays = {n: a for n, a in checkpoint.arrays.items() if not n.endswith("intercept")}
    held = sum(array.nbytes for array in arrays.values())
    states = 1 + (KINDS[kind].get("update", {}).get("kind") == "momentum")
    columns = len(results[0].weights)
    precision = config.precision.resolve()
    shape = StateShape(config, precision, columns, states)
    predicted = get_agreement(config.agreement.kind).saves(shape) + shape.state
    assert 0.95 <= predicted / held <= 1.05


def held_by_all(replicas, members, columns, everywhere):
    """The bytes that thread ranks hold for a checkpoint, and the words of each."""
    sent = []
    parts = tuple(split_range(columns, members, c) for c in range(members))

    def on_rank(world):
        grid = Grid(world, replicas, members)
        own = np.full((len(range(columns)[parts[grid.member]]), 1), 1.0 + world.rank)
        of_run = Columns(grid, parts, whole=False)
        world.max_flag(0)
        if world.rank == 0:
            tracemalloc.start()
        world.max_flag(0)
        before = world.ledger.entries["control"].words
        sizes = of_run.sizes(1)
        result = of_run.assemble(own, sizes, apart=True, everywhere=everywhere)
        sent.append(world.ledger.entries["control"].words - before)
        world.max_flag(0)
        if world.rank == 0:
            held.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        return result

    held = []
    results = run_ranks(replicas * members, on_rank)
    wanted = 1.0 + np.arange(replicas * members).reshape(replicas, members)
    np.testing.assert_array_equal(
        results[0], np.repeat(wanted, [p.stop - p.start for p in parts], axis=1)
    )
    assert all((result is None) != everywhere for result in results[1:])
    return held[0], sent


def test_64_ranks_hold_one_checkpoint_together():
    """The result on one rank, and its parts on their way: 2 R D words, not R² C D."""
    replicas, members, columns = 16, 4, 4000
    whole = 8 * replicas * columns
    held, sent = held_by_all(replicas, members, columns, everywhere=False)
    assert whole <= held <= 2 * whole + 2**20
    assert sent == [columns // members] * 64
    held, _ = held_by_all(replicas, members, columns, everywhere=True)
    assert held >= 64 * whole


def predicted(rank, replicas, members, columns, **run):
    """The bytes for weights that are predicted for a rank of a large grid."""
    tables = {
        "precision": {"recipe": "fp64"},
        "grid": {"replicas": replicas, "members": members},
        "schedule": {"period": 8},
        "agreement": {"kind": "average"},
        "run": run,
    }
    config = RunConfig.parse(tables)
    groups = {"replicas": replicas, "members": members}
    grid = SimpleNamespace(
        world=SimpleNamespace(rank=rank, size=replicas * members),
        replica=rank // members,
        member=rank % members,
        **{name: SimpleNamespace(size=size) for name, size in groups.items()},
    )
    reader = SimpleNamespace(rows=10**7, cols=columns, read=lambda *_: np.empty((0, 0)))
    precision = config.precision.resolve()
    need = memory.predict(grid, reader, config, precision, 1, process=0)
    return need.weights


def test_at_4096_ranks_the_writer_alone_needs_room_for_the_states_of_all():
    """R = 1024, D = 400,000: 3.3 GB a copy, on one rank instead of on each."""
    R, C, D = 1024, 4, 400_000
    none = predicted(1, R, C, D)
    assert predicted(0, R, C, D) == predicted(1, R, C, D, out="x") == none
    file = 8 * D * (R + 1)
    assert predicted(0, R, C, D, out="x") - none == 3 * file
    # Survivors of a loss resume from what they have in memory: R D words on each rank.
    survivor = predicted(1, R, C, D, on_failure="shrink")
    assert survivor - none == 3 * file
    assert predicted(0, R, C, D, on_failure="shrink", out="x") - none == 5 * file


# ----------------------------------------------------------- the order of the rows


def test_members_have_one_order_together():
    """Threads share the array itself, as MPI ranks of a node share its memory."""

    def on_rank(world):
        grid = Grid(world, 2, 32)
        sampler = Sampler("shuffle-once", 3, 5000, grid.replica)
        sampler.keep_order(grid.members.keep)
        return sampler.order(0)

    orders = run_ranks(64, on_rank)
    assert len({order.ctypes.data for order in orders}) == 2
    for replica, order in enumerate((orders[0], orders[63])):
        assert not order.flags.writeable and order.dtype == np.int32
        alone = Sampler("shuffle-once", 3, 5000, replica).order(7)
        np.testing.assert_array_equal(order, alone)

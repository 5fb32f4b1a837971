"""What each of many ranks holds, sends and reads, and the formulas for more ranks."""

import tracemalloc
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
from scipy.sparse import csr_array

from hpcsgd.agreements.base import StateShape, get_agreement
from hpcsgd.api import train
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.threads import SerialCommunicator, run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.data.readers import MemoryReader, load_block, open_reader
from hpcsgd.data.sampling import Sampler
from hpcsgd.data.shard import load_csr, split_range
from hpcsgd.errors import DataError
from hpcsgd.runs import memory
from hpcsgd.runs.checkpoint import Capture, CheckpointStore
from hpcsgd.runs.load import dealt_pieces, replica_rows
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


# --------------------------------------------------- a file, and how often it is read

ROWS, COLUMNS = 6000, 128


def written(folder, kind):
    """A file of the kind, and its rows: in one piece, in tiles, or sparse."""
    drawn = np.random.default_rng(0)
    X = drawn.normal(size=(ROWS, COLUMNS)).astype(np.float32)
    path = folder / f"{kind}.h5"
    with h5py.File(path, "w") as file:
        file["y"] = np.arange(ROWS) % 2.0
        if kind != "sparse":
            tiles = (512, 64) if kind == "tiles" else None
            file.create_dataset("X", data=X, chunks=tiles)
            return path, X
        X[drawn.random(X.shape) < 0.8] = 0
        stored = csr_array(X)
        group = file.create_group("X")
        group.attrs["shape"] = stored.shape
        for name in ("indptr", "indices", "data"):
            group[name] = getattr(stored, name)
    return path, X


def read_by_all(path, replicas, members):
    """The block of each rank, and the bytes that all of them read from the file."""

    def on_rank(world):
        grid = Grid(world, replicas, members)
        reader = open_reader(path)
        rows = replica_rows(grid, reader)
        parts = tuple(split_range(COLUMNS, members, c) for c in range(members))
        world.max_flag(0)
        before = bytes_of_reads()
        world.max_flag(0)
        dealt = dealt_pieces(grid, reader, rows, parts)
        load = load_csr if reader.is_sparse else load_block
        block = load(reader, rows, parts[grid.member], np.asarray, chunks=dealt)
        world.max_flag(0)
        count = bytes_of_reads() - before
        reader.close()
        dense = block.to_dense() if reader.is_sparse else block
        return rows, parts[grid.member], dense, count

    return run_ranks(replicas * members, on_rank)


def bytes_of_reads():
    """The bytes that this process has read so far."""
    return int(Path("/proc/self/io").read_text().split()[1])


@pytest.mark.parametrize("grid", [(1, 64), (4, 16), (3, 8)])
@pytest.mark.parametrize("kind", ["one piece", "tiles", "sparse"])
def test_members_read_a_file_once_together(kind, grid, tmp_path):
    """Not once each: they read 64 times as much before they dealt columns."""
    path, X = written(tmp_path, kind)
    found = read_by_all(path, *grid)
    for rows, columns, block, _ in found:
        np.testing.assert_array_equal(block, X[rows, columns])
    # HDF5 reads 64 KiB at a time, here more than a share has of an array.
    more = 3 * 2**16 * len(found)
    assert found[0][-1] <= 1.1 * path.stat().st_size + more


@pytest.mark.parametrize("kind", ["one piece", "sparse"])
def test_a_wrong_value_is_named_on_all_ranks(kind, tmp_path):
    path, X = written(tmp_path, kind)
    row = 5500
    column = int(np.flatnonzero(X[row])[0])
    with h5py.File(path, "a") as file:
        if kind == "sparse":
            file["X/data"][file["X/indptr"][row]] = np.nan
        else:
            file["X"][row, column] = np.nan
    grid = {"replicas": 2, "members": 8}
    config = RunConfig.parse({"data": {"path": str(path)}, "grid": grid})
    raised = []

    def on_rank(world):
        with pytest.raises(DataError) as error:
            train(config, world=world)
        raised.append(str(error.value))

    run_ranks(16, on_rank)
    assert len(raised) == 16 and len(set(raised)) == 1
    assert f"X has nan at row {row}, column {column}" in raised[0]


def test_readers_of_no_file_and_single_members_read_for_themselves(tmp_path):
    path, X = written(tmp_path, "one piece")
    grid = Grid(SerialCommunicator(), 1, 1)
    everything = slice(0, ROWS), (slice(0, COLUMNS),)
    assert dealt_pieces(grid, open_reader(path), *everything) is None

    def on_rank(world):
        parts = tuple(split_range(COLUMNS, 2, c) for c in range(2))
        reader = MemoryReader(X, np.zeros(ROWS))
        return dealt_pieces(Grid(world, 1, 2), reader, slice(0, ROWS), parts)

    assert run_ranks(2, on_rank) == [None, None]


@pytest.mark.parametrize("network", [{}, {"network": "hpc"}])
def test_an_emulated_member_reads_its_own_columns(network, tmp_path):
    """No other member reads rows for it: what they would send is made up."""
    path, X = written(tmp_path, "sparse")
    run = {"emulate_members": 16, **network}
    sections = {"grid": {"members": 16}, "run": run, "schedule": {"epochs": 1}}
    there = RunConfig.parse({"data": {"path": str(path)}, **sections})
    from_file = train(there)
    from_memory = train(
        RunConfig.parse(sections), X=csr_array(X), y=np.arange(ROWS) % 2.0
    )
    prints = {r.report["data_fingerprint"] for r in (from_file, from_memory)}
    assert len(prints) == 1

"""Runs whose weights and states are on disk: equal to others, bounded, counted."""

import tracemalloc
from math import ceil

import numpy as np
import pytest
from scipy.sparse import csr_array

from hpcsgd import fit
from hpcsgd.agreements.more.infinity.tiles import StateFile, TileLock
from hpcsgd.api import train
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.threads import SerialCommunicator, run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.data.readers import MemoryReader
from hpcsgd.data.stream import Unheld
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.runs.memory import predict
from tests.helpers.gradients import agreed
from tests.helpers.harness import make_problem, relative_error, train_on, union_oracle
from tests.helpers.infinity_child import config_of, problem
from tests.helpers.on_disk import on_disk
from tests.helpers.sparse import make_sparse

RULES = ("sgd", "momentum", "nesterov", "nesterov-classic", "adagrad", "adam")


# -------------------------------------------------------------------------- equality


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("replicas", [1, 3])
def test_one_tile_has_the_bits_of_ddp(tmp_path, kind, replicas):
    drawn = make_problem("softmax", n=53, d=9)
    more = {"update": {"kind": kind}, "problem": {"intercept": True}}
    there = train_on(replicas, agreed(drawn, replicas, **more), drawn)
    here = train_on(replicas, on_disk(drawn, tmp_path, replicas, tile=1, **more), drawn)
    assert here.report["agreement"]["tiles"] == 1
    assert here.weights_sha256 == there.weights_sha256
    assert here.loss == there.loss


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "replicas, members", [(1, 1), (2, 1), (3, 1), (4, 1), (7, 1), (1, 2), (2, 2)]
)
@pytest.mark.parametrize("stored", [False, True])
def test_tiles_change_nothing_but_the_order_of_sums(
    tmp_path, replicas, members, stored
):
    sparse, dense = make_sparse("softmax", d=23)
    drawn = sparse if stored else dense
    more = {"update": {"kind": "adam"}, "problem": {"intercept": True}}
    ranks = replicas * members
    there = train_on(ranks, agreed(drawn, replicas, members, **more), drawn)
    counts = set()
    for tile in (0.005, 0.002):
        config = on_disk(drawn, tmp_path, replicas, members, tile, **more)
        here = train_on(ranks, config, drawn)
        counts.add(here.report["agreement"]["tiles"])
        assert np.abs(here.weights - there.weights).max() <= 1e-12
        assert abs(here.loss - there.loss) <= 1e-12
    assert len(counts) == 2 and min(counts) > 1


def test_it_takes_the_steps_of_one_process_on_the_union(tmp_path):
    drawn = make_problem("logistic")
    for replicas in (1, 2, 3):
        config = on_disk(drawn, tmp_path, replicas, agreement={"accumulate": 2})
        error = relative_error(
            train_on(replicas, config, drawn), union_oracle(config, drawn)
        )
        assert error <= 1e-12


@pytest.mark.parametrize("replicas, d", [(1, 1), (2, 1), (4, 3), (7, 5)])
def test_fewer_columns_than_replicas(tmp_path, replicas, d):
    drawn = make_problem("logistic", n=20, d=d)
    for kind in ("adam", "nesterov"):
        more = {"update": {"kind": kind}}
        there = train_on(replicas, agreed(drawn, replicas, **more), drawn)
        here = train_on(replicas, on_disk(drawn, tmp_path, replicas, **more), drawn)
        assert np.abs(here.weights - there.weights).max() <= 1e-12


def test_a_replica_whose_rows_are_used_up_steps_along(tmp_path):
    """7 rows of three replicas in batches of 2: the last exchange has rows of one."""
    drawn = make_problem("logistic", n=7, d=13)
    more = {"schedule": {"batch": 2}}
    config = on_disk(drawn, tmp_path, 3, **more)
    result = train_on(3, config, drawn)
    assert relative_error(result, union_oracle(config, drawn)) <= 1e-12


def test_no_gradient_leaves_everything_at_zero(tmp_path):
    drawn = make_problem("gaussian", n=20, d=13)
    drawn.y[...] = 0.0
    for kind in ("sgd", "adam"):
        config = on_disk(drawn, tmp_path, 2, update={"kind": kind})
        result = train_on(2, config, drawn)
        assert not result.weights.any() and result.status.value == "completed"


def test_a_run_that_blows_up_gives_the_last_good_weights(tmp_path):
    drawn = make_problem("poisson", n=53, d=23)
    config = on_disk(drawn, tmp_path, 2, rate={"value": 1e4}, run={"evaluate_every": 1})
    result = train_on(2, config, drawn)
    there = train_on(
        2, agreed(drawn, 2, rate={"value": 1e4}, run={"evaluate_every": 1}), drawn
    )
    assert result.status.value == there.status.value == "diverged"
    assert np.array_equal(result.weights, there.weights)
    assert np.isfinite(result.weights).all()


# ------------------------------------------------------------------- what is counted


@pytest.mark.parametrize("d", [37, 101])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_bytes_of_disk_and_network_are_the_formulas(tmp_path, d, replicas):
    """(s + 1)·D/P words read, s·D/P written; D + D/P words and the tail sent."""
    drawn = make_problem("logistic", n=53, d=d)
    more = {"update": {"kind": "adam"}, "problem": {"intercept": True}}
    result = train_on(replicas, on_disk(drawn, tmp_path, replicas, **more), drawn)
    said, steps = result.report["agreement"], result.exchanges
    height = said["tile_columns"]
    assert said["tiles"] == ceil(d / height) > 1 and d % height
    own = sum(
        ceil(min(height, d - first) / replicas) for first in range(0, d, height)
    )  # of replica 0, which has the larger parts
    assert said["bytes_read"] == steps * 8 * 4 * own
    assert said["bytes_written"] == steps * 8 * 3 * own
    sent = result.ledger["agreement"]
    if replicas == 1:
        assert sent["calls"] == 0
        return
    assert sent["words"] == steps * (own + d + 2)
    assert sent["bytes"] == 8 * sent["words"]
    assert sent["calls"] == steps * (2 * said["tiles"] + 1)


def wide(columns, rows=24, stored=40):
    """Few rows of many columns, of which few are stored."""
    rng = np.random.default_rng(0)
    places = np.stack(
        [np.sort(rng.choice(columns, stored, replace=False)) for _ in range(rows)]
    )
    edges = np.arange(0, rows * stored + 1, stored)
    values = rng.standard_normal(rows * stored)
    X = csr_array((values, places.reshape(-1), edges), shape=(rows, columns))
    return X, np.where(rng.uniform(size=rows) < 0.5, -1.0, 1.0)


def peak_of(folder, columns, tile):
    """MiB that NumPy and Python took on the way through a run."""
    X, y = wide(columns)
    config = {
        "problem": {"family": "logistic", "l2": 0.01},
        "schedule": {"batch": 24, "epochs": 1},
        "agreement": {
            "method": "infinity",
            "store": str(folder),
            "tile": tile,
            "sync": False,
        },
        "precision": {"recipe": "fp32"},
        "rate": {"value": 0.01},
        "run": {"evaluate_every": 1},
    }
    tracemalloc.start()
    try:
        result = train(RunConfig.parse(config), X=X, y=y)
        return tracemalloc.get_traced_memory()[1] / 2**20, result
    finally:
        tracemalloc.stop()


def test_memory_is_that_of_the_tiles_for_states_a_hundred_times_larger(tmp_path):
    """600 000 weights with Adam's moments, 6.9 MiB, in tiles of 0.06 MiB."""
    peak_of(tmp_path / "a", 1000, 0.06)  # what is imported and cached once
    least, _ = peak_of(tmp_path / "b", 20_000, 0.06)
    peak, result = peak_of(tmp_path / "c", 600_000, 0.06)
    assert 3 * result.weights.nbytes > 100 * 0.06 * 2**20
    assert isinstance(result.weights, np.memmap)
    assert peak < least + 0.3, (peak, least)
    assert result.loss < result.history[0]["loss"]


def test_what_is_predicted_does_not_grow_with_the_columns():
    """Of sparse rows with as many stored values; of dense ones, where none is held."""
    config = RunConfig.parse(
        {"agreement": {"method": "infinity", "store": "x", "tile": 2.0}}
    )
    precision = config.precision.resolve()

    def needs(columns):
        X, y = wide(columns)
        grid = Grid(SerialCommunicator(), 1, 1)
        return predict(grid, MemoryReader(X, y), config, precision, 1)

    small, large = needs(10_000), needs(1_000_000)
    assert small.weights == large.weights == 2 * 2**20
    assert large.exchange == small.exchange
    assert large.claim < 1.5 * small.claim


# -------------------------------------------------------------------- rows by columns


def test_dense_rows_are_read_a_tile_at_a_time(tmp_path, monkeypatch):
    """A file larger than run.memory: never more than a tile of its columns."""
    h5py = pytest.importorskip("h5py")
    # run.memory is for whole processes; this one is larger than the file.
    monkeypatch.setattr("hpcsgd.runs.memory.process_bytes", lambda: 0)
    drawn = make_problem("logistic", n=53, d=9001)
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        file["X"], file["y"] = drawn.X, drawn.y
    widths, some = set(), Unheld.some

    def counted(self, rows, columns):
        widths.add(columns.stop - columns.start)
        return some(self, rows, columns)

    monkeypatch.setattr(Unheld, "some", counted)
    more = {"data": {"path": str(path)}, "problem": {"intercept": True}}
    there = train(agreed(drawn, 1, **more))
    for mode in ("reshuffle", "blocks"):
        config = on_disk(
            drawn, tmp_path / mode, tile=0.5, run={"memory": 6 / 1024}, **more
        )
        here = train(config)
        assert here.report["data_fingerprint"] == there.report["data_fingerprint"]
        assert np.abs(here.weights - there.weights).max() <= 1e-12
        assert abs(here.loss - there.loss) <= 1e-12
        height = here.report["agreement"]["tile_columns"]
        assert max(widths) == height < 9001


# --------------------------------------------------------------------------- refused

REFUSED = [
    ({"agreement": {"store": ""}}, "add --out DIR"),
    ({"products": {"kind": "gather"}}, "use --products direct"),
    ({"agreement": {"codec": "topk"}}, "leave agreement.codec"),
    ({"polish": {"kind": "lbfgs"}}, "polish.kind = 'none'"),
    ({"average": {"kind": "tail"}}, "average.kind = 'none'"),
    ({"run": {"evaluate": "gap"}}, "run.evaluate = 'loss'"),
    ({"run": {"on_failure": "shrink"}}, "run.on_failure"),
    ({"schedule": {"steps": 4}}, "use --steps 1"),
    ({"update": {"clip": "norm"}}, "supports no clipping"),
    ({"update": {"kind": "adam", "bits": 8}}, "use update.bits = 32"),
    ({"precision": {"recipe": "fp32", "residual": "fp16"}}, "residual=fp32"),
    ({"stop": {"on": "gap"}}, "stop.on = 'none' or 'loss'"),
    ({"agreement": {"tile": 1e-6}}, "holds no column"),
]


@pytest.mark.parametrize("sections, remedy", REFUSED, ids=lambda x: str(x)[:40])
def test_what_it_cannot_do_is_said_with_the_remedy(tmp_path, sections, remedy):
    drawn = make_problem("logistic")
    with pytest.raises(ConfigError, match=remedy):
        train_on(1, on_disk(drawn, tmp_path, **sections), drawn)


def test_a_tile_must_be_something():
    with pytest.raises(ConfigError, match="tile = 0.0 must be above 0"):
        RunConfig.parse({"agreement": {"tile": 0.0}})


def test_it_begins_at_zero(tmp_path):
    drawn = make_problem("logistic")
    with pytest.raises(ConfigError, match="begins at zero"):
        fit(
            drawn.X,
            y=drawn.y,
            family="logistic",
            start=np.zeros(drawn.X.shape[1]),
            polish=False,
            config=on_disk(drawn, tmp_path).tables(),
        )


def test_a_store_is_of_one_run_at_a_time(tmp_path):
    drawn = make_problem("logistic")
    lock = TileLock(tmp_path / ".r0c0")
    lock.take()
    with pytest.raises(ConfigError, match="in use by another run.*or wait"):
        train_on(1, on_disk(drawn, tmp_path), drawn)
    lock.release()
    train_on(1, on_disk(drawn, tmp_path), drawn)


@pytest.mark.parametrize("failing", [1, 2])
def test_a_copy_that_cannot_be_read_is_an_error_on_all_ranks(
    tmp_path, monkeypatch, failing
):
    """In the middle of a gather: others are told behind it, not by a watchdog."""
    drawn = problem()
    tables = config_of(drawn, tmp_path, 2, kind="sgd").tables()
    tables["rate"]["value"], tables["run"]["timeout"] = 1e6, 5.0
    read, calls = StateFile.read, []

    def fails(self, *arguments):
        if self.path.name.endswith(".copy") and "r1c0" in str(self.path):
            calls.append(1)
            if len(calls) == failing:
                raise DataError(f"{self.path} cannot be read")
        return read(self, *arguments)

    monkeypatch.setattr(StateFile, "read", fails)
    config, told = RunConfig.parse(tables), []

    def on_rank(world):
        with pytest.raises(DataError, match="r1c0.*cannot be read") as found:
            train(config, X=drawn.X, y=drawn.y, world=world)
        told.append(found.value.on_all_ranks)

    run_ranks(2, on_rank)
    assert told == [True, True] and len(calls) >= failing

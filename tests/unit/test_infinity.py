"""Runs whose weights and states are on disk: equal, bounded, killed and gone on."""

import errno
import os
import resource
import signal
import subprocess
import sys
import tracemalloc
from math import ceil
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.sparse import csr_array

import hpcsgd
from hpcsgd import fit
from hpcsgd.agreement.infinity_network import Between
from hpcsgd.api import train
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.pending import Pending
from hpcsgd.comm.serial import SerialCommunicator
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.data.memory import MemoryReader
from hpcsgd.data.unheld import Unheld
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.memory import predict
from hpcsgd.prediction import model_of
from hpcsgd.result import KIND, VERSION, load_result
from hpcsgd.sealed import read_sealed, write_sealed
from hpcsgd.tiles.files import StateFile
from hpcsgd.tiles.generation import Generation, generations
from hpcsgd.tiles.lock import Lock
from hpcsgd.tiles.stamp import Stamps
from hpcsgd.tiles.store import Store
from tests.equivalence.test_gradient import agreed
from tests.harness import make_problem, relative_error, train_on, union_oracle
from tests.infinity_child import TILE, config_of, problem, run
from tests.sparse import make_sparse
from tests.unit.test_gradient import in_folder

RULES = ("sgd", "momentum", "nesterov", "nesterov-classic", "adagrad", "adam")


def on_disk(drawn, folder, replicas=1, members=1, tile=TILE, **sections):
    more = {"kind": "infinity", "store": str(folder), "tile": tile}
    more |= sections.pop("agreement", {})
    return agreed(drawn, replicas, members, agreement=more, **sections)


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
    assert large.total < 1.5 * small.total


# --------------------------------------------------------------------------- killed


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The run that nobody kills."""
    return run(tmp_path_factory.mktemp("whole"))


def killed(folder, *arguments):
    """A process of its own that was ended by SIGKILL."""
    child = [sys.executable, "-m", "tests.infinity_child", str(folder)]
    done = subprocess.run(
        child + [str(a) for a in arguments], capture_output=True, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()[-2000:]


@pytest.mark.parametrize(
    "where, count",
    [
        ("write", 63),  # between two tiles
        ("torn-write", 64),  # amid one
        ("stamp", 8),  # all words are written, no stamp
        ("after-commit", 7),
    ],
)
def test_a_kill_is_gone_on_from_bit_for_bit(tmp_path, reference, where, count):
    killed(tmp_path / "run", 1, where, count)
    result = run(tmp_path / "run", resume="auto")
    assert result.report["resumes"] == 1
    assert (
        result.report["agreement"]["bytes_written"]
        < (reference.report["agreement"]["bytes_written"])
    )
    assert result.weights_sha256 == reference.weights_sha256
    assert result.loss == reference.loss


def test_without_a_stamp_of_its_own_a_torn_step_is_taken(tmp_path, reference):
    """The broken twin: a step that counts before it is written gives other bits."""
    killed(tmp_path / "run", 1, "write", 63, "twin")
    result = run(tmp_path / "run", resume="auto")
    assert result.weights_sha256 != reference.weights_sha256


def broken(monkeypatch, folder, count, replicas=1, **agreement):
    """A run of which write number `count` of any rank fails."""
    write, calls = StateFile.write, []

    def fails(self, *arguments):
        calls.append(1)
        if len(calls) == count:
            raise DataError("the drive is gone")
        return write(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(StateFile, "write", fails)
        with pytest.raises(DataError, match="the drive is gone"):
            run(folder, replicas, **agreement)


@pytest.mark.parametrize("replicas", [2, 3])
def test_ranks_that_differ_by_a_step_go_on_from_the_older(
    tmp_path, monkeypatch, replicas
):
    """A write fails on one rank; the others have committed, and go back with it."""
    reference = run(tmp_path / "whole", replicas)
    broken(monkeypatch, tmp_path / "run", 61, replicas)
    steps = {
        Stamps(one / "stamp").read()[0].version
        for one in (tmp_path / "run" / "tiles" / "000001").iterdir()
    }
    assert len(steps) == 2 and max(steps) - min(steps) == 1
    result = run(tmp_path / "run", replicas, "auto")
    assert result.weights_sha256 == reference.weights_sha256


@pytest.mark.parametrize("tile", [0.002, 1.0])
def test_other_tiles_go_on(tmp_path, monkeypatch, reference, tile):
    broken(monkeypatch, tmp_path / "run", 61)
    result = run(tmp_path / "run", resume="auto", tile=tile)
    assert result.report["resumes"] == 1
    assert np.abs(result.weights - reference.weights).max() <= 1e-12
    assert generations(tmp_path / "run" / "tiles") == [2]


def test_another_grid_goes_on_from_the_same_weights(tmp_path, monkeypatch):
    """At a rate of nothing a step changes no weight, whoever takes it."""
    broken(monkeypatch, tmp_path / "run", 61, 2)
    drawn = problem()
    config = config_of(drawn, tmp_path / "run", 3, "auto")
    there = states_of(tmp_path / "run" / "tiles" / "000001", 37)
    seen = []
    monkeypatch.setattr(Store, "update", lambda self, step: seen.append(self))
    with pytest.raises(DataError, match="stop here"):
        train_on(3, config, drawn, callbacks=[StopsAtOnce()])
    assert np.array_equal(there, states_of(tmp_path / "run" / "tiles" / "000002", 37))
    assert there.any()


@pytest.mark.parametrize("kind", ["adam", "nesterov"])
def test_another_grid_takes_the_steps_that_ddp_would_take_there(tmp_path, kind):
    """Four replicas stop after an epoch; 1, 3 and 8 go on, on disk and in memory."""
    drawn = make_problem("softmax", n=64, d=23)
    more = {"update": {"kind": kind}, "problem": {"intercept": True}}

    def after(folder, replicas, make):
        for ranks, stop in ((4, 4), (replicas, None)):
            config = make(ranks)
            result = in_folder(folder, config, ranks, drawn, stop)[0]
        assert result.status.value == "completed" and result.report["resumes"] == 1
        return result.weights

    for replicas in (1, 3, 8) if kind == "adam" else (3,):
        there, here = tmp_path / f"ddp{replicas}", tmp_path / f"disk{replicas}"
        expected = after(there, replicas, lambda n: agreed(drawn, n, **more))
        disk = after(
            here, replicas, lambda n, to=here: on_disk(drawn, to / "t", n, **more)
        )
        np.testing.assert_allclose(disk, expected, 0, 1e-12)


class StopsAtOnce:
    """A callback that ends a run before its first step."""

    def on_start(self, view):
        error = DataError("stop here")
        error.on_all_ranks = True
        raise error

    def __getattr__(self, name):
        return lambda view: None


def states_of(folder, columns):
    found = Generation(folder)
    out = np.empty((3, columns, 1))
    for k, name in enumerate(("weights", "adam_m", "adam_v")):
        found.fill(name, found.version, slice(0, columns), out[k])
    return out


def test_files_of_another_run_are_refused(tmp_path, monkeypatch):
    broken(monkeypatch, tmp_path / "run", 61)
    other = tmp_path / "other"
    with pytest.raises(ConfigError, match="update.*start anew"):
        drawn = problem()
        config = config_of(drawn, tmp_path / "run", 1, "auto", kind="adagrad")
        train_on(1, config, drawn)
    drawn = make_problem("logistic", n=53, d=38)
    run_there = config_of(drawn, other)
    train_on(1, run_there, drawn)
    (tmp_path / "run" / "tiles").rename(tmp_path / "kept")
    (other / "tiles").rename(tmp_path / "run" / "tiles")
    with pytest.raises(DataError, match="holds states of 38 columns.*this run has 37"):
        run(tmp_path / "run", resume="auto")
    (tmp_path / "run" / "tiles").rename(tmp_path / "away")
    with pytest.raises(DataError, match="no step that is complete.*--resume no"):
        run(tmp_path / "run", resume="auto")


def test_a_file_larger_than_may_be_is_one_sentence(tmp_path):
    """RLIMIT_FSIZE, as a quota has it: before the first step."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))
    try:
        with pytest.raises(DataError, match="File too large.*make room"):
            drawn = problem()
            train_on(1, on_disk(drawn, tmp_path), drawn)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_fills_up_leaves_the_last_step(tmp_path, monkeypatch):
    reference = run(tmp_path / "whole", 2)
    write, calls = os.pwritev, []

    def full(*arguments):
        calls.append(1)
        if len(calls) > 80:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full)
        with pytest.raises(DataError, match="No space left.*--resume auto"):
            run(tmp_path / "run", 2)
    result = run(tmp_path / "run", 2, "auto")
    assert result.weights_sha256 == reference.weights_sha256


# -------------------------------------------------------------------- rows by columns


def test_dense_rows_are_read_a_tile_at_a_time(tmp_path, monkeypatch):
    """A file larger than run.memory: never more than a tile of its columns."""
    h5py = pytest.importorskip("h5py")
    drawn = make_problem("logistic", n=53, d=5003)
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
            drawn, tmp_path / mode, tile=0.5, run={"memory": 5 / 1024}, **more
        )
        here = train(config)
        assert here.report["data_fingerprint"] == there.report["data_fingerprint"]
        assert np.abs(here.weights - there.weights).max() <= 1e-12
        assert abs(here.loss - there.loss) <= 1e-12
        height = here.report["agreement"]["tile_columns"]
        assert max(widths) == height < 5003


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
    ({"update": {"clip": "norm"}}, "leave them out"),
    ({"update": {"kind": "adam", "bits": 8}}, "leave bits out"),
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
    with pytest.raises(ConfigError, match="tile = 0.0 MiB must be above 0"):
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
    lock = Lock(tmp_path / ".r0c0")
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


# ----------------------------------------------------------------------- the result


def test_weights_beyond_the_budget_stay_a_file(tmp_path):
    """Beside result.h5; loaded as a view, with the same bits."""
    drawn = problem()
    small = config_of(drawn, tmp_path / "a", tile=0.0002, kind="sgd")
    result = train_on(1, small, drawn)
    assert isinstance(result.weights, np.memmap)
    loaded = load_result(tmp_path / "a")
    assert isinstance(loaded.weights, np.memmap)
    assert np.array_equal(loaded.weights, result.weights)
    assert loaded.weights_sha256 == result.weights_sha256
    assert np.array_equal(model_of(loaded).weights[:, 0], result.weights)
    (tmp_path / "a" / "weights.npy").unlink()
    with pytest.raises(DataError, match="holds no weights.*train again"):
        load_result(tmp_path / "a")
    np.save(tmp_path / "a" / "weights.npy", np.ones((3, 1)))  # of other columns
    with pytest.raises(DataError, match="holds no weights.*train again"):
        load_result(tmp_path / "a")


def test_other_values_in_the_file_are_not_loaded(tmp_path):
    """Of the same shape and type: the seal of result.h5 is not theirs."""
    drawn = problem()
    train_on(1, config_of(drawn, tmp_path / "a", tile=0.0002, kind="sgd"), drawn)
    path = tmp_path / "a" / "weights.npy"
    good = path.read_bytes()
    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    for load in (load_result, hpcsgd.load):
        with pytest.raises(DataError, match="weights.npy holds other values.*bring"):
            load(tmp_path / "a")
    path.write_bytes(good)
    assert np.array_equal(load_result(tmp_path / "a").weights, np.load(path)[:, 0])


def test_a_result_of_an_earlier_version_says_no_hash(tmp_path):
    drawn = problem()
    train_on(1, config_of(drawn, tmp_path / "a", tile=0.0002, kind="sgd"), drawn)
    path = tmp_path / "a" / "result.h5"
    document, arrays = read_sealed(path, KIND, VERSION)
    del document["weights_sha256"]
    write_sealed(path, KIND, VERSION, document, arrays)
    assert isinstance(load_result(tmp_path / "a").weights, np.memmap)


def test_weights_within_the_budget_are_an_array(tmp_path):
    drawn = problem()
    result = train_on(1, config_of(drawn, tmp_path / "a", kind="sgd"), drawn)
    assert type(result.weights) is np.ndarray
    assert type(load_result(tmp_path / "a").weights) is np.ndarray


# ------------------------------------------------------------------------ the network


class Logged:
    """Replicas of which this is one of two, and what was said when."""

    def __init__(self):
        self.size, self.rank, self.charged, self.said = 2, 0, None, []
        self.ledger = SimpleNamespace(gives_way=None)

    def _pending(self, what, buffer, arrive=lambda: None):
        number = sum(w == f"begin {what}" for w, _ in self.said)
        self.said.append((f"begin {what}", number))

        def finish():
            arrive()
            self.said.append((f"end {what}", number))

        return Pending(buffer, finish)

    def start_gather(self, part, counts, out, purpose):
        """What is sent is read when it is waited for."""
        arrive = lambda: np.copyto(out[: part.size], part)  # noqa: E731
        return self._pending("gather", out, arrive)

    def start_sum_parts(self, buffer, counts, purpose):
        return self._pending("sum", buffer[: counts[0]])


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_tile_travels_while_another_is_used(count):
    """Gather i + 1 before tile i is used, G of i + 1 before tile i is stepped."""
    replicas = Logged()
    between = Between(replicas, 4, 1, np.dtype(float))
    ring = np.empty((2, 1))  # read into again as soon as the next tile is asked for
    parts = ((k, np.add(0.0, k + 1.0, out=ring)) for k in range(count))
    for number, whole in between.gathered(parts, lambda k: [2, 2], "agreement"):
        assert (whole[:2] == number + 1).all()
        replicas.said.append(("use", number))
    for _ in range(2):  # exchanges
        between.restart()
        for number in range(count):
            own = between.sums(
                number, count, lambda k: [2, 2], lambda k, flat: flat.__iadd__(k + 1.0)
            )
            assert (own == number + 1).all()
            replicas.said.append(("step", number))
    said = replicas.said
    for number in range(count - 1):
        before = said.index(("begin gather", number + 1))
        assert before < said.index(("end gather", number)) < said.index(("use", number))
        before = said.index(("begin sum", number + 1))
        assert before < said.index(("end sum", number)) < said.index(("step", number))
    assert [w for w, _ in said].count("end sum") == 2 * count


def test_what_hides_is_measured(tmp_path):
    """Messages that travel are in the report; one replica has none."""
    drawn = problem()
    for replicas in (1, 2):
        result = train_on(replicas, config_of(drawn, tmp_path, replicas), drawn)
        said = result.report["agreement"]
        assert 0.0 <= said["hidden_seconds"] <= said["transfer_seconds"]
        assert (said["transfer_seconds"] > 0.0) == (replicas > 1)

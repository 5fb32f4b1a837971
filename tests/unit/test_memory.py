"""Memory is predicted from sizes; what does not fit is refused before it is taken."""

import itertools
import tracemalloc
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.backends import make_backend
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.config import RunConfig
from hpcsgd.data.readers import MemoryReader, load_block, open_reader, read_chunks
from hpcsgd.errors import ConfigError
from hpcsgd.formats import encode
from hpcsgd.precision import make_precision
from hpcsgd.runs import memory
from tests.helpers.harness import config_for, make_problem, train_on
from tests.helpers.peaks import measured


class Sized:
    """A reader that has nothing but sizes."""

    def __init__(self, rows, cols):
        self.rows, self.cols = rows, cols

    def read(self, rows, cols):
        return np.empty((0, 0))


def need(rows, cols, **sections):
    config = RunConfig.parse(sections)
    grid = Grid(SerialCommunicator(), 1, 1)
    return memory.predict(
        grid, Sized(rows, cols), config, config.precision.resolve(), 1
    )


def test_the_matrix_is_what_its_format_makes_it():
    assert need(1000, 300, precision={"recipe": "fp64"}).matrix == 8 * 300_000
    assert need(1000, 300, precision={"recipe": "fp32"}).matrix == 4 * 300_000
    assert need(1000, 300, precision={"recipe": "c"}).matrix == 2 * 300_000


def test_what_is_kept_counts():
    schedule = {"batch": 10, "steps": 4, "epochs": 2}
    kept = need(1000, 300, schedule=schedule, products={"kind": "cached"}).kept
    # 25 groups of 4 batches: 6 blocks of 10 × 10 strictly below the diagonal, fp32
    assert kept == 25 * 600 * 4
    assert need(1000, 300, schedule=schedule, products={"kind": "gram"}).kept == 0
    whole = need(1000, 300, schedule=schedule, products={"kind": "gather-once"}).kept
    assert whole == 1000 * 300 * 4


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "recipe, dtype, product, batch",
    [
        ("fp32", "f4", "gram", 256),
        ("fp32", "f8", "direct", 256),
        ("c", "f8", "direct", 256),
    ],
)
def test_the_prediction_is_the_peak_of_a_process(recipe, dtype, product, batch):
    """All that it holds: interpreter, the arrays of the caller, and the run."""
    case = {
        "config": {
            "precision": {"recipe": recipe},
            "schedule": {"batch": batch, "steps": 16},
            "products": {"kind": product},
        },
        "rows": 60_000,
        "cols": 500,
        "dtype": dtype,
    }
    (found,) = measured(case)
    assert found["peak"] > 200 * 2**20
    assert 0.9 <= found["total"] / found["peak"] <= 1.25, found


def test_too_much_is_refused_with_the_knob_to_turn():
    problem = make_problem("logistic", n=2000, d=50)
    config = config_for(problem, run={"memory": 1e-4})
    with pytest.raises(ConfigError) as raised:
        train_on(2, config, problem)
    said = str(raised.value)
    assert "2 ranks of this node need" in said and "\n" not in said


@pytest.mark.parametrize(
    "part, knob",
    [
        ("matrix", "--precision c"),
        ("matrix", "--sampling blocks"),
        ("columns", "--grid"),
        ("exchange", "--steps"),
        ("kept", "--products gram"),
        ("weights", "--grid"),
        ("losses", "--grid"),
        ("finisher", "polish.kind = 'none'"),
        ("reading", "fewer ranks on a node"),
    ],
)
def test_each_part_has_its_knob(part, knob):
    parts = dict.fromkeys(vars(need(10, 10)), 1) | {part: 2**40}
    budget = memory.MemoryBudget(LIMITS["machine"], 2**30, [2**40])
    said = memory._sentence(memory.MemoryNeed(**parts), budget, RunConfig())
    assert knob in said and part.replace("_", " ") + " 1.02e+03 GiB" in said


def test_a_huge_file_is_refused_at_once(tmp_path):
    """A sparse file that says 10⁹ rows × 1000 columns: nothing of it is read."""
    path = tmp_path / "huge.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("X", (10**9, 1000), dtype="f4", chunks=(1000, 100))
        file.create_dataset("y", (10**9,), dtype="f8", chunks=(10**6,))
    with pytest.raises(ConfigError, match="out of memory before anything"):
        train({"data": {"path": str(path)}})


LIMITS = {
    "machine": memory.Limit("machine", 2**40, "on this machine"),
    "process": memory.Limit(
        "process 1", 2**20, "under ulimit -v", raise_it="raise ulimit -v", shared=False
    ),
}


def test_the_limit_that_binds_is_named(monkeypatch):
    """Another one would be a wrong lead."""
    problem = make_problem("logistic", n=10_000, d=50)
    config = config_for(problem, precision={"recipe": "fp32"})
    monkeypatch.setattr(memory, "system_limits", lambda: list(LIMITS.values()))
    with pytest.raises(ConfigError) as raised:
        train_on(1, config, problem)
    said = str(raised.value)
    assert "process" not in said  # which the limit does not count
    assert "0.000977 GiB are free under ulimit -v" in said
    assert "; raise ulimit -v, or use more ranks" in said
    monkeypatch.setattr(memory, "system_limits", lambda: [LIMITS["machine"]])
    assert np.isfinite(train_on(1, config, problem).loss)


def test_a_process_answers_for_itself_alone(monkeypatch):
    """What each rank needs fits below `ulimit -v`, what all of them need does not."""
    problem = make_problem("logistic", n=2000, d=50)
    config, numbers = config_for(problem), itertools.count()
    free = 2 * need(2000, 13, **config.tables()).claim

    def alone():
        holder = f"process {next(numbers)}"  # ranks here are threads of one
        return [replace(LIMITS["process"], holder=holder, free=free)]

    monkeypatch.setattr(memory, "system_limits", alone)
    assert np.isfinite(train_on(4, config, problem).loss)
    shared = replace(LIMITS["machine"], free=free)
    monkeypatch.setattr(memory, "system_limits", lambda: [shared])
    with pytest.raises(ConfigError, match="4 ranks of this node need"):
        train_on(4, config, problem)


def test_a_rank_alone_reads_its_limits_once_a_second(monkeypatch):
    """A limit of the caller counts what the process holds at that moment."""
    reads = []

    def held():
        reads.append("process")
        return 2**20

    def limits():
        reads.append("limits")
        return [LIMITS["machine"]]

    monkeypatch.setattr(memory, "process_bytes", held)
    monkeypatch.setattr(memory, "system_limits", limits)
    monkeypatch.setattr(memory, "monotonic", lambda: 0.5)
    problem = make_problem("gaussian")
    for _ in range(3):
        train_on(1, config_for(problem), problem)
    assert reads == ["process", "limits"]
    for _ in range(2):
        train_on(1, config_for(problem, run={"memory": 1.0}), problem)
    assert reads[2:] == ["process", "process"]
    monkeypatch.setattr(memory, "monotonic", lambda: 1.5)
    train_on(1, config_for(problem), problem)
    assert reads[4:] == ["process", "limits"]


def test_what_fits_is_left_alone():
    problem = make_problem("gaussian")
    result = train_on(2, config_for(problem), problem)
    assert np.isfinite(result.loss)


def test_a_finisher_is_counted():
    """Its scores stay beside the rows, and forty vectors beside the weights."""
    import numpy as np

    from hpcsgd.comm.grid import Grid
    from hpcsgd.comm.threads import SerialCommunicator
    from hpcsgd.config import RunConfig
    from hpcsgd.data.readers import MemoryReader
    from hpcsgd.runs.memory import predict

    reader = MemoryReader(np.zeros((500, 40)), np.zeros(500))

    def need(kind):
        config = RunConfig.parse({"polish": {"kind": kind}})
        grid = Grid(SerialCommunicator(), 1, 1)
        return predict(grid, reader, config, config.precision.resolve(), 1)

    assert need("none").finisher == 0
    assert need("lbfgs").finisher == 8 * (8 * 500 + 48 * 40)


def test_replicas_without_rows_are_refused_for_that():
    """Not for a division by none of them, on the way."""
    problem = make_problem("logistic", n=3)
    config = config_for(problem, grid={"replicas": 4}, products={"kind": "auto"})
    with pytest.raises(ConfigError, match="4 replicas cannot share 3 rows"):
        train_on(4, config, problem)


@pytest.mark.parametrize("kind, kept", [("sgd", 0), ("adagrad", 1), ("adam", 2)])
def test_slices_count_as_what_they_are(kind, kept):
    """The table of slices at R = 4, and the copy of the last good weights."""
    D, found = 4 * 10**6, {}
    for method in ("ddp", "zero1", "zero2", "zero3", "offload"):
        sections = {
            "agreement": {"method": method, "bucket": 0.25},
            "update": {"kind": kind},
            "precision": {"recipe": "fp32"},
            "grid": {"replicas": 4},
            "run": {"fall_back": False},
        }
        whole = 10**6 * 8  # the model
        found[method] = (need(100, 10**6, **sections).weights - whole) / D
    tiles = 4 * 0.25 * 2**20 / D
    wanted = {
        "zero1": 3 + kept / 4,
        "zero2": 2 + (1 + kept) / 4,
        "zero3": (3 + kept) / 4,
        "offload": 2 + (3 + kept) / 4,
    }
    for method, words in wanted.items():
        assert found[method] == pytest.approx(words + tiles, rel=1e-6), method
    assert found["ddp"] >= found["zero1"] - tiles


def test_two_waves_have_the_memory_of_one_batch():
    """A wavelet adds two gradients to ddp; the table of the docs has its figures."""
    page = Path(__file__).parents[2] / "docs/reference/methods/gradients.md"
    text = page.read_text()
    for columns in (1000, 100_000):
        one, two = (
            need(
                20_000,
                columns,
                agreement={"method": method},
                grid={"replicas": 2},
                schedule={"batch": 512, "steps": 1},
                products={"kind": "direct"},
                run={"fall_back": False},
            )
            for method in ("ddp", "wavelet")
        )
        assert two.exchange == one.exchange > 4 * 512 * columns
        assert two.weights - one.weights == 2 * 4 * columns
        found = (one.exchange + one.weights, two.exchange + two.weights)
        at_once = 2 * two.exchange + two.weights
        assert found[1] < 1.01 * found[0] and found[1] < 0.51 * at_once
        sizes = " | ".join(f"{size / 1e6:.1f} MB" for size in (*found, at_once))
        assert f"| {columns:,} columns | {sizes} |".replace(",", " ") in text


@pytest.mark.parametrize("method", ["zero2", "zero3", "offload"])
def test_batches_that_are_one_need_room_for_all_their_rows(method):
    """Of zero1, which adds them up, for one."""
    taken = {}
    for name in ("zero1", method):
        for times in (1, 3):
            asked = {"method": name, "accumulate": times}
            schedule = {"batch": 10, "steps": 1}  # 1200 rows are whole exchanges
            sections = {"agreement": asked, "grid": {"replicas": 2}}
            sections["schedule"] = schedule
            taken[name, times] = need(1200, 50, **sections).exchange
    assert taken["zero1", 3] == taken["zero1", 1] == taken[method, 1]
    assert taken[method, 3] == 3 * taken[method, 1]


def test_sparse_rows_of_slices_are_marked_a_tile_at_a_time():
    from scipy.sparse import csr_array

    from hpcsgd.data.readers import MemoryReader
    from hpcsgd.runs.memory import predict

    columns = 10**6
    edges = np.arange(0, 2001, 10)
    X = csr_array((np.ones(2000), np.arange(2000) % columns, edges), (200, columns))
    reader, found = MemoryReader(X, np.zeros(200)), []
    for method in ("ddp", "zero3"):
        tables = {"agreement": {"method": method, "bucket": 0.4}}
        tables |= {"grid": {"replicas": 2}, "precision": {"recipe": "fp32"}}
        config = RunConfig.parse(tables)
        grid = Grid(SerialCommunicator(), 1, 1)
        found.append(predict(grid, reader, config, config.precision.resolve(), 1))
    saved = found[0].exchange - found[1].exchange
    assert saved == 5 * (columns - 10**5)  # a mark and a place for each column


# ------------------------------------------------------------------- while it is read


def taken_by(action):
    """The result of an action, and the most bytes that it held at a time."""
    tracemalloc.start()
    try:
        return action(), tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["bf16", "tf32", "fp16"])
@pytest.mark.parametrize("shape", [(4000, 500), (2_000_000,), (3, 600_000)])
def test_rounding_takes_little_beside_the_rounded_values(name, shape):
    values = np.random.default_rng(0).normal(size=shape)
    rounded, peak = taken_by(lambda: encode(values, name))
    assert peak <= rounded.nbytes + 0.6 * values.nbytes + 8 * 2**20
    some = encode(values[-2:], name)
    np.testing.assert_array_equal(rounded[-2:], some)


@pytest.mark.parametrize("recipe", ["fp64", "fp32", "c"])
def test_one_piece_at_a_time_is_held_while_a_matrix_is_read(recipe, tmp_path):
    path = tmp_path / "X.h5"
    with h5py.File(path, "w") as file:
        file["X"], file["y"] = np.ones((30_000, 100)), np.zeros(30_000)
    backend = make_backend(make_precision(recipe))
    reader, piece = open_reader(path), 4 * 2**20
    whole = slice(0, 30_000), slice(0, 100)
    read, peak = taken_by(
        lambda: load_block(
            reader, *whole, backend.store, chunks=read_chunks(reader, *whole, piece)
        )
    )
    reader.close()
    stored = 0 if recipe == "fp64" else piece * read.itemsize // 8
    # Rounding a row of numbers takes several times their bytes, a megabyte at a time.
    assert peak <= read.nbytes + piece + stored + (8 if recipe == "c" else 1) * 2**20


# ------------------------------------------------------- the parts, and what they make


NEED = memory.MemoryNeed(
    process=80,
    matrix=200,
    columns=10,
    exchange=50,
    kept=20,
    weights=5,
    reading=60,
    losses=7,
    finisher=3,
)


def test_loading_and_training_are_never_together():
    always = 80 + 200 + 10 + 5
    assert NEED.total == always + 50 + 20 + 7
    assert "reading" not in NEED.counted and "finisher" not in NEED.counted
    loading = replace(NEED, reading=100)
    assert loading.total == always + 100
    assert not {"exchange", "kept", "losses", "finisher"} & {*loading.counted}
    finishing = replace(NEED, finisher=40)
    assert finishing.total == always + 50 + 20 + 40


def test_what_the_process_holds_is_claimed_of_run_memory_alone():
    """The system has taken it off what is free; of threads it counts once."""
    assert NEED.claim == NEED.total - 80
    whole = memory.Limit("run", 1000, "under run.memory", whole=True)
    for limit, needs in ((whole, [372, 292, 372]), (LIMITS["machine"], [292] * 3)):
        claims = [
            memory.Claim("node", process, NEED.claim, [limit], holds=NEED.process)
            for process in (1, 1, 2)
        ]
        assert memory.tightest(claims[0], claims).needs == needs


def test_run_memory_names_the_process_where_that_is_the_most():
    said = refused(make_problem("logistic", n=60), run={"memory": 1e-3})
    assert "(one rank: process 0." in said
    assert "put fewer ranks on a node, or set a larger run.memory" in said


def refused(problem, **sections):
    """The sentence of a refusal."""
    with pytest.raises(ConfigError) as raised:
        train_on(1, config_for(problem, **sections), problem)
    return str(raised.value)


def test_rows_that_stay_where_the_caller_has_them_are_no_matrix():
    def matrix(dtype, recipe):
        reader = MemoryReader(np.zeros((500, 40), dtype=dtype), np.zeros(500))
        config = RunConfig.parse({"precision": {"recipe": recipe}})
        grid = Grid(SerialCommunicator(), 1, 1)
        return memory.predict(grid, reader, config, config.precision.resolve(), 1)

    assert matrix(np.float32, "fp32").matrix == matrix(np.float64, "fp64").matrix == 0
    assert matrix(np.float32, "fp64").matrix == 8 * 20_000
    assert matrix(np.float32, "c").matrix == 2 * 20_000


def test_a_remedy_does_not_name_what_is_done_already():
    parts = dict.fromkeys(vars(need(10, 10)), 1)
    budget = memory.MemoryBudget(LIMITS["machine"], 2**30, [2**40])

    def sentence(part, **sections):
        parts_of_need = memory.MemoryNeed(**parts | {part: 2**40})
        return memory._sentence(parts_of_need, budget, RunConfig.parse(sections))

    steps = {"steps": 1}
    assert "--steps" not in sentence("exchange", schedule=steps)
    assert "use a smaller --batch" in sentence("exchange", schedule=steps)
    for recipe in ("c", "d", "fp16", "fp8"):
        said = sentence("matrix", precision={"recipe": recipe})
        assert "--precision" not in said and "use more ranks" in said

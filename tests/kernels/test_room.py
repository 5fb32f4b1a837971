"""What a GPU has room for: predicted to the byte, refused before it is filled."""

from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.backends.cuda import gram, sequences
from hpcsgd.backends.cuda.exchange import DeviceShard, ExchangeKernels, put_csr
from hpcsgd.backends.cuda.gram import CublasGram, GramChoice, WgmmaGram, bytes_asked
from hpcsgd.backends.cuda.matrix import Order
from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.matrix import Csr, DenseMatrix
from hpcsgd.errors import ConfigError
from hpcsgd.glm.families import Logistic
from hpcsgd.glm.unrolling import blocks_of
from hpcsgd.precision import RECIPES
from hpcsgd.runs import gpu
from hpcsgd.runs.gpu import ExchangeDemand, device_need
from tests.helpers.fake_cuda import Node
from tests.helpers.harness import make_problem, train_on
from tests.helpers.kernels.cublas_gram import case as cublas_case
from tests.helpers.kernels.room import Counting
from tests.helpers.kernels.runs import on_gpu
from tests.helpers.kernels.wgmma_choice import case as wgmma_case
from tests.helpers.sparse import as_csr, make_sparse

PROBLEM = make_problem("logistic", n=400, d=37)
SCHEDULE = {"batch": 32, "steps": 4, "epochs": 1}


@pytest.fixture
def devices(monkeypatch):
    """Those that ranks are given, to be filled in."""
    given, left = [], []

    def take(world, share_gpus):
        given.append(left.pop(0))
        return given[-1]

    monkeypatch.setattr("hpcsgd.runs.gpu.take_gpu", take)
    return left, given


@pytest.mark.parametrize("width", [37, 3001])  # wide: tiles are summed of parts
@pytest.mark.parametrize("kind", ["gram", "direct", "cached", "gather", "gather-once"])
@pytest.mark.parametrize("recipe, item", [("fp32", 4), ("c", 2)])
def test_what_is_predicted_is_what_is_taken(
    devices, monkeypatch, kind, recipe, item, width
):
    left, given = devices
    members, needs = 1 + kind.startswith("gather"), []
    left += [Counting(2**30, f"GPU {number}", Node()) for number in range(members)]
    noting = lambda *given: needs.append(device_need(*given)) or needs[-1]  # noqa: E731
    monkeypatch.setattr(gpu, "device_need", noting)
    problem = make_problem("logistic", n=112, d=width)
    config = on_gpu(
        problem,
        **{"schedule": SCHEDULE, "precision": {"recipe": recipe}},
        products={"kind": kind},
        sampling={"mode": "shuffle-once"},
    )
    config = replace(config, run=replace(config.run, transport="mpi-host"))
    train_on(members, config, problem, weights=True, offset=True)
    need, taken = needs[0], sum(given[0].asked)
    if members == 1:
        assert need.matrix == 112 * (-(-width * item // 16) * 16)
        assert need.matrix in given[0].asked
    assert bool(need.kept) == (kind not in ("gram", "direct"))
    few = 15_000  # columns of the rows of one exchange, and what blocks meet through
    assert 0.97 * taken - few <= need.total <= 1.03 * taken


@pytest.mark.parametrize("kind", ["gram", "direct", "cached"])
@pytest.mark.parametrize("recipe", ["fp32", "c"])
def test_what_is_predicted_of_sparse_rows_is_what_is_taken(
    devices, monkeypatch, kind, recipe
):
    left, given = devices
    left.append(Counting(2**30, "GPU 0", Node()))
    needs = []
    noting = lambda *given: needs.append(device_need(*given)) or needs[-1]  # noqa: E731
    monkeypatch.setattr(gpu, "device_need", noting)
    stored, _ = make_sparse("logistic", n=112, d=3001, density=0.02)
    config = on_gpu(
        stored,
        schedule=SCHEDULE,
        precision={"recipe": recipe},
        products={"kind": kind},
        sampling={"mode": "shuffle-once"},
    )
    train_on(1, config, stored, weights=True, offset=True)
    assert needs[0].total == pytest.approx(sum(given[0].asked), rel=0.01, abs=500)


@pytest.mark.parametrize("sizes", [(320, 320, 320, 320), (64, 64), (7,)])
def test_buffers_of_sparse_rows_are_not_those_of_dense_ones(sizes):
    """Dense rows of 1280 x 600 have large tiles, and sums of parts."""
    device, blocks = Counting(2**30), blocks_of(sizes)
    rows = sum(sizes)
    stored = as_csr(np.eye(rows, 600, dtype=np.float32))
    host = Csr(stored.indptr, stored.indices, stored.data, 600)
    matrix = put_csr(device, host, "fp32")
    order = Order(device, *(np.ones((rows, 1)) for _ in range(3)))
    device.asked.clear()
    shard = DeviceShard(matrix, order, matrix.width)
    ExchangeKernels(device, shard, blocks, Logistic(), RECIPES["fp32"])
    shape = blocks, 600, 4, device.multiprocessors
    sparse, dense = (
        sum(size for _, size in ExchangeKernels.holds(*shape, is_sparse=is_sparse))
        for is_sparse in (True, False)
    )
    assert sum(device.asked) == sparse + 4 * len(blocks.starts)
    assert (sparse < dense) == (len(sizes) > 1)  # one batch has no Gram


@pytest.mark.parametrize(
    "recipe, schedule, remedy",
    [
        ("fp32", {}, "use more members on more GPUs .--grid., or halve it with --prec"),
        ("c", {}, "use more members on more GPUs .--grid.$"),
        ("fp32", {"steps": 12}, "use a smaller --steps or --batch$"),
    ],
)
def test_a_run_without_room_is_refused_first(devices, recipe, schedule, remedy):
    left, given = devices
    left.append(Counting(20_000))
    tall = make_problem("logistic", n=400, d=37)
    tables = {"schedule": {**SCHEDULE, "steps": 1, **schedule}}
    config = on_gpu(tall, precision={"recipe": recipe}, **tables)
    with pytest.raises(ConfigError, match=remedy) as refused:
        train_on(1, config, tall)
    said = str(refused.value)
    assert "GPU node 0000:01 has no room: " in said
    assert "KiB are needed and 19.5 KiB of 39.1 KiB are free" in said
    form = {"fp32": "fp32", "c": "bf16"}[recipe]
    assert f"KiB in {form}" in said and "the buffers of exchanges" in said
    assert not given[0].asked  # nothing was allocated


def test_all_ranks_hear_of_one_without_room(devices, tmp_path):
    left, given = devices
    left += [Counting(free, f"GPU {free}", Node()) for free in (20_000, 2**30)]
    errors = []

    def on_rank(world):
        run = {"transport": "mpi-host", "out": str(tmp_path / "run")}
        try:
            train(on_gpu(PROBLEM, run=run), X=PROBLEM.X, y=PROBLEM.y, world=world)
        except ConfigError as error:
            errors.append(error)
        return world.max_flag(0)  # they are in step

    assert run_ranks(2, on_rank) == [0, 0]
    assert [error.on_all_ranks for error in errors] == [True, True]
    assert all("GPU 20000 has no room" in str(error) for error in errors)
    assert not (tmp_path / "run").exists()


def test_ranks_that_share_a_gpu_share_what_is_free(devices):
    left, given = devices
    matrix = DenseMatrix(np.empty((400, 19), np.float32))
    demand = ExchangeDemand([(8,) * 4] * 12 + [(8, 8)])
    need = device_need(matrix, demand, 4).total
    run = {"transport": "mpi-host", "share_gpus": True}
    left += [Counting(int(1.5 * need)) for _ in range(2)]
    with pytest.raises(ConfigError, match="needed by 2 ranks .*start fewer ranks on"):
        train_on(2, on_gpu(PROBLEM, run=run), PROBLEM)
    left += [Counting(int(2.5 * need)) for _ in range(2)]
    assert train_on(2, on_gpu(PROBLEM, run=run), PROBLEM).exchanges == 13


LONG = {"schedule": {"batch": 128, "steps": 10, "epochs": 1}}  # exchanges of 1280 rows


def long_run(kernel, members=1):
    """Of which cuBLAS may make the Gram."""
    sections = {"precision": {"recipe": "c"}, "products": {"gram_kernel": kernel}}
    problem = make_problem("logistic", n=1280, d=17)
    config = on_gpu(problem, **LONG, **sections)
    return replace(config, run=replace(config.run, transport="mpi-host")), problem


def test_what_another_gram_works_in_is_predicted(monkeypatch):
    ways = (("cublas", 64, (640, 640)), ("wgmma", 128, (60, 40, 200)))
    for kernel, side, plan in ways:
        starts = (0, *np.cumsum(plan).tolist())
        own = {64: cublas_case, 128: wgmma_case}[side](starts=starts)
        asked, empty = [], own.device.empty
        noting = lambda *given: asked.append(empty(*given)) or asked[-1]  # noqa: E731, B023
        monkeypatch.setattr(own.device, "empty", noting)
        monkeypatch.setattr(own.device, "zeros", noting)
        {"cublas": CublasGram, "wgmma": WgmmaGram}[kernel](own)
        monkeypatch.setattr(gram, "tile_for", lambda *_, side=side: side)
        need = bytes_asked(kernel, {plan}, own.matrix.width, "bf16", own.device)
        assert need == sum(array.nbytes for array in asked) > 0


@pytest.mark.parametrize("members", [1, 2])
def test_auto_asks_cublas_where_it_has_room(devices, monkeypatch, caplog, members):
    """Else it leaves the room to the run, on all members alike."""
    left, given = devices
    config, problem = long_run("auto")
    needs, asked = [], []
    noting = lambda *given: needs.append(device_need(*given)) or needs[-1]  # noqa: E731
    monkeypatch.setattr(gpu, "device_need", noting)
    choose = lambda kind, own, add: asked.append(kind) or GramChoice("own", own, {})  # noqa: E731
    monkeypatch.setattr(sequences, "choose_gram", choose)
    left += [Counting(2**30, f"GPU {rank}", Node()) for rank in range(members)]
    with caplog.at_level("INFO"):
        train_on(members, config, problem)
    assert set(asked) == {"auto"} and "not asked" not in caplog.text
    square = 4 * 1280 * 1280
    tight = [max(need.total for need in needs) + square, 2**30][:members]
    left += [Counting(free, f"GPU {free}", Node()) for free in tight]
    asked.clear()
    with caplog.at_level("INFO"):
        train_on(members, config, problem)
    assert set(asked) == {"own"}
    assert "not computed by cuBLAS, for whose workspace of 6." in caplog.text


def test_cublas_without_room_is_refused_first(devices):
    left, given = devices
    config, problem = long_run("cublas")
    left.append(Counting(6_000_000))
    with pytest.raises(ConfigError, match="use .products. gram_kernel = 'auto'$") as no:
        train_on(1, config, problem)
    assert "(one rank: the workspace of the Gram kernel 6.31 MiB, " in str(no.value)
    assert not given[0].asked


def test_an_allocation_that_fails_later_is_heard_by_all(devices):
    """What others take meanwhile cannot be predicted."""
    left, given = devices

    class Full(Counting):
        def memory(self):
            return 2**30, 2**31

    left += [Full(20_000, "a", Node()), Counting(2**30, "b", Node())]
    errors = []

    def on_rank(world):
        config = on_gpu(PROBLEM, run={"transport": "mpi-host"})
        try:
            train(config, X=PROBLEM.X, y=PROBLEM.y, world=world)
        except ConfigError as error:
            errors.append(str(error))

    run_ranks(2, on_rank)
    assert len(errors) == 2 and len(set(errors)) == 1
    assert "the GPU a has no room for 31.2 KiB more" in errors[0]

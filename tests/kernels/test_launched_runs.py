"""What runs on a device launch: graphs, tiles, and the Gram that is made early."""

import numpy as np
import pytest

from tests.helpers.harness import make_problem, oracle_for, relative_error, train_on
from tests.helpers.kernels.runs import on_gpu


@pytest.mark.parametrize("kind", ["gram", "direct"])
def test_exchanges_that_come_again_are_one_launch(devices, kind):
    """The first compiles, the second records; rates that change are sent beside."""
    problem = make_problem("logistic", n=37, d=13)
    sections = {
        "schedule": {"epochs": 4},
        "products": {"kind": kind},
        "rate": {"value": problem.rate, "kind": "inverse", "decay": 0.1},
    }
    found = train_on(1, on_gpu(problem, **sections), problem)
    exact = oracle_for(on_gpu(problem, **sections), problem)
    assert relative_error(found, exact) <= 2e-5
    (device,) = devices
    assert device.captured == 2  # of 32 rows and of 5
    each = {"gram": 4, "direct": 2}[kind]
    assert len(device.launched) == 2 * each * device.captured


@pytest.mark.parametrize("transport, graphs", [("nccl", 1), ("mpi-host", 2)])
@pytest.mark.parametrize("kind", ["gram", "direct"])
def test_sums_are_part_of_the_launch_where_they_can_be(
    devices, kind, transport, graphs
):
    """One graph with the sum in it, or one before it and one behind it."""
    problem = make_problem("logistic", n=37, d=13)
    sections = {"schedule": {"epochs": 4}, "products": {"kind": kind}}
    run = {"transport": transport, "evaluate_every": 0}
    found = train_on(2, on_gpu(problem, **sections, run=run), problem)
    here = on_gpu(problem, **sections, run={"device": "cpu"})
    exact = oracle_for(here, problem)
    assert relative_error(found, exact) <= 2e-5
    each = 2  # of 32 rows and of 5; steps of 8 and of 5
    assert [device.captured for device in devices] == [graphs * each] * 2
    assert len(devices[0].launched) == 2 * each * 4  # by hand, and while recording
    calls = train_on(2, here, problem).ledger["products"]["calls"]
    assert found.ledger["products"]["calls"] == calls


@pytest.mark.parametrize("columns", [40, 39])
@pytest.mark.parametrize("family, kernel", [("logistic", "own"), ("softmax", "cublas")])
def test_long_exchanges_have_large_tiles(devices, monkeypatch, family, kernel, columns):
    """As small ones, but for the order of sums; the monitor reads them, too.

    With 39 columns one member has 19, too few for large tiles: the widest decides.
    """
    problem = make_problem(family, n=300, d=columns)
    sections = {
        "precision": {"recipe": "c"},
        "schedule": {"batch": 40, "steps": 4, "epochs": 2},
        "products": {"kind": "gram", "gram_kernel": kernel},
        "run": {"gap_every": 2, "fall_back": False},
    }
    monkeypatch.setattr("hpcsgd.backends.cuda.gram.WORTH_ASKING", 16)
    found = {}
    for rows in (1024, 100):
        monkeypatch.setattr("hpcsgd.backends.cuda.kernels.LARGE_ROWS", rows)
        monkeypatch.setattr("hpcsgd.backends.cuda.kernels.LARGE_COLS", 20)
        found[rows] = train_on(2, on_gpu(problem, **sections), problem)
        assert not found[rows].events
    words = [one.ledger["products"]["words"] for one in found.values()]
    assert words[1] > words[0]  # tiles travel whole
    size = np.abs(found[1024].weights).max()
    gap = np.abs(found[1024].weights - found[100].weights).max()
    assert gap <= 1e-4 * size


def test_a_matrix_in_tf32_is_multiplied_as_it_is(devices):
    """Its values are rounded once, by the host; tensor cores lose nothing more."""
    problem = make_problem("logistic", n=37, d=37)
    sections = {"precision": {"recipe": "fp32", "matrix": "tf32"}}
    there = train_on(2, on_gpu(problem, **sections), problem)
    here = train_on(2, on_gpu(problem, **sections, run={"device": "cpu"}), problem)
    size = np.abs(here.weights).max()
    assert np.abs(here.weights - there.weights).max() <= 2e-6 * size
    assert not np.array_equal(
        there.weights, train_on(2, on_gpu(problem), problem).weights
    )


@pytest.mark.cases(2)
@pytest.mark.parametrize("transport", ["nccl", "mpi-host"])
@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize(
    "family, update, recipe",
    [("logistic", "sgd", "c"), ("softmax", "nesterov", "fp32"), ("huber", "sgd", "d")],
)
def test_the_next_gram_is_made_early(
    devices, family, update, recipe, members, transport
):
    """The host's look-ahead: its sums, its iterates; orders change between epochs."""
    problem = make_problem(family, n=71, d=23)
    sections = {
        "problem": {"intercept": True},
        "products": {"kind": "gram", "look_ahead": "on"},
        "schedule": {"epochs": 4},
        "precision": {"recipe": recipe},
        "update": {"kind": update},
        "rate": {"value": 0.05, "kind": "inverse", "decay": 0.1},
    }
    run = {"transport": transport, "evaluate_every": 0}
    there = train_on(members, on_gpu(problem, **sections, run=run), problem)
    host = {"device": "cpu", "evaluate_every": 0}
    here = train_on(members, on_gpu(problem, **sections, run=host), problem)
    size = np.abs(here.weights).max()
    near = 1e-5 if recipe == "fp32" else 2e-3  # a margin may round the other way
    assert np.abs(here.weights - there.weights).max() <= near * size
    calls = [one.ledger["products"]["calls"] for one in (here, there)]
    assert calls[0] == calls[1]
    assert devices[0].captured >= 4 and there.report["look_ahead"]


def test_looks_and_rests_do_not_mind_what_is_made_early(devices, tmp_path):
    """A look, a checkpoint, and the end of a run come between a Gram and its steps."""
    problem = make_problem("logistic", n=71, d=23)
    ahead = {"products": {"kind": "gram", "look_ahead": "on"}}
    longer = {"schedule": {"epochs": 4}}
    run = {"gap_every": 2, "fall_back": False}
    whole = train_on(2, on_gpu(problem, **ahead, **longer, run=run), problem)
    assert not whole.events
    saved = {**run, "out": str(tmp_path / "run"), "resume": "auto"}
    half = on_gpu(problem, **ahead, schedule={"epochs": 2}, run=saved)
    train_on(2, half, problem)
    again = train_on(2, on_gpu(problem, **ahead, **longer, run=saved), problem)
    np.testing.assert_array_equal(again.weights, whole.weights)
    never = {"gap_every": 0}
    plain = train_on(2, on_gpu(problem, **ahead, **longer, run=never), problem)
    np.testing.assert_array_equal(plain.weights, whole.weights)


def test_cublas_may_make_the_gram_of_long_exchanges(devices, monkeypatch):
    """All members take the same, and the report says which."""
    monkeypatch.setattr("hpcsgd.backends.cuda.gram.WORTH_ASKING", 16)
    problem = make_problem("logistic", n=71, d=23)
    found = {}
    for kind in ("own", "cublas", "auto"):
        sections = {
            "products": {"kind": "gram", "gram_kernel": kind},
            "precision": {"recipe": "c"},
            "schedule": {"epochs": 3},
        }
        found[kind] = train_on(2, on_gpu(problem, **sections), problem)
    size = np.abs(found["own"].weights).max()
    for one in found.values():
        assert np.abs(one.weights - found["own"].weights).max() <= 1e-5 * size
    names = [one.report["gram_kernel"] for one in found.values()]
    # The fake device counts launches: a product and its packing are more than one.
    assert names[0] == "own" and names[1].startswith("cublas") and names[2] == "own"
    assert "gemm_bf16" in devices[2].launched


@pytest.mark.parametrize("members", [1, 2])
def test_warpgroups_may_make_the_gram_of_long_exchanges(devices, monkeypatch, members):
    """All members take them, also ahead of time; a short last exchange stays ours."""
    monkeypatch.setattr("hpcsgd.backends.cuda.kernels.LARGE_ROWS", 150)
    monkeypatch.setattr("hpcsgd.backends.cuda.kernels.LARGE_COLS", 10)
    problem = make_problem("logistic", n=230, d=23)
    found = {}
    for kind in ("own", "wgmma"):
        sections = {
            "products": {"kind": "gram", "gram_kernel": kind, "look_ahead": "on"},
            "precision": {"recipe": "c"},
            "schedule": {"batch": 32, "steps": 5, "epochs": 2},
        }
        found[kind] = train_on(members, on_gpu(problem, **sections), problem)
        assert found[kind].report["gram_kernel"] == kind
    size = np.abs(found["own"].weights).max()
    gap = np.abs(found["wgmma"].weights - found["own"].weights).max()
    assert gap <= 1e-5 * size
    launched = devices[-1].launched
    assert "gram_wgmma" in launched and "gram" in launched

"""Whole runs on a device that is the emulation: Python for a GPU, and its kernels."""

from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.comm.nccl import Nccl, NcclCommunicator
from hpcsgd.errors import ConfigError
from hpcsgd.products.gram import Gram
from hpcsgd.runs.result import Status
from tests.helpers.harness import (
    make_problem,
    oracle_for,
    relative_error,
    train_on,
)
from tests.helpers.kernels.runs import FAMILIES, UPDATES, on_gpu

# One score a row, and many.
KERNELS = (
    ("margin", "recurrence", "update"),
    ("margins_columns", "softmax", "update_columns"),
)


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "family, kind",
    [
        *((name, "gram") for name in FAMILIES),
        *((name, "direct") for name in ("logistic", "softmax")),
    ],
)
def test_iterates_are_those_of_sgd(devices, family, kind):
    problem = make_problem(family, n=37, d=37)
    sections = {"problem": {"intercept": True, "l2": 0.01}, "products": {"kind": kind}}
    sections["schedule"] = {"epochs": 2}  # the first exchange of all begins at w = 0
    config = on_gpu(problem, **sections)
    found = train_on(1, config, problem, weights=True, offset=True)
    assert found.status is Status.COMPLETED
    exact = oracle_for(config, problem, weights=True, offset=True)
    assert relative_error(found, exact) <= 2e-5
    launched = {"sample", *KERNELS[family == "softmax"]}
    if kind == "direct" and family != "softmax":
        launched = {"sample", "direct_steps"}
    launched |= {"gram"} if kind == "gram" else set()
    assert set(devices[0].launched) - {"margin"} == launched - {"margin"}


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("kind", ["gram", "direct"])
@pytest.mark.parametrize("family", ["logistic", "softmax"])
@pytest.mark.parametrize("update", UPDATES)
def test_momentum(devices, update, family, kind, members):
    problem = make_problem(family, n=37, d=13)
    sections = {
        "problem": {"intercept": True, "l2": 0.01},
        "products": {"kind": kind},
        "update": {"kind": update, "momentum": 0.8},
    }
    config = on_gpu(problem, **sections)
    found = train_on(members, config, problem, weights=True)
    exact = oracle_for(config, problem, weights=True)
    assert relative_error(found, exact) <= 2e-5
    host = on_gpu(problem, **sections, run={"device": "cpu"})
    here = train_on(members, host, problem, weights=True)
    words = [one.ledger["products"]["words"] for one in (here, found)]
    assert kind == "gram" or words[0] == words[1]  # whole tiles of the Gram travel


@pytest.mark.parametrize("members, kind", [(1, "direct"), (2, "gram")])
@pytest.mark.parametrize("update", ["sgd", "nesterov"])
def test_l1_and_bounds_are_the_hosts(devices, members, kind, update):
    """The weights come, are mapped, and go back."""
    problem = make_problem("logistic", n=37, d=13)
    bent = {"intercept": True, "l1": 0.02, "l2": 0.01, "upper": (0.005,) * 13}
    config = on_gpu(
        problem,
        problem=bent,
        products={"kind": kind},
        schedule={"steps": 1, "epochs": 2},
        update={"kind": update, "momentum": 0.8},
    )
    found = train_on(members, config, problem, weights=True)
    flat = on_gpu(problem, problem={**bent, "upper": 0.005}, schedule={"epochs": 2})
    flat = replace(config, problem=flat.problem)
    exact = oracle_for(flat, problem, weights=True)
    assert relative_error(found, exact) <= 2e-5
    assert (found.weights == 0.0).any() and (found.weights == np.float32(0.005)).any()


@pytest.mark.cases(1)
@pytest.mark.parametrize("form", ["fp16", "fp8-e4m3", "fp8-e5m2"])
def test_a_matrix_that_is_stored_times_a_power_of_two(devices, form):
    """The values that are stored are those of the host, and so are the weights."""
    problem = make_problem("logistic", n=37, d=37)
    sections = {
        "precision": {"recipe": "fp32", "matrix": form, "scale": "global"},
        "products": {"kind": "gram"},
        "problem": {"intercept": True},
    }
    there = train_on(2, on_gpu(problem, **sections), problem)
    here = train_on(2, on_gpu(problem, **sections, run={"device": "cpu"}), problem)
    assert there.status is here.status is Status.COMPLETED
    size = np.abs(here.weights).max()
    assert np.abs(here.weights - there.weights).max() <= 1e-5 * size
    assert there.loss == pytest.approx(here.loss, rel=1e-5)


@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize(
    "recipe, transport",
    [("fp32", "nccl"), ("fp32", "mpi-host"), ("c", "nccl"), ("d", "auto")],
)
def test_members_sum_as_on_the_host(devices, members, recipe, transport):
    """The same rounding of rows and margins: off by the order of sums alone."""
    problem = make_problem("logistic", n=37, d=37)
    sections = {"precision": {"recipe": recipe}, "products": {"kind": "gram"}}
    here = train_on(
        members, on_gpu(problem, **sections, run={"device": "cpu"}), problem
    )
    run = {"transport": transport}
    there = train_on(members, on_gpu(problem, **sections, run=run), problem)
    size = np.abs(here.weights).max()
    near = 2e-6 if recipe == "fp32" else 2e-4  # a margin may round the other way
    assert np.abs(here.weights - there.weights).max() <= near * size
    assert there.loss == pytest.approx(here.loss, rel=1e-4)
    calls = [run.ledger["products"]["calls"] for run in (here, there)]
    assert calls[0] == calls[1]


@pytest.mark.parametrize("members", [2, 3])
def test_sums_in_bf16_are_made_on_the_device(devices, monkeypatch, members):
    """An exchange fetches nothing: what is fetched is for those who look."""
    advance, fetched = Gram.advance, []

    def counted(self, *given):
        device = self.exchanges.device
        before = device.fetched
        state = advance(self, *given)
        fetched.append(device.fetched - before)
        return state

    monkeypatch.setattr(Gram, "advance", counted)
    problem = make_problem("logistic", n=160, d=13)
    sections = {"precision": {"recipe": "d"}, "products": {"kind": "gram"}}
    found = train_on(members, on_gpu(problem, **sections), problem)
    assert found.ledger["products"]["calls"] == 5 * 3  # two of the Gram, one of margins
    assert fetched == [0] * 5 * members


def test_the_state_comes_and_goes(devices, tmp_path):
    """Checkpoints, evaluations and agreements see the weights of that moment."""
    problem = make_problem("logistic", n=37, d=13)
    run = {"out": str(tmp_path / "run"), "resume": "auto"}
    whole = train_on(2, on_gpu(problem, schedule={"epochs": 2}), problem)
    train_on(2, on_gpu(problem, run=run), problem)
    longer = on_gpu(problem, run=run, schedule={"epochs": 2})
    again = train_on(2, longer, problem)
    assert np.array_equal(again.weights, whole.weights)
    replicas = {"grid": {"replicas": 2}, "schedule": {"period": 2}}
    here = train_on(2, on_gpu(problem, **replicas, run={"device": "cpu"}), problem)
    there = train_on(2, on_gpu(problem, **replicas), problem)
    assert relative_error(there, (here.weights[:, None], np.zeros(1))) <= 1e-5


@pytest.mark.parametrize(
    "sections, what",
    [
        ({"precision": {"recipe": "fp8"}}, "scaled alike; use .*=global, or"),
        ({"precision": {"recipe": "fp64"}}, "precision"),
        ({"update": {"clip": "norm"}, "products": {"kind": "direct"}}, "clipped"),
    ],
)
def test_what_a_gpu_does_not_do_is_refused(devices, sections, what):
    problem = make_problem("logistic", n=37, d=13)
    problem = replace(problem, X=problem.X * np.where(np.arange(13) % 2, 1.0, 9.0))
    with pytest.raises(ConfigError, match=what) as refused:
        train_on(1, on_gpu(problem, **sections), problem)
    assert "--device cpu" in str(refused.value)


def test_collectives_are_looked_at_before_the_host_waits(devices, monkeypatch):
    """A sum that hangs is then waited for in its place, where the watchdog sees it."""
    settled = {}
    settle = NcclCommunicator.settle

    def looking(self):
        if self.carrier.under_way:
            settled[id(self)] = self
        settle(self)

    monkeypatch.setattr(NcclCommunicator, "settle", looking)
    problem = make_problem("logistic", n=37, d=13)
    ended = []
    close = Nccl.close
    monkeypatch.setattr(Nccl, "close", lambda self: (ended.append(1), close(self)))
    train_on(2, on_gpu(problem, run={"transport": "nccl"}), problem)
    assert len(settled) == 2 * 2  # the world by its proof, members by the run
    assert len(ended) == 2 * 3  # of the world, of members, of replicas, on two ranks


def test_the_finisher_begins_with_weights_of_a_device(devices):
    """They come to the host for it; the optimum is that of a run without a GPU."""
    problem = make_problem("logistic", n=37, d=13)
    sections = {
        "problem": {"intercept": True, "l2": 0.01},
        "polish": {"kind": "lbfgs", "tol": 1e-11},
    }
    found = train_on(1, on_gpu(problem, **sections), problem)
    host = on_gpu(problem, **sections, run={"device": "cpu"})
    expected = train_on(1, host, problem)
    assert found.report["polish"]["ended"] == "converged"
    assert found.weights.dtype == np.float64
    np.testing.assert_allclose(found.weights, expected.weights, atol=1e-9)

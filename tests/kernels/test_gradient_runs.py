"""Replicas that share gradients of devices: the runs of the host, to roundoff."""

from dataclasses import replace

import numpy as np
import pytest

from hpcsgd import build
from hpcsgd.agreement.there import BufferThere
from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.store_writer import StoreWriter
from hpcsgd.errors import ConfigError
from hpcsgd.products.device_gradient import DeviceGradient
from hpcsgd.result import Status
from tests.contracts.codec import NAMES, ROWS, sections_of
from tests.fake_cuda import FakeLayer
from tests.harness import make_problem, train_on, what_is_read
from tests.kernels.fake_device import FakeDevice
from tests.kernels.test_runs import on_gpu
from tests.sparse import make_sparse


def shared(problem, replicas, members=1, /, **sections):
    """A run of the gradient agreement on GPUs, in several buckets."""
    tables = {
        "schedule": {"batch": 4, "steps": 1, "epochs": 1},
        "products": {"kind": "auto"},
        "problem": {"intercept": True, "l2": 0.05},
        "agreement": {"kind": "gradient", "bucket": 4 * 5 * 2.0**-20},
        "grid": {"replicas": replicas, "members": members},
        "run": {"device": "cuda", "evaluate_every": 0, "transport": "nccl"},
    }
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}
    return on_gpu(problem, **what_is_read(tables, "agreement"))


def both(problem, replicas, members=1, /, data=None, **sections):
    """Results with the device, and without."""
    ranks, data = replicas * members, data or {}
    there = train_on(
        ranks, shared(problem, replicas, members, **sections), problem, **data
    )
    sections["run"] = {**sections.get("run", {}), "device": "cpu"}
    here = train_on(
        ranks, shared(problem, replicas, members, **sections), problem, **data
    )
    return there, here


def near(there, here, most=1e-5):
    size = np.abs(here.weights).max()
    gap = np.abs(here.weights - there.weights).max() / size
    assert size > 0 and gap <= most, gap
    if here.intercept is not None:
        np.testing.assert_allclose(there.intercept, here.intercept, atol=most * size)
    one, other = (run.ledger["agreement"] for run in (there, here))
    for name in ("calls", "words", "bytes", "wire_bytes"):
        assert one[name] == pytest.approx(other[name]), name


@pytest.mark.parametrize("transport", ["nccl", "mpi-host"])
@pytest.mark.parametrize("replicas, members", [(1, 1), (2, 1), (1, 2), (2, 2)])
def test_runs_are_those_of_the_host(devices, replicas, members, transport):
    problem = make_problem("logistic", n=12 * replicas + 1, d=13)
    near(*both(problem, replicas, members, run={"transport": transport}))
    # The third time that a batch of four comes, it is one launch.
    assert all(device.captured for device in devices)


# Of which some take the step on the device, and others send the point where scores are
# read: momenta, adaptive rates, what is shaped before the step.
CASES = {
    "softmax": ("softmax", {}),
    "several scores by the host": ("softmax", {"run": {"transport": "mpi-host"}}),
    "accumulated": (
        "logistic",
        {"agreement": {"accumulate": 2}, "schedule": {"batch": 2}},
    ),
    "accumulated, no intercept": (
        "huber",
        {
            "agreement": {"accumulate": 2},
            "problem": {"intercept": False},
            "schedule": {"batch": 2},
        },
    ),
    "growing": (
        "logistic",
        {"agreement": {"kind": "growing", "accumulate": 2}, "schedule": {"epochs": 3}},
    ),
    "momentum": ("logistic", {"update": {"kind": "momentum", "momentum": 0.8}}),
    "momentum by the host": (
        "logistic",
        {"update": {"kind": "momentum"}, "run": {"transport": "mpi-host"}},
    ),
    "nesterov": ("softmax", {"update": {"kind": "nesterov", "momentum": 0.8}}),
    "nesterov-classic": (
        "poisson",
        {"update": {"kind": "nesterov-classic", "momentum": 0.8}},
    ),
    "adam": ("logistic", {"update": {"kind": "adam"}, "rate": {"value": 0.01}}),
    "adagrad": ("softmax", {"update": {"kind": "adagrad"}, "rate": {"value": 0.05}}),
    "in 8 bits": ("logistic", {"update": {"kind": "momentum", "bits": 8}}),
    "clipped": ("logistic", {"update": {"clip": "norm", "clip_at": 0.05}}),
    "reproducible": ("logistic", {"run": {"reproducible": True}}),
    "two levels": ("logistic", {"agreement": {"hierarchical": "2"}}),
    "compared": ("logistic", {"run": {"check_members": 1}, "grid": {"members": 2}}),
    "fp16": ("logistic", {"precision": {"matrix": "fp16", "scale": "global"}}),
    "fp8": ("logistic", {"precision": {"matrix": "fp8-e4m3", "scale": "global"}}),
    "fp8, momentum": (
        "logistic",
        {
            "precision": {"matrix": "fp8-e4m3", "scale": "global"},
            "update": {"kind": "momentum", "momentum": 0.8},
        },
    ),
    "fp8, nesterov by the host": (
        "logistic",
        {
            "precision": {"matrix": "fp8-e4m3", "scale": "global"},
            "update": {"kind": "nesterov-classic", "momentum": 0.8},
            "run": {"transport": "mpi-host"},
        },
    ),
}


def same_on_three(family, sections):
    """Weights and offsets of rows, three replicas of uneven rows, one without."""
    members = sections.get("grid", {}).get("members", 1)
    problem = make_problem(family, n=13, d=13)
    data = {"weights": True, "offset": True}
    there, here = both(problem, 3, members, data=data, **sections)
    near(there, here)
    assert there.report["agreement"]["mended_replicas"] == 0


@pytest.mark.parametrize("case", CASES)
def test_what_else_a_run_may_be(devices, case):
    same_on_three(*CASES[case])


@pytest.mark.parametrize(
    "recipe, most, transport", [("fp32", 1e-5, "nccl"), ("c", 2e-4, "mpi-host")]
)
def test_sparse_rows(devices, recipe, most, transport):
    stored, _ = make_sparse("logistic", n=13, d=37)
    sections = {"precision": {"recipe": recipe}, "run": {"transport": transport}}
    near(*both(stored, 2, **sections), most)


def test_rows_in_bf16(devices):
    """Margins may round the other way."""
    problem = make_problem("logistic", n=13, d=13)
    near(*both(problem, 2, precision={"recipe": "c"}), 2e-4)


def test_replicas_may_store_their_rows_times_other_powers(devices):
    """What they sum is of no scale."""
    problem = make_problem("logistic", n=24, d=13)
    X = problem.X * np.repeat([1.0, 2.0**-9], 12)[:, None]
    problem = replace(problem, X=X)
    sections = {"precision": {"matrix": "fp16", "scale": "global"}}
    near(*both(problem, 2, **sections))


@pytest.mark.parametrize("name", NAMES)
def test_codecs_say_what_they_say_for_hosts(devices, name):
    """With the same dice, and errors that are kept."""
    problem = make_problem("softmax", n=17, d=13)
    sections = {"agreement": {"codec": name}, **sections_of(ROWS[name].rough)}
    if name == "powersgd":
        sections["agreement"]["bucket"] = 4.0
    near(*both(problem, 2, **sections))


# ------------------------------------------------------------------------- bytes


def crossed(result):
    said = result.report["agreement"]
    return said["device_bytes_up"], said["device_bytes_down"]


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_bytes_between_host_and_device_are_those_of_the_formula(
    devices, accumulate, intercept
):
    """Replica 0 of two has 9 rows: two batches of four, and one of a single row."""
    problem = make_problem("softmax", n=17, d=13)
    classes, rows = problem.classes, 9
    exchanges = {1: 3, 2: 2}[accumulate]
    tail, words = 4 * (classes * intercept + 1), 4 * 13 * classes
    offset = 8 * classes * intercept
    residuals = 4 * rows * classes * intercept  # else they are counted, not summed
    sections = {
        "problem": {"intercept": intercept},
        "agreement": {"accumulate": accumulate},
        "schedule": {"epochs": 1},
    }
    formulas = {
        # Replicas sum on their devices, which take the step.
        ("nccl", "sgd"): (offset + tail, tail),
        # They sum there, and the host takes it.
        ("nccl", "momentum"): (words + offset + tail, words + tail),
        # The host sums, too.
        ("mpi-host", "sgd"): (words + offset, words),
    }
    for (transport, update), (up, down) in formulas.items():
        more = {"run": {"transport": transport}, "update": {"kind": update}}
        found = train_on(2, shared(problem, 2, **sections, **more), problem)
        expected = exchanges * up, exchanges * down + residuals
        assert crossed(found) == expected, (transport, update)


@pytest.mark.parametrize(
    "transport, update, comes_down",
    [
        *(("nccl", "sgd", 0), ("mpi-cuda", "sgd", 0), ("nccl", "momentum", 0)),
        *(("nccl", "adam", 2), ("mpi-host", "sgd", 2)),
    ],
)
def test_nothing_as_large_as_the_weights_comes_down(
    devices, monkeypatch, transport, update, comes_down
):
    """Where devices sum and step: by the copies there were, not by what was said."""
    problem = make_problem("logistic", n=16, d=101)
    to_host, fetch, advance = (
        FakeLayer.to_host,
        FakeDevice.fetch,
        DeviceGradient.advance,
    )
    inside = set()  # devices that are in an exchange

    def copied(self, array, host, stream):
        count(self, array)
        to_host(self, array, host, stream)

    def fetched(self, array):
        count(self.layer, array)
        return fetch(self, array)

    def count(layer, array):
        if layer in inside and array.nbytes >= 4 * 101:
            large.append(layer)

    def between(self, *given):
        inside.add(self.device.layer)
        state = advance(self, *given)
        inside.remove(self.device.layer)
        return state

    large = []
    monkeypatch.setattr(FakeLayer, "to_host", copied)
    monkeypatch.setattr(FakeDevice, "fetch", fetched)
    monkeypatch.setattr(DeviceGradient, "advance", between)
    sections = {"agreement": {"bucket": 4.0}, "run": {"transport": transport}}
    sections["update"] = {"kind": update}
    train_on(2, shared(problem, 2, **sections), problem)
    assert len(large) == 2 * comes_down


# ------------------------------------------------------------------- broken twins


@pytest.mark.parametrize("update", ["sgd", "momentum"])
def test_a_gradient_that_is_not_cleared_is_found(devices, monkeypatch, update):
    monkeypatch.setattr(FakeDevice, "clear", lambda self, array: None)
    problem = make_problem("logistic", n=13, d=13)
    there, here = both(problem, 2, update={"kind": update})
    with pytest.raises(AssertionError):
        near(there, here)


def test_an_intercept_that_moves_twice_is_found(devices, monkeypatch):
    """Once on the device, before the last batch of an exchange is read."""
    from hpcsgd.products import device_gradient

    plain = device_gradient.adding

    def moving(scale):
        return replace(plain(scale), push=np.full((1, 1), -0.05))

    monkeypatch.setattr(device_gradient, "adding", moving)
    problem = make_problem("logistic", n=13, d=13)
    there, here = both(problem, 2, agreement={"accumulate": 2}, schedule={"batch": 2})
    with pytest.raises(AssertionError):
        near(there, here)


def test_means_of_means_are_found(devices, monkeypatch):
    """Uneven replicas that are counted alike."""
    counted = BufferThere.count_in

    def alike(self, residuals):
        counted(self, residuals)
        self.tail[-1] = 4

    problem = make_problem("logistic", n=13, d=13)
    here = train_on(3, shared(problem, 3, run={"device": "cpu"}), problem)
    monkeypatch.setattr(BufferThere, "count_in", alike)
    there = train_on(3, shared(problem, 3), problem)
    with pytest.raises(AssertionError):
        near(there, here)


# --------------------------------------------------------------------- endings


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"agreement": {"codec": "topk"}, "codec": {"share": 0.3}},
        {"update": {"kind": "adam"}, "agreement": {"accumulate": 2}},
        {"update": {"kind": "nesterov"}, "run": {"transport": "mpi-host"}},
    ],
    ids=["step there", "topk", "adam", "nesterov"],
)
def test_runs_go_on_bit_for_bit(devices, tmp_path, sections):
    """And from a checkpoint of the host, to roundoff."""
    problem = make_problem("softmax", n=13, d=13)
    longer = {**sections, "schedule": {"epochs": 2}}
    whole = train_on(2, shared(problem, 2, **longer), problem)
    for device in ("cuda", "cpu"):
        saved = {"out": str(tmp_path / device), "resume": "auto"}
        run = {**sections.get("run", {}), **saved}
        half = shared(problem, 2, **{**sections, "run": {**run, "device": device}})
        train_on(2, half, problem)
        again = train_on(2, shared(problem, 2, **{**longer, "run": run}), problem)
        assert again.report["resumes"] == 1
        if device == "cuda":
            np.testing.assert_array_equal(again.weights, whole.weights)
        near_weights(again, whole)


def near_weights(one, other, most=1e-5):
    size = np.abs(other.weights).max()
    assert np.abs(one.weights - other.weights).max() <= most * size


@pytest.mark.parametrize("update", ["sgd", "momentum"])
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_what_is_no_number_ends_runs_as_on_the_host(devices, update, bad):
    """With the weights that had a loss; on all ranks alike."""
    problem = make_problem("gaussian", n=24, d=13)
    rate = {"value": 1e30 if bad == np.inf else 1e18}
    sections = {"rate": rate, "update": {"kind": update}, "run": {"check_every": 1}}
    there, here = both(problem, 2, **sections)
    assert there.status is here.status is Status.DIVERGED
    np.testing.assert_array_equal(there.weights, here.weights)


def test_one_column_and_no_gradient(devices):
    """d = 1; and targets that are met: nothing moves."""
    problem = make_problem("logistic", n=13, d=1)
    near(*both(problem, 3))
    met = make_problem("gaussian", n=24, d=13)
    met = replace(met, y=np.zeros(24))
    found = train_on(2, shared(met, 2), met)
    assert found.status is Status.COMPLETED and not found.weights.any()


def test_looks_see_the_weights_of_that_moment(devices):
    problem = make_problem("logistic", n=13, d=13)
    sections = {"run": {"evaluate_every": 1}, "schedule": {"epochs": 3}}
    there, here = both(problem, 2, **sections)
    losses = [[one["loss"] for one in run.history] for run in (there, here)]
    assert len(losses[0]) == 4
    np.testing.assert_allclose(*losses, rtol=1e-5)


@pytest.mark.parametrize(
    "sections, remedy",
    [
        ({"products": {"kind": "gather"}}, "use --products direct"),
        ({"precision": {"recipe": "fp64"}}, "use --device cpu"),
    ],
)
def test_what_a_gpu_does_not_do_is_said_with_the_remedy(devices, sections, remedy):
    problem = make_problem("logistic", n=13, d=13)
    with pytest.raises(ConfigError, match=remedy):
        train_on(2, shared(problem, 2, **sections), problem)


def test_no_room_is_said_before_the_matrix_is_sent(devices, monkeypatch):
    problem = make_problem("logistic", n=13, d=13)
    monkeypatch.setattr(FakeDevice, "memory", lambda self: (100, 2**20))
    with pytest.raises(ConfigError, match="has no room"):
        train_on(2, shared(problem, 2), problem)


def test_rows_may_be_on_the_device_alone(devices, monkeypatch, tmp_path):
    """Of a matrix that the host has no room for: the same bits."""
    problem, path = make_problem("logistic", n=13, d=13), tmp_path / "x.h5"
    with StoreWriter(path, 13, element="fp32") as writer:
        writer.append(problem.X.astype(np.float32), problem.y)
    found = []
    for full in (False, True):
        monkeypatch.setattr(build, "check_memory", lambda *given, full=full: full)
        config = shared(problem, 2, data={"path": str(path)})
        found.append(run_ranks(2, lambda world, own=config: train(own, world=world)))
    for one, other in zip(*found, strict=True):
        np.testing.assert_array_equal(one.weights, other.weights)

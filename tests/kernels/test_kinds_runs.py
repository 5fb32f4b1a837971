"""Methods of every kind on devices: the runs of the host, to roundoff."""

import numpy as np
import pytest

from hpcsgd.agreements import AsyncAverage
from hpcsgd.agreements.buckets import Buffer
from hpcsgd.agreements.more.anybatch import Anybatch
from hpcsgd.agreements.more.scheduled import Scheduled
from hpcsgd.agreements.more.tick_tock import TickTock
from hpcsgd.backends.task import State
from hpcsgd.comm.gpu import DeviceCommunicator
from hpcsgd.errors import ConfigError
from hpcsgd.runs import gpu
from hpcsgd.runs.result import Status
from tests.helpers.averages import config_of
from tests.helpers.gradients import in_folder
from tests.helpers.harness import make_problem, train_on
from tests.helpers.kernels.fake_device import FakeDevice
from tests.helpers.kernels.gradient_runs import both, crossed, near, shared
from tests.helpers.sparse import make_sparse

KINDS = {
    "decentralized": {"kind": "decentralized"},
    "pairs": {"kind": "decentralized", "peers": "shift_one"},
    "decentralized-low": {"kind": "decentralized-low", "resync": 2},
    "qadam": {"kind": "qadam", "codec": "bytegrad", "warmup_steps": 2},
    "scheduled": {"kind": "scheduled", "partition": 2.0**-17, "credit": 2.0**-16},
    "ticktock": {"kind": "ticktock"},
    "delayed": {"kind": "ticktock", "mode": "delayed"},
    "anybatch": {"kind": "anybatch", "accumulate": 2, "rounds": "full"},
}
OWN_RULE = ("qadam", "anybatch")  # these take no other update


def of(name, /, **sections):
    """A method, and what else is asked of it."""
    agreement = {**KINDS[name], **sections.pop("agreement", {})}
    if name == "qadam":
        sections["update"] = {"kind": "adam"}
        sections.setdefault("rate", {"value": 0.01})
        sections.setdefault("codec", {"feedback": "off"})
    return {"agreement": agreement, **sections}


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", KINDS)
def test_runs_are_those_of_the_host(devices, name):
    """Replicas of uneven rows, in the last exchange of an epoch one without."""
    problem, replicas = make_problem("logistic", n=25, d=13), 3 - (name == "pairs")
    near(*both(problem, replicas, **of(name, schedule={"epochs": 2})))
    assert all(device.launched for device in devices)


MORE = {
    "momentum, of many scores": ("softmax", {"update": {"kind": "momentum"}}),
    "nesterov, by the host": (
        "logistic",
        {"update": {"kind": "nesterov-classic"}, "run": {"transport": "mpi-host"}},
    ),
    "accumulated, one replica": (
        "logistic",
        {"agreement": {"accumulate": 2}, "grid": {"replicas": 1}},
    ),
    "no intercept": ("huber", {"problem": {"intercept": False}}),
    "two members": ("logistic", {"grid": {"members": 2, "replicas": 2}}),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "case, name",
    [(case, list(KINDS)[k % 8]) for k, case in enumerate([*MORE] * 3)],
)
def test_what_else_a_run_may_be(devices, case, name):
    """Each with three methods, and each method with some."""
    family, sections = MORE[case]
    sections = {key: dict(table) for key, table in sections.items()}
    grid = {"replicas": 2, "members": 1, **sections.pop("grid", {})}
    if name in OWN_RULE:
        sections.pop("update", None)
    problem = make_problem(family, n=13, d=13)
    near(*both(problem, *grid.values(), **of(name, **sections)))


def test_mirror_maps_of_members(devices):
    """Weights of a simplex, of which each holds a part."""
    problem = make_problem("logistic", n=13, d=13)
    sections = {"mirror": {"kind": "entropy"}, "agreement": {"rounds": "clock"}}
    sections["agreement"]["deadline"] = 1e9
    near(*both(problem, 2, 2, **of("anybatch", **sections)))


@pytest.mark.parametrize("name", ["scheduled", "delayed", "decentralized-low"])
def test_sparse_rows_and_one_column(devices, name):
    stored, _ = make_sparse("logistic", n=13, d=37)
    near(*both(stored, 2, **of(name)))
    near(*both(make_problem("logistic", n=13, d=1), 3, **of(name)))


def test_backward_tiles_shaped_gradients_and_rows_times_a_power(devices):
    """What transfers by priority may be asked besides."""
    problem = make_problem("logistic", n=13, d=13)
    near(*both(problem, 2, **of("scheduled", agreement={"order": "backward"})))
    clipped = {"clip": "norm", "clip_at": 0.05}
    near(*both(problem, 2, **of("scheduled", update=clipped)))
    fp16 = {"matrix": "fp16", "scale": "global"}
    near(*both(problem, 2, **of("scheduled", precision=fp16)))


def test_halves_that_hide_nothing_are_one_on_the_device(devices):
    """A batch of all rows: the step is plain DDP's, which the device takes."""
    problem = make_problem("logistic", n=8, d=13)
    there, here = both(problem, 2, **of("ticktock", schedule={"epochs": 3}))
    near(there, here)
    up, down = crossed(there)
    assert up == 3 * (8 + 8) and down == 3 * (8 + 4 * 4)  # no word of w


# ------------------------------------------------------------------------- bytes


@pytest.mark.cases(2)
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("name", KINDS)
def test_bytes_between_host_and_device_are_those_of_the_formula(
    devices, name, intercept
):
    """Replica 0 of two has 9 rows: two batches of four, and one of a single row."""
    problem = make_problem("softmax", n=17, d=13)
    words, offset = 4 * 13 * problem.classes, 8 * problem.classes * intercept
    # (how often w goes up, the intercept does, gradients come down); of two halves a
    # step the second exchange has one, and rounds of two chunks take a whole stream.
    times = {"ticktock": (2, 2, 3), "anybatch": (2, 4, 2)}.get(name, (3, 3, 3))
    rows = 4 + 4 + 1 + 4 * (name == "anybatch")
    residuals = 4 * rows * problem.classes * intercept
    sections = of(name, problem={"intercept": intercept})
    found = crossed(train_on(2, shared(problem, 2, **sections), problem))
    up, offsets, down = times
    assert found == (up * words + offsets * offset, down * words + residuals)


def test_averages_that_travel_cross_as_often_as_they_say(devices, monkeypatch):
    """Down to be said, and down and up again when taken: w with its velocity."""
    copies = {}  # of every device

    def marked(what, owner, name, device_of):
        plain = getattr(owner, name)

        def action(self, one, *more):
            found = plain(self, one, *more)
            if what in ("ran", "said", "taken") or tuple(one.shape) == (13, 2):
                copies.setdefault(device_of(self, one), []).append(what)
            return found

        monkeypatch.setattr(owner, name, action)

    for what, name in (("said", "start_average"), ("taken", "apply_average")):
        marked(what, AsyncAverage, name, lambda _, state: state.copies.device)
    marked("ran", State, "written", lambda state, _: state.copies.device)
    for what, name in (("down", "fetch"), ("up", "fill")):
        marked(what, FakeDevice, name, lambda device, _: device)
    problem = make_problem("logistic", n=80, d=13)  # ten exchanges, three averages
    train_on(2, averages(problem, "cuda", 2), problem)
    for found in copies.values():
        marks = [k for k, what in enumerate(found) if what in ("said", "taken")]
        assert [found[k] for k in marks] == 3 * ["said", "taken"]
        for k in marks:  # the one at the end of the run stays on the host
            assert found[k - 2 : k] == ["ran", "down"]
            assert found[k + 1 : k + 2] in (
                [{"said": "ran", "taken": "up"}[found[k]]],
                [],
            )


def averages(problem, device, replicas, **agreement):
    asked = {"kind": "async-average", **agreement}
    run = {"device": device, "evaluate_every": 0, "transport": "nccl"}
    return config_of(
        problem,
        "average",
        replicas,
        agreement=asked,
        run=run,
        products={"kind": "gram"},
        precision={"recipe": "fp32"},
        update={"kind": "momentum", "momentum": 0.5},
    )


@pytest.mark.parametrize("momentum", ["average", "keep", "reset"])
def test_averages_that_travel_are_those_of_the_host(devices, momentum):
    problem = make_problem("logistic", n=40, d=13)
    there, here = (
        train_on(3, averages(problem, device, 3, momentum=momentum), problem)
        for device in ("cuda", "cpu")
    )
    near(there, here)


def test_who_speaks_of_arrays_of_hosts_opens_no_group_of_gpus(devices, monkeypatch):
    """The grid's own are all there are: two of each rank."""
    split, opened = DeviceCommunicator.split, []

    def counted(self, color, key):
        opened.append(self)
        return split(self, color, key)

    monkeypatch.setattr(DeviceCommunicator, "split", counted)
    problem = make_problem("logistic", n=13, d=13)
    leaders = {"kind": "gradient", "codec": "fp16", "hierarchical": "2"}
    for agreement in (KINDS["scheduled"], KINDS["ticktock"], leaders):
        train_on(3, shared(problem, 3, agreement=agreement), problem)
    train_on(3, averages(problem, "cuda", 3), problem)
    assert len(opened) == 4 * 3 * 2


def test_a_second_gradient_wants_room_of_its_own(devices, monkeypatch):
    kept, check = [], gpu.check_device_memory

    def noted(device, task, demand, *others):
        kept.append(demand.kept)
        check(device, task, demand, *others)

    monkeypatch.setattr(gpu, "check_device_memory", noted)
    problem = make_problem("softmax", n=13, d=13)
    for name in ("scheduled", "ticktock"):
        train_on(1, shared(problem, 1, **of(name, schedule={"batch": 2})), problem)
    config = shared(problem, 2, **of("ticktock", schedule={"batch": 2}))
    train_on(2, config, problem)
    assert kept == [0, 0, *2 * [4 * 13 * problem.classes]]  # alone, halves are one


# ------------------------------------------------------------------- broken twins


def stale(self, task, state):
    """Weights as they are, whatever is still to come."""
    yield slice(None)
    self.arrive(state)
    self._begin(self._coming)


BROKEN = {
    "scores before tiles arrived": ("scheduled", Scheduled, "ready", stale),
    "a tock in the tick's sums": (
        "ticktock",
        TickTock,
        "sums",
        property(lambda self: self.items[0].buffer),
    ),
    "a round at the point of another": (
        "anybatch",
        Anybatch,
        "ready",
        lambda self, *_: iter([slice(None)][self._done :]),
    ),
    "what was said before, again": (
        "scheduled",
        Buffer,
        "mark_empty",
        lambda self: None,
    ),
    "the same by halves": ("delayed", Buffer, "mark_empty", lambda self: None),
    "sums that are not cleared": (
        "decentralized",
        Buffer,
        "clear",
        lambda self: self.tail.fill(0.0),
    ),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("what", BROKEN)
def test_each_is_found(devices, monkeypatch, what):
    name, where, attribute, broken = BROKEN[what]
    problem = make_problem("logistic", n=13, d=13)
    sections = of(name, schedule={"epochs": 2})
    here = train_on(3, shared(problem, 3, run={"device": "cpu"}, **sections), problem)
    monkeypatch.setattr(where, attribute, broken)
    with pytest.raises(AssertionError):
        near(train_on(3, shared(problem, 3, **sections), problem), here)


def test_clocks_wait_for_the_device(devices, monkeypatch):
    """A round of a fixed time: chunks that are queued have not been computed."""
    looks = []
    monkeypatch.setattr(Buffer, "settle", lambda self: looks.append(self))
    problem = make_problem("logistic", n=16, d=13)
    for rounds, deadline in (("full", 0.0), ("clock", 1e9)):
        assert not looks
        asked = {"rounds": rounds, "deadline": deadline}
        train_on(2, shared(problem, 2, **of("anybatch", agreement=asked)), problem)
    assert len(looks) == 2 * 3  # of two chunks and the end, in one round of two ranks


# --------------------------------------------------------------------- endings


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", [*KINDS, "async-average"])
def test_runs_go_on_bit_for_bit(devices, tmp_path, name):
    """With a gradient that is late, or an average that travels."""
    problem, run = make_problem("logistic", n=25, d=13), {"transport": "mpi-host"}
    if name == "async-average":
        config = averages(problem, "cuda", 2)
    else:
        config = shared(problem, 2, **of(name, schedule={"epochs": 2}, run=run))
    whole = in_folder(tmp_path / "whole", config, 2, problem)
    halves = [in_folder(tmp_path / "half", config, 2, problem, stop) for stop in (3, 0)]
    for first, second, wanted in zip(*halves, whole, strict=True):
        assert first.status is Status.PREEMPTED and second.report["resumes"] == 1
        np.testing.assert_array_equal(second.weights, wanted.weights)
        np.testing.assert_array_equal(second.intercept, wanted.intercept)


@pytest.mark.parametrize("name", ["decentralized", "scheduled", "delayed", "anybatch"])
def test_what_is_no_number_ends_runs_as_on_the_host(devices, name):
    problem = make_problem("gaussian", n=24, d=13)
    sections = of(name, rate={"kind": "constant", "value": 1e30})
    there, here = both(problem, 2, **sections, run={"check_every": 1})
    assert there.status is here.status is Status.DIVERGED
    np.testing.assert_array_equal(there.weights, here.weights)


# --------------------------------------------------------------------- refusals


def test_what_no_gpu_serves_is_said_with_the_remedy(devices):
    problem = make_problem("logistic", n=13, d=13)
    agreement = {"kind": "infinity", "store": "w"}
    with pytest.raises(ConfigError, match="use --method zero3 where slices of w fit"):
        train_on(2, shared(problem, 2, agreement=agreement), problem)

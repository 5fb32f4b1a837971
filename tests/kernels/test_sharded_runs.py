"""ZeRO on devices: the runs of the host, what crosses, what is held, what is found."""

from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.agreement.cuts import Cuts
from hpcsgd.agreement.joining import Joining
from hpcsgd.agreement.sharded_there import ShardedThere, TilesThere
from hpcsgd.backends.device_rules import DeviceRules, Piece
from hpcsgd.looks import Looks
from hpcsgd.products.device_gradient import DeviceGradient
from hpcsgd.products.device_slices import RowsThere
from hpcsgd.result import Status
from tests.fake_cuda import FakeLayer
from tests.harness import make_problem, train_on
from tests.kernels.fake_device import FakeDevice
from tests.kernels.test_gradient_runs import both, crossed, near, near_weights, shared
from tests.sparse import make_sparse
from tests.unit.test_gradient import in_folder

STAGES = (1, 2, 3)
ADAM = {"update": {"kind": "adam"}, "rate": {"value": 0.01}}
MOMENTUM = {"update": {"kind": "momentum", "momentum": 0.8}}
FP16 = {"precision": {"matrix": "fp16", "scale": "global"}}


def zero(stage, **sections):
    """Slices of a stage, and what else is asked."""
    asked = {"kind": "sharded", "stage": stage, **sections.pop("agreement", {})}
    return {"agreement": asked, **sections}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    "replicas, members, transport",
    [
        (1, 1, "nccl"),
        (2, 1, "nccl"),
        (3, 1, "mpi-host"),
        (4, 1, "mpi-cuda"),
        (1, 2, "mpi-cuda"),
        (2, 2, "nccl"),
        (2, 2, "mpi-host"),
    ],
)
def test_runs_are_those_of_the_host(devices, stage, replicas, members, transport):
    problem = make_problem("logistic", n=12 * replicas + 1, d=13)
    sections = zero(stage, run={"transport": transport}, **ADAM)
    near(*both(problem, replicas, members, **sections))
    assert all("step_adam" in device.launched for device in devices)
    assert stage == 3 or all(device.captured for device in devices)


CASES = {
    "sgd": ("logistic", {}),
    "softmax": ("softmax", {}),
    "no intercept": ("huber", {"problem": {"intercept": False}}),
    "momentum": ("softmax", MOMENTUM),
    "nesterov": ("logistic", {"update": {"kind": "nesterov", "momentum": 0.8}}),
    "adagrad": ("softmax", {"update": {"kind": "adagrad"}, "rate": {"value": 0.05}}),
    "clipped and centred": (
        "softmax",
        {"update": {"clip": "norm", "clip_at": 0.05, "centre": "classes"}},
    ),
    "reproducible": ("logistic", {"run": {"reproducible": True}, **ADAM}),
    "compared": ("logistic", {"run": {"check_members": 1}, "grid": {"members": 2}}),
    "one bucket": ("logistic", {"agreement": {"bucket": 4.0}, **ADAM}),
    "accumulated": (
        "logistic",
        {"agreement": {"accumulate": 2}, "schedule": {"batch": 2}, **ADAM},
    ),
    "fp16": ("logistic", {**FP16, **ADAM}),
    "fp8, momentum": (
        "logistic",
        {"precision": {"matrix": "fp8-e4m3", "scale": "global"}, **MOMENTUM},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_else_a_run_may_be(devices, case):
    """Each in a stage of its own turn; weights and offsets of rows, one without any."""
    family, sections = CASES[case]
    members = sections.get("grid", {}).get("members", 1)
    problem = make_problem(family, n=13, d=37 if "precision" in sections else 13)
    data = {"weights": True, "offset": True}
    # Tiles of whole chunks, of which there are as many as of the host's.
    wide = 16 if "precision" in sections else 5
    bucket = {"bucket": 4 * wide * problem.classes * 2.0**-20}
    sections = {**sections, "agreement": bucket | sections.get("agreement", {})}
    for stage in STAGES:
        there, here = both(problem, 3, members, data=data, **zero(stage, **sections))
        near(there, here)
        assert there.report["agreement"]["mended_replicas"] == 0


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("family, recipe", [("logistic", "fp32"), ("softmax", "c")])
def test_sparse_rows(devices, stage, family, recipe):
    stored, _ = make_sparse(family, n=13, d=37)
    sections = zero(stage, precision={"recipe": recipe}, **MOMENTUM)
    near(*both(stored, 2, **sections), 1e-5 if recipe == "fp32" else 2e-4)


@pytest.mark.parametrize("stage", STAGES)
def test_rows_in_bf16(devices, stage):
    """Tiles of two chunks: of 16 columns. Margins may round the other way."""
    problem = make_problem("logistic", n=13, d=45)
    asked = {"bucket": 4 * 16 * 2.0**-20}
    there, here = both(
        problem, 2, **zero(stage, agreement=asked, precision={"recipe": "c"})
    )
    near(there, here, 2e-4)
    assert there.report["agreement"]["buckets"] == 3


def test_one_column_of_three_replicas(devices):
    """Two of which have no slice."""
    for stage in STAGES:
        near(*both(make_problem("logistic", n=13, d=1), 3, **zero(stage, **ADAM)))


# ----------------------------------------------------------------------- same bits


@pytest.mark.parametrize(
    "name, replicas", [("sgd", 1), ("nesterov", 2), ("adam", 3), ("adagrad", 2)]
)
def test_stages_are_one_another_to_the_bit(devices, name, replicas):
    """And offload, whose host takes the same steps; zero3 where there is one tile."""
    problem = make_problem("softmax", n=13, d=13)
    more = {"update": {"kind": name}, "rate": {"value": 0.02}}
    found = []
    for bucket, kinds in ((4.0, (2, 3)), (4 * 15 * 2.0**-20, (1, 2, 0))):
        for stage in kinds:
            kind = {"kind": "sharded", "stage": stage} if stage else {"kind": "offload"}
            asked = {"agreement": {**kind, "bucket": bucket}, **more}
            found.append(train_on(replicas, shared(problem, replicas, **asked), problem))
    assert len({one.weights_sha256 for one in found}) == 1


def test_the_step_of_ddp_to_the_bit(devices):
    """Whose adaptive steps the host takes, of what two GPUs added up."""
    problem = make_problem("logistic", n=25, d=13)
    plain = train_on(2, shared(problem, 2, **ADAM), problem)
    one = train_on(2, shared(problem, 2, **zero(1, **ADAM)), problem)
    assert one.weights_sha256 == plain.weights_sha256


# ------------------------------------------------------------------------- bytes


@pytest.mark.parametrize("clipped", [False, True])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("stage", STAGES)
def test_bytes_between_host_and_device_are_those_of_the_formula(
    devices, stage, intercept, clipped
):
    """Replica 0 of two has 9 rows, in three exchanges, and seven columns of 13."""
    problem = make_problem("softmax", n=17, d=13)
    sections = zero(stage, problem={"intercept": intercept}, **ADAM)
    if clipped:
        sections["update"] = {"kind": "adam", "clip": "norm", "clip_at": 0.05}
    result = train_on(2, shared(problem, 2, **sections), problem)
    classes, own = problem.classes, result.report["agreement"]["own_columns"]
    shaped, offset = 4 * own * classes * clipped, 8 * classes * intercept
    residuals = 4 * 9 * classes * intercept  # whose sum the host makes
    assert own == 7 - (7 * 2 > 13 and own == 6)
    assert crossed(result) == (3 * (offset + shaped), 3 * shaped + residuals)


@pytest.mark.parametrize("stage", STAGES)
def test_no_copy_is_as_large_as_a_slice(devices, monkeypatch, stage):
    """By the copies there were, not by what was said: w and states go up once."""
    problem, sizes, inside = make_problem("logistic", n=48, d=101), [], set()
    advance = DeviceGradient.advance

    def between(self, *given):
        inside.add(self.device.layer)
        state = advance(self, *given)
        inside.remove(self.device.layer)
        return state

    def counted(name):
        plain = getattr(FakeLayer, name)

        def copied(self, one, other, stream):
            if self in inside:
                sizes.append(one.nbytes)
            plain(self, one, other, stream)

        monkeypatch.setattr(FakeLayer, name, copied)

    monkeypatch.setattr(Looks, "is_due", lambda self, number: False)  # but at the end
    counted("to_host")
    counted("to_device")
    monkeypatch.setattr(DeviceGradient, "advance", between)
    sections = zero(stage, agreement={"bucket": 4.0}, **ADAM)
    train_on(2, shared(problem, 2, **sections), problem)
    large = sorted(size for size in sizes if size >= 4 * 50)
    own = [4 * 50, 4 * 51]
    first = [4 * 101] * 2 if stage < 3 else own
    assert large == sorted([*own * 2, *first])

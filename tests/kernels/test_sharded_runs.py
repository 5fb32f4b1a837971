"""ZeRO on devices: the runs of the host, in every stage, and what is refused."""

import pytest

from hpcsgd.backends.cuda.device import CudaDevice
from hpcsgd.errors import ConfigError
from tests.helpers import strict_cupy
from tests.helpers.harness import make_problem, train_on
from tests.helpers.kernels.gradient_runs import both, near, shared
from tests.helpers.kernels.slices import ADAM, MOMENTUM, STAGES, zero
from tests.helpers.sparse import make_sparse

FP16 = {"precision": {"matrix": "fp16", "scale": "global"}}


@pytest.mark.cases(2)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    "replicas, members, transport",
    [
        (1, 1, "nccl"),
        (2, 1, "nccl"),
        (3, 1, "mpi-host"),
        (4, 1, "mpi-cuda"),
        (2, 2, "nccl"),
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


@pytest.mark.cases(2)
@pytest.mark.parametrize("case", CASES)
def test_what_else_a_run_may_be(devices, case):
    """Weights and offsets of rows, one replica without any; two stages in turn."""
    family, sections = CASES[case]
    members = sections.get("grid", {}).get("members", 1)
    problem = make_problem(family, n=13, d=37 if "precision" in sections else 13)
    data = {"weights": True, "offset": True}
    # Tiles of whole chunks, of which there are as many as of the host's.
    wide = 16 if "precision" in sections else 5
    bucket = {"bucket": 4 * wide * problem.classes * 2.0**-20}
    sections = {**sections, "agreement": bucket | sections.get("agreement", {})}
    turn = list(CASES).index(case)
    for stage in (STAGES[turn % 3], STAGES[(turn + 1) % 3]):
        there, here = both(problem, 3, members, data=data, **zero(stage, **sections))
        near(there, here)
        assert there.report["agreement"]["mended_replicas"] == 0


@pytest.mark.cases(2)
@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("family, recipe", [("logistic", "fp32"), ("softmax", "c")])
def test_sparse_rows(devices, stage, family, recipe):
    stored, _ = make_sparse(family, n=13, d=37)
    sections = zero(stage, precision={"recipe": recipe}, **MOMENTUM)
    near(*both(stored, 2, **sections), 1e-5 if recipe == "fp32" else 2e-4)


@pytest.mark.cases(2)
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


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    "name, replicas", [("sgd", 1), ("nesterov", 2), ("adam", 3), ("adagrad", 2)]
)
def test_stages_are_one_another_to_the_bit(devices, name, replicas):
    """And offload, whose host takes the same steps; zero3 where there is one tile."""
    problem = make_problem("softmax", n=13, d=13)
    more = {"update": {"kind": name}, "rate": {"value": 0.02}}
    found = []
    for bucket, kinds in ((4.0, (2, 3)), (4 * 15 * 2.0**-20, (1, 2, 0))):
        # Of momenta some builds of NumPy round a product and a sum together.
        for stage in kinds if name != "nesterov" else kinds[:2]:
            kind = {"kind": "sharded", "stage": stage} if stage else {"kind": "offload"}
            asked = {"agreement": {**kind, "bucket": bucket}, **more}
            found.append(
                train_on(replicas, shared(problem, replicas, **asked), problem)
            )
    assert len({one.weights_sha256 for one in found}) == 1


def test_the_step_of_ddp_to_the_bit(devices):
    """Whose adaptive steps the host takes, of what two GPUs added up."""
    problem = make_problem("logistic", n=25, d=13)
    plain = train_on(2, shared(problem, 2, **ADAM), problem)
    one = train_on(2, shared(problem, 2, **zero(1, **ADAM)), problem)
    assert one.weights_sha256 == plain.weights_sha256


@pytest.mark.parametrize(
    "stage, sections, remedy",
    [
        (1, {"update": {"kind": "nesterov-classic"}}, "use --update nesterov"),
        (2, {"update": {"kind": "adam", "bits": 8}}, "use update.bits = 32"),
        (2, {"agreement": {"codec": "topk"}}, "supports no codecs"),
        (3, {"products": {"kind": "gather"}}, "use --products direct"),
        (3, {"run": {"evaluate": "gradient"}}, "use run.evaluate = 'loss'"),
    ],
)
def test_what_slices_refuse_they_refuse_here(devices, stage, sections, remedy):
    problem = make_problem("logistic", n=13, d=13)
    with pytest.raises(ConfigError, match=remedy):
        train_on(2, shared(problem, 2, **zero(stage, **sections)), problem)
    assert not any(device.launched for device in devices)


@pytest.mark.parametrize("stage", STAGES)
def test_what_cupy_is_asked_for(monkeypatch, stage):
    """Its names and no others, on the stream of the run; replicas that share a GPU."""
    strict_cupy.install(monkeypatch)
    take = lambda world, share_gpus: CudaDevice()  # noqa: E731
    monkeypatch.setattr("hpcsgd.runs.gpu.take_gpu", take)
    stored, _ = make_sparse("logistic", n=13, d=37)
    run = {"transport": "mpi-host", "share_gpus": True}
    asked = {"bucket": 4 * 15 * 2.0**-20}
    for problem in (make_problem("softmax", n=13, d=13), stored):
        near(*both(problem, 2, **zero(stage, run=run, agreement=asked, **ADAM)))

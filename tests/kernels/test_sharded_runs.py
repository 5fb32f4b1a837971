"""ZeRO on devices: the runs of the host, what crosses, what is held, what is found."""

import threading
from dataclasses import replace
from functools import lru_cache

import numpy as np
import pytest

from hpcsgd.agreement.cuts import Cuts
from hpcsgd.agreement.sharded_there import ShardedThere, TilesThere
from hpcsgd.assembly import gpu
from hpcsgd.backends.cuda import CudaDevice
from hpcsgd.backends.device_room import room_of
from hpcsgd.backends.device_rules import DeviceRules, Piece
from hpcsgd.errors import ConfigError
from hpcsgd.looks import Looks
from hpcsgd.products.device_gradient import DeviceGradient
from hpcsgd.products.device_slices import RowsThere
from hpcsgd.products.held import HeldMemory
from hpcsgd.result import Status
from hpcsgd.study.expected import expected_traffic
from tests import strict_cupy
from tests.fake_cuda import FakeLayer, Node
from tests.harness import make_problem, train_on
from tests.kernels.fake_device import FakeDevice
from tests.kernels.test_gradient_runs import both, crossed, near, near_weights, shared
from tests.kernels.test_room import Counting
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


# ------------------------------------------------------------------------- bytes


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("columns, replicas", [(7, 3), (14, 4)])
def test_every_word_is_counted(devices, stage, columns, replicas):
    """D words of gradient, the own slices of w once, and [Σr | count], as hosts do."""
    problem = make_problem("softmax", n=5 * replicas, d=columns)
    result = train_on(replicas, shared(problem, replicas, **zero(stage)), problem)
    entry, said = result.ledger["agreement"], result.report["agreement"]
    width, tiles = problem.classes, said["buckets"]
    own = said["own_columns"] * width
    words = (columns * width + own + width + 1) * result.exchanges
    assert said["own_columns"] == -(-columns // replicas)  # replica 0 has an odd one
    assert tiles == -(-columns // 4)  # of a chunk each, which buckets are less than
    assert (entry["words"], entry["bytes"]) == (words, 4 * words)
    assert entry["calls"] == result.exchanges * (2 * tiles + 1)
    for figure, value in expected_traffic(result.as_dict()).items():
        purposes = ("products", "agreement")
        assert sum(result.ledger[p][figure] for p in purposes) == value, figure


@pytest.mark.parametrize("intercept, clipped", [(True, False), (False, True)])
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


# ------------------------------------------------------------------------- memory


def table(stage, kept, tiles, replicas):
    """Words of a device for each column: docs/zero.md, of whole tiles and slices."""
    tile = 2 / tiles  # two of them
    return {
        1: 2 + kept / replicas + tile / replicas,
        2: 1 + (1 + kept) / replicas + tile + tile / replicas,
        3: (2 + kept) / replicas + tile,
    }[stage]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("name, kept", [("sgd", 0), ("adam", 2)])
def test_memory_is_that_of_the_table(monkeypatch, stage, name, kept):
    """To the byte: of twice as many columns; and what is said before a run begins."""
    taken, said = {}, {}
    for columns in (96, 192):
        given, node = [], Node()

        def take(share_gpus, given=given, node=node):
            given.append(Counting(2**30, f"GPU {len(given)}", node))
            return given[-1]

        needs = []
        noting = lambda *sizes, to=needs: to.append(room_of(*sizes)) or to[-1]  # noqa: E731
        monkeypatch.setattr("hpcsgd.assembly.gpu.take_gpu", take)
        monkeypatch.setattr(gpu, "room_of", noting)
        problem = make_problem("logistic", n=8, d=columns)
        asked = {"bucket": columns * 2.0**-20}  # four tiles
        sections = zero(stage, agreement=asked, update={"kind": name})
        train_on(2, shared(problem, 2, **sections), problem)
        taken[columns] = [sum(device.asked) for device in given]
        said[columns] = needs[0].weights
    words = table(stage, kept, tiles=4, replicas=2)
    assert said == {columns: 4 * columns * words for columns in said}
    for fewer, more in zip(*taken.values(), strict=True):
        assert more - fewer == 4 * 96 * (4 + words)  # of four rows, too


def test_no_room_is_said_with_what_stays(devices, monkeypatch):
    problem = make_problem("softmax", n=4, d=96)
    monkeypatch.setattr(FakeDevice, "memory", lambda self: (100, 2**20))
    with pytest.raises(ConfigError, match="use more replicas or members on more GPUs"):
        train_on(2, shared(problem, 2, **zero(3, **ADAM)), problem)
    assert not any(device.launched for device in devices)


@pytest.mark.parametrize(
    "stage, sections, remedy",
    [
        (1, {"update": {"kind": "nesterov-classic"}}, "use --update nesterov"),
        (2, {"update": {"kind": "adam", "bits": 8}}, "use update.bits = 32"),
        (2, {"agreement": {"codec": "topk"}}, "leave --codec out"),
        (3, {"products": {"kind": "gather"}}, "use --products direct"),
        (3, {"run": {"evaluate": "gradient"}}, "use run.evaluate = 'loss'"),
    ],
)
def test_what_slices_refuse_they_refuse_here(devices, stage, sections, remedy):
    problem = make_problem("logistic", n=13, d=13)
    with pytest.raises(ConfigError, match=remedy):
        train_on(2, shared(problem, 2, **zero(stage, **sections)), problem)
    assert not any(device.launched for device in devices)


# ------------------------------------------------------------------------ overlap


def test_a_tile_travels_while_the_next_is_computed(devices, monkeypatch):
    """Two under way at most; and the host waits for no GPU, but at the end."""
    order, inside, waited = [], set(), []
    advance, waits = DeviceGradient.advance, FakeLayer.synchronize

    def noted(owner, name, what):
        plain = getattr(owner, name)

        def action(self, *given):
            if threading.get_ident() == next(iter(inside), 0):
                order.append(what)
            return plain(self, *given)

        monkeypatch.setattr(owner, name, action)

    def between(self, *given):
        one = threading.get_ident()
        if self.asked.gradient.replicas.rank:
            return advance(self, *given)
        inside.add(one)
        state = advance(self, *given)
        inside.remove(one)
        return state

    def waiting(self, stream):
        waited.append(threading.get_ident() in inside)
        waits(self, stream)

    noted(RowsThere, "add_gradient", "compute")
    noted(TilesThere, "send", "send")
    noted(TilesThere, "_wait", "wait")
    noted(DeviceRules, "step", "step")
    noted(ShardedThere, "_spread", "spread")
    monkeypatch.setattr(DeviceGradient, "advance", between)
    monkeypatch.setattr(FakeLayer, "synchronize", waiting)
    problem = make_problem("logistic", n=8, d=13)
    sections = zero(2, problem={"intercept": False})
    train_on(2, shared(problem, 2, **sections), problem)
    tiles = ["compute", "send", "compute", "send", "wait", "compute", "send"]
    ends = ["step", "spread", "wait", "step", "spread", "wait", "step", "spread"]
    assert order == [*tiles, *ends] and waited and not any(waited)


# ------------------------------------------------------------------- broken twins


def twice(self, piece, gradient, factor, turn):
    """The first slice of all is stepped again."""
    step(self, piece, gradient, factor, turn)
    if turn.number == 1:
        step(self, replace(piece, weights=piece.to), gradient, factor, turn)


def whole_chunks_alone(self, piece, gradient, factor, turn):
    """What lies before the first 16 bytes of a slice is left out."""
    skip = -(gradient.held.ctypes.data // 4) % 4
    kept = {name: one[skip:] for name, one in piece.kept.items()}
    part = Piece(piece.weights[skip:], piece.to[skip:], kept)
    step(self, part, gradient[skip:], factor, turn)


step = DeviceRules.step
add = DeviceRules.add


def beginning_anew(self, name):
    mirror = self._mirrors[name]
    return mirror._device.zeros(mirror._host.shape, np.float32)


def without_a_gather(self, own):
    for cut in self.cuts:
        yield cut, self.device.zeros((cut.height, self.columns), np.float32)


TWINS = {
    "no gather": ((1, 2), ShardedThere, "_spread", lambda *_: None),
    "no gather of what scores need": (
        (3,),
        ShardedThere,
        "_tiles_of",
        without_a_gather,
    ),
    "a slice that is stepped twice": (STAGES, DeviceRules, "step", twice),
    "a head that is skipped": (STAGES, DeviceRules, "step", whole_chunks_alone),
    "sums that are not cleared": (STAGES, FakeDevice, "clear", lambda *_: None),
    "slices that stay in a tile": ((2, 3), TilesThere, "_keep", lambda *_: None),
    "sums that nobody waits for": (
        STAGES,
        TilesThere,
        "_wait",
        lambda _, pending: pending.buffer,
    ),
    "states that begin anew": (STAGES, HeldMemory, "on_device", beginning_anew),
    "scores of the last tile alone": (
        (3,),
        DeviceRules,
        "add",
        lambda self, part, total, is_first: add(self, part, total, True),
    ),
}


@pytest.mark.parametrize(
    "what, stage", [(what, stage) for what, row in TWINS.items() for stage in row[0]]
)
def test_each_is_found(devices, monkeypatch, what, stage):
    _, where, attribute, broken = TWINS[what]
    problem, here = of_hosts(stage)
    monkeypatch.setattr(where, attribute, broken)
    with pytest.raises(AssertionError):
        near(train_on(2, shared(problem, 2, **zero(stage, **ADAM)), problem), here)


@lru_cache
def of_hosts(stage):
    """What devices have to come to."""
    problem, run = make_problem("logistic", n=13, d=13), {"device": "cpu"}
    config = shared(problem, 2, run=run, **zero(stage, **ADAM))
    return problem, train_on(2, config, problem)


# ------------------------------------------------------------------------- endings


@pytest.mark.parametrize("stage", STAGES)
def test_runs_go_on_bit_for_bit(devices, tmp_path, stage):
    """In stage 2 from a checkpoint of the host, too, to roundoff."""
    problem = make_problem("softmax", n=12, d=13)
    update = "nesterov" if stage == 2 else "adam"
    sections = zero(stage, update={"kind": update}, rate={"value": 0.01})
    longer = {**sections, "schedule": {"epochs": 2}}
    whole = train_on(2, shared(problem, 2, **longer), problem)
    for device in ("cuda", "cpu")[: 1 + (stage == 2)]:
        saved = {"out": str(tmp_path / device), "resume": "auto"}
        half = shared(problem, 2, **{**sections, "run": {**saved, "device": device}})
        train_on(2, half, problem)
        again = train_on(2, shared(problem, 2, **{**longer, "run": saved}), problem)
        assert again.report["resumes"] == 1
        if device == "cuda":
            np.testing.assert_array_equal(again.weights, whole.weights)
        near_weights(again, whole)


@pytest.mark.parametrize("stages", [(1, 3), (2, 1), (3, 2)])
def test_runs_go_on_with_other_replicas_in_another_stage(devices, tmp_path, stages):
    """Slices are put together in checkpoints: of three replicas, then of two."""
    problem, found = make_problem("logistic", n=12, d=13), []
    for device in ("cuda", "cpu"):
        run = {"out": str(tmp_path / device), "resume": "auto", "device": device}
        for replicas, epochs, stage in ((3, 1, stages[0]), (2, 2, stages[1])):
            more = {**zero(stage, **ADAM), "schedule": {"epochs": epochs}, "run": run}
            last = train_on(replicas, shared(problem, replicas, **more), problem)
        assert last.report["resumes"] == 1
        found.append(last)
    near_weights(*found)


@pytest.mark.parametrize("stage", STAGES)
def test_runs_that_were_preempted_go_on(devices, tmp_path, stage):
    """In the middle, with looks on the way, which change nothing."""
    problem = make_problem("logistic", n=25, d=13)
    more = {"schedule": {"epochs": 2}, "run": {"transport": "mpi-host"}, **MOMENTUM}
    config = shared(problem, 2, **zero(stage, **more))
    more["run"] = {"transport": "mpi-host", "evaluate_every": 1}
    looking = shared(problem, 2, **zero(stage, **more))
    whole = in_folder(tmp_path / "whole", config, 2, problem)
    first = in_folder(tmp_path / "half", looking, 2, problem, 5)
    assert {one.status for one in first} == {Status.PREEMPTED}
    again = in_folder(tmp_path / "half", looking, 2, problem)
    for one, other in zip(again, whole, strict=True):
        np.testing.assert_array_equal(one.weights, other.weights)
        np.testing.assert_array_equal(one.intercept, other.intercept)


def test_states_that_nobody_fetched_are_found(devices, tmp_path, monkeypatch):
    """In a checkpoint what the rule keeps is that of the device."""
    monkeypatch.setattr(HeldMemory, "wrote", lambda self, name: None)
    with pytest.raises(AssertionError):
        test_runs_go_on_bit_for_bit(devices, tmp_path, 1)


@pytest.mark.parametrize("stage", STAGES)
def test_what_is_no_number_ends_runs_as_on_the_host(devices, stage):
    problem = make_problem("gaussian", n=24, d=13)
    sections = zero(stage, rate={"value": 1e30}, run={"check_every": 1})
    there, here = both(problem, 2, **sections)
    assert there.status is here.status is Status.DIVERGED
    np.testing.assert_array_equal(there.weights, here.weights)


@pytest.mark.parametrize("stage", STAGES)
def test_looks_see_the_weights_of_that_moment(devices, stage):
    """With means of iterates beside them, and one row that is held out of each."""
    problem = make_problem("logistic", n=13, d=13)
    sections = zero(stage, run={"evaluate_every": 1}, schedule={"epochs": 3}, **ADAM)
    there, here = both(problem, 2, **sections, average={"kind": "tail"})
    losses = [[one["loss"] for one in run.history] for run in (there, here)]
    assert len(losses[0]) == 4
    np.testing.assert_allclose(*losses, rtol=1e-5)
    near(there, here)


@pytest.mark.parametrize("stage", STAGES)
def test_replicas_that_differ_are_mended(devices, monkeypatch, stage):
    """Weights that are whole, or the intercept; slices are nobody else's."""
    problem, step = make_problem("logistic", n=16, d=13), ShardedThere._step

    def flipped(self, state, task):
        step(self, state, task)
        if self._done == 1 and self.grid.replica == 1:
            held = state.intercept if stage == 3 else state.weights
            held[0] += 1e-3

    config = shared(problem, 2, **zero(stage, run={"check_members": 1}, **ADAM))
    plain = train_on(2, config, problem)
    monkeypatch.setattr(ShardedThere, "_step", flipped)
    found = train_on(2, config, problem)
    said = [one.report["agreement"]["mended_replicas"] for one in (plain, found)]
    assert said == [0, 1] and found.weights_sha256 == plain.weights_sha256


def test_tiles_begin_with_whole_chunks():
    """Whatever is asked for; slices begin anywhere, and together they are all."""
    for columns, tiles, unit in ((13, 3, 4), (7, 4, 8), (45, 3, 8), (100, 7, 16)):
        seen = np.zeros(columns, dtype=int)
        for replica in range(3):
            cuts = Cuts(columns, 1, tiles, 3, replica, unit=unit)
            assert len(cuts) == min(tiles, -(-columns // unit))
            for cut in cuts:
                assert cut.columns.start % unit == 0 and cut.height
                seen[cut.own] += 1
        assert (seen == 1).all()


@pytest.mark.parametrize("stage", STAGES)
def test_what_cupy_is_asked_for(monkeypatch, stage):
    """Its names and no others, on the stream of the run; replicas that share a GPU."""
    strict_cupy.install(monkeypatch)
    take = lambda share_gpus: CudaDevice()  # noqa: E731
    monkeypatch.setattr("hpcsgd.assembly.gpu.take_gpu", take)
    stored, _ = make_sparse("logistic", n=13, d=37)
    run = {"transport": "mpi-host", "share_gpus": True}
    asked = {"bucket": 4 * 15 * 2.0**-20}
    for problem in (make_problem("softmax", n=13, d=13), stored):
        near(*both(problem, 2, **zero(stage, run=run, agreement=asked, **ADAM)))

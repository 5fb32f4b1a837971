"""The gradient agreement: what it refuses, counts, hides, saves; methods by name."""

from math import ceil

import numpy as np
import pytest

from hpcsgd.agreements.base import Overlap, bucket_count, tiles_of
from hpcsgd.agreements.buckets import Buffer, DeviceRole, PlainSender
from hpcsgd.agreements.codecs import Bucket, CodecConfig, Feedback, make_codec
from hpcsgd.agreements.codecs.base import Moment
from hpcsgd.comm.ledger import Ledger
from hpcsgd.comm.network_model import DelayedCommunicator, Network
from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.config import METHODS, RunConfig
from hpcsgd.errors import ConfigError
from tests.helpers.contracts.codec import NAMES, ROWS, coded, on_all
from tests.helpers.gradients import agreed, in_folder
from tests.helpers.harness import make_problem, relative_error, train_on, union_oracle
from tests.helpers.sparse import make_sparse


def test_means_of_means_are_another_method(monkeypatch):
    """Replicas counted alike, whatever rows they had: far from the union."""
    problem = make_problem("logistic")
    config = agreed(problem, 3, schedule={"batch": 8})
    counted = Buffer.count_in

    def alike(self, residuals):
        counted(self, residuals)
        self.tail[-1] = 8

    monkeypatch.setattr(Buffer, "count_in", alike)
    result = train_on(3, config, problem)
    assert relative_error(result, union_oracle(config, problem)) > 1e-3


REFUSED = [
    ({"schedule": {"steps": 4}}, "use --steps 1"),
    ({"schedule": {"period": 2}}, "use --period 1"),
    ({"products": {"kind": "gram"}}, "use --products direct"),
    ({"update": {"clip": "norm", "clip_over": "exchange"}}, "leave it out"),
    ({"precision": {"weights": "bf16"}}, "precision.weights=fp32"),
    (
        {"precision": {"residual": "fp16"}, "agreement": {"codec": "bf16"}},
        "precision.residual=fp32",
    ),
    ({"products": {"look_ahead": "on"}}, "needs kind = 'gram'"),
    ({"agreement": {"codec": "zip"}}, "unknown codec: 'zip'; known: .*bf16"),
    (
        {"agreement": {"kind": "decentralized", "codec": "bf16"}},
        "use --agreement gradient",
    ),
    ({"agreement": {"kind": "average", "accumulate": 2}}, "accumulate = 2"),
    (
        {"products": {"kind": "gather-once"}, "sampling": {"mode": "reshuffle"}},
        "shuffle-once",
    ),
]


@pytest.mark.parametrize("sections, remedy", REFUSED, ids=lambda x: str(x)[:40])
def test_what_it_cannot_do_is_said_with_the_remedy(sections, remedy):
    problem = make_problem("logistic")
    with pytest.raises(ConfigError, match=remedy):
        on_all(2, agreed(problem, 2, **sections), problem)


@pytest.mark.parametrize("key, value", [("bucket", 0.0), ("accumulate", 0)])
def test_settings_are_checked_at_birth(key, value):
    with pytest.raises(ConfigError, match=key):
        RunConfig.parse({"agreement": {key: value}})


def test_steps_auto_is_one_step():
    problem = make_problem("logistic")
    result = train_on(2, agreed(problem, 2, schedule={"steps": "auto"}), problem)
    assert result.report["schedule"]["steps"] == 1
    assert result.report["products"] == "direct"


# ---------------------------------------------------------------------- buckets


def test_tiles_are_views_of_one_buffer_in_one_order():
    buffer = Buffer((7, 2), np.dtype(float), tiles_of(7, 3), intercept=True)
    assert [t.columns for t in buffer] == [slice(5, 7), slice(3, 5), slice(0, 3)]
    for tile in buffer:
        tile.gradient[...] = tile.columns.start
    assert buffer.flat.tolist() == [0.0] * 6 + [3.0] * 4 + [5.0] * 4 + [0.0] * 3
    sent = [buffer.with_tail(tile) for tile in buffer]
    assert [len(s) for s in sent] == [4 + 3, 4, 6]
    assert all(s.base is buffer.flat or s.base is buffer.flat.base for s in sent)


@pytest.mark.parametrize("cap", [1e-6, 2.0**-17, 2.0**-16, 4.0])
def test_messages_are_counted_by_formula(cap):
    """⌈bytes / cap⌉, no more than columns, in every exchange; words and bytes."""
    problem = make_problem("softmax", n=53, d=9)
    config = agreed(problem, 3, agreement={"bucket": cap}, problem={"intercept": True})
    result = train_on(3, config, problem)
    buckets = min(ceil(9 * 4 * 8 / (cap * 2**20)), 9)
    assert bucket_count(9, 4, 8, cap) == buckets
    sent = result.ledger["agreement"]
    assert sent["calls"] == buckets * result.exchanges
    assert sent["words"] == (9 * 4 + 4 + 1) * result.exchanges
    assert sent["bytes"] == 8 * sent["words"]
    assert sent["wire_bytes"] == pytest.approx(2 * 2 / 3 * sent["bytes"])


def test_accumulation_divides_bytes():
    """54 rows of three replicas: 18 each, in 6 batches of 3."""
    problem = make_problem("logistic", n=54)
    once, thrice = (
        train_on(
            3,
            agreed(
                problem, 3, schedule={"batch": 3}, agreement={"accumulate": accumulate}
            ),
            problem,
        ).ledger["agreement"]
        for accumulate in (1, 3)
    )
    assert once["bytes"] == 3 * thrice["bytes"] and once["calls"] == 3 * thrice["calls"]


def test_one_replica_says_nothing():
    problem = make_problem("logistic")
    for codec in NAMES:
        config = coded(problem, codec, 1, codec=ROWS[codec].rough)
        result = train_on(1, config, problem)
        assert result.ledger["agreement"]["calls"] == 0


# ---------------------------------------------------------------------- overlap


def behind_a_network(world):
    return DelayedCommunicator(world, Network(alpha=1e-4, bandwidth=1e9))


def test_transfers_are_those_that_the_network_charged():
    problem = make_problem("logistic", n=24, d=8)
    config = agreed(problem, 2, agreement={"bucket": 8 * 2.0**-20})
    result = train_on(2, config, problem, world_hook=behind_a_network)
    said, sent = result.report["agreement"], result.ledger["agreement"]
    assert said["transfer_by"] == "network"
    charged = sent["calls"] * 1e-4 + sent["wire_bytes"] / 1e9
    assert said["transfer_seconds"] == pytest.approx(charged)
    assert 0 <= said["hidden_seconds"] <= said["transfer_seconds"]


class Told:
    """A communicator that was told what its network takes; None: it has none."""

    charged = None
    ledger = Ledger()


@pytest.mark.parametrize("charges", [None, (3.0, 2.0)])
def test_what_is_hidden_is_what_nobody_stood_still_for(charges):
    """Two messages: 10 seconds are computed behind the first, 1 behind the second."""
    now, group = [0.0], Told()
    overlap = Overlap(group, lambda: now[0])

    def passes(seconds, charge=0.0):
        now[0] += seconds
        if group.charged is not None:
            group.charged += charge

    if charges:
        group.charged = 0.0
    for charge, computed in zip(charges or (0.0, 0.0), (9.0, 1.0), strict=True):
        with overlap.posting():
            passes(0.5, charge)
        passes(computed)
    with overlap.waiting():
        passes(0.25)
    with overlap.waiting():
        passes(4.0)
    facts = overlap.facts()
    if charges:
        assert facts["transfer_seconds"] == 5.0
        assert facts["hidden_seconds"] == (3.0 - 0.75) + 0.0
    else:
        assert facts["transfer_seconds"] == (0.5 + 9.0 + 0.5 + 1.0 + 0.25) + 5.75
        assert facts["hidden_seconds"] == (11.25 - 0.75) + (5.75 - 4.5)


def test_a_step_on_a_device_waits_for_every_bucket_of_its_exchange():
    """Hours between two exchanges are no part of a transfer."""
    now, group = [0.0], SerialCommunicator()
    sender = PlainSender(group)
    sender.overlap = Overlap(group, lambda: now[0])
    tiles = tiles_of(6, 3)
    role = DeviceRole(sums=True)
    buffer = Buffer((6, 1), np.dtype(float), tiles, intercept=True, role=role)
    for _ in range(3):
        sender.begin(buffer, Moment(0, 0, 1.0, 1.0))
        for tile in buffer.tiles:
            sender.send(buffer, tile)
        now[0] += 1.0
        sender.finish(buffer)
        now[0] += 3600.0
    assert sender.overlap.facts()["transfer_seconds"] == 3 * 3 * 1.0


# ---------------------------------------------------------------------- endings


def memories():
    """What "auto" makes of every codec, and "on" where that is something else."""
    bucket = Bucket(0, 8, 3, np.dtype(float))
    for name in NAMES:
        codec = make_codec(name, bucket, CodecConfig())
        yield name, "auto"
        takes_it = codec.takes_feedback and not codec.has_own_memory
        if takes_it and not isinstance(codec, Feedback):
            yield name, "on"


@pytest.mark.cases(2)
@pytest.mark.parametrize("name, feedback", list(memories()))
def test_a_run_goes_on_bit_for_bit(name, feedback, tmp_path):
    """Errors that were kept and everything else, on replicas of members."""
    problem = make_problem("softmax")
    settings = {"feedback": feedback, **ROWS[name].rough}
    update = "sgd" if name == "dgc" else "momentum"
    for replicas, members, accumulate in ((3, 1, 2), (2, 2, 1)):
        config = coded(
            problem,
            name,
            replicas,
            members,
            codec=settings,
            agreement={"accumulate": accumulate},
            update={"kind": update, "momentum": 0.5},
        )
        ranks, place = replicas * members, tmp_path / f"{replicas}"
        whole = on_all(ranks, config, problem)[0]
        first = in_folder(place / "parts", config, ranks, problem, stop=4)
        assert {r.status.value for r in first} == {"preempted"}
        again = in_folder(place / "parts", config, ranks, problem)
        assert {r.weights_sha256 for r in again} == {whole.weights_sha256}
        assert again[0].iterations == whole.iterations
        assert again[0].report["resumes"] == 1


def test_another_number_of_replicas_goes_on_from_the_mean_error(tmp_path):
    """What was not sent yet is the mean of e over replicas; that is what stays."""
    from hpcsgd.runs.checkpoint import CheckpointStore

    problem = make_problem("logistic")
    first = in_folder(tmp_path, coded(problem, "fp8", 3), 3, problem, stop=4)[0]
    _, checkpoint = CheckpointStore(tmp_path, 2).newest()
    errors = checkpoint.arrays["memory_codec_error"]
    assert errors.shape == (3, 7, 1) and (errors[0] != errors[1]).any()
    result = in_folder(tmp_path, coded(problem, "fp8", 2), 2, problem)[0]
    assert result.status.value == "completed" and result.loss < first.loss


def test_arrays_of_any_shape_go_on_too(tmp_path, monkeypatch):
    """What a codec keeps by itself, of other dtypes and shapes on every rank."""
    from hpcsgd.agreements.codecs.base import Identity

    begin, start = Identity.__init__, Identity.start

    def with_memory(self, bucket, config):
        begin(self, bucket, config)
        self.kept = {
            "count": np.zeros(1, np.int64),
            "sum": np.zeros((bucket.width, 3)),
        }

    def counting(self, part, line, moment):
        self.kept["count"] += 1 + line.rank
        self.kept["sum"] += part.reshape(-1, self.bucket.width).sum(axis=0)[:, None]
        part += 1e-3 * self.kept["count"] + 1e-3 * self.kept["sum"][0, 0]
        return start(self, part, line, moment)

    monkeypatch.setattr(Identity, "__init__", with_memory)
    monkeypatch.setattr(Identity, "start", counting)
    problem = make_problem("softmax")
    config = coded(problem, "identity", 2, 2, codec={"feedback": "on"})
    whole = in_folder(tmp_path / "whole", config, 4, problem)[0]
    in_folder(tmp_path / "parts", config, 4, problem, stop=5)
    again = in_folder(tmp_path / "parts", config, 4, problem)[0]
    assert again.weights_sha256 == whole.weights_sha256


def test_replicas_that_differ_are_mended(monkeypatch):
    """One word of one replica, once: the next comparison puts it right, and says so."""
    from hpcsgd.agreements import Gradient

    problem = make_problem("softmax")
    after_exchange = Gradient.after_exchange

    def flipped(self, state, exchanges):
        if exchanges == 4 and self.grid.replica == 1:
            state.weights[0, 0] += 1e-3
        after_exchange(self, state, exchanges)

    plain = on_all(3, agreed(problem, 3, run={"check_members": 2}), problem)
    assert {r.report["agreement"]["mended_replicas"] for r in plain} == {0}
    monkeypatch.setattr(Gradient, "after_exchange", flipped)
    for every in (2, 0):
        results = on_all(3, agreed(problem, 3, run={"check_members": every}), problem)
        found = {r.report["agreement"]["mended_replicas"] for r in results}
        assert found == {1 if every else 0}
        hashes = {r.weights_sha256 for r in results}
        assert hashes == {plain[0].weights_sha256} if every else len(hashes) > 1


@pytest.mark.parametrize("bits", [32, 8])
def test_what_steps_are_divided_by_is_mended_with_the_weights(monkeypatch, bits):
    """A moment that differs would move the weights apart again and again."""
    from hpcsgd.agreements import Gradient
    from hpcsgd.glm import updates

    monkeypatch.setattr(updates, "SMALL", 1)
    problem = make_problem("softmax")
    after_exchange = Gradient.after_exchange

    def flipped(self, state, exchanges):
        if exchanges == 3 and self.grid.replica == 1:
            kept = state.memory["adam_v"]
            (kept.scales if bits == 8 else kept)[0, 0] *= 2
            state.shared["adam_v"][0, 0] *= 2
        after_exchange(self, state, exchanges)

    update = {"kind": "adam", "bits": bits}
    config = agreed(
        problem, 2, problem={"intercept": True}, update=update, run={"check_members": 1}
    )
    plain = on_all(2, config, problem)
    monkeypatch.setattr(Gradient, "after_exchange", flipped)
    results = on_all(2, config, problem)
    assert {r.report["agreement"]["mended_replicas"] for r in results} == {1}
    assert {r.weights_sha256 for r in results} == {plain[0].weights_sha256}


@pytest.mark.parametrize(
    "asked",
    [
        {"kind": "gradient"},
        {"kind": "scheduled", "bucket": 2.0**-15},
        {"kind": "ticktock"},
        {"kind": "ticktock", "mode": "delayed"},
        {"kind": "sharded"},  # of the intercept: others are one replica's alone
    ],
    ids=lambda asked: asked.get("mode", asked["kind"]),
)
def test_moments_are_compared_wherever_gradients_are_shared(asked, monkeypatch):
    """Moments alone differ, where they are about to be compared: they are mended."""
    from hpcsgd.agreements.base import ReplicaCheck

    problem = make_problem("softmax")
    update = {"kind": "adam"}
    sections = {"problem": {"intercept": True}, "run": {"check_members": 1}}
    config = agreed(problem, 2, agreement=asked, update=update, **sections)
    plain = on_all(2, config, problem)
    compare = ReplicaCheck.after_exchange

    def flipped(self, state, exchanges, *more):
        if exchanges == 3 and self.replicas.rank == 1:
            own = state.shared if asked["kind"] == "sharded" else state.memory
            own["adam_v"][0, 0] *= 2
        compare(self, state, exchanges, *more)

    monkeypatch.setattr(ReplicaCheck, "after_exchange", flipped)
    results = on_all(2, config, problem)
    assert {r.report["agreement"]["mended_replicas"] for r in results} == {1}
    assert {r.weights_sha256 for r in results} == {plain[0].weights_sha256}


# ---------------------------------------------------------------------- methods


@pytest.mark.parametrize("name", METHODS)
def test_a_method_sets_what_is_left_open(name):
    config = RunConfig.parse({"agreement": {"method": name}})
    for setting, value in METHODS[name].fixed.items():
        section, key = setting.split(".")
        assert getattr(getattr(config, section), key) == value
    assert RunConfig.parse(config.tables()) == config
    assert METHODS[name].says


def test_a_method_and_another_value_clash():
    with pytest.raises(ConfigError, match=r"method ddp fixes \[schedule\] steps = 1"):
        RunConfig.parse({"agreement": {"method": "ddp"}, "schedule": {"steps": 8}})
    with pytest.raises(ConfigError, match="leave agreement.kind out"):
        RunConfig.parse({"agreement": {"method": "ddp", "kind": "average"}})
    with pytest.raises(
        ConfigError, match=r"'dpp' \(did you mean ddp\?\); known: \['ddp'"
    ):
        RunConfig.parse({"agreement": {"method": "dpp"}})


def test_explicit_settings_win_over_those_that_a_method_merely_suggests(monkeypatch):
    from hpcsgd.config import ddp

    monkeypatch.setitem(METHODS, "odd", ddp("identity", "says", feedback="on"))
    asked = {"agreement": {"method": "odd"}}
    assert RunConfig.parse(asked).codec.feedback == "on"
    assert RunConfig.parse({**asked, "codec": {"feedback": "off"}}).codec.feedback == (
        "off"
    )


# ---------------------------------------------------------------------- formulas


@pytest.mark.parametrize("replicas, members", [(1, 2), (2, 1), (3, 1), (2, 2), (3, 2)])
@pytest.mark.parametrize("kind", ["direct", "gather", "gather-once"])
def test_a_study_knows_what_a_run_must_have_said(replicas, members, kind):
    from hpcsgd.studies.folder import expected_traffic

    problem = make_problem("softmax")
    config = agreed(
        problem,
        replicas,
        members,
        products={"kind": kind},
        problem={"intercept": True},
        agreement={"accumulate": 2, "bucket": 8 * 8 * 2.0**-20},
    )
    result = train_on(replicas * members, config, problem)
    expected = expected_traffic(result.as_dict())
    for figure, value in expected.items():
        said = sum(result.ledger[p][figure] for p in ("products", "agreement"))
        assert said == value, figure


def test_no_formula_holds_for_words_that_are_encoded():
    from hpcsgd.studies.folder import expected_traffic

    problem = make_problem("logistic")
    result = train_on(2, coded(problem, "bf16", 2), problem)
    assert expected_traffic(result.as_dict()) is None


def test_what_to_do_where_agreeing_takes_the_time():
    """Fewer messages are another batch here, not another period."""
    from hpcsgd.runs import advice

    problem = make_problem("logistic")
    for kind, said in (("gradient", "accumulate=4 sends"), ("average", "--period 2")):
        asked = {"kind": kind, **({"accumulate": 2} if kind == "gradient" else {})}
        result = train_on(2, agreed(problem, 2, agreement=asked), problem)
        assert said in advice.advise_fewer_messages(result)


@pytest.mark.cases(3)
@pytest.mark.parametrize("name", NAMES)
def test_sparse_rows_are_one_bucket(name):
    """And learn what dense ones learn."""
    stored, dense = make_sparse("logistic")
    found = []
    for problem in (stored, dense):
        config = coded(dense, name, 2, 2, codec=ROWS[name].rough)
        results = on_all(4, config, problem)
        assert len({r.weights_sha256 for r in results}) == 1
        found.append(results[0])
    buckets = [r.report["agreement"]["buckets"] for r in found]
    assert buckets[0] == 1 < buckets[1]
    assert found[0].loss == pytest.approx(found[1].loss, rel=0.05)

"""Replicas that hold slices take the steps of DDP, whatever is sliced."""

from dataclasses import replace
from math import ceil

import numpy as np
import pytest

from hpcsgd.agreements.shaping import GradientFacts
from hpcsgd.agreements.zero import ShardedAgreement, slice_widths
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.runs.checkpoint import CheckpointStore
from hpcsgd.studies.folder import expected_traffic
from tests.helpers.contracts.codec import heterogeneous, on_all
from tests.helpers.gradients import in_folder
from tests.helpers.harness import make_problem, relative_error, train_on, union_oracle
from tests.helpers.sparse import make_sparse
from tests.helpers.zero import (
    STAGES,
    of_rounded,
    of_rounded_gradients,
    offloaded,
    own_words,
    sliced,
)

UPDATES = ("sgd", "momentum", "nesterov", "adagrad", "adam")


def test_all_stages_take_the_steps_of_ddp():
    """To the bit where scores are made in one piece: sums are in rank order in both."""
    for family, kind in [("softmax", k) for k in UPDATES[1:]] + [("logistic", "sgd")]:
        problem = make_problem(family)
        grids = ((1, 1), (2, 1), (3, 1), (4, 1), (7, 1), (3, 2))
        for replicas, members in grids if kind == "adam" else grids[-2:]:
            sections = {"update": {"kind": kind, "momentum": 0.6}}
            plain = train_on(
                replicas * members,
                sliced(problem, 0, replicas, members, **sections),
                problem,
            )
            for stage in STAGES:
                config = sliced(problem, stage, replicas, members, **sections)
                results = on_all(replicas * members, config, problem)
                assert len({r.weights_sha256 for r in results}) == 1
                assert results[0].status.value == "completed"
                np.testing.assert_allclose(results[0].weights, plain.weights, 0, 1e-13)
                assert results[0].loss == pytest.approx(plain.loss, abs=1e-14)
                if stage < 3:
                    assert results[0].weights_sha256 == plain.weights_sha256
                if kind in UPDATES[:3]:
                    expected = union_oracle(config, problem)
                    assert relative_error(results[0], expected) <= 1e-12


@pytest.mark.parametrize("kind", UPDATES)
def test_slices_of_float32_have_one_answer(kind):
    """The host's too; and that of ddp, whose momenta lie between the weights."""
    problem = make_problem("logistic")
    sections = {"update": {"kind": kind}, "precision": {"recipe": "fp32"}}
    plain = train_on(3, sliced(problem, 0, 3, **sections), problem)
    made = [sliced(problem, stage, 3, **sections) for stage in (1, 2)]
    made.append(offloaded(problem, 3, **sections))
    results = [train_on(3, config, problem) for config in made]
    found = {result.weights_sha256 for result in results}
    assert len(found) == 1
    if kind in ("sgd", "adagrad", "adam"):
        assert found == {plain.weights_sha256}
    np.testing.assert_allclose(results[0].weights, plain.weights, 0, 1e-6)


@pytest.mark.cases(2)
@pytest.mark.parametrize("stage", STAGES)
def test_edges(stage):
    """One column, a replica without rows in most exchanges, rows that are sparse."""
    one = make_problem("logistic", d=1)
    uneven = make_problem("logistic", n=9)  # seven replicas: two rows or one
    for problem, replicas in ((one, 3), (uneven, 7)):
        config = sliced(problem, stage, replicas, schedule={"batch": 1})
        result = train_on(replicas, config, problem)
        assert relative_error(result, union_oracle(config, problem)) <= 1e-12
    for family in ("logistic", "softmax"):
        stored, dense = make_sparse(family)
        for members in (1, 2):
            config = sliced(dense, stage, 2, members)
            result = train_on(2 * members, config, stored)
            assert relative_error(result, union_oracle(config, dense)) <= 1e-12
            assert result.report["agreement"]["buckets"] > 1


FORMATS = [
    {"recipe": "fp64"},
    {"recipe": "fp32"},
    {"recipe": "c"},
    {"recipe": "fp32", "matrix": "fp8-e4m3"},
]


@pytest.mark.parametrize("precision", FORMATS, ids=lambda p: "-".join(p.values()))
def test_sparse_rows_are_cut_as_dense_ones_are(precision):
    """By SciPy, by kernels, and as rounded: whatever holds them, the steps of DDP."""
    stored, dense = make_sparse("softmax")
    sections = {"precision": precision, "update": {"kind": "adam"}}
    plain = train_on(3, sliced(dense, 0, 3, **sections), stored)
    assert plain.report["agreement"]["buckets"] == 1
    for stage in STAGES:
        result = train_on(3, sliced(dense, stage, 3, **sections), stored)
        assert result.report["agreement"]["buckets"] > 4
        slack = 1e-12 if precision["recipe"] == "fp64" else 2e-5
        np.testing.assert_allclose(result.weights, plain.weights, 0, slack)


@pytest.mark.parametrize("stage", STAGES)
def test_a_gradient_of_zeros_and_one_that_is_no_number(stage):
    """Zero stays zero, empty slices too; a NaN ends the run on all ranks."""
    problem = make_problem("gaussian")
    still = problem.X[:, :3] * 0.0
    zero = replace(problem, X=still, y=problem.y * 0.0)
    for kind in ("sgd", "adam"):
        config = sliced(zero, stage, 4, update={"kind": kind})
        assert not train_on(4, config, zero).weights.any()
    config = sliced(
        problem,
        stage,
        3,
        rate={"value": 1e200},
        schedule={"epochs": 6},
        run={"check_every": 1, "fall_back": False, "evaluate_every": 1},
    )
    results = on_all(3, config, problem)
    assert {r.status.value for r in results} == {"diverged"}
    assert np.isfinite(results[0].weights).all()


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("columns, replicas", [(7, 3), (13, 4), (13, 2)])
def test_every_word_is_counted(stage, columns, replicas):
    """D words of gradient, the own slices of w once, and [Σr | count]: as DDP sends.

    On the wire 2 (R−1)/R of D, in stage 3 too: Yᵀr does not ask for w again.
    """
    problem = make_problem("softmax", d=columns)
    width, tiles = problem.classes, ceil(columns / 2)
    results = on_all(replicas, sliced(problem, stage, replicas), problem)
    whole, tail, sent = columns * width, width + 1, 0
    for replica, result in enumerate(results):
        entry, each = result.ledger["agreement"], result.exchanges
        own = own_words(columns, width, tiles, replicas, replica)
        assert result.report["agreement"]["own_columns"] * width == own
        assert entry["words"] == each * (whole + own + tail)
        assert entry["bytes"] == 8 * entry["words"]
        assert entry["calls"] == each * (2 * tiles + 1)
        ring = (replicas - 1) / replicas
        wire = each * 8 * (2 * ring * whole + 2 * ring * tail)
        assert entry["wire_bytes"] == pytest.approx(wire, rel=1e-12)
        sent += own
    assert sent == whole
    ddp = train_on(replicas, sliced(problem, 0, replicas), problem)
    said = results[0].ledger["agreement"]["wire_bytes"]
    assert said == pytest.approx(ddp.ledger["agreement"]["wire_bytes"], rel=1e-12)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("replicas, members", [(1, 2), (3, 1), (3, 2)])
def test_a_study_knows_what_a_run_must_have_said(stage, replicas, members):
    problem = make_problem("softmax")
    for reproducible in (False, True):
        how = {"run": {"reproducible": reproducible}}
        config = sliced(problem, stage, replicas, members, **how)
        result = train_on(replicas * members, config, problem)
        for figure, value in expected_traffic(result.as_dict()).items():
            said = sum(result.ledger[p][figure] for p in ("products", "agreement"))
            assert said == value, figure


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", ["momentum", "adam"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_run_goes_on_bit_for_bit(stage, kind, tmp_path):
    problem = make_problem("softmax")
    for replicas, members in ((3, 1), (2, 2)):
        config = sliced(problem, stage, replicas, members, update={"kind": kind})
        ranks, place = replicas * members, tmp_path / f"{replicas}"
        whole = in_folder(place / "whole", config, ranks, problem)[0]
        first = in_folder(place / "parts", config, ranks, problem, stop=4)
        assert {r.status.value for r in first} == {"preempted"}
        again = in_folder(place / "parts", config, ranks, problem)
        assert {r.weights_sha256 for r in again} == {whole.weights_sha256}
        assert again[0].intercept.tolist() == whole.intercept.tolist()
        for figure in ("calls", "words", "bytes"):
            entries = [r.ledger["agreement"][figure] for r in (again[0], whole)]
            assert entries[0] == entries[1]


def saved(tmp_path, problem, stage, replicas, kind, stop):
    config = sliced(
        problem, stage, replicas, update={"kind": kind}, schedule={"epochs": 2}
    )
    in_folder(tmp_path, config, replicas, problem, stop=stop)
    return CheckpointStore(tmp_path, 2).newest()[1].arrays


def test_a_checkpoint_is_one_vector_whatever_holds_it(tmp_path):
    """Of four replicas in any stage, or of DDP: the same names, shapes and values."""
    problem = make_problem("softmax", n=64)
    for kind, kept in (("momentum", 2), ("adam", 1)):
        found = [
            saved(tmp_path / f"{kind}{stage}", problem, stage, 4, kind, 3)
            for stage in (0, *STAGES)
        ]
        for arrays in found:
            assert set(arrays) == set(found[0])
            assert arrays["weights"].shape == (1, 7, kept * problem.classes)
            for name, array in arrays.items():
                if not name.startswith("good_"):
                    np.testing.assert_allclose(array, found[0][name], 0, 1e-13, name)


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", ["momentum", "adam"])
def test_a_checkpoint_of_four_goes_on_anywhere(kind, tmp_path):
    """On 1, 3 and 8 replicas, in every stage, and as DDP: the same steps from there."""
    problem = make_problem("softmax", n=64)
    for replicas in (1, 3, 8) if kind == "adam" else (3,):
        found = []
        for first, then in ((3, 0), (3, 3), (1, 2), (0, 3)):
            place = tmp_path / f"{replicas}-{first}-{then}"
            saved(place, problem, first, 4, kind, 4)  # an epoch, on any grid
            config = sliced(
                problem, then, replicas, update={"kind": kind}, schedule={"epochs": 2}
            )
            result = in_folder(place, config, replicas, problem)[0]
            assert result.status.value == "completed"
            assert result.report["resumes"] == 1
            found.append(result.weights)
        for weights in found[1:]:
            np.testing.assert_allclose(weights, found[0], 0, 1e-12)


def test_the_state_is_in_the_checkpoint(tmp_path, monkeypatch):
    """The broken twin: slices of state that begin anew go elsewhere."""
    problem = make_problem("softmax")
    config = sliced(problem, 2, 3, update={"kind": "adam"})
    whole = in_folder(tmp_path / "whole", config, 3, problem)[0]
    in_folder(tmp_path / "parts", config, 3, problem, stop=4)
    monkeypatch.setattr(ShardedAgreement, "remember", lambda *_: None)
    again = in_folder(tmp_path / "parts", config, 3, problem)[0]
    assert np.abs(again.weights - whole.weights).max() > 1e-4


@pytest.mark.cases(2)
@pytest.mark.parametrize("products", ["direct", "gather"])
@pytest.mark.parametrize("stage", [*STAGES, "offload"])
def test_batches_that_travel_together(stage, products):
    """A step on all of them, for the bytes of one: no gather a batch in stage 3."""
    problem = make_problem("softmax")
    members = 2 if products == "gather" else 1
    if (stage, products) == (3, "gather"):
        return

    def make(*grid, **sections):
        if stage == "offload":
            return offloaded(problem, *grid, **sections)
        return sliced(problem, stage, *grid, **sections)

    each = []
    for times in (1, 2, 3):
        more = {"agreement": {"accumulate": times}, "products": {"kind": products}}
        config = make(3, members, **more)
        result = train_on(3 * members, config, problem)
        assert relative_error(result, union_oracle(config, problem)) <= 1e-12
        assert result.exchanges == 2 * ceil(18 / (4 * times))
        sent = result.ledger["agreement"]
        each.append([sent[k] / result.exchanges for k in ("calls", "words", "bytes")])
    assert each[0] == each[1] == each[2]


SHAPED = [
    {"clip": "norm", "clip_at": 0.02, "clip_over": "step"},
    {"clip": "percentile", "clip_at": 20.0, "clip_over": "step"},
    {"centre": "columns", "noise": 1e-4},
    {"normalise": True},
]


@pytest.mark.cases(2)
@pytest.mark.parametrize("shaped", SHAPED, ids=lambda s: next(iter(s)))
def test_norms_and_means_are_of_all_slices(shaped):
    """What is done to the gradient first is done to all of it, as in DDP."""
    problem = make_problem("softmax")
    for replicas, members in ((3, 1), (2, 2)):
        ranks, update = replicas * members, {"update": {"kind": "momentum", **shaped}}
        free = train_on(ranks, sliced(problem, 0, replicas, members), problem)
        plain, *others = (
            train_on(ranks, config, problem)
            for config in (
                *(
                    sliced(problem, k, replicas, members, **update)
                    for k in (0, 1, 2, 3)
                ),
                offloaded(problem, replicas, members, **update),
            )
        )
        assert np.abs(free.weights - plain.weights).max() > 1e-4
        for result in others:
            np.testing.assert_allclose(result.weights, plain.weights, 0, 1e-12)


def test_a_norm_of_own_slices_goes_elsewhere(monkeypatch):
    """The broken twin of that: each replica clips by what it holds."""
    problem = make_problem("softmax")
    shaped = {"update": {"kind": "sgd", **SHAPED[0]}}
    plain = train_on(3, sliced(problem, 0, 3, **shaped), problem)
    monkeypatch.setattr(
        "hpcsgd.agreements.gradient.GradientFacts",
        lambda columns, total: GradientFacts(columns, lambda words: words),
    )
    result = train_on(3, sliced(problem, 2, 3, **shaped), problem)
    assert np.abs(result.weights - plain.weights).max() > 1e-3


@pytest.mark.parametrize("stage", STAGES)
def test_replicas_that_differ_are_mended(stage, monkeypatch):
    """Weights that are whole, or the intercept; slices are nobody else's."""
    problem = make_problem("softmax")
    after_exchange = ShardedAgreement.after_exchange

    def flipped(self, state, exchanges):
        if exchanges == 4 and self.grid.replica == 1:
            state.intercept[0] += 1e-3
        after_exchange(self, state, exchanges)

    sections = {"run": {"check_members": 2}, "rate": {"value": 0.1}}
    plain = on_all(3, sliced(problem, stage, 3, **sections), problem)
    assert {r.report["agreement"]["mended_replicas"] for r in plain} == {0}
    monkeypatch.setattr(ShardedAgreement, "after_exchange", flipped)
    results = on_all(3, sliced(problem, stage, 3, **sections), problem)
    assert {r.report["agreement"]["mended_replicas"] for r in results} == {1}
    assert {r.weights_sha256 for r in results} == {plain[0].weights_sha256}


def test_tails_and_held_rows_know_slices():
    """The mean of iterates, held-out rows and warm starts, as in DDP."""
    problem = make_problem("softmax")
    sections = {
        "average": {"kind": "tail"},
        "sampling": {"hold_out": 0.2},
        "run": {"evaluate_every": 1},
        "schedule": {"epochs": 4},
    }
    plain = train_on(3, sliced(problem, 0, 3, **sections), problem)
    for stage in STAGES:
        result = train_on(3, sliced(problem, stage, 3, **sections), problem)
        np.testing.assert_allclose(result.weights, plain.weights, 0, 1e-12)
        found = [[r["held"] for r in one.history] for one in (plain, result)]
        np.testing.assert_allclose(*found, 1e-12)


IN_EIGHT = [("adam", 1300, 4), ("momentum", 1100, 4), ("adagrad", 5000, 1)]


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind, columns, classes", IN_EIGHT)
@pytest.mark.parametrize("stage", STAGES)
def test_states_in_eight_bits_are_those_of_ddp(stage, kind, columns, classes, tmp_path):
    """Blocks are those of whole columns: the same bits, also after a kill on others."""
    family = "softmax" if classes > 1 else "logistic"
    problem = make_problem(family, n=24, d=columns)
    sections = {
        "update": {"kind": kind, "bits": 8},
        "agreement": {"bucket": 8 * classes * 300 * 2.0**-20},
    }
    plain = train_on(3, sliced(problem, 0, 3, **sections), problem)
    exact = sliced(problem, 0, 3, update={"kind": kind})
    assert plain.weights_sha256 != train_on(3, exact, problem).weights_sha256
    config = sliced(problem, stage, 3, **sections)
    place = tmp_path / "parts"
    first = in_folder(place, config, 3, problem, stop=2)
    assert {r.status.value for r in first} == {"preempted"}
    results = in_folder(place, config, 3, problem)
    assert len({r.weights_sha256 for r in results}) == 1
    assert results[0].report["agreement"]["buckets"] > 1
    whole = train_on(3, config, problem)
    assert results[0].weights_sha256 == whole.weights_sha256
    if stage < 3:
        assert whole.weights_sha256 == plain.weights_sha256
    else:
        np.testing.assert_allclose(whole.weights, plain.weights, 0, 1e-4)
    for figure, value in expected_traffic(whole.as_dict()).items():
        said = sum(whole.ledger[p][figure] for p in ("products", "agreement"))
        assert said == value, figure


def test_slices_are_dealt_in_units():
    """Every column once, slices from multiples of the unit on, units evenly."""
    for columns, replicas, unit in ((1000, 3, 256), (255, 2, 256), (1024, 4, 1)):
        for turn in range(replicas):
            widths = slice_widths(columns, replicas, turn, unit)
            starts = np.cumsum([0, *widths])
            assert starts[-1] == columns and min(widths) >= 0
            assert all(s % unit == 0 for s in starts[:-1] if s < columns)
            units = [ceil(width / unit) for width in widths]
            assert max(units) - min(units) <= 1


@pytest.mark.cases(2)
@pytest.mark.parametrize("wire", ["bf16", "fp16"])
@pytest.mark.parametrize("stage", STAGES)
def test_gradients_of_rounded_weights_step_the_exact_ones(stage, wire):
    """w ← w − η (g(round(w)) + λ w), whoever owns w; without masters it differs."""
    problem = make_problem("logistic")
    for replicas, members, kind in ((3, 1, "momentum"), (2, 2, "sgd")):
        config = sliced(
            problem,
            stage,
            replicas,
            members,
            agreement={"wire": wire},
            update={"kind": kind},
            run={"evaluate_every": 2},
        )
        results = on_all(replicas * members, config, problem)
        assert len({r.weights_sha256 for r in results}) == 1
        w, b = of_rounded(config, problem)
        np.testing.assert_allclose(results[0].weights, w, 0, 1e-12)
        np.testing.assert_allclose(results[0].intercept, b, 0, 1e-12)
        assert results[0].report["agreement"]["wire"] == wire
        broken, _ = of_rounded(config, problem, keeps_masters=False)
        assert np.abs(results[0].weights - broken).max() > 1e-6
        exact = sliced(problem, stage, replicas, members, update={"kind": kind})
        plain = train_on(replicas * members, exact, problem)
        assert np.abs(results[0].weights - plain.weights).max() > 1e-9


@pytest.mark.cases(2)
@pytest.mark.parametrize("stage", STAGES)
def test_rounded_gradients_are_summed_as_numbers(stage, tmp_path):
    """Σ_p round(s_p), in half the bytes, also after a kill; two wires add up."""
    problem = make_problem("logistic", n=43)
    for replicas, members in ((3, 1), (2, 2)):
        ranks = replicas * members
        asked = {"agreement": {"gradient_wire": "bf16"}}
        config = sliced(problem, stage, replicas, members, **asked)
        whole = on_all(ranks, config, problem)
        assert len({r.weights_sha256 for r in whole}) == 1
        w, b = of_rounded_gradients(config, problem)
        # A sum on the verge of two numbers may be rounded to either.
        np.testing.assert_allclose(whole[0].weights, w, 0, 1e-12)
        np.testing.assert_allclose(whole[0].intercept, b, 0, 1e-12)
        plain = train_on(ranks, sliced(problem, stage, replicas, members), problem)
        assert np.abs(whole[0].weights - plain.weights).max() > 1e-9
        place = tmp_path / f"{replicas}"
        in_folder(place, config, ranks, problem, stop=3)
        again = in_folder(place, config, ranks, problem)[0]
        assert again.weights_sha256 == whole[0].weights_sha256
        both = {"agreement": {"gradient_wire": "bf16", "wire": "fp16"}}
        for sections, size in ((asked, 8), (both, 2)):
            config = sliced(problem, stage, replicas, members, **sections)
            result = train_on(ranks, config, problem)
            sent = result.ledger["agreement"]
            for figure, value in expected_traffic(result.as_dict()).items():
                said = sum(result.ledger[p][figure] for p in ("products", "agreement"))
                assert said == value, figure
            own = result.report["agreement"]["own_columns"]
            mine = -(-7 // members)
            last = 8 * own * (size == 2 and stage < 3)
            words = 2 * mine + size * own + 8 * 2
            assert sent["bytes"] == result.exchanges * words + last


def test_all_stages_take_the_steps_of_rounded_weights():
    """Adam, several classes and members, losses along the way; one replica rounds
    nothing, since it sends nothing."""
    problem = make_problem("softmax")
    sections = {"update": {"kind": "adam"}, "agreement": {"wire": "bf16"}}
    sections["run"] = {"evaluate_every": 1}
    for precision in ("fp64", "fp32"):
        sections["precision"] = {"recipe": precision}
        first, *others = (
            train_on(6, sliced(problem, stage, 3, 2, **sections), problem)
            for stage in STAGES
        )
        slack = 1e-12 if precision == "fp64" else 1e-5
        for result in others:
            np.testing.assert_allclose(result.weights, first.weights, 0, slack)
            losses = [[r["loss"] for r in one.history] for one in (first, result)]
            np.testing.assert_allclose(*losses, slack)
            assert result.history[-1]["loss"] == pytest.approx(result.loss, rel=slack)
    for stage in STAGES:
        alone, plain = (
            train_on(1, sliced(problem, stage, 1, **more), problem)
            for more in (sections, {**sections, "agreement": {}})
        )
        assert alone.weights_sha256 == plain.weights_sha256


@pytest.mark.parametrize("stage", STAGES)
def test_rounded_weights_are_half_the_bytes(stage):
    """2 bytes a word of weights where float32 has 4; at the end the exact ones once."""
    problem = make_problem("softmax", d=13)
    found = {}
    for wire in ("exact", "bf16"):
        config = sliced(
            problem,
            stage,
            4,
            agreement={"wire": wire},
            precision={"recipe": "fp32"},
        )
        result = found[wire] = train_on(4, config, problem)
        for figure, value in expected_traffic(result.as_dict()).items():
            said = sum(result.ledger[p][figure] for p in ("products", "agreement"))
            assert said == value, (wire, figure)
    plain, half = (found[w].ledger["agreement"] for w in ("exact", "bf16"))
    own = found["bf16"].report["agreement"]["own_columns"] * problem.classes
    last, exchanges = own * (stage < 3), found["bf16"].exchanges
    assert half["words"] == plain["words"] + last
    assert half["bytes"] == plain["bytes"] - 2 * own * exchanges + 4 * last


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", ["momentum", "adam"])
@pytest.mark.parametrize("stage", STAGES)
def test_rounded_weights_go_on_bit_for_bit(stage, kind, tmp_path):
    """The exact ones are in the checkpoint, which has the arrays of any stage."""
    problem = make_problem("softmax")
    sections = {"update": {"kind": kind}, "agreement": {"wire": "bf16"}}
    config = sliced(problem, stage, 3, **sections)
    whole = in_folder(tmp_path / "whole", config, 3, problem)[0]
    first = in_folder(tmp_path / "parts", config, 3, problem, stop=4)
    assert {r.status.value for r in first} == {"preempted"}
    saved_arrays = CheckpointStore(tmp_path / "parts", 2).newest()[1].arrays
    assert "memory_master" not in saved_arrays
    again = in_folder(tmp_path / "parts", config, 3, problem)
    assert {r.weights_sha256 for r in again} == {whole.weights_sha256}
    for figure in ("calls", "words", "bytes"):
        entries = [r.ledger["agreement"][figure] for r in (again[0], whole)]
        assert entries[0] == entries[1]


REFUSED = [
    ({"agreement": {"wire": "fp8"}}, "must be one of"),
    ({"agreement": {"gradient_wire": "fp16"}}, "must be one of"),
    (
        {"agreement": {"gradient_wire": "bf16"}, "run": {"device": "cuda"}},
        "rounds gradients on the host",
    ),
    ({"agreement": {"wire": "bf16"}, "average": {"kind": "tail"}}, "average those"),
    ({"agreement": {"wire": "bf16"}, "run": {"device": "cuda"}}, "on the host"),
    ({"agreement": {"stage": 3}, "products": {"kind": "gather"}}, "use --products"),
    ({"agreement": {"stage": 3}, "run": {"evaluate": "gradient"}}, "as long as w"),
    ({"agreement": {"stage": 3}, "polish": {"kind": "lbfgs"}}, "works on all of it"),
    ({"agreement": {"codec": "fp16"}}, "supports no codecs"),
    ({"agreement": {"hierarchical": "2"}}, "supports no sums in two levels"),
    ({"update": {"kind": "nesterov-classic"}}, "use --update nesterov"),
    (
        {"update": {"kind": "adam", "bits": 8}, "run": {"device": "cuda"}},
        "use update.bits = 32",
    ),
    ({"precision": {"residual": "fp16"}}, "no residuals that have to be scaled"),
    ({"agreement": {"kind": "average", "stage": 2}}, "use --method zero2"),
    ({"agreement": {"stage": 4}}, "must be one of 1, 2, 3"),
    ({"agreement": {"stage": 3}, "average": {"kind": "tail"}}, "stage = 2"),
]


@pytest.mark.parametrize("sections, said", REFUSED)
def test_what_is_refused(sections, said):
    problem = make_problem("logistic", d=1 if "average" in sections else 7)
    with pytest.raises(ConfigError, match=said):
        train_on(2, sliced(problem, 1, 2, **sections), problem)


@pytest.mark.parametrize("stage", STAGES)
def test_methods_are_these_settings(stage):
    config = RunConfig.parse({"agreement": {"method": f"zero{stage}"}})
    assert (config.agreement.kind, config.agreement.stage) == ("sharded", stage)


@pytest.mark.full
def test_the_optimum_of_the_worst_shards(stage=3):
    """Rows sorted by margin: 10⁻¹⁰ of the least objective, as DDP."""
    X, y, least, slope = heterogeneous()
    problem = make_problem("logistic", n=len(X), d=X.shape[1])
    problem = replace(problem, X=X, y=y)
    config = sliced(
        problem,
        stage,
        4,
        problem={"intercept": False},
        schedule={"batch": 30, "epochs": 250},
        rate={"value": float(1.0 / slope)},
        sampling={"mode": "shuffle-once"},
    )
    result = train_on(4, config, problem)
    assert result.loss / least - 1 < 1e-10


def test_advice_knows_what_members_would_send():
    from hpcsgd.runs import advice

    wide, narrow = make_problem("logistic", d=31), make_problem("logistic")
    for problem, said in ((wide, "--grid 1x2 --agreement"), (narrow, "--batch 8")):
        result = train_on(2, sliced(problem, 3, 2), problem)
        assert said in advice.advise_fewer_messages(result)


def test_replicas_that_were_told_other_stages_are_refused(monkeypatch):
    """Before the first message, which they would not share."""
    begin = ShardedAgreement.__init__

    def unlike(self, grid, share, inputs):
        begin(self, grid, share, inputs)
        self.stage += grid.replica

    monkeypatch.setattr(ShardedAgreement, "__init__", unlike)
    problem = make_problem("logistic")
    with pytest.raises(ConfigError, match="stage is 1 on replica 0 and 2 on replica 1"):
        train_on(2, sliced(problem, 1, 2), problem)

"""Agreements beside what else a run has: groups, refusals, rates and comparisons."""

from collections import Counter
from threading import local

import numpy as np
import pytest

from hpcsgd.comm.ledger import Clock
from hpcsgd.comm.threads import ThreadCommunicator, run_ranks
from hpcsgd.config import shipped_defaults
from hpcsgd.data.readers import MemoryReader
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.estimators.fit import fit
from hpcsgd.runs import build as assembly
from hpcsgd.runs.build import build
from hpcsgd.studies.compare import line_up
from hpcsgd.studies.plan import Refusal
from hpcsgd.studies.verify.replay import open_recorded_run
from tests.helpers.gradients import agreed, in_folder
from tests.helpers.harness import config_for, make_problem, train_on

PROBLEM = make_problem("logistic")
OPENS = {
    "gradient": {"hierarchical": "2"},
    "scheduled": {},
    "scheduled by leaders": {"kind": "scheduled", "hierarchical": "2"},
    "ticktock": {},
    "decentralized by leaders": {"kind": "decentralized", "hierarchical": "2"},
    "async-average": {"delay": 2},
    "hierarchical": {"groups": "2,4", "periods": "1,3"},
}


def config_of(row, asked, **sections):
    kind = {"kind": row.split()[0], **asked}
    schedule = {"steps": 1, "period": 3 if row == "async-average" else 1}
    return config_for(
        PROBLEM,
        agreement=kind,
        schedule=schedule,
        products={"kind": "direct"},
        grid={"replicas": 4},
        **sections,
    )


# ---------------------------------------------------------------------- groups


def counted_groups(monkeypatch):
    """How many were opened and closed, on all ranks together."""
    counts = Counter()
    for name in ("split", "close"):
        real = getattr(ThreadCommunicator, name)

        def counted(*given, real=real, name=name):
            counts[name] += 1
            return real(*given)

        monkeypatch.setattr(ThreadCommunicator, name, counted)
    return counts


@pytest.mark.parametrize("row", OPENS)
def test_all_groups_that_a_run_opened_are_closed(row, monkeypatch):
    """An MPI has some two thousand communicators."""
    counts = counted_groups(monkeypatch)
    train_on(4, config_of(row, OPENS[row]), PROBLEM)
    assert counts["split"] == counts["close"] > 8, "those of the grid, and more"


@pytest.mark.parametrize("row", OPENS)
def test_groups_are_closed_where_all_ranks_refuse_behind_them(row, monkeypatch):
    """A polish that cannot be, say: nothing of the run is left."""
    counts = counted_groups(monkeypatch)
    config = config_of(row, OPENS[row], stop={"on": "validation"})
    with pytest.raises(ConfigError, match="held out"):
        train_on(4, config, PROBLEM)
    assert counts["split"] == counts["close"] >= 8


@pytest.mark.parametrize("row", OPENS)
def test_and_where_the_last_thing_is_refused(row, monkeypatch):
    """Gradients open theirs with the state, behind which observers prepare."""

    def refuse(*given):
        raise ConfigError("no; leave it out")

    monkeypatch.setattr("hpcsgd.products.observers.Observers.prepare", refuse)
    counts = counted_groups(monkeypatch)
    with pytest.raises(ConfigError, match="no; leave it out"):
        train_on(4, config_of(row, OPENS[row]), PROBLEM)
    assert counts["split"] == counts["close"] > 8


@pytest.mark.parametrize("row", OPENS)
def test_who_refuses_before_groups_are_opened_is_heard(row, monkeypatch):
    """Not waited for in a split, until a watchdog ends it."""
    own, real = local(), assembly.settle

    def choose(*given):
        if own.rank == 1:
            raise DataError("rank 1 cannot; mend it")
        return real(*given)

    def on_rank(world):
        own.rank = world.rank
        config = config_of(row, OPENS[row], run={"timeout": 1.0})
        reader = MemoryReader(PROBLEM.X, PROBLEM.y)
        with pytest.raises(DataError, match="rank 1 cannot") as found:
            build(config, world, lambda _: reader, [], Clock())
        assert found.value.on_all_ranks
        return world.max_flag(world.rank)  # and go on together

    monkeypatch.setattr(assembly, "settle", choose)
    assert run_ranks(4, on_rank) == [3] * 4


@pytest.mark.parametrize("inner", [True, False])
def test_a_check_within_a_check_is_told_of_once(inner):
    """Whether the rank fails in it or before it."""

    def on_rank(world):
        def fail():
            raise DataError("rank 1 cannot")

        def work():
            if world.rank == 1 and not inner:
                fail()
            world.together(fail if world.rank == 1 else lambda: None)

        with pytest.raises(DataError, match="rank 1 cannot"):
            world.together(work)
        return world.max_flag(world.rank)

    assert run_ranks(3, on_rank) == [2] * 3


@pytest.mark.parametrize("row", ["decentralized-low", "async-average"])
def test_nothing_is_under_way_when_an_agreement_is_let_go(row):
    """Buffers that MPI still writes to must not go with it."""
    config = config_of(row, {})

    def on_rank(world):
        reader = MemoryReader(PROBLEM.X, PROBLEM.y)
        live = build(config, world, lambda _: reader, [], Clock())
        live.agreement.start(live.state, 0)
        live.run_exchanges(live.feed.groups(0), 3)
        return is_under_way(live.agreement)

    assert run_ranks(4, on_rank) == [False] * 4


def is_under_way(agreement):
    if hasattr(agreement, "_land"):
        return agreement._land is not None
    return agreement._travelling.pending.is_under_way


# -------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    "asked",
    [
        {"kind": "ticktock"},
        {"kind": "ticktock", "mode": "delayed"},
        {"kind": "anybatch"},
    ],
)
def test_sums_by_leaders_are_of_those_that_sum(asked):
    config = config_of(asked["kind"], {**asked, "hierarchical": "2"})
    with pytest.raises(ConfigError, match="no sums in two levels.*leave it out"):
        train_on(4, config, PROBLEM)


OTHERS = {"peers": "shift_one", "graph": "full", "rounds": "full", "mode": "delayed"}
OF_ONE = {
    "peers": "decentralized",
    "resync": "decentralized-low",
    "warmup_steps": "qadam",
    "delay": "async-average",
    "sync_interval_ms": "async-average",
    "warmup_exchanges": "async-average",
    "rounds": "anybatch",
    "deadline": "anybatch",
    "graph": "anybatch",
    "mixing": "anybatch",
    "weighted": "anybatch",
    "mode": "wavelet",
}


@pytest.mark.parametrize("key", OF_ONE)
def test_what_a_kind_does_not_read_is_refused(key):
    usual = shipped_defaults()["agreement"][key]
    value = OTHERS.get(key, not usual)
    value = usual + 1 if type(usual) in (int, float) else value
    method = OF_ONE[key]
    for other in ("gradient", "average", "qadam", "scheduled"):
        if other != method:
            sections = {"update": {"kind": "adam"}} if other == "qadam" else {}
            config = config_of(other, {key: value}, **sections)
            with pytest.raises(ConfigError, match=f"{key} = .*--method {method}"):
                train_on(4, config, PROBLEM)


def test_one_replica_needs_no_partner():
    config = config_for(
        PROBLEM,
        agreement={"kind": "decentralized", "peers": "shift_one"},
        schedule={"steps": 1},
        products={"kind": "direct"},
    )
    plain = config_for(PROBLEM, schedule={"steps": 1}, products={"kind": "direct"})
    found, sgd = (train_on(1, one, PROBLEM) for one in (config, plain))
    np.testing.assert_allclose(found.weights, sgd.weights, rtol=1e-12)


# ----------------------------------------------------------- rates and batches


def rate_of(asked, **rate):
    config = config_of(asked["kind"], asked, rate=rate)
    return train_on(4, config, PROBLEM).config["rate"]["value"]


def test_rows_of_both_halves_scale_the_rate():
    """--rate for so many rows: an exchange has twice the batch."""
    scaled = {"value": 1e-3, "per_batch": 4}
    assert rate_of({"kind": "ticktock"}, **scaled) == pytest.approx(8e-3)
    assert rate_of({"kind": "ticktock", "mode": "delayed"}, **scaled) == 4e-3


def test_gradients_that_are_late_have_half_the_rate():
    """They are stable for rates below 1/L, others below 2/L."""
    asked = {"value": "auto"}
    now = rate_of({"kind": "ticktock"}, **asked)
    late = rate_of({"kind": "ticktock", "mode": "delayed"}, **asked)
    assert late == pytest.approx(now / 2, rel=0.01)


def test_both_halves_are_the_batch_that_methods_are_compared_at():
    """A wavelet is late unless its halves are asked for."""
    base = {"schedule": {"batch": 24}}
    halves = {"agreement": {"mode": "exact-sum"}}
    ddp, late = line_up("ddp,wavelet", base, 4)
    assert ddp.global_batch == late.global_batch == 24
    assert late.config.agreement.mode == "delayed"
    assert late.config.schedule.batch == 6
    (both,) = line_up("wavelet", {**base, **halves}, 4)
    assert both.config.schedule.batch == 3 and both.global_batch == 24
    (odd,) = line_up("wavelet", {"schedule": {"batch": 12}, **halves}, 4)
    assert isinstance(odd, Refusal) and "use --batch 16" in odd.why


# ------------------------------------------------------------ fit, and leaders


@pytest.mark.parametrize(
    "method", ["bytescheduler", "wavelet", "anybatch", "decentralized", "qadam"]
)
def test_fit_leaves_to_a_method_what_nobody_asked_for(method):
    asked = {"agreement": {"method": method}, "products": {"kind": "direct"}}

    def on_rank(world):
        return fit(
            *(PROBLEM.X, "logistic", PROBLEM.y),
            **{"config": asked, "grid": "2x1", "epochs": 2, "rate": 0.1, "comm": world},
        ).config

    found = run_ranks(2, on_rank)[0]
    assert found["schedule"]["steps"] == 1
    assert found["update"]["kind"] == ("adam" if method == "qadam" else "sgd")


def test_what_was_asked_of_fit_is_held_against_the_method():
    asked = {"agreement": {"method": "qadam"}}
    with pytest.raises(ConfigError, match="'momentum' was given"):
        fit(PROBLEM.X, "logistic", PROBLEM.y, update="momentum", config=asked)


def test_leaders_speak_in_the_warm_up_too():
    """A sum inside, one of leaders, and what they tell: not one of all replicas."""
    words = {}
    for of in ("off", "2"):
        asked = {"hierarchical": of, "codec": "bytegrad", "warmup_steps": 99}
        config = config_of("qadam", asked, update={"kind": "adam"})
        words[of] = train_on(4, config, PROBLEM).ledger["agreement"]["words"]
    assert words["2"] > 2 * words["off"]


def test_stages_are_of_slices_alone():
    problem = make_problem("logistic")
    config = agreed(problem, 2, agreement={"stage": 3})
    with pytest.raises(ConfigError, match="--method zero3"):
        train_on(2, config, problem)


def test_verify_says_which_runs_are_not_recorded(tmp_path):
    """Not that they should have been recorded: they cannot be."""
    problem = make_problem("logistic")
    config = agreed(problem, 2, agreement={"kind": "scheduled"}, run={"record": 3})
    in_folder(tmp_path, config, 2, problem)
    with pytest.raises(DataError, match="scheduled, whose steps are not recorded"):
        open_recorded_run(tmp_path)

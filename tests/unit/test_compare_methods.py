"""Methods compared by name: each row is a run of `train`, whatever the table holds."""

import json
from dataclasses import replace
from functools import lru_cache
from math import gcd
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import scipy.sparse

from hpcsgd.api import train
from hpcsgd.cli.compare import _notes, table_at_equal_cost, table_of
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import METHODS, MethodRow
from hpcsgd.errors import ConfigError
from hpcsgd.glm.updates import RateConfig
from hpcsgd.runs import figures as drawing
from hpcsgd.runs.figures import COSTS, loss_curves
from hpcsgd.studies import compare, compare_methods
from hpcsgd.studies.compare import (
    BRIEF,
    LINE_UP,
    MOST_RATES,
    best_rate,
    climb,
    line_up,
    parse_methods,
)
from hpcsgd.studies.plan import Refusal, make_setting, of_row
from tests.helpers.harness import make_problem

BATCH = 24  # divided by 1, 2, 3, 4 and 6 replicas, in two batches or more
BASE = {
    "schedule": {"batch": BATCH, "epochs": 4},
    "rate": {"value": 0.2},
    "precision": {"recipe": "fp32"},
    "run": {"record": 0},
}
DIRECT = {"kind": "direct", "look_ahead": "off"}
# Who is faster decides what these send and learn: no two runs are alike.
FREE = ("anybatch",)


def over(base, **sections):
    return {
        name: {**base.get(name, {}), **sections.get(name, {})}
        for name in {**base, **sections}
    }


def compared(
    ranks, names="all", data=None, out=None, race=False, networks=(), **sections
):
    """What rank 0 found, of one run each; all ranks must hold the same rows."""
    drawn = data or make_problem("logistic")
    config = over(BASE, **sections)

    def on_rank(world):
        given = {"X": drawn.X, "y": drawn.y, "world": world}
        given |= {"race": race, "networks": networks}
        return compare_methods(names, config, repeats=1, out=out, **given)

    found = run_ranks(ranks, on_rank)
    said = {tuple((e.name, isinstance(e, Refusal)) for e in f.entries) for f in found}
    assert len(said) == 1
    return found[0]


@lru_cache
def everything(ranks):
    """All methods on so many ranks; some keep what they have in a folder."""
    with TemporaryDirectory() as out:
        return compared(ranks, out=out)


def alone(ranks, **sections):
    """`train` with these settings, written without the line-up."""
    problem = make_problem("logistic")
    config = over(BASE, **sections)

    with TemporaryDirectory() as out:
        if (
            config.get("agreement", {}).get("method") == "infinity"
        ):  # a folder for its states
            config["run"] = {**config.get("run", {}), "out": out}

        def on_rank(world):
            return train(config, X=problem.X, y=problem.y, world=world)

        return run_ranks(ranks, on_rank)[0]


def hand_written(name, ranks):
    """What each name stands for on so many ranks."""
    if name in METHODS:
        own, row = BATCH // ranks, METHODS[name]
        agreement, settings = {"method": name}, {**row.fixed, **row.defaults}
        if "agreement.accumulate" in settings:
            agreement["accumulate"] = gcd(own, settings["agreement.accumulate"])
        direct = {} if "products.kind" in settings else DIRECT
        steps_by_adam = settings.get("update.kind") == "adam"
        return {
            "grid": {"replicas": ranks, "members": 1},
            "schedule": {"batch": own // agreement.get("accumulate", 1)},
            "agreement": agreement,
            "products": direct,
            "rate": {"value": 0.01} if steps_by_adam else {},
        }
    if name == "hybrid":
        return {
            "grid": {"replicas": 2, "members": ranks // 2},
            "schedule": {"batch": BATCH // 2},
            "products": {"kind": "gram"},
        }
    steps = {"sgd": {"steps": 32}, "casgd": {}}[name]
    kind = {"sgd": "direct", "casgd": "gram"}[name]
    ahead = {"look_ahead": "off"} if name == "sgd" else {}
    return {"schedule": steps, "products": {"kind": kind, **ahead}}


def test_all_is_every_row_of_the_table_and_three_more():
    assert parse_methods("all") == ["sgd", "casgd", "hybrid", *METHODS]
    assert parse_methods(["ddp", "sgd"]) == parse_methods(" sgd, ddp") == ["sgd", "ddp"]
    names = [entry.name for entry in line_up("all", BASE, 4)]
    assert names == list(LINE_UP)


@pytest.mark.parametrize(
    "ranks, squarest", [(1, None), (2, None), (3, None), (4, (2, 2)), (6, (2, 3))]
)
def test_every_row_sees_the_global_batch_on_all_ranks(ranks, squarest):
    for entry in line_up("all", BASE, ranks):
        if entry.name == "hybrid" and squarest is None:
            assert f"of {ranks} rank" in entry.why and "not prime" in entry.why
            continue
        grid = entry.config.grid
        wanted = {"sgd": (1, ranks), "casgd": (1, ranks), "hybrid": squarest}
        placed = wanted.get(entry.name, (ranks, 1))
        assert (grid.replicas, grid.members) == placed, entry.name
        assert entry.global_batch == BATCH, entry.name


def test_batches_that_accumulate_are_parts_of_the_global_batch():
    """As many as the row says, or as many as divide a replica's rows."""
    fixed = {"agreement.kind": "gradient", "schedule.steps": 1}
    row = of_row("x", MethodRow("a row", fixed, {"agreement.accumulate": 8}))
    for batch, replicas, each, together in ((64, 2, 4, 8), (12, 2, 3, 2), (6, 2, 3, 1)):
        found = row.shares(batch, replicas, {})
        assert found["schedule"]["batch"] == each
        assert found["agreement"]["accumulate"] == together
        assert each * together * replicas == batch
    assert row.over["products"]["kind"] == "direct"
    own = of_row("x", MethodRow("a row", {**fixed, "products.kind": "gather"}))
    assert "products" not in own.over and own.shares(12, 2, {}) == {
        "schedule": {"batch": 6}
    }


@pytest.mark.full
@pytest.mark.cases(1)
@pytest.mark.parametrize("ranks", [2, 4])
def test_every_row_is_a_run_of_train(ranks):
    """The same bits, messages, words and bytes as that method alone."""
    found = everything(ranks)
    assert [entry.name for entry in found.entries] == list(LINE_UP)
    assert {one.name for one in found.refused} == ({"hybrid"} if ranks == 2 else set())
    for row in found.rows:
        if row.name in FREE:
            continue
        result = alone(ranks, **hand_written(row.name, ranks))
        assert row.result.weights_sha256 == result.weights_sha256, row.name
        for figure in ("calls", "words", "bytes"):
            sent = sum(result.ledger[p][figure] for p in ("products", "agreement"))
            assert row.traffic(figure) == sent, (row.name, figure)


@pytest.mark.cases(1)
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_document_has_a_line_for_every_method(ranks):
    found = everything(ranks)
    said = json.loads(found.json())
    assert [row["method"] for row in said["rows"]] == list(LINE_UP)
    assert said["held_to"] == "sgd" and said["baseline"] == "bf16"
    assert said["ranks"] == ranks and said["equal_global_batch"]
    full = {row["name"]: row for row in said["settings"]}
    for row in said["rows"]:
        assert set(row) == {"method", "status", "reason", *BRIEF}
        if row["status"] == "refused":
            assert row["reason"] and all(row[name] is None for name in BRIEF)
            assert row["method"] not in full
            continue
        assert row["status"] == "completed" and row["reason"] is None
        twin = full[row["method"]]
        assert row["messages"] == twin["synchronisations"]
        for same in ("loss", "loss_gap", "seconds", "words", "bytes", "steps"):
            assert row[same] == twin[same]
    sgd = said["rows"][0]
    assert sgd["steps"] == 1 and sgd["messages"] == sgd["iterations"]
    assert (sgd["grid"], sgd["loss_gap"], sgd["speed_up"]) == (f"1x{ranks}", 0.0, 1.0)


def test_curves_count_what_was_sent_until_then():
    """Messages, words and bytes grow from nothing to what the ledger says."""
    for row in everything(4).rows:
        for key, figure in (("messages", "calls"), ("words",) * 2, ("bytes",) * 2):
            sent = [record[key] for record in row.result.history]
            assert sent[0] == 0 and sent == sorted(sent), row.name
            assert 0 < sent[-1] <= row.traffic(figure), row.name
            if row.name in ("sgd", "casgd", "ddp", "bf16"):
                assert sent[-1] == row.traffic(figure), row.name


def test_three_ranks_and_one():
    """Batches that divide, one replica alone, and a prime number of ranks."""
    for ranks in (1, 3):
        found = compared(ranks, "sgd,hybrid,ddp,bf16,topk,local")
        assert [one.name for one in found.refused] == ["hybrid"]
        assert not found.diverged and len(found.rows) == 5


def test_losses_are_held_to_sgd_else_ddp_else_the_first():
    assert everything(2).reference.name == "sgd"
    found = compared(2, "casgd,ddp,bf16")
    assert found.reference.name == "ddp" and found.baseline == "bf16"
    assert found.loss_gap(found.rows[1]) == 0.0 != found.loss_gap(found.rows[0])
    found = compared(2, "casgd,local")
    assert found.reference.name == "casgd" and found.baseline is None


def test_settings_are_held_to_the_first_whatever_their_names():
    entries = line_up("casgd,ddp", BASE, 1)
    plain = [type(one)(one.name, one.config) for one in entries]
    problem = make_problem("logistic")
    found = compare(plain, X=problem.X, y=problem.y, repeats=1)
    assert found.reference.name == "casgd" and found.baseline is None


def test_settings_that_a_method_does_not_know_are_its_refusal():
    found = compared(2, "sgd,ddp,topk,local", update={"kind": "svrg"})
    why = {one.name: one.why for one in found.refused}
    assert set(why) == {"ddp", "topk"}
    assert all("--update sgd" in said for said in why.values())
    assert [row.name for row in found.rows] == ["sgd", "local"]


def test_what_only_the_run_finds_is_a_refusal_on_all_ranks():
    """The order of rows that cached needs is asked for when the run is built."""
    wrong = {"products": {"kind": "cached"}, "sampling": {"mode": "reshuffle"}}
    found = compared(2, "sgd,casgd,ddp", **wrong)
    assert [one.name for one in found.refused] == ["casgd"]
    assert "shuffle-once" in found.refused[0].why
    assert "setting" not in found.refused[0].why


@pytest.mark.parametrize("bent", [{"l1": 0.01}, {"lower": -0.1}, {"upper": 0.0}])
def test_sgd_takes_single_steps_where_something_acts_behind_each(bent):
    """Where l1 is left out, or 0, its loop is 32 steps long."""
    found = compared(2, "sgd,casgd,local", problem=bent)
    assert [one.name for one in found.refused] == ["casgd"]
    assert found.rows[0].result.report["schedule"]["steps"] == 1
    (entry,) = line_up("sgd", over(BASE, problem={"l1": 0.0}), 2)
    assert entry.config.schedule.steps == 32


def test_products_that_sum_in_every_step_are_not_casgd():
    found = compared(4, "sgd,casgd,hybrid,ddp", products={"kind": "direct"})
    assert [one.name for one in found.refused] == ["casgd", "hybrid"]
    assert all("leave --products out" in one.why for one in found.refused)


def test_where_nothing_can_run_the_first_sentence_is_the_error():
    with pytest.raises(ConfigError, match=r"can run .*; hybrid: of 2 ranks"):
        compared(2, "hybrid")
    with pytest.raises(ConfigError, match=r"can run .*; ddp: .*svrg"):
        compared(2, "ddp", update={"kind": "svrg"})


def test_steps_are_of_casgd_and_hybrid_periods_of_those_that_have_one():
    asked = {"schedule": {"batch": BATCH, "steps": 3, "period": 5}}
    found = {entry.name: entry.config.schedule for entry in line_up("all", asked, 4)}
    assert (found["casgd"].steps, found["casgd"].period) == (3, 1)
    assert (found["hybrid"].steps, found["hybrid"].period) == (3, 5)
    assert (found["ddp"].steps, found["ddp"].period) == (1, 1)
    assert (found["local"].steps, found["local"].period) == (1, 5)
    left_open = {entry.name: entry.config.schedule for entry in line_up("all", BASE, 4)}
    assert (left_open["hybrid"].steps, left_open["hybrid"].period) == (8, 1)
    assert left_open["local"].period == 8
    (entry,) = line_up("hybrid", over(BASE, schedule={"steps": "auto"}), 4)
    assert isinstance(entry, Refusal) and "give --steps as a number" in entry.why


@pytest.mark.parametrize(
    "names, change, words",
    [
        (
            "nonsense",
            {},
            "--methods nonsense: there is no such method; known: all, sgd, casgd",
        ),
        ("all,nonsense", {}, "--methods nonsense"),
        ("", {}, "is empty"),
        ("sgd,ddp,sgd", {}, "has sgd twice"),
        ("ddp", {"schedule": {"batch": 10}}, "4 replicas .* use --batch 12"),
        ("all", {"grid": {"replicas": 2}}, "leave --grid out"),
        ("all", {"agreement": {"method": "ddp"}}, "leave --method out"),
        ("all", {"agreement": {"codec": "topk"}}, "leave --codec out"),
        ("all", {"run": {"emulate_members": 8}}, "hpcsgd study"),
        ("all", {"rate": {"value": -1.0}}, "rate"),
    ],
)
def test_wrong_line_ups(names, change, words):
    with pytest.raises(ConfigError, match=words):
        line_up(names, over(BASE, **change), 4)


def test_a_batch_need_be_shared_by_the_methods_that_were_asked_for_alone():
    odd = over(BASE, schedule={"batch": 7})
    assert [entry.global_batch for entry in line_up("sgd,casgd", odd, 4)] == [7, 7]


@pytest.mark.cases(1)
@pytest.mark.parametrize("kind", ["softmax", "sparse"])
def test_other_problems(kind):
    """Scores and stored values of other kinds: trained, or refused in a sentence."""
    drawn = make_problem("softmax" if kind == "softmax" else "logistic")
    if kind == "sparse":
        kept = np.where(np.abs(drawn.X) > 0.3, drawn.X, 0.0)
        drawn = replace(drawn, X=scipy.sparse.csr_matrix(kept))
    found = compared(2, data=drawn, problem={"family": drawn.family})
    assert [entry.name for entry in found.entries] == list(LINE_UP)
    assert all(one.why for one in found.refused)
    assert {"sgd", "casgd", "ddp", "bf16"} <= {row.name for row in found.rows}


def test_three_panels_hold_the_curves_of_all_rows(tmp_path, monkeypatch):
    drawn, make = [], drawing.blank

    def kept(*size):
        drawn.append(make(*size))
        return drawn[0]

    monkeypatch.setattr(drawing, "blank", kept)
    curves, costs = everything(4).histories(), ("seconds", "words", "messages")
    loss_curves({"": curves}, tmp_path / "p.png", costs)
    (figure,) = drawn
    assert [axis.get_xlabel() for axis in figure.axes] == [COSTS[c] for c in costs]
    for axis, cost in zip(figure.axes, costs, strict=True):
        lines = {line.get_label(): line for line in axis.lines}
        assert list(lines) == list(curves)
        for name, history in curves.items():
            assert list(lines[name].get_xdata()) == [r[cost] for r in history]
            assert list(lines[name].get_ydata()) == [r["loss"] for r in history]
    names = [text.get_text() for text in figure.axes[-1].get_legend().get_texts()]
    assert names == list(curves)
    styles = {
        (line.get_color(), line.get_linestyle(), line.get_marker())
        for line in figure.axes[0].lines
    }
    assert len(styles) == len(curves), "no two curves look alike"
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_states_on_disk_have_a_folder_for_the_time_of_a_run(tmp_path, monkeypatch):
    """Where none is named; the model is there when the folder is gone."""
    monkeypatch.setattr("hpcsgd.studies.folder.gettempdir", lambda: str(tmp_path))
    X = np.random.default_rng(0).normal(size=(24, 5))
    base = {"schedule": {"batch": 4}, "rate": {"value": 0.1}}
    on = {"X": X, "y": X[:, 0] > 0, "repeats": 2}
    found = run_ranks(
        2, lambda world: compare_methods("ddp,infinity", base, world=world, **on)
    )[0]
    names = [row.name for row in found.rows if not isinstance(row, Refusal)]
    assert names == ["ddp", "infinity"] and not list(tmp_path.iterdir())


def test_rows_that_step_by_another_rule_are_named():
    """Their losses say something of the rule, and of a rate that was meant for sgd."""
    found = compared(2, "sgd,ddp,qadam")
    assert found.others == {"adam": ["qadam"]}
    assert [row["update"] for row in found.as_dict()["rows"]] == ["sgd", "sgd", "adam"]
    assert [row["rate"] for row in found.as_dict()["rows"]] == [0.2, 0.2, 0.01]
    assert "qadam: steps by adam at a rate of 0.01, not by sgd" in (
        "\n".join(_notes(found))
    )
    assert compared(2, "sgd,ddp").others == {}


def test_rows_that_never_began_are_named():
    """A comparison of few exchanges would hold nuqsgd against nuqsgd."""
    names = "ddp,powersgd,alq,qadam,nuqsgd"
    begun = {"codec": {"start": 2, "adapt": 2}, "agreement": {"warmup_steps": 2}}
    found = compared(2, names)
    exchanges = found.rows[0].result.exchanges
    assert 10 < exchanges < 100
    assert set(found.before) == {"alq", "qadam"}
    said = "\n".join(_notes(found))
    assert (
        f"it was nuqsgd until codec.adapt = 100 exchanges, and the run had {exchanges}"
        in said
    )
    assert compared(2, names, **begun).before == {}
    seldom = compared(2, "ddp,accordion,accordion-batch")
    epochs = seldom.rows[0].setting.config.schedule.epochs
    end = f"until accordion.interval + 1 = 11 epochs, and the run had {epochs}"
    assert seldom.before == {
        "accordion": f"it compressed little {end}",
        "accordion-batch": f"its batches were small {end}",
    }
    late = compared(2, names, codec={"start": exchanges})
    assert "all words went as they are" in late.before["powersgd"]


def rates(names, **sections):
    """name -> rate of its row on two ranks."""
    entries = line_up(names, over({"rate": {"value": 8.0}, **BASE}, **sections), 2)
    return {one.name: one.config.rate.value for one in entries}


def test_rules_that_measure_rates_in_other_units_have_one_of_their_own():
    """Unless the rate that all share is meant for them."""
    eight = {"rate": {"value": 8.0}}
    found = rates("sgd,ddp,qadam,infinity,anybatch", **eight)
    assert found == {
        **dict.fromkeys(("sgd", "ddp", "anybatch"), 8.0),
        **dict.fromkeys(("qadam", "infinity"), 0.01),
    }
    open_ended = rates("ddp,qadam", rate={"value": "auto", "norm": "batches"})
    assert open_ended == {"ddp": 0.0, "qadam": 0.01}
    scaled = rates("ddp,qadam", rate={"value": 8.0, "per_batch": 4})
    assert scaled == {"ddp": 8.0, "qadam": 0.01}
    mapped = rates("ddp,anybatch", **eight, mirror={"kind": "diagonal"})
    assert mapped == {"ddp": 8.0, "anybatch": 0.1}
    adam = rates("ddp,qadam", rate={"value": 0.02}, update={"kind": "adam"})
    assert adam == {"ddp": 0.02, "qadam": 0.02}
    grad = rates("ddp,infinity", rate={"value": 0.3}, update={"kind": "adagrad"})
    assert grad == {"ddp": 0.3, "infinity": 0.3}


@pytest.mark.parametrize(
    "base, own, wanted",
    [
        ({}, {"update": {"kind": "adam"}}, 0.01),
        ({}, {"update": {"kind": "adagrad"}}, 0.1),
        ({}, {"update": {"normalise": True}}, 0.1),
        ({}, {"agreement": {"method": "qadam"}}, 0.01),
        ({}, {"update": {"kind": "momentum"}}, 8.0),
        ({}, {"update": {"kind": "adam"}, "rate": {"value": 0.5}}, 0.5),
        ({"update": {"kind": "adam"}}, {}, 8.0),
        ({"update": {"kind": "adam"}}, {"update": {"kind": "adagrad"}}, 0.1),
        ({"agreement": {"method": "qadam"}}, {}, 8.0),
    ],
)
def test_settings_have_them_too(base, own, wanted):
    gradient = {"agreement": {"kind": "gradient"}, "schedule": {"steps": 1}}
    shared = over(gradient, **base, rate={"value": 8.0})
    if "method" in {**shared["agreement"], **own.get("agreement", {})}:
        shared["agreement"].pop("kind")
    assert make_setting("a", shared, own).config.rate.value == wanted


def test_adam_learns_beside_a_rate_for_sgd():
    """At the rate of the others it ended ten times above where it began."""
    drawn = make_problem("logistic")
    found = compared(2, "sgd,ddp,qadam", drawn, rate={"value": 2.0})
    assert [row.status for row in found.rows] == ["completed"] * 3
    assert found.others == {"adam": ["qadam"]}
    assert "qadam: steps by adam at a rate of 0.01, not by sgd at a rate of 2" in (
        "\n".join(_notes(found))
    )


def test_runs_that_end_above_where_they_began_are_worse():
    """They went to their end, and learnt nothing that anybody would keep."""
    found = compared(2, "sgd,ddp,local", rate={"value": 60.0})
    for row in found.rows:
        began = row.result.history[0]["loss"]
        assert row.result.status.value == "worse" and row.result.loss > began
    assert found.worse == ["sgd", "ddp", "local"] and not found.diverged
    said = json.loads(found.json())
    for table in ("rows", "settings"):
        assert [row["status"] for row in said[table]] == ["worse"] * 3


def test_losses_are_not_held_to_a_row_that_is_worse():
    problem, config = make_problem("logistic"), over(BASE, run={"fall_back": False})
    entries = line_up("sgd,ddp", config, 1)
    for rates, name in (((60.0, 0.2), "ddp"), ((0.2, 60.0), "sgd")):
        settings = [
            replace(one, config=replace(one.config, rate=RateConfig(value=rate)))
            for one, rate in zip(entries, rates, strict=True)
        ]
        found = compare(settings, X=problem.X, y=problem.y, repeats=1)
        assert found.reference.name == name and len(found.worse) == 1


@pytest.mark.parametrize("ranks", [2, 4])
def test_bytes_on_the_wire_are_those_of_each_collective(ranks):
    """Of the bytes that a rank gives: by the formula of what carries them."""
    found = everything(ranks)
    given = {row.name: row.traffic("bytes") for row in found.rows}
    wire = {row["method"]: row["wire_bytes"] for row in found.as_dict()["rows"]}
    ring = 2 * (ranks - 1) / ranks  # of an all-reduce
    # All words of so few columns are what topk sends, by an all-reduce.
    summed = ("sgd", "casgd", "ddp", "randomk", "powersgd", "local", "slowmo", "topk")
    for name in summed:
        assert wire[name] == pytest.approx(ring * given[name]), name
    # A count of rows and an intercept are summed, 8 bytes; what is encoded is gathered.
    tails = 8 * {row.name: row for row in found.rows}["ddp"].result.exchanges
    for name in ("sign", "byte", "qsgd", "nuqsgd"):
        gathered = (ranks - 1) * (given[name] - tails)
        assert wire[name] == pytest.approx(ring * tails + gathered), name
    # A sum of parts and a gather of them are an all-reduce in two.
    assert wire["zero1"] == pytest.approx(wire["ddp"]) and given["zero1"] > given["ddp"]
    # Swaps go straight to a neighbour; one average of all is at the end.
    last = given["local"] / 2
    swapped = given["decentralized-low"] - last
    assert wire["decentralized-low"] == pytest.approx(swapped + ring * last)


def test_one_rank_puts_nothing_on_the_wire():
    assert {row.wire_bytes for row in compared(1, "sgd,ddp,topk").rows} == {0.0}


def settings_of(*kinds, batch=8, **more):
    base = {"schedule": {"batch": batch, "epochs": 2}, "rate": {"value": 0.1}, **more}
    return [make_setting(kind, base, {"products": {"kind": kind}}) for kind in kinds]


def on_two_ranks(settings, one_rank=None, **more):
    drawn = make_problem("logistic")

    def on_rank(world):
        given = {"X": drawn.X, "y": drawn.y, "world": world, "one_rank": one_rank}
        return compare(settings, repeats=1, **given, **more)

    return run_ranks(2, on_rank)[0]


@pytest.fixture
def one_rank(tmp_path):
    """A comparison on one rank, as --ranks 1 --out leaves it."""
    drawn, out = make_problem("logistic"), tmp_path / "one"
    given = {"X": drawn.X, "y": drawn.y, "repeats": 2, "out": out}
    found = compare(settings_of("direct", "gram"), **given)
    found.save(out)
    return found, out


def test_rows_are_held_to_the_best_run_on_one_rank(one_rank):
    alone, folder = one_rank
    best = min(row.seconds for row in alone.rows)
    found = on_two_ranks(settings_of("direct", "gram"), folder)
    said = found.as_dict()
    for row, brief, figures in zip(
        found.rows, said["rows"], said["settings"], strict=True
    ):
        assert found.speed_up_one_rank(row) == pytest.approx(best / row.seconds)
        assert found.efficiency(row) == pytest.approx(best / row.seconds / 2)
        for document in (brief, figures):
            assert document["speed_up_one_rank"] == found.speed_up_one_rank(row)
            assert document["efficiency"] == found.efficiency(row)
    heads = [column.header for column in table_of(found).columns]
    assert {"vs 1 rank", "efficiency"} <= set(heads)
    assert not any("one rank" in note for note in _notes(found))
    # On one rank the rows themselves are runs on one rank.
    ratios = [alone.speed_up_one_rank(row) for row in alone.rows]
    assert max(ratios) == 1.0 and ratios == [alone.efficiency(r) for r in alone.rows]


def test_a_run_on_one_rank_of_another_batch_is_nobodys_measure(one_rank):
    found = on_two_ranks(settings_of("direct", batch=16), one_rank[1])
    assert found.speed_up_one_rank(found.rows[0]) is None
    assert any("direct: not held to one rank" in note for note in _notes(found))
    without = on_two_ranks(settings_of("direct"))
    assert without.as_dict()["rows"][0]["efficiency"] is None
    assert any("add --one-rank DIR" in note for note in _notes(without))


def test_a_folder_without_a_run_on_one_rank_is_refused(tmp_path):
    on_two_ranks(settings_of("direct"), out=tmp_path).save(tmp_path)
    with pytest.raises(ConfigError, match="holds no run on one rank; make one"):
        compare(settings_of("direct"), one_rank=tmp_path)


def test_no_speed_up_joins_two_networks():
    base = {"schedule": {"batch": 8, "epochs": 1}, "rate": {"value": 0.1}}
    networks = ("alpha=1e-6,bandwidth=1e10", "alpha=1e-5,bandwidth=1e9")
    settings = [
        make_setting(name, base, {"run": {"network": network}})
        for name, network in zip(("near", "far"), networks, strict=True)
    ]
    found = on_two_ranks(settings)
    near, far = json.loads(found.json())["settings"]
    assert near["speed_up"] == 1.0 and far["speed_up"] is None
    assert [near["network"], far["network"]] == list(networks)
    assert any("far: no speed-up, as near ran on another" in n for n in _notes(found))


def test_a_race_climbs_to_the_rate_with_the_least_loss():
    """By factors of 4, then 2, on both sides; what diverges is left at once."""
    best = 3.0
    tried = climb(lambda rate: abs(np.log(rate / best)), 0.1)
    assert list(tried) == pytest.approx([0.1, 0.4, 1.6, 6.4, 3.2])
    assert best_rate(tried) == pytest.approx(3.2)
    diverges = climb(lambda rate: float("nan") if rate > 0.01 else 1.0 - rate, 1.0)
    assert best_rate(diverges) == pytest.approx(1.0 / 128)
    assert len(climb(lambda rate: -rate, 1.0)) == MOST_RATES
    lost = climb(lambda rate: float("inf"), 0.5)
    assert best_rate(lost) == min(lost) and len(lost) == MOST_RATES


def test_each_method_trains_with_the_best_rate_of_its_race():
    """Another one for each; the rows are those of a comparison at these rates."""
    names = "sgd,local,topk,hybrid"
    raced = compared(2, names, race=True)
    plain = compared(2, names)
    assert [one.name for one in raced.refused] == ["hybrid"]
    assert raced.rows[0].result.loss < plain.rows[0].result.loss
    for row in raced.rows:
        assert 3 <= len(row.raced) <= MOST_RATES
        assert row.rate == best_rate(row.raced) != 0.2
        assert row.result.loss == row.raced[row.rate] == min(row.raced.values())
        pairs = json.loads(raced.json())["rows"]
        (said,) = (one for one in pairs if one["method"] == row.name)
        assert said["losses_of_rates"] == [list(one) for one in row.raced.items()]
    assert all(not row.raced for row in plain.rows)


def test_losses_at_equal_cost_are_those_of_the_curves():
    """Up to the seconds, or the bytes, of the cheapest run that learnt."""
    found = compared(2, "sgd,ddp,bf16,local,topk")
    for cost in ("seconds", "bytes"):
        spent = {
            row.name: row.seconds if cost == "seconds" else row.traffic("bytes")
            for row in found.rows
        }
        cheapest = min(spent, key=spent.get)
        assert found.least(cost) == spent[cheapest]
        for row in found.rows:
            until = [r for r in row.result.history if r[cost] <= spent[cheapest]]
            assert found.loss_at_equal(cost, row) == until[-1]["loss"], row.name
            if row.name == cheapest:
                assert until[-1]["loss"] == row.result.loss
        front = found.front(cost)
        assert cheapest in front
        losses = {row.name: row.result.loss for row in found.rows}
        assert min(losses, key=losses.get) in front
        for name in losses:
            beaten = any(
                losses[other] <= losses[name]
                and spent[other] <= spent[name]
                and (losses[other], spent[other]) != (losses[name], spent[name])
                for other in losses
            )
            assert (name in front) == (not beaten)
    assert found.least("bytes") == min(row.traffic("bytes") for row in found.rows)


def test_every_row_has_its_time_behind_each_network():
    slow = "alpha=2e-3,bandwidth=1e9"
    found = compared(2, "sgd,local,hybrid", networks=["hpc", slow])
    for row in found.rows:
        assert list(row.seconds_behind) == ["hpc", slow] and row.network is None
        assert row.seconds_behind[slow] > 2e-3 * row.traffic("calls")  # each waits
    table = table_at_equal_cost(found, ["hpc", slow])
    assert [column.header for column in table.columns][-2:] == [
        "s behind hpc",
        f"s behind {slow}",
    ]
    assert table.row_count == 2

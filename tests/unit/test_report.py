"""Reports: what folders hold, what belongs together, what is best, what is drawn."""

import json
import re
from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.errors import DataError
from hpcsgd.studies.compare import compare
from hpcsgd.studies.plan import make_setting
from hpcsgd.studies.plots.charts import CROWDED, EMULATED, Heat
from hpcsgd.studies.report import make_report
from hpcsgd.studies.report.charts import ranking, scaling_charts, time_to, verdict
from hpcsgd.studies.report.page import page
from hpcsgd.studies.report.points import read_folder, read_folders
from tests.helpers.html_reader import Reader
from tests.helpers.problems import make_problem
from tests.helpers.studies import (
    STRONG,
    line_of,
    made_up,
    only_problem,
    real_run,
    strong_lines,
    sweep_lines,
    write_study,
)

EVIL = '"><script>alert(1)</script><img src=x onerror=alert(2)>'


@pytest.fixture(scope="module")
def lines():
    return strong_lines()


@pytest.fixture(scope="module")
def strong(tmp_path_factory, lines):
    return write_study(tmp_path_factory.mktemp("studies") / "strong", lines)


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    return write_study(tmp_path_factory.mktemp("studies") / "sweep", sweep_lines())


def test_the_newest_line_of_a_key_counts_and_half_a_line_does_not(tmp_path, lines):
    again = lines[0] | {"loss": 0.25}
    folder = write_study(tmp_path / "s", [lines[0], lines[1], again])
    with (folder / "points.jsonl").open("a") as file:
        file.write('{"key": "casgd/p4", "sta')
    points = read_folder(folder)
    assert [p.outcome.loss for p in points] == [0.25, lines[1]["loss"]]


def test_a_line_of_another_shape_is_read_as_far_as_it_goes(tmp_path):
    odd = {
        "key": 3,
        "ranks": "many",
        "loss": True,
        "seconds": 1e999,
        "grid": [],
        "x": 1,
    }
    odd |= {"history": [1, {"loss": "low"}], "ledger": {"products": 5}, "load": "high"}
    (point,) = read_folder(write_study(tmp_path / "s", [odd]))
    assert point.config.ranks == 1
    assert point.outcome.loss is None and point.costs.seconds is None
    assert not point.is_good
    assert "Nothing" not in page(make_report([tmp_path / "s"]))


@pytest.mark.parametrize("what", ["nothing", "missing", "empty"])
def test_a_folder_without_runs_is_a_sentence(tmp_path, what):
    folder = tmp_path / "x"
    if what != "missing":
        folder.mkdir()
    if what == "empty":
        (folder / "points.jsonl").write_text("\n")
    with pytest.raises(DataError, match=str(folder)):
        read_folders([folder])


def test_a_run_folder_is_read_and_its_words_held_against_the_formula(tmp_path):
    result = real_run("casgd", 2)
    result.save(tmp_path / "first")
    (point,) = read_folder(tmp_path / "first")
    assert point.label == "first"
    assert (point.config.ranks, point.config.batch) == (2, 4)
    costs = point.costs
    assert costs.seconds == result.report["seconds_total"]
    assert costs.traffic("words") == result.ledger["products"]["words"] > 0
    assert costs.expected["words"] == costs.traffic("words")
    assert costs.expected["calls"] == costs.traffic("calls")
    (again,) = read_folder(tmp_path)  # of the folder around it
    assert again == point


def weights_of(report):
    tables = [table for part in report.parts for table in part.tables]
    return next((table for table in tables if table.name == "weights"), None)


def test_the_largest_weights_stand_with_the_names_of_their_columns(tmp_path):
    names = ["age", "income < 10 & <b>rising</b>", "visits"]
    weights = {"first": [0.5, -2.0, 0.0], "second": [0.25, -1.0, 3.0]}
    for number, (run, values) in enumerate(weights.items()):
        saved = real_run("casgd", 2)
        report = {**saved.report, "feature_names": names, "columns": 3}
        changed = {"weights": np.array(values), "report": report, "loss": number + 0.5}
        replace(saved, **changed).save(tmp_path / run)
    report = make_report([tmp_path])
    table = weights_of(report)
    assert table.head == ("column", "first", "second")
    assert table.rows == (
        (names[1], "−2.000", "−1.000"),
        (names[0], "0.5000", "0.2500"),
        (names[2], "0", "3.000"),
    )
    assert "income &lt; 10 &amp; &lt;b&gt;rising" in page(report)


def test_a_model_that_cannot_be_read_is_left_out_of_the_weights_alone(tmp_path, caplog):
    for run in ("first", "second"):
        real_run("casgd", 2).save(tmp_path / run)
    (tmp_path / "first" / "result.h5").write_bytes(b"no HDF5")
    report = make_report([tmp_path])
    assert weights_of(report).head == ("column", "second")
    assert weights_of(report).rows[0][0].startswith("column ")
    assert report.lead.startswith("2 runs") and "first" in caplog.text
    (tmp_path / "second" / "result.h5").unlink()
    assert weights_of(make_report([tmp_path])) is None


def test_repeats_are_one_setting_and_medians_are_theirs(lines):
    found = only_problem(*lines)
    assert len(found.settings) == 9 and {len(s.points) for s in found.settings} == {3}
    assert found.labels == ["SGD", "CA-SGD", "local SGD"]
    for setting in found.settings:
        times = sorted(p.costs.seconds / p.config.epochs for p in setting.points)
        spread = setting.per_epoch
        assert [spread.low, spread.median, spread.high] == pytest.approx(times)


def test_the_best_is_first_at_the_loss_that_all_reach():
    fast = [made_up("casgd", 2, 1.0, (0.7, 0.5, 0.4), repeat=r) for r in (1, 2, 3)]
    slow = [made_up("sgd", 2, 4.0, (0.7, 0.6, 0.3), repeat=r) for r in (1, 2, 3)]
    found = only_problem(*fast, *slow)
    loss, order = ranking(found.settings)
    assert loss == 0.4 and [r.setting.label for r in order] == ["CA-SGD", "SGD"]
    assert [r.seconds.median for r in order] == [1.0, 4.0]
    said = verdict(found)
    assert "0.4000" in said and "(4.00 times)" in said
    assert "is CA-SGD: 1.00\u00a0s, against 4.00\u00a0s of SGD" in said
    assert "chance" not in said and "rests on" not in said


def test_settings_that_learnt_nothing_set_no_common_loss():
    """All others reach 7 at once: who is fastest to it says nothing."""
    good = [
        made_up("casgd", 2, 1.0, (0.7, 0.5, 0.4)),
        made_up("sgd", 2, 4.0, (0.7, 0.6, 0.3)),
    ]
    worse = made_up("local", 2, 0.5, (0.7, 9.0, 7.0))
    found = only_problem(*good, worse)
    loss, order = ranking(found.settings)
    assert loss == 0.4 and [r.setting.label for r in order] == ["CA-SGD", "SGD"]
    assert "Left out, as the loss never fell below where it began: local SGD;" in (
        verdict(found)
    )
    assert "Left out" not in verdict(only_problem(*good))
    assert "No setting ended below where it began" in verdict(only_problem(worse))


def test_time_to_a_loss_is_that_of_a_measured_one():
    (setting,) = only_problem(made_up("sgd", 1, 4.0, (0.7, 0.6, 0.3))).settings
    assert time_to(setting.first, 0.6) == 2.0
    assert time_to(setting.first, 0.59) == 4.0
    assert time_to(setting.first, 0.2) is None


def test_a_sentence_says_what_it_rests_on():
    one = made_up("casgd", 1, 1.0)
    other = made_up("sgd", 1, 1.2)
    assert "Only one setting" in verdict(only_problem(one))
    assert "rests on one run" in verdict(only_problem(one, other))
    both = [
        made_up(method, 1, seconds * (1 + 0.2 * r), repeat=r)
        for method, seconds in (("casgd", 1.0), ("sgd", 1.1))
        for r in (1, 2, 3)
    ]
    assert "may be chance" in verdict(only_problem(*both))
    crowded = [line | {"cores": 1, "ranks": 4} for line in both]
    assert "more ranks than cores" in verdict(only_problem(*crowded))
    failed = one | {"status": "failed", "seconds": None}
    assert "No run has finished" in verdict(only_problem(failed))


def test_weak_scaling_asks_for_no_common_loss():
    weak = [
        made_up("sgd", ranks, seconds, study="weak", rows=10 * ranks)
        for ranks, seconds in ((1, 1.0), (2, 1.25), (4, 2.0))
    ]
    found = only_problem(*weak)
    assert "50 % of the ideal" in verdict(found)
    time, efficiency = scaling_charts(found)
    assert time.series[0].y == (1.0, 1.25, 2.0)
    assert time.ideal.y == (1.0, 1.0, 1.0)
    assert efficiency.series[0].y == pytest.approx((100.0, 80.0, 50.0))


def test_speed_up_and_efficiency_from_medians_with_bars_of_repeats():
    times = {1: (8.0, 8.0, 8.0), 2: (3.0, 4.0, 5.0), 4: (4.0, 4.0, 4.0)}
    found = only_problem(
        *(
            made_up("sgd", ranks, seconds, repeat=r)
            for ranks, each in times.items()
            for r, seconds in enumerate(each, 1)
        )
    )
    time, speed_up, efficiency = scaling_charts(found)
    assert time.series[0].x == (1.0, 2.0, 4.0) and time.series[0].y == (8.0, 4.0, 4.0)
    assert time.ideal.y == (8.0, 4.0, 2.0)
    assert speed_up.series[0].y == pytest.approx((1.0, 2.0, 2.0))
    assert speed_up.series[0].low[1] == pytest.approx(8 / 5)
    assert speed_up.series[0].high[1] == pytest.approx(8 / 3)
    assert speed_up.ideal.y == (1.0, 2.0, 4.0)
    assert efficiency.series[0].y == pytest.approx((100.0, 100.0, 50.0))


def test_emulated_and_crowded_points_are_marked_and_apart():
    found = only_problem(
        *(made_up("sgd", r, 8.0 / r, cores=2) for r in (1, 2, 4)),
        *(made_up("sgd", 1, 1.0, emulated=n, losses=(0.7, 0.7)) for n in (16, 64)),
    )
    charts = scaling_charts(found)
    real, emulated = charts[0].series
    assert real.name == "SGD" and real.marks == ("", "", CROWDED)
    assert emulated.name == "SGD (emulated)" and emulated.x == (1.0, 16.0, 64.0)
    assert emulated.marks == ("", EMULATED, EMULATED)
    assert real.look != emulated.look


def test_what_failed_is_listed_and_in_no_figure(strong, tmp_path, lines):
    bad = {"key": "hybrid/p8/r1", "method": "hybrid", "ranks": 8, "status": "failed"}
    bad |= {"error": "rank 3 was killed", "seconds": None, "study": "strong"}
    folder = write_study(tmp_path / "s", [*lines, bad])
    report = make_report([folder])
    (part,) = report.parts
    assert [t.name for t in part.tables] == ["settings", "traffic", "failed"]
    said = Reader(page(report)).text
    assert "rank 3 was killed" in said and "27 runs in s; 1 failed" in said
    assert "hybrid" not in {s.name for c in part.charts[:4] for s in c.series}


def test_words_that_differ_from_the_formula_are_marked(tmp_path, lines):
    line = next(x for x in lines if x["method"] == "casgd" and x["ranks"] == 2)
    # Of three repeats one alone differs, and not the middle one.
    again = [line | {"key": f"again{r}", "seconds": float(r)} for r in (1, 2, 3)]
    odd = again[2] | {"expected": line["expected"] | {"words": 1}}
    for said, wanted in ((again, False), ([*again[:2], odd], True)):
        folder = write_study(tmp_path / str(wanted), said)
        (part,) = make_report([folder]).parts
        assert bool(part.tables[1].marked) is wanted
        assert ('class="marked"' in page(make_report([folder]))) is wanted


def test_figures_of_a_strong_study(strong, lines):
    report = make_report([strong])
    assert [chart.name for chart in report.charts] == STRONG
    by_name = {chart.name: chart for chart in report.charts}
    # On four ranks, as all methods have been: curves of the runs of median time.
    for series, method in zip(
        by_name["loss-words"].series, ("sgd", "casgd", "local"), strict=True
    ):
        line = next(
            x for x in lines if (x["method"], x["ranks"], x["repeat"]) == (method, 4, 2)
        )
        assert series.y[-1] == line["history"][-1]["loss"]
        sent = sum(line["ledger"][p]["words"] for p in ("products", "agreement"))
        assert series.x[-1] == pytest.approx(sent, rel=0.2)
    for chart in report.charts[:3]:
        assert [s.look for s in chart.series] == [0, 1, 2]
    (split,) = [c for c in report.charts if c.name == "time-split"]
    for bar in split.bars:
        assert bar.low <= bar.whole <= bar.high


def test_heat_maps_of_a_sweep(sweep):
    report = make_report([sweep])
    maps = [chart for chart in report.charts if isinstance(chart, Heat)]
    assert [m.name for m in maps] == ["time-s-b-0", "loss-s-b-0"]
    time, loss = maps
    assert time.rows == ("2", "4", "8") and time.columns == ("2", "4")
    points = {(p.config.steps, p.config.batch): p for p in read_folder(sweep)}
    for steps, row in zip((2, 4, 8), range(3), strict=True):
        for batch, column in zip((2, 4), range(2), strict=True):
            point = points[steps, batch]
            each = point.costs.seconds / point.outcome.iterations
            assert time.cells[row][column] == pytest.approx(each)
            assert loss.cells[row][column] == point.outcome.loss


def over_steps_and_batches(**more):
    """CA-SGD on two ranks over s and b."""
    return [
        made_up(
            *("casgd", 2, 1.0 + steps),
            losses=(0.7, 0.5, 0.6 / steps / batch),
            **{"steps": steps, "batch": batch, "key": f"{steps}/{batch}/{more}"},
            **more,
        )
        for steps in (2, 4)
        for batch in (8, 16)
    ]


def maps_of(tmp_path, lines):
    (part,) = make_report([write_study(tmp_path / "s", lines)]).parts
    return {c.title: c for c in part.charts if isinstance(c, Heat)}


@pytest.mark.parametrize(
    "key, values, words",
    [
        ("epochs", (3, 30), ("3 epochs", "30 epochs")),
        ("product", ("gram", "cached"), ("gram", "cached")),
        ("recipe", ("fp32", "c"), ("fp32", "c")),
    ],
)
def test_a_heat_map_never_mixes_settings(tmp_path, key, values, words):
    """A lower loss after ten times the epochs is no loss of the same cell."""
    lines = [
        line | {"loss": line["loss"] / (1 + number)}
        for number, value in enumerate(values)
        for line in over_steps_and_batches(**{key: value})
    ]
    maps = maps_of(tmp_path, lines)
    for number, word in enumerate(words):
        loss = maps[f"Final loss: CA-SGD, 2 ranks, {word}"]
        assert loss.cells[0][0] == pytest.approx(0.6 / 2 / 8 / (1 + number))
    assert "Final loss: CA-SGD, 2 ranks" not in maps


def test_the_epochs_of_a_heat_map_are_in_its_caption(tmp_path):
    lines = [*over_steps_and_batches(epochs=3), *over_steps_and_batches(epochs=1)]
    maps = maps_of(tmp_path, lines)
    for word in ("3 epochs", "1 epoch"):
        caption = maps[f"Final loss: CA-SGD, 2 ranks, {word}"].caption
        assert f"after {word} for all" in caption and "lowest" not in caption


def test_a_heat_map_of_one_grid_of_several_says_which(tmp_path):
    grids = ({"replicas": 1, "members": 2}, {"replicas": 2, "members": 1})
    lines = over_steps_and_batches(grid=grids[0])
    lines += over_steps_and_batches(grid=grids[1])[:3]
    loss = maps_of(tmp_path, lines)["Final loss: CA-SGD, 2 ranks"]
    assert "Only settings with the grid 1×2; 1 more in the table." in loss.caption


def test_runs_of_other_networks_are_joined_by_no_line(tmp_path):
    """A slow network on two ranks and a fast one on four are no scaling."""
    lines = [
        made_up(
            method, ranks, seconds, network=network, key=f"{method}{ranks}{network}"
        )
        for method in ("sgd", "casgd")
        for network, times in (("lan", {1: 8.0, 2: 6.0}), ("wan", {1: 8.5, 4: 9.0}))
        for ranks, seconds in times.items()
    ]
    report = make_report([write_study(tmp_path / "s", lines)])
    assert [part.problem.network for part in report.parts] == ["lan", "wan"]
    assert [part.problem.title for part in report.parts] == [
        "d.h5, 10 × 3, network lan",
        "d.h5, 10 × 3, network wan",
    ]
    for part, widths in zip(report.parts, ((1.0, 2.0), (1.0, 4.0)), strict=True):
        (times,) = [c for c in part.charts if c.name.startswith("time-ranks")]
        assert {series.x for series in times.series} == {widths}
        (speed_up,) = [c for c in part.charts if c.name.startswith("speed-up")]
        assert all(series.y[0] == 1.0 for series in speed_up.series)


def test_nodes_of_one_machine_are_together_and_other_machines_apart(tmp_path):
    def parts(*machines):
        lines = [
            made_up("sgd", ranks, 8.0 / ranks, **machine)
            for ranks, machine in zip((1, 2, 4), machines, strict=True)
        ]
        folder = write_study(tmp_path / str(len(list(tmp_path.iterdir()))), lines)
        return make_report([folder]).parts

    nodes = ({"host": f"nid{k}"} for k in (7, 1234, 9))
    assert len(parts(*nodes)) == 1
    old, new = {"host": "a", "processor": "old"}, {"host": "b", "processor": "new"}
    assert [p.problem.title for p in parts(old, new, new)] == [
        "d.h5, 10 × 3, old",
        "d.h5, 10 × 3, new",
    ]
    # A run folder names its host alone; another run says which processor that has.
    assert len(parts(old, {"host": "a"}, old)) == 1


def test_speed_ups_are_against_the_best_run_on_one_rank(tmp_path):
    """SGD on one rank is the fastest there: CA-SGD is held to it, not to itself."""
    lines = [
        made_up("sgd", 1, 4.0),
        made_up("casgd", 1, 8.0),
        made_up("casgd", 4, 2.0),
        made_up("casgd", 4, 1.0, batch=64, key="large"),
    ]
    (part,) = make_report([write_study(tmp_path / "s", lines)]).parts
    table = part.tables[0]
    cells = {
        (row[0], row[table.head.index("ranks")], row[table.head.index("b")]): (
            row[table.head.index("vs 1 rank")],
            row[table.head.index("efficiency")],
        )
        for row in table.rows
    }
    assert cells["CA-SGD", "4", "4"] == ("2.00x", "50 %")
    assert cells["CA-SGD", "1", "4"] == ("0.500x", "50 %")
    assert cells["SGD", "1", "4"] == ("1.00x", "100 %")
    assert cells["CA-SGD", "4", "64"] == ("–", "–"), "no run on one rank has its batch"
    said = make_report([write_study(tmp_path / "s", lines)]).as_dict()["parts"][0]
    found = {(s["method"], s["ranks"], s["batch"]): s for s in said["settings"]}
    assert found["CA-SGD", 4, 4]["speed_up_one_rank"] == 2.0
    assert found["CA-SGD", 4, 4]["efficiency"] == 0.5
    assert found["CA-SGD", 4, 64]["speed_up_one_rank"] is None


def test_the_speed_up_that_is_drawn_is_that_of_the_table():
    found = only_problem(
        made_up("sgd", 1, 4.0),
        made_up("casgd", 1, 8.0),
        made_up("casgd", 4, 2.0),
        made_up("sgd", 4, 3.0),
    )
    _, speed_up, efficiency = scaling_charts(found)
    drawn = {series.name: series.y for series in speed_up.series}
    assert drawn["CA-SGD"] == pytest.approx((0.5, 2.0))
    assert "of the best run on one rank" in speed_up.caption
    assert efficiency.series[1].y == pytest.approx((50.0, 50.0))
    without = only_problem(*(made_up("sgd", r, 8.0 / r) for r in (2, 4)))
    _, speed_up, _ = scaling_charts(without)
    assert speed_up.series[0].y == pytest.approx((2.0, 4.0))
    assert "on the fewest ranks of the same method" in speed_up.caption


def test_no_headline_is_a_ratio_of_an_algorithm_to_itself():
    fast, second = (made_up("casgd", r, s) for r, s in ((4, 1.0), (2, 2.0)))
    sgd = made_up("sgd", 4, 3.0)
    said = verdict(only_problem(fast, second, sgd))
    assert "is CA-SGD, 4 ranks: 1.00\u00a0s, against 3.00\u00a0s of SGD" in said
    alone = verdict(only_problem(fast, second, made_up("casgd", 1, 3.0)))
    assert "against" not in alone and "times)" not in alone
    assert "All settings have the same algorithm" in alone
    assert "3.00 times as fast as that of the best run on one rank" in alone
    assert "an efficiency of 75 %" in alone


def test_the_names_of_settings_make_no_algorithms(tmp_path):
    """Two run folders with other names hold CA-SGD both."""
    for name, steps in (("first", 2), ("second", 4)):
        real_run("casgd", 2, steps).save(tmp_path / name)
    (part,) = make_report([tmp_path]).parts
    assert "All settings have the same algorithm" in part.verdict
    real_run("sgd", 2).save(tmp_path / "third")
    (part,) = make_report([tmp_path]).parts
    assert "All settings have the same algorithm" not in part.verdict


PHASES = {"gram": 0.2, "communicate": 0.1}


def split_of(tmp_path, lines):
    (part,) = make_report([write_study(tmp_path / "s", lines)]).parts
    return [c for c in part.charts if c.name == "time-split"], part.notes


def test_where_time_went_is_shown_of_the_most_ranks_where_settings_are_many(tmp_path):
    """One rank is the fastest here, and has no network that time could go to."""
    lines = [
        made_up(method, ranks, ranks + 0.01 * s, steps=s, seconds_by_phase=PHASES)
        for method in ("sgd", "casgd")
        for ranks in (1, 2, 4)
        for s in range(1, 21)
    ]
    # Too many lines of a scaling chart: another method for each of nine.
    lines += [
        made_up(f"m{k}", ranks, 9.0, seconds_by_phase=PHASES)
        for k in range(9)
        for ranks in (1, 4)
    ]
    ((chart,), notes) = split_of(tmp_path, lines)
    assert len(chart.bars) == 11 and notes == ()
    assert "on 4 ranks, the most that all methods have" in chart.caption
    assert all(bar.low >= 4 for bar in chart.bars)


def test_where_time_went_leaves_out_no_method_of_one_number_of_ranks(tmp_path):
    """SGD ran on 1 and on 4 ranks, CA-SGD on 4 alone: it is no line, and has a bar."""
    lines = [
        made_up(method, ranks, ranks + 0.01 * s, steps=s, seconds_by_phase=PHASES)
        for method, ranks in (("sgd", 1), ("sgd", 4), ("casgd", 4))
        for s in range(1, 11)
    ]
    ((chart,), _) = split_of(tmp_path, lines)
    assert len(chart.bars) == 3 and "CA-SGD" in chart.bars[-1].name
    assert "fastest setting of each method on each number of ranks" in chart.caption


def test_a_breakdown_of_one_rank_alone_is_absent_with_a_sentence(tmp_path):
    one = made_up("sgd", 1, 4.0, seconds_by_phase=PHASES)
    charts, notes = split_of(tmp_path, [one, made_up("sgd", 4, 2.0)])
    assert charts == [] and "only runs on one rank have" in notes[0]
    charts, notes = split_of(tmp_path, [made_up("sgd", 4, 2.0)])
    assert charts == [] and "no run has recorded its parts" in notes[0]
    folder = write_study(tmp_path / "s", [one, made_up("sgd", 4, 2.0)])
    assert "Where the time of an epoch went is not drawn" in page(make_report([folder]))
    charts, notes = split_of(tmp_path, [one])
    assert len(charts) == 1 and notes == ()


def test_a_preempted_run_is_no_failed_one(tmp_path):
    lines = [made_up("sgd", 1, 4.0), made_up("sgd", 2, 2.0)]
    lines.append(made_up("sgd", 4, 0.5, status="preempted", key="sgd/p4"))
    report = make_report([write_study(tmp_path / "s", lines)])
    (part,) = report.parts
    assert [t.name for t in part.tables] == ["settings", "preempted"]
    assert part.tables[1].rows == (("sgd/p4", "preempted"),)
    assert report.lead == "2 runs in s; 1 preempted"
    (said,) = report.as_dict()["parts"]
    assert said["failed"] == []
    assert said["preempted"] == [{"key": "sgd/p4", "status": "preempted"}]
    (times,) = [c for c in part.charts if c.name == "time-ranks"]
    assert times.series[0].x == (1.0, 2.0), "its figures are in no chart"


def test_energy_is_drawn_where_it_is_known(tmp_path):
    energy = {"joules": 1234.0, "source": "rapl"}
    known = [made_up("sgd", 1, 1.0, energy=energy), made_up("casgd", 1, 2.0)]
    report = make_report([write_study(tmp_path / "s", known)])
    (chart,) = [c for c in report.charts if c.name == "energy"]
    assert [bar.parts for bar in chart.bars] == [(1234.0,)]
    assert "RAPL" in chart.caption and "1.23\u00a0kJ" in Reader(page(report)).text


def test_several_problems_have_files_of_their_own(strong, tmp_path):
    other = write_study(tmp_path / "o", [made_up("sgd", 1), made_up("casgd", 1)])
    report = make_report([strong, other])
    assert len(report.parts) == 2
    names = [chart.name for chart in report.charts]
    assert len(set(names)) == len(names) and "loss-time-of-2" in names
    ids = re.findall(r' id="([^"]+)"', page(report))
    assert len(set(ids)) == len(ids)


def test_the_document_is_json(strong):
    said = json.loads(json.dumps(make_report([strong]).as_dict(), allow_nan=False))
    (part,) = said["parts"]
    assert part["figures"] == STRONG and len(part["settings"]) == 9
    assert part["settings"][0]["seconds_per_epoch"][1] > 0


def test_a_line_of_a_study_is_what_the_test_makes(tmp_path):
    """The folder of the tests is read as the study's own."""
    line = line_of(real_run("sgd", 2), "sgd", energy=None)
    (point,) = read_folder(write_study(tmp_path / "s", [line]))
    assert point.is_good and point.label == "SGD" and point.config.width == 2
    total = sum(point.costs.split())
    assert total == pytest.approx(point.costs.seconds, rel=1e-6)


@pytest.fixture
def comparison(tmp_path):
    """Two settings, two runs of each, as `hpcsgd compare --out` leaves them."""
    drawn = make_problem("logistic")
    base = {"schedule": {"batch": 4, "epochs": 2}, "rate": {"value": 0.1}}
    settings = [
        make_setting(name, base, {"products": {"kind": kind}, "schedule": {"steps": 3}})
        for name, kind in (("plain", "direct"), ("ca-sgd", "gram"))
    ]
    given = {"repeats": 2, "out": tmp_path, "X": drawn.X, "y": drawn.y}
    compare(settings, **given).save(tmp_path)
    return tmp_path


def test_a_comparison_is_read_with_its_run_folders(comparison):
    points = read_folder(comparison)
    said = json.loads((comparison / "compare.json").read_text())
    times = [t for row in said["settings"] for t in row["seconds_of_repeats"]]
    assert [p.costs.seconds for p in points] == times
    assert [p.label for p in points] == ["plain", "plain", "ca-sgd", "ca-sgd"]
    assert all(p.costs.phases and p.task.rows for p in points)
    # A sum in every step has one step between two messages, whatever s is.
    assert [p.config.steps for p in points] == [1, 1, 3, 3]
    assert "4 runs" in page(make_report([comparison]))


def test_a_run_of_another_comparison_is_not_taken_for_this_one(comparison):
    path = comparison / "ca-sgd-2" / "result.json"
    other = json.loads(path.read_text()) | {"seconds_total": 99.0, "loss": 99.0}
    path.write_text(json.dumps(other))
    (comparison / "plain-1" / "result.json").unlink()
    points = read_folder(comparison)
    assert len(points) == 4 and all(
        p.costs.seconds < 99 and p.outcome.loss < 99 for p in points
    )
    assert not points[0].costs.phases and not points[3].costs.phases


def test_words_are_those_that_were_counted_not_a_share(tmp_path):
    """What is cached is sent in the first epoch: no word follows in the others."""
    line = made_up("sgd", 2, losses=(0.7, 0.6, 0.5))
    for record, words in zip(line["history"], (0, 100, 100), strict=True):
        record["words"] = words
    line["ledger"] = {"products": {"words": 100, "calls": 4}}
    older = made_up("casgd", 2, losses=(0.7, 0.6, 0.5), ledger=line["ledger"])
    for one, wanted, said in (
        (line, (0.0, 100.0, 100.0), False),
        (older, (0.0, 50.0, 100.0), True),
    ):
        folder = write_study(tmp_path / one["method"], [one])
        (chart,) = [c for c in make_report([folder]).charts if c.name == "loss-words"]
        assert chart.series[0].x == wanted
        assert ("in proportion" in chart.caption) is said


def test_no_name_moves_the_cursor_of_a_terminal(tmp_path):
    name = "\x1b[2J\x9b1m\u202egeht"
    lines = [made_up(name, 1, 1.0, data=name), made_up("sgd", 1, 2.0, data=name)]
    (part,) = make_report([write_study(tmp_path / "s", lines)]).parts
    for said in (part.verdict, part.problem.title):
        assert "geht" in said
        assert all(c.isprintable() or c == "\u00a0" for c in said)

"""The plan of a study: its points, their order, what is refused, what may change."""

from dataclasses import fields

import pytest

from hpcsgd.config import METHODS as TABLE
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.studies.plan import (
    LOOP,
    METHODS,
    ROWS,
    NamedSetting,
    StudyAxes,
    StudyPlan,
    StudyPoint,
    both,
    check_equal_batch,
    check_plan,
    difference,
    every_grid,
    make_setting,
)


def plan(kind="strong", ranks=(1, 2), **more):
    names = [field.name for field in fields(StudyAxes)]
    axes = StudyAxes(**{name: more.pop(name) for name in names if name in more})
    return StudyPlan(kind, ranks, axes, rows=1000, **more)


def settings(asked):
    return [point.setting for point in asked.settings()]


def test_a_plan_is_a_product_of_lists():
    asked = plan(methods=("casgd",), steps=(2, 4), batch=(8, 16), seeds=(0, 1))
    keys = [point.key for point in asked.runs()]
    assert len(keys) == len(set(keys)) == 2 * 2 * 2 * 2 * 3
    assert "casgd/p2/s4/b16/1x2/fp32/seed1/r3" in keys


def test_repeats_take_turns():
    asked = plan(repeats=2, methods=("sgd", "local"))
    said = [(p.method, p.ranks, p.repeat) for p in asked.runs()]
    once = [("sgd", 1), ("sgd", 2), ("local", 1), ("local", 2)]
    assert said == [(*p, 1) for p in once] + [(*p, 2) for p in once]


def test_sgd_has_one_step_a_sum_whatever_is_asked():
    asked = plan(methods=("sgd",), steps=(4, 8))
    assert [p.steps for p in asked.settings()] == [1, 1]
    assert asked.settings()[0].tables()["schedule"]["steps"] == LOOP


@pytest.mark.parametrize(
    "method, grid, product, batch",
    [
        ("sgd", (1, 4), "direct", 32),
        ("casgd", (1, 4), "gram", 32),
        ("local", (4, 1), "direct", 8),
        ("hybrid", (2, 2), "gram", 16),
    ],
)
def test_every_method_at_the_same_global_batch(method, grid, product, batch):
    (point,) = plan(ranks=(4,), methods=(method,)).settings()
    config = RunConfig.parse(point.tables())
    assert (config.grid.replicas, config.grid.members) == grid == point.grid
    assert config.products.kind == product
    assert config.schedule.batch == batch
    assert config.schedule.batch * grid[0] == point.batch == 32


def test_what_all_share_is_in_every_point():
    base = {"rate": {"value": 0.25}, "products": {"kind": "cached"}}
    base["run"] = {"network": "lan"}
    for point in plan(ranks=(4,), methods=tuple(METHODS), base=base).settings():
        config = RunConfig.parse(point.tables("x.h5", "runs/x"))
        # Rates in other units.
        row = TABLE.get(point.method)
        rule = row and {**row.defaults, **row.fixed}.get("update.kind")
        by_adam = rule == "adam"
        assert config.rate.value == (0.01 if by_adam else 0.25)
        assert config.run.network == "lan"
        assert (config.data.path, config.run.out) == ("x.h5", "runs/x")
        asked = "cached" if point.method in ("casgd", "hybrid") else "direct"
        assert config.products.kind == asked
    assert base["products"] == {"kind": "cached"}, "points share it"


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_the_table_of_methods_are_methods_of_studies(name):
    """A replica a rank, one step an exchange, a period where the row has one."""
    base = {"schedule": {"period": 3}}
    (point,) = plan(ranks=(4,), methods=(name,), steps=(8,), base=base).settings()
    config = RunConfig.parse(point.tables())
    together = config.schedule.batch * config.agreement.batches_together
    assert point.grid == (4, 1) and together == 8
    if name == "local":  # of studies: s steps of the list, then an average
        assert (config.agreement.kind, point.steps) == ("auto", 8)
        return
    assert config.agreement.method == name and point.steps == 1
    row = {**TABLE[name].fixed, **TABLE[name].defaults}
    assert config.schedule.steps == row.get("schedule.steps", config.schedule.steps)
    assert config.schedule.period == (3 if "schedule.period" in row else 1)


@pytest.mark.parametrize(
    "name, kind",
    [("ddp", ""), ("accordion-batch", ""), ("wavelet", ""), ("local", "ticktock")],
)
def test_accumulated_batches_of_the_shared_settings_are_rows_of_a_step(name, kind):
    agreement = {"accumulate": 2, **({"kind": kind} if kind else {})}
    base = {"agreement": agreement}
    (point,) = plan(ranks=(4,), methods=(name,), base=base).settings()
    config = RunConfig.parse(point.tables())
    assert NamedSetting(name, config).global_batch == point.batch == 32


def test_a_batch_that_accumulated_batches_cannot_share_is_refused():
    base = {"agreement": {"accumulate": 2}}
    odd = plan(ranks=(4,), methods=("ddp",), batch=(36,), base=base)
    with pytest.raises(ConfigError, match="2 batches of equal size .*--batch 40"):
        check_plan(odd)


def test_unequal_batches_are_named_with_their_factors_and_made_equal():
    """The remedy, taken, is no longer refused."""
    grid = {"replicas": 2, "members": 1}

    def settings(own, others):
        tables = {"grid": grid, "agreement": {"method": "ddp", "accumulate": 3}}
        return [
            make_setting("sgd", {}, {"schedule": {"batch": own}}),
            make_setting("ddp", {}, {"schedule": {"batch": others}, **tables}),
        ]

    with pytest.raises(ConfigError) as caught:
        check_equal_batch(settings(32, 32))
    text = str(caught.value)
    assert "sgd 32 (batch 32 x 1 replicas)" in text
    assert "ddp 192 (batch 32 x 2 replicas x 3 batches of a step)" in text
    assert "batch=36 for sgd, batch=6 for ddp to make it 36 for all" in text
    check_equal_batch(settings(36, 6))


def test_grids():
    assert both(8) == [(2, 4), (4, 2)] and both(12)[0] == (3, 4)
    assert both(1) == both(2) == both(7) == []
    assert every_grid(12) == [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]
    assert every_grid(9) == [(1, 9), (3, 3), (9, 1)] and every_grid(1) == [(1, 1)]


def test_hybrid_runs_on_the_squarest_grid_and_a_sweep_on_all():
    hybrid = {"methods": ("hybrid",), "batch": (8,)}
    strong = plan(ranks=(2, 8), **hybrid)
    assert [p.grid for p in strong.settings()] == [(2, 4)]
    assert strong.left_out() == ["hybrid has no grid on 2 ranks"]
    swept = plan("sweep", ranks=(8,), **hybrid)
    assert [p.grid for p in swept.settings()] == [(1, 8), (2, 4), (4, 2), (8, 1)]
    named = plan(ranks=(2, 8), grids=((8, 1), (2, 1)), **hybrid)
    assert [p.grid for p in named.settings()] == [(2, 1), (8, 1)]


def test_weak_rows_grow_with_the_ranks():
    asked = plan("weak", ranks=(1, 2, 4), methods=("casgd",))
    assert [p.rows for p in asked.settings()] == [250, 500, 0]
    assert [p.batch for p in asked.settings()] == [32, 32, 32]
    grown = plan("weak", ranks=(2, 4), methods=("casgd",), batch_grows=True)
    assert [p.batch for p in grown.settings()] == [32, 64]
    assert [p.rows for p in plan().settings()] == [0] * 4, "strong: all of them"


def test_emulated_ranks_are_one_process_and_keep_nothing():
    asked = plan(ranks=(1,), emulated=(64,), methods=("casgd", "local"), batch=(64,))
    points = {(p.method, p.ranks): p for p in asked.settings()}
    assert points["casgd", 1].launched == points["casgd", 64].launched == 1
    config = RunConfig.parse(points["local", 64].tables(out="runs/x"))
    assert config.run.emulate_members == 64 and config.run.out is None
    assert (config.grid.replicas, config.grid.members) == (64, 1)
    real = RunConfig.parse(points["casgd", 1].tables(out="runs/x"))
    assert real.run.emulate_members == 0 and real.run.out == "runs/x"


@pytest.mark.parametrize(
    "change, words",
    [
        ({"ranks": ()}, "--ranks is empty"),
        ({"ranks": (0,)}, "--ranks 0: must be at least 1"),
        ({"ranks": (2, 2)}, "--ranks has 2 twice"),
        ({"emulated": (1,)}, "--emulate-members 1: must be at least 2"),
        ({"emulated": (2,)}, "2 is in both --ranks and --emulate-members"),
        ({"emulated": (4, 4)}, "--emulate-members has 4 twice"),
        ({"methods": ("hybrid",), "grids": ((2, 1), (2, 1))}, "--grids has .* twice"),
        ({"repeats": 0}, "--repeats 0"),
        ({"methods": ("adam",)}, "known: sgd, casgd, local, hybrid"),
        ({"methods": ("hybrid",)}, "an R x C grid .* add 4 to --ranks"),
        ({"methods": ("local",), "ranks": (3, 4)}, "3 replicas .* use --batch 36"),
        ({"grids": ((2, 1),)}, "--grids is for the method hybrid only"),
        ({"methods": ("hybrid",), "grids": ((2, 4),)}, "add 8 to --ranks"),
        ({"methods": ("local",), "steps": ("auto",)}, "give --steps as a number"),
        ({"steps": (0,)}, r"casgd/p1/s0/.*at least 1"),
        ({"precision": ("fp4",)}, "sgd/p1/.*fp4"),
        ({"batch_grows": True}, "--batch-grows is for weak"),
        ({"base": {"products": {"kind": "direct"}}}, "leave --products out"),
    ],
)
def test_what_cannot_be_run_is_refused_with_the_remedy(change, words):
    with pytest.raises(ConfigError, match=words):
        check_plan(plan(**{"ranks": (1, 2), **change}))


def test_weak_studies_need_rows_and_multiples():
    with pytest.raises(ConfigError, match="3 rows are too few .* from 1 to 4 ranks"):
        check_plan(StudyPlan("weak", (1, 4), rows=3))
    with pytest.raises(ConfigError, match="because 3 is no multiple of 2"):
        check_plan(StudyPlan("weak", (2, 3), rows=100, batch_grows=True))


def test_good_plans_pass():
    everything = tuple(METHODS)
    check_plan(plan(ranks=(1, 2, 4), emulated=(64,), methods=everything, batch=(128,)))
    check_plan(plan("weak", ranks=(1, 2), batch_grows=True))
    check_plan(plan("sweep", ranks=(4,), methods=("casgd",), steps=(2, "auto")))


@pytest.mark.parametrize(
    "before, now, said",
    [
        ({"a": 1}, {"a": 1}, ""),
        ({"study": {"steps": [4]}}, {"study": {"steps": [8]}}, "study.steps was [4]"),
        ({"rate": {"value": 1.0}}, {"rate": {}}, "rate.value was 1.0 and is left out"),
        ({}, {"run": {"network": "lan"}}, "run was left out and is"),
    ],
)
def test_a_difference_is_named(before, now, said):
    assert said in difference(before, now)
    assert bool(said) == bool(difference(before, now))


def test_names_of_files_are_keys():
    plan = StudyPlan("strong", ranks=(2,))
    point = StudyPoint(plan, "sgd", 2, (1, 2), 32, 1, "fp32", 0, repeat=3)
    assert point.key == "sgd/p2/s1/b32/1x2/fp32/seed0/r3"
    assert point.name == "sgd-p2-s1-b32-1x2-fp32-seed0-r3"

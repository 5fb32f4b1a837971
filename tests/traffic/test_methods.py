"""Every method sends what its card says, and what its `messages` add up to."""

import pytest

from hpcsgd.agreements.base import DataSize, GridSize, RunShape, Tiling
from hpcsgd.config import METHODS
from hpcsgd.precision import Precision
from hpcsgd.runs.traffic import expected
from tests.helpers.contracts.codec import ROWS as CODEC_ROWS
from tests.helpers.contracts.codec import sections_of
from tests.helpers.harness import config_for, train_on
from tests.helpers.problems import make_problem
from tests.helpers.traffic_formulas import (
    AGREEMENTS,
    CODECS,
    DECIDED_BY_DATA,
    Sizes,
    counted,
    gradient,
    in_groups,
    late,
    late_bytes,
    late_steps,
    mixed,
    mixed_in_twos,
    products,
    records,
    records_in_threes,
    rounded_slices,
    scheduled,
    slices,
    slow_parts,
)

ROWS, COLUMNS = 53, 7
GRIDS = [(2, 1), (2, 2), (4, 1), (4, 2)]
# Few enough exchanges for a short run to meet all that a method does.
SETTINGS = {
    "qadam": {"agreement": {"warmup_steps": 3}},
    "onebit-adam": {"agreement": {"warmup_steps": 3}},
    "async-average": {"agreement": {"delay": 1}, "schedule": {"period": 3}},
    "bytescheduler": {"agreement": {"partition": 16 * 8 / 2**20}},
    "wavelet": {"agreement": {"mode": "exact-sum"}},  # late: tests of ticktock
    "local": {"schedule": {"period": 2}},
    "sgp": {"schedule": {"period": 3}},
    "local-adam": {"schedule": {"period": 2}},
    "postlocal": {"agreement": {"switch": 0.5}, "schedule": {"period": 3}},
    "hierarchical": {"agreement": {"periods": "1,3"}, "schedule": {"period": 1}},
    "fedavg": {"agreement": {"fraction": 1.0}, "schedule": {"period": 2}},
    "slowmo": {"schedule": {"period": 2}},
    "anybatch": {"agreement": {"rounds": "full", "accumulate": 1}},
    "accordion-batch": {"agreement": {"accumulate": 2}},
}


def trained(method, grid, folder, family="softmax", **more):
    """The ledger of a run of this method, what it should be, and its sizes."""
    replicas, members = grid
    problem = make_problem(family, n=ROWS, d=COLUMNS)
    tables = {
        "problem": {"intercept": True, "l2": 0.01},
        "schedule": {"steps": 1},
        "products": {"kind": "direct"},
        "grid": {"replicas": replicas, "members": members},
        "agreement": {"method": method},
        "rate": {"value": 0.1 * problem.rate},
    }
    if method == "hierarchical":
        tables["agreement"]["groups"] = f"{replicas // 2},{replicas}"
    if method == "infinity":
        tables["agreement"]["store"] = str(folder)
    codec = CODEC_ROWS[method].rough if method in CODEC_ROWS else {}
    for changes in (SETTINGS.get(method, {}), sections_of(codec), more):
        for section, table in changes.items():
            tables[section] = {**tables.get(section, {}), **table}
    config = config_for(problem, **tables)
    result = train_on(replicas * members, config, problem)
    sizes = Sizes(ROWS, COLUMNS, replicas, members, 4 if family == "softmax" else 1)
    return result.ledger, summed_messages(config, result), sizes


def summed_messages(config, result):
    """Purpose -> what `messages` of all exchanges add up to."""
    report, told = result.as_dict(), result.report["agreement"]
    shape = RunShape(
        config=config,
        precision=Precision(**report["precision"]),
        data=DataSize(ROWS, COLUMNS),
        grid=GridSize(config.grid.replicas),
        classes=report["classes"],
        states=1,
        tiling=Tiling(columns=told.get("tile_columns", 1)),
    )
    leg = {
        "first": 0,
        "last": result.exchanges,
        "planned": result.exchanges,
        "members": config.grid.members,
        "product": "direct",
        "look_ahead": False,
        "reproducible": config.run.reproducible,
        "circles": told.get("circles", ()),
    }
    return expected(shape, [leg])


def figures(entry, like):
    return {name: entry[name] for name in like}


def test_every_method_has_a_formula_here():
    assert {*AGREEMENTS, *DECIDED_BY_DATA} == set(METHODS)


CODED = (*CODECS, "bagua", "qadam", "onebit-adam")
# Reproducible sums of a codec have no formula: the codec may gather or sum.
SUMS = [(method, False) for method in AGREEMENTS]
SUMS += [(method, True) for method in AGREEMENTS if method not in CODED]


@pytest.mark.cases(2)
@pytest.mark.parametrize(("method", "reproducible"), SUMS)
@pytest.mark.parametrize("grid", GRIDS)
def test_the_ledger_of_every_method(method, reproducible, grid, tmp_path):
    """To the word; of codecs to the byte."""
    is_coded = method in CODED
    run = {"run": {"reproducible": reproducible}}
    ledger, sums, sizes = trained(method, grid, tmp_path, **run)
    card = counted(AGREEMENTS[method](sizes), reproducible)
    if is_coded:
        card = {"bytes": card["bytes"]}
    assert figures(ledger["agreement"], card) == card
    if method in ("alq", "amq"):  # which adapt as gradients are
        assert "agreement" not in sums
    else:
        assert sums["agreement"] == card
    card = counted(products(sizes), reproducible)
    assert figures(ledger["products"], card) == card
    assert sums["products"] == card


@pytest.mark.parametrize("method", DECIDED_BY_DATA)
def test_what_data_decide_has_no_formula(method, tmp_path):
    ledger, sums, _ = trained(method, (2, 2), tmp_path)
    assert "agreement" not in sums
    assert ledger["agreement"]["bytes"] > 0


VARIANTS = {
    "parts of a slow state": ("slowmo", {"slow_sharded": True}, slow_parts),
    "buckets": (
        "ddp",
        {"bucket": 2 * 4 * 8 / 2**20},
        lambda sizes: gradient(sizes, buckets=-(-sizes.own // 2)),
    ),
    "batches that travel together": (
        "ddp",
        {"accumulate": 2},
        lambda sizes: gradient(sizes, together=2),
    ),
    "groups of two": ("ddp", {"hierarchical": "2"}, in_groups),
    "mixes in groups of two": ("decentralized", {"hierarchical": "2"}, mixed_in_twos),
    "records in groups of three": (
        "decentralized-low",
        {"hierarchical": "3"},
        records_in_threes,
    ),
    "averages aside in pairs": (
        "async-average",
        {"peers": "shift_one"},
        lambda sizes: late(sizes, kind="swap"),
    ),
    "averages aside, after a warm-up": (
        "async-average",
        {"warmup_exchanges": 4},
        lambda sizes: late(sizes, warm=4),
    ),
    "one tile a message": ("bytescheduler", {"partition": 4.0}, gradient),
    "small pieces": ("bytescheduler", {"partition": 1e-9}, lambda s: scheduled(s, 1)),
    "slices of two batches": (
        "zero3",
        {"accumulate": 2},
        lambda sizes: slices(sizes, together=2),
    ),
    "rounded weights": ("zero2", {"wire": "bf16"}, rounded_slices),
    "rounded slices of weights": (
        "zero3",
        {"wire": "fp16"},
        lambda sizes: slices(sizes, weight=2),
    ),
    "steps that are late": ("offload", {"delay_after": 2}, late_steps),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("grid", GRIDS)
def test_the_ledger_of_other_settings(name, grid, tmp_path):
    method, agreement, formula = VARIANTS[name]
    ledger, sums, sizes = trained(method, grid, tmp_path, agreement=agreement)
    card = counted(formula(sizes))
    assert figures(ledger["agreement"], card) == card
    assert sums["agreement"] == card


@pytest.mark.parametrize(
    "method, formula", [("decentralized", mixed), ("decentralized-low", records)]
)
@pytest.mark.parametrize("grid", GRIDS)
def test_the_ledger_of_mixes_in_each_third_exchange(method, formula, grid, tmp_path):
    ledger, sums, sizes = trained(method, grid, tmp_path, schedule={"period": 3})
    card = counted(formula(sizes, 3))
    assert figures(ledger["agreement"], card) == card
    assert sums["agreement"] == card


@pytest.mark.parametrize("grid", GRIDS)
def test_the_ledger_of_averages_aside_in_bytes(grid, tmp_path):
    agreement = {"codec": "byte"}
    ledger, sums, sizes = trained("async-average", grid, tmp_path, agreement=agreement)
    card = {"bytes": counted(late_bytes(sizes))["bytes"]}
    assert figures(ledger["agreement"], card) == card
    assert sums["agreement"] == card


def test_nodes_and_tuned_pieces_have_no_formula(tmp_path):
    """Where ranks are, and what time they take, decide."""
    for method, agreement in (
        ("ddp", {"hierarchical": "node"}),
        ("bytescheduler", {"tune_schedule": True}),
        ("decentralized", {"hierarchical": "node"}),
        ("async-average", {"sync_interval_ms": 1.0}),
    ):
        _, sums, _ = trained(method, (2, 1), tmp_path, agreement=agreement)
        assert "agreement" not in sums


@pytest.mark.parametrize(
    "purpose, figure", [("agreement", "calls"), ("products", "words")]
)
def test_a_message_too_many_is_not_what_is_expected(purpose, figure, tmp_path):
    """The comparison can fail: a planted sum, a missing word."""
    ledger, sums, sizes = trained("ddp", (2, 2), tmp_path)
    assert figures(ledger[purpose], sums[purpose]) == sums[purpose]
    ledger[purpose][figure] += 1 if figure == "calls" else -1
    assert figures(ledger[purpose], sums[purpose]) != sums[purpose]

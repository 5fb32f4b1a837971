"""What `auto` picks: the fewest seconds by the model, memory has a veto."""

import pytest

from hpcsgd.errors import ConfigError
from hpcsgd.products import PRODUCTS, cost, get_product
from hpcsgd.products.base import ReplicaSize
from hpcsgd.products.cost import (
    CostInputs,
    Machine,
    Overheads,
    ProductsConfig,
    ValueBytes,
    candidates,
    uses_look_ahead,
)
from tests.helpers.cost import with_values
from tests.helpers.harness import config_for, make_problem, train_on

WIDE = CostInputs(
    replica=ReplicaSize(
        rows=20000,
        columns=2000,
        local_columns=1000,
        members=2,
    ),
    value_bytes=ValueBytes(
        matrix=4,
        gram_wire=4,
        margin_sum=4,
    ),
    batch=32,
    epochs=1,
    comes_again=False,
)
LAN = Machine(latency=60e-6, per_byte=1e-9)


def job(**changes):
    return with_values(WIDE, **changes)


def pick(machine=LAN, steps=8, kind="auto", **changes):
    return cost.choose(kind, steps, job(**changes), machine)


def test_one_member_has_nothing_to_sum():
    assert pick(members=1, local_columns=2000).product == "direct"


def test_a_free_network_leaves_nothing_to_save():
    free = Machine(latency=1e-9, per_byte=0.0, overheads=Overheads(step=0.0))
    assert pick(free, steps=0).product == "direct"


def test_narrow_rows_are_gathered():
    assert pick(columns=18, local_columns=9).product == "gather"
    assert pick(Machine(latency=200e-6, per_byte=1e-9), steps=4).product == "gram"


def test_what_comes_again_is_kept_while_memory_lasts(monkeypatch):
    again = {"comes_again": True, "epochs": 10}
    assert pick(columns=18, local_columns=9, **again).product == "gather-once"
    kept = 20000 * 32 * 7 // 2 * 4
    monkeypatch.setattr(cost, "CACHE_BUDGET", kept)
    assert pick(**again).product == "cached"
    monkeypatch.setattr(cost, "CACHE_BUDGET", kept - 1)
    assert pick(**again).product not in ("cached", "gather-once")
    assert pick(kind="cached", **again).product == "cached", "as it was asked for"


@pytest.mark.parametrize("latency", [5e-6, 60e-6, 200e-6, 1e-3])
def test_open_steps_grow_with_the_latency(latency):
    """About the square root of the latency, between what is tried."""
    found = pick(Machine(latency=latency, per_byte=0.0), steps=0, kind="gram").steps
    more = pick(Machine(latency=9 * latency, per_byte=0.0), steps=0, kind="gram").steps
    assert found <= more <= 4 * found


def test_open_steps_end_where_the_rows_do():
    slow = Machine(latency=1.0)
    assert pick(slow, steps=0, rows=100).steps * 32 <= 100
    assert pick(slow, steps=0, rows=20).steps == 1
    assert pick(slow, steps=0, batch=512).steps * 512 <= cost.MOST_ROWS


def test_nothing_is_faster_than_what_is_picked():
    found = list(candidates("auto", 0, job(comes_again=True, epochs=10), LAN))
    best = pick(steps=0, comes_again=True, epochs=10)
    assert {c.product for c in found} == set(PRODUCTS)
    assert best.seconds == min(c.seconds for c in found)


@pytest.mark.parametrize(
    "kind, asked, latency, wanted",
    [
        ("gram", "auto", 1.0, False),  # an explicit product keeps its one message
        ("gram", "on", 0.0, True),
        ("gram", "off", 1.0, False),
        ("auto", "auto", 50e-6, True),
        ("auto", "auto", 5e-6, False),
        ("auto", "off", 1.0, False),
    ],
)
def test_look_ahead(kind, asked, latency, wanted):
    assert uses_look_ahead(ProductsConfig(kind, asked), "gram", latency) == wanted


def test_look_ahead_needs_a_gram():
    assert not uses_look_ahead(ProductsConfig("auto", "auto"), "cached", 1.0)
    with pytest.raises(ConfigError, match="needs kind = 'gram'"):
        uses_look_ahead(ProductsConfig("direct", "on"), "direct", 1.0)


def test_names():
    for name in PRODUCTS:
        assert hasattr(get_product(name), "advance")
    with pytest.raises(ConfigError, match="known: .*'auto'"):
        get_product("magic")


@pytest.mark.parametrize("members, wanted", [(1, "direct"), (2, "gather-once")])
def test_auto_runs_what_it_chose(members, wanted):
    problem = make_problem("logistic")
    config = config_for(
        problem, products={"kind": "auto"}, run={"network": "lan"}, schedule=AGAIN
    )
    assert train_on(members, config, problem).report["products"] == wanted


AGAIN = {"batch": 4, "steps": 4, "epochs": 3}

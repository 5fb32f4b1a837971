"""Narrow sums on real MPI ranks."""

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.comm.messages import open_message
from hpcsgd.comm.mpi import MpiCommunicator
from hpcsgd.comm.network_model import DelayedCommunicator, Network
from hpcsgd.formats import FORMATS
from tests.helpers.harness import config_for, make_problem
from tests.helpers.narrow import bound_of, drawn
from tests.ranks.counting import CountingComm

NARROW = ("bf16", "fp16", "fp8-e4m3", "fp8-e5m2")


def trained(comm, recipe, **sections):
    problem = make_problem("logistic", n=400, d=24)
    config = config_for(
        problem,
        schedule={"batch": 8, "steps": 8, "epochs": 3},
        precision={"recipe": recipe},
        **sections,
    )
    return train(config, X=problem.X, y=problem.y, world=MpiCommunicator(comm.Dup()))


@pytest.mark.ranks(2, 3, 4)
def test_the_bound_and_the_same_bits(comm):
    """Blocking, begun early, and behind a network."""
    parts = drawn("cancelling", comm.size, words=5001)
    exact = parts.astype(np.float64)
    world = MpiCommunicator(comm.Dup())
    for name in NARROW:
        bound, totals = bound_of(exact, FORMATS[name]), []
        for group in (world, DelayedCommunicator(world, Network(1e-5, 1e9))):
            for travels in (False, True):
                message = open_message(group, parts.shape[1], name, travels)
                message.array[...] = parts[comm.rank]
                start = message.start if travels else message.sum
                total = start("products")
                totals.append((total.wait() if travels else total).copy())
        assert (np.abs(totals[0] - exact.sum(axis=0)) <= bound).all()
        bits = {t.tobytes() for said in comm.allgather(totals) for t in said}
        assert len(bits) == 1


@pytest.mark.ranks(2)
def test_two_under_way_at_once(comm):
    """As look-ahead has them: a Gram begun before margins and waited for after."""
    world = MpiCommunicator(comm.Dup())
    gram, margins = (open_message(world, n, "bf16", True) for n in (9000, 64))
    for turn in range(20):
        gram.array[...], margins.array[...] = turn, -turn
        first, second = gram.start("products"), margins.start("products")
        assert (second.wait() == -2 * turn).all() and (first.wait() == 2 * turn).all()


@pytest.mark.ranks(2)
def test_recipe_d_keeps_the_loss_and_halves_the_gram(comm):
    full, c, d = (trained(comm, recipe) for recipe in ("fp32", "c", "d"))
    z = trained(comm, "c", products={"kind": "direct"}).ledger["products"]
    assert abs(d.loss - full.loss) <= 0.005 * full.loss
    moved = [r.ledger["products"]["wire_bytes"] - z["wire_bytes"] for r in (c, d)]
    assert moved[1] == pytest.approx(moved[0] / 2)
    assert len(set(comm.allgather(d.weights_sha256))) == 1


@pytest.mark.ranks(2, 3)
def test_products_have_the_same_bits(comm):
    prints = {
        trained(comm, "d", products=products).weights_sha256
        for products in (
            {"kind": "gram"},
            {"kind": "cached"},
            {"kind": "gram", "look_ahead": "on"},
        )
    }
    assert len(prints) == 1


@pytest.mark.ranks(2, 3)
def test_the_ledger_agrees_with_what_mpi_was_asked(comm):
    problem = make_problem("logistic", n=53, d=7)
    for ahead in ("off", "on"):
        config = config_for(
            problem,
            precision={"recipe": "c", "gram_wire": "fp16", "margin_sum": "fp8-e5m2"},
            products={"kind": "gram", "look_ahead": ahead},
            run={"evaluate_every": 0},
        )
        proxy = CountingComm(comm.Dup())
        world = MpiCommunicator(proxy)
        said = train(config, X=problem.X, y=problem.y, world=world).ledger["products"]
        narrow = [proxy.narrow[size] for size in (1, 2)]
        assert sum(n["calls"] for n in narrow) == said["calls"]
        assert sum(n["words"] for n in narrow) == said["words"]
        assert narrow[0]["words"] + 2 * narrow[1]["words"] == said["bytes"]

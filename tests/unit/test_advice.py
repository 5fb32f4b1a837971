"""What a run reached, cost and should try next, on made-up results."""

from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.runs.advice import (
    advise,
    cost,
    flat_since,
    in_short,
    loss_falls,
    reached,
    saving,
)
from hpcsgd.runs.result import Result, Status

SECONDS = 10.0


def entry(calls=0, words=0, seconds=0.0):
    return {
        **{"calls": calls, "words": words, "bytes": 4 * words},
        **{"wire_bytes": 4.0 * words, "seconds": seconds},
    }


def made_up(
    losses=(0.7, 0.5, 0.4, 0.3),
    *,
    status=Status.COMPLETED,
    products="gram",
    batch=32,
    steps=8,
    iterations=8000,
    waited=0.0,
    agreeing=0.0,
    gram=0.0,
    ranks=2,
    members=2,
    look_ahead=False,
    rate=0.5,
    epochs=None,
):
    """A result of ten seconds and a few figures."""
    exchanges = iterations // steps
    each = batch**2 * steps * (steps - 1) // 2 + batch * steps
    calls = iterations if products == "direct" else exchanges
    words = iterations * batch if products == "direct" else exchanges * each
    return Result(
        status=status,
        loss=losses[-1],
        weights=np.zeros(1),
        intercept=None,
        iterations=iterations,
        exchanges=exchanges,
        history=[{"epoch": e, "loss": x} for e, x in enumerate(losses)],
        ledger={
            "products": entry(calls, words if ranks > 1 else 0, waited * SECONDS),
            "agreement": entry(10 if agreeing else 0, 0, agreeing * SECONDS),
        },
        config={"rate": {"value": rate}},
        report={
            "schedule": {
                **{"batch": batch, "steps": steps, "period": 2},
                "epochs": epochs or len(losses) - 1,
            },
            "grid": {"replicas": ranks // members, "members": members},
            **{"ranks": ranks, "products": products, "look_ahead": look_ahead},
            "seconds_total": SECONDS,
            "seconds_by_phase": {"gram": gram * SECONDS},
        },
    )


FLAT = (0.7, 0.5, 0.4, 0.4, 0.4)
STILL = (0.7, 0.7, 0.7)


def test_falls_are_relative_to_the_loss_before_and_count_epochs():
    result = made_up((1.0, 0.5, 0.4))
    result.history[2]["epoch"] = 3
    assert loss_falls(result) == [(1, pytest.approx(0.5)), (3, pytest.approx(0.1))]


def test_a_loss_that_crosses_zero_is_not_infinitely_far():
    (_, fall), *_ = loss_falls(made_up((1.0, 0.0, -0.5)))[1:]
    assert np.isfinite(fall) and fall > 0


@pytest.mark.parametrize(
    "losses, said",
    [
        ((0.7, 0.5, 0.4, 0.398), "loss 0.398 after 3 epochs, still falling 0.5 % an"),
        (FLAT, "after 4 epochs, flat since epoch 2"),
        (STILL, "flat since epoch 0"),
        ((0.7, 0.4, 0.5), "now rising 25 % an epoch"),
        ((0.7, 0.4), "loss 0.4 after 1 epoch, from 0.7 at the start"),
        ((0.7, 0.9), "up from 0.7 at the start"),
        ((0.7, 9.0, 3.0), "loss 3 after 2 epochs, up from 0.7 at the start"),
    ],
)
def test_reached(losses, said):
    assert said in reached(made_up(losses))


def test_a_tail_that_is_flat_again_counts_from_its_beginning():
    assert flat_since(made_up((0.7, 0.7, 0.5, 0.5, 0.5))) == 2


def test_reached_when_it_did_not_complete():
    diverged = made_up((0.7, 0.6), status=Status.DIVERGED, epochs=9)
    assert (
        reached(diverged) == "loss 0.6, the last good one: diverged after 1 epoch of 9"
    )
    stopped = made_up((0.7, 0.6, 0.5), status=Status.STOPPED, epochs=9)
    assert "after 2 epochs of 9, stopped early" in reached(stopped)


def test_cost():
    said = cost(made_up(waited=0.3, agreeing=0.11, iterations=80, steps=8, batch=2))
    assert said.startswith("80 steps in 10 exchanges, 10 s, of which 41 % waiting")
    assert said.endswith("5.12 kB sent per rank"), "10 messages of 112 + 16 words"
    alone = cost(made_up(ranks=1, members=1))
    assert "on one rank; nothing sent" in alone and "waiting" not in alone


def test_reached_when_it_ended_above_where_it_began():
    rose = made_up((0.7, 9.0, 3.0), status=Status.WORSE)
    assert reached(rose) == "loss 3 after 2 epochs, up from 0.7 at the start"


def test_a_result_of_an_earlier_version_that_rose_has_the_advice_of_one():
    """Its status was `completed`."""
    assert made_up((0.7, 9.0)).advice == Status.WORSE.advice
    assert not made_up((0.7, 0.6)).advice


@pytest.mark.parametrize("status", [Status.DIVERGED, Status.STOPPED, Status.WORSE])
def test_an_ending_with_advice_speaks_for_itself(status):
    assert advise(made_up(status=status, waited=0.9)) == status.advice


@pytest.mark.parametrize(
    "losses, said",
    [
        ((0.7, 0.5, 0.4), "more epochs (--epochs 4) or a larger rate (--rate 1)"),
        ((0.7, 0.4, 0.5), "a smaller rate (--rate 0.167)"),
        (FLAT, "--epochs 2 is enough"),
        ((0.7, 0.5, 0.5), "--epochs 1 is enough"),
        (STILL, "the loss hardly moved: a larger rate (--rate 5)"),
        ((0.7, 0.9), "ended above where it began; lower the rate"),
        ((0.7, 9.0, 3.0), "ended above where it began; lower the rate"),
    ],
)
def test_advice_about_the_loss(losses, said):
    assert said in advise(made_up(losses))


def test_a_rate_that_decays_is_named_only_where_it_is_flat():
    assert "inverse-sqrt" in advise(made_up(FLAT))
    assert "inverse-sqrt" not in advise(made_up())


def test_waiting_with_small_messages_asks_for_more_steps_and_names_the_words():
    said = advise(made_up(waited=0.8, batch=8))
    assert "sums take 80 % of the time: --steps 16" in said
    assert "half as many sums" in said
    old = 1000 * (64 * 28 + 64)
    new = 500 * (64 * 120 + 128)
    assert f"about {new:.3g} words instead of {old:.3g}" in said


def test_a_large_gram_asks_for_fewer_steps():
    said = advise(made_up(waited=0.1, gram=0.7))
    assert "the Gram takes 70 % of the time: --steps 4" in said
    assert "twice as many sums" in said


def test_exchanges_are_no_longer_than_an_epoch():
    """Two steps an epoch are one exchange for every s above one."""
    short = {"waited": 0.8, "batch": 8, "iterations": 6}
    assert "--steps" not in advise(made_up(**short, steps=2))
    assert "--steps" not in advise(made_up(**short, steps=3))
    assert "--steps 2" in advise(made_up(**short, steps=1))
    asked = advise(made_up(**short, products="direct", steps=1))
    assert "--products gram --steps 2 sums once in 2 steps" in asked


def test_words_that_cost_more_than_latency_ask_for_fewer_steps():
    """Waiting for 8 GB at a plain network's bandwidth is no latency to halve."""
    result = made_up(waited=0.7, batch=512, iterations=2000)
    assert result.ledger["products"]["wire_bytes"] > 6e9
    assert "--steps 4" in advise(result)


def test_waiting_that_no_other_s_helps_asks_for_look_ahead():
    stuck = {"waited": 0.55, "gram": 0.25, "batch": 8}
    assert "--look-ahead on" in advise(made_up(**stuck))
    assert "--look-ahead" not in advise(made_up(**stuck, look_ahead=True))


def test_direct_that_waits_asks_for_gram():
    said = advise(made_up(products="direct", waited=0.9, batch=8, steps=1))
    assert "--products gram --steps 8" in said
    words = 8000 * 8 + 8000 * 64 * 7 / 2
    assert f"about {words:.3g} words instead of {64000:.3g}" in said
    assert "--products" not in advise(made_up(products="direct", waited=0.3))


def test_one_member_needs_no_gram():
    said = advise(made_up(ranks=1, members=1, gram=0.6))
    assert "--products direct" in said


def test_agreeing_asks_for_a_longer_period():
    said = advise(made_up(agreeing=0.6, waited=0.3, members=1, products="direct"))
    assert "--period 4" in said and "--steps" not in said


def test_nothing_stands_out():
    result = replace(made_up(waited=0.05), history=[])
    assert advise(result) == "nothing stands out: keep these settings"


@pytest.mark.parametrize("waited, gram", [(0.8, 0.0), (0.1, 0.7), (0.4, 0.2)])
def test_savings_of_more_and_of_fewer_steps_do_not_both_pay(waited, gram):
    result = made_up(waited=waited, gram=gram)
    assert saving(result, 8) == 0.0
    assert min(saving(result, 16), saving(result, 4)) <= 0.0
    assert max(saving(result, 16), saving(result, 4)) < 1.0


def test_gather_sends_the_same_words_for_any_s():
    said = advise(made_up(products="gather", waited=0.9))
    first, last = said.split("about ")[1].split(" words instead of ")
    assert first == last


def test_cached_pays_for_its_gram_in_one_epoch():
    gram, cached = (made_up(products=p, waited=0.8) for p in ("gram", "cached"))
    assert saving(cached, 16) > saving(gram, 16)


def test_three_lines_of_a_real_run():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4))
    result = train(
        {"rate": {"value": 0.5}, "schedule": {"epochs": 3}}, X=X, y=X[:, 0] > 0
    )
    said = in_short(result)
    assert list(said) == ["reached", "cost", "next"]
    assert "still falling" in said["reached"] and "--epochs 6" in said["next"]
    assert said["cost"].startswith("30 steps in 6 exchanges")


def test_a_goal_that_is_reached_has_nothing_to_hear_of_its_rate():
    found = made_up(FLAT, status=Status.CONVERGED, epochs=60)
    assert reached(found) == "loss 0.4 after 4 epochs of 60: the goal is reached"
    assert advise(found) == "nothing stands out: keep these settings"


def test_a_finisher_is_named():
    found = made_up(FLAT)
    found.report["polish"] = {"passes": 12, "ended": "converged"}
    said = "loss 0.4 after 4 epochs and 12 passes of the finisher: converged"
    assert reached(found) == said
    assert advise(found) == "nothing stands out: keep these settings"

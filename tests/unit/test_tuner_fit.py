"""Fits against planted constants: α and β, rates, and times that are not right."""

from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.comm import communicator
from hpcsgd.products.base import ReplicaSize
from hpcsgd.products.cost import (
    TERMS,
    CostInputs,
    Machine,
    Overheads,
    ValueBytes,
    costs_of,
    machine_of,
    seconds,
    terms,
)
from hpcsgd.runs.machine import fit_line, line_through
from hpcsgd.tuning.timed_exchanges import (
    Burst,
    MachineModels,
    TimedSetting,
    TimeSample,
    fit_machine,
)
from tests.helpers.cost import with_values

TRUE = Machine(
    latency=3e-5,
    per_byte=4e-10,
    gram=1.5e10,
    read=6e9,
    again=3e10,
    plain=4e9,
    inner=5e9,
    link=8e-9,
    overheads=Overheads(exchange=6e-5, step=1e-5, turn=2e-6),
)
JOB = CostInputs(
    replica=ReplicaSize(
        rows=20000,
        columns=800,
        local_columns=200,
        members=4,
    ),
    value_bytes=ValueBytes(
        matrix=4,
        gram_wire=4,
        margin_sum=4,
    ),
    batch=32,
    epochs=5,
    comes_again=True,
)


def times(product, steps, batches, noise=0.0, job=JOB):
    rng, found = np.random.default_rng(0), []
    for b in batches:
        for s in steps:
            own = replace(job, batch=b)
            exact = s * seconds(product, s, own, TRUE)
            found.append(
                TimeSample(product, s, own, exact * (1 + noise * rng.normal()))
            )
    return found


def test_a_planted_line_is_found():
    sizes = [0.0, 1e2, 1e4, 1e6, 1e7]
    alpha, beta = fit_line(sizes, [7e-6 + 3e-10 * size for size in sizes])
    assert alpha == pytest.approx(7e-6) and beta == pytest.approx(3e-10)


def test_a_line_is_never_negative():
    alpha, beta = fit_line([1.0, 2.0, 3.0], [3.0, 2.0, 1.0])
    assert alpha >= 0.0 and beta >= 0.0


def test_alpha_and_beta_of_sums_count_what_a_ring_moves():
    sizes = [32, 4096, 2**20]
    took = [2e-5 + 1e-9 * communicator.sum_bytes(size, 4) for size in sizes]
    found = line_through("members", 4, sizes, took)
    assert found.latency == pytest.approx(2e-5)
    assert found.per_byte == pytest.approx(1e-9)
    assert found.worst < 1e-9 and found.seconds(4096) == pytest.approx(took[1])


def test_planted_rates_come_back():
    """From a start that is far off; one width alone could not tell F from others."""
    wide = with_values(JOB, local_columns=1600)
    taken = times("gram", (2, 6, 20, 48), (8, 16, 32))
    taken += times("gram", (2, 6, 20, 48), (8, 16, 32), job=wide)
    around = replace(TRUE.overheads, exchange=1e-5)
    start = replace(TRUE, gram=4e10, overheads=around)
    found = fit_machine(taken, start)
    assert found.gram == pytest.approx(TRUE.gram, rel=0.1)
    for timed in times("gram", (4, 12, 32), (12, 24)):
        said = timed.steps * seconds("gram", timed.steps, timed.job, found)
        assert said == pytest.approx(timed.seconds, rel=0.03)


@pytest.mark.parametrize("product", ["direct", "gram", "gather"])
def test_settings_that_were_not_fitted_are_predicted(product):
    """With five per cent of noise, from figures that are another machine's."""
    found = fit_machine(times(product, (2, 6, 20, 48), (32,), noise=0.05), Machine())
    for timed in times(product, (4, 12, 32), (32,)):
        said = timed.steps * seconds(product, timed.steps, timed.job, found)
        assert said == pytest.approx(timed.seconds, rel=0.15), timed.steps


def test_one_strange_time_does_not_bend_the_fit():
    taken = times("gram", (2, 3, 6, 10, 20, 32, 48), (32,))
    taken[3] = replace(taken[3], seconds=taken[3].seconds / 3)
    found = fit_machine(taken, TRUE)
    (timed,) = times("gram", (12,), (32,))
    said = timed.steps * seconds("gram", timed.steps, timed.job, found)
    assert said == pytest.approx(timed.seconds, rel=0.1)


def test_casts_of_narrow_sums_are_nobodys_constant():
    job = with_values(JOB, gram_wire=2, apart=True)
    found = fit_machine(times("gram", (2, 6, 20, 48), (8, 32), job=job), TRUE)
    assert np.allclose(costs_of(found), costs_of(TRUE), rtol=0.02)


def test_without_times_nothing_is_known_better():
    assert fit_machine([], TRUE) == TRUE


def test_costs_and_machines_are_two_ways_to_say_it():
    assert np.allclose(costs_of(machine_of(costs_of(TRUE))), costs_of(TRUE))


@pytest.mark.parametrize("product", ["direct", "gram", "cached", "gather"])
def test_the_parts_of_a_step_are_the_step(product):
    found = terms(product, 8, JOB, TRUE)
    assert set(found) == set(TERMS)
    assert sum(found.values()) == pytest.approx(seconds(product, 8, JOB, TRUE))


def test_a_model_knows_first_and_later_epochs_apart():
    """A first epoch that takes ten times what it should counts for a fifth of a run."""
    model, asked = MachineModels(JOB, TRUE), TimedSetting("cached", 12, 32)
    settings = [TimedSetting("cached", s, 32) for s in (2, 6, 20)]
    slow = [Burst(s, False, 9, 10 * model.exchange(s)) for s in settings]
    fast = [Burst(s, True, 9, model.exchange(s, later=True)) for s in settings]
    fitted = model.fitted([*slow, *fast])
    once, later = 10 * model.exchange(asked), model.exchange(asked, later=True)
    expected = (once / JOB.epochs + later * (1 - 1 / JOB.epochs)) / 12
    assert fitted.step(asked) == pytest.approx(expected, rel=0.1)
    assert model.step(asked) < 0.5 * expected

"""What `auto` becomes on a GPU, by figures that are assumed."""

from dataclasses import replace

import pytest

from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.products.base import ReplicaSize
from hpcsgd.products.cost import (
    CostInputs,
    ValueBytes,
    candidates,
    kept_bytes,
    machine_from,
    seconds,
)
from hpcsgd.runs.settle import BUDGET, OF_ONE, assumed
from tests.helpers.cost import with_values

JOB = CostInputs(
    replica=ReplicaSize(
        rows=400_000,
        columns=2000,
        local_columns=500,
        members=4,
    ),
    value_bytes=ValueBytes(
        matrix=2,
        gram_wire=4,
        margin_sum=4,
    ),
    batch=32,
    epochs=10,
    comes_again=True,
)


def chosen(steps=0, **how):
    """The product that `auto` is for such a job."""
    job = with_values(JOB, **how)
    machine = assumed(job, SerialCommunicator())
    found = candidates("auto", steps, job, machine, OF_ONE, BUDGET)
    return min(found, key=lambda one: one.seconds)


def test_narrow_rows_are_gathered_and_wide_ones_are_not():
    assert chosen(columns=18, local_columns=5).product == "gather-once"
    assert chosen(columns=18, local_columns=5, comes_again=False).product == "gather"
    wide = {"columns": 2_000_000, "local_columns": 500_000}
    assert chosen(**wide).product == "cached"
    assert chosen(**wide, comes_again=False).product == "gram"


def test_a_message_in_every_step_never_pays():
    for columns in (18, 2000, 2_000_000):
        job = {"columns": columns, "local_columns": columns // 4, "comes_again": False}
        assert chosen(**job).product != "direct"


def test_one_member_need_not_gather():
    one = {"members": 1, "local_columns": 2000}
    assert chosen(**one).product in OF_ONE
    assert chosen(**one, steps=1, comes_again=False).product == "direct"


def test_what_is_kept_has_room():
    big = {"rows": 10**8, "columns": 18, "local_columns": 5, "batch": 64}
    best = chosen(**big, steps=32)
    assert kept_bytes(best.product, 32, with_values(JOB, **big)) <= BUDGET


@pytest.mark.parametrize("product", ["direct", "gather", "gram"])
def test_time_around_a_step_counts_once_a_step(product):
    job = with_values(JOB, members=1)
    machine = assumed(job, SerialCommunicator())
    around = machine.overheads
    around = replace(around, alone=around.alone + 1.0, turn=around.turn + 2.0)
    slower = replace(machine, overheads=around)
    more = seconds(product, 16, job, slower) - seconds(product, 16, job, machine)
    assert more == pytest.approx(2.0 if product == "gram" else 1.0)


def test_older_files_of_figures_are_read():
    figures = assumed(JOB, SerialCommunicator()).as_dict()
    older = {k: v for k, v in figures.items() if k not in ("alone", "turn")}
    assert (
        machine_from(older).overheads.alone == 0.0 and machine_from(older).gram == 5e13
    )

"""The model of a step, one constant at a time against its formula."""

import pytest

from hpcsgd.products.base import ReplicaSize
from hpcsgd.products.cost import (
    CostInputs,
    Machine,
    Overheads,
    ValueBytes,
    kept_bytes,
    machine_from,
    seconds,
)
from tests.helpers.cost import with_values

FREE = Machine(
    latency=0.0,
    per_byte=0.0,
    gram=float("inf"),
    read=float("inf"),
    again=float("inf"),
    plain=float("inf"),
    inner=float("inf"),
    link=0.0,
    overheads=Overheads(exchange=0.0, step=0.0),
)
JOB = CostInputs(
    replica=ReplicaSize(
        rows=1000,
        columns=120,
        local_columns=30,
        members=4,
    ),
    value_bytes=ValueBytes(
        matrix=2,
        gram_wire=4,
        margin_sum=8,
    ),
    batch=10,
    epochs=5,
    comes_again=True,
)
S, M, G = 6, 60, 10 * 10 * 15  # steps, rows and words of Gram of an exchange
RING = 2 * 3 / 4


def only(**constants):
    return machine_from({**FREE.as_dict(), **constants})


def step(product, job=JOB, **constants):
    return seconds(product, S, job, only(**constants))


@pytest.mark.parametrize(
    "product, sums", [("direct", S), ("gram", 1), ("cached", 1), ("gather", 1)]
)
def test_latency(product, sums):
    assert step(product, latency=1.0) == pytest.approx(sums / S)


def test_rows_that_are_here_need_no_latency():
    assert step("gather-once", latency=1.0) == pytest.approx(1 / S / 5)


def test_bytes():
    z, gram, rows = 8 * M * RING, 4 * G * RING, M * 120 * 2 * 3 / 4
    assert step("direct", per_byte=1.0) == pytest.approx(8 * 10 * RING)
    assert step("gram", per_byte=1.0) == pytest.approx((z + gram) / S)
    assert step("cached", per_byte=1.0) == pytest.approx((z + gram / 5) / S)
    assert step("gather", per_byte=1.0) == pytest.approx(rows / S)
    assert step("gather-once", per_byte=1.0) == pytest.approx(rows / S / 5)


def test_arithmetic_of_the_gram():
    assert step("gram", gram=1.0) == pytest.approx(G * 30 / S)
    assert step("cached", gram=1.0) == pytest.approx(G * 30 / S / 5)
    for product in ("direct", "gather", "gather-once"):
        assert step(product, gram=1.0) == 0.0


def test_passes_over_the_rows():
    own, all_columns = M * 30 * 2, M * 120 * 2
    for product, size in (("direct", 0), ("gram", own), ("gather-once", None)):
        found = step(product, read=1.0)
        expected = all_columns * 2 / 5 if size is None else size
        assert found == pytest.approx(expected / S), product
    assert step("cached", read=1.0) == pytest.approx((own + 4 / 5 * G * 4) / S)
    for product, size in (("direct", own), ("gram", 0), ("gather-once", all_columns)):
        assert step(product, plain=1.0) == pytest.approx(size / S), product
    # Read once more in cache, twice where arithmetic bounds the first pass.
    assert step("gram", again=1.0) == pytest.approx((2 * own + 4 * G) / S)
    assert step("direct", again=1.0) == pytest.approx(2 * own / S)


def test_the_recurrence_and_the_links():
    assert step("gram", inner=1.0) == pytest.approx(G / S)
    assert step("direct", inner=1.0) == 0.0
    for product in ("direct", "gram", "cached", "gather", "gather-once"):
        assert step(product, link=1.0) == pytest.approx(10)


def test_what_surrounds_an_exchange_and_a_step():
    assert step("direct", exchange=1.0, step=3.0) == pytest.approx(3.0 + 1 / S)
    for product in ("gram", "cached", "gather", "gather-once"):
        assert step(product, exchange=1.0, step=3.0) == pytest.approx(1 / S)


def test_one_member_sends_nothing():
    alone = with_values(JOB, members=1, local_columns=120)
    assert step("direct", alone, latency=1.0, step=1.0, per_byte=1.0) == 0.0
    assert step("direct", alone, exchange=1.0) == pytest.approx(1 / S)


def test_without_batches_that_come_again_nothing_is_saved():
    anew = with_values(JOB, comes_again=False)
    machine = Machine()
    assert seconds("cached", S, anew, machine) == seconds("gram", S, anew, machine)
    assert seconds("gather-once", S, anew, machine) == seconds(
        "gather", S, anew, machine
    )


def test_more_columns_of_weights():
    """Three classes: three times the words of z and of the links; G as before."""
    three = with_values(JOB, scores=3)
    assert step("direct", three, per_byte=1.0) == 3 * step("direct", per_byte=1.0)
    assert step("gram", three, link=1.0) == 3 * step("gram", link=1.0)
    assert step("gram", three, gram=1.0) == step("gram", gram=1.0)


def test_what_is_kept():
    assert kept_bytes("cached", S, JOB) == 1000 * 10 * 5 // 2 * 4
    assert kept_bytes("gather-once", S, JOB) == 1000 * 120 * 2
    assert kept_bytes("gram", S, JOB) == kept_bytes("direct", S, JOB) == 0


def test_the_slowest_of_two_machines():
    one, two = only(latency=1.0, gram=5.0), only(latency=3.0, gram=7.0, step=2.0)
    both = one.slowest(two)
    assert (both.latency, both.gram, both.overheads.step) == (3.0, 5.0, 2.0)
    assert both == two.slowest(one)


def narrow(gram, margins, apart):
    fields = {"gram_wire": gram, "margin_sum": margins, "apart": apart}
    return with_values(JOB, **fields)


@pytest.mark.parametrize(
    "gram, margins, apart, calls",
    [(4, 4, True, 2), (2, 4, True, 3), (2, 1, True, 4), (2, 2, False, 2)],
)
def test_narrow_sums_take_two_latencies_and_two_messages_add_theirs(
    gram, margins, apart, calls
):
    job, later = narrow(gram, margins, apart), 2 if margins < 4 else 1
    assert step("gram", job, latency=1.0) == pytest.approx(calls / S)
    assert step("cached", job, latency=1.0) == pytest.approx(
        (calls + 4 * later) / 5 / S
    )
    assert step("direct", job, latency=1.0) == pytest.approx(later)


def test_narrow_sums_move_their_own_bytes_and_are_cast():
    job = narrow(2, 4, True)
    gram, z = 2 * G * RING, 4 * M * RING
    assert step("gram", job, per_byte=1.0) == pytest.approx((gram + z) / S)
    assert step("gram", job) == pytest.approx(1e-9 * G / S)
    assert step("direct", narrow(4, 2, True)) == pytest.approx(1e-9 * 10)


def test_what_is_kept_is_wide():
    """The Gram is computed with in float32, however it travelled."""
    assert kept_bytes("cached", S, narrow(2, 4, True)) == kept_bytes("cached", S, JOB)
    low, high = (step("cached", narrow(g, 4, True), read=1.0) for g in (2, 4))
    assert low - step("cached", narrow(2, 4, True)) == pytest.approx(high)

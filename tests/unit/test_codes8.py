"""The table of eight bits, its blocks, and rules that keep moments in it."""

import numpy as np
import pytest

from hpcsgd.glm import ColumnViews, Turn
from hpcsgd.glm.updates import (
    BLOCK,
    SIGNED,
    SMALL,
    UNSIGNED,
    Adagrad,
    Adam,
    EightBitArray,
    HeavyBall,
    InEightBits,
    LinearRule,
    Nesterov,
    Velocity,
)


@pytest.mark.parametrize("code", [SIGNED, UNSIGNED], ids=["signed", "unsigned"])
def test_the_table_is_sorted_and_has_zero_and_ones(code):
    assert len(code.values) == 256
    assert (np.diff(code.values) > 0).all()
    assert {0.0, 1.0} <= set(code.values)
    assert (-1.0 in code.values) == (code is SIGNED)
    assert code.values[code.zero] == 0.0


def mixed(rows, width, seed=0, dtype=np.float32):
    """Numbers whose sizes lie five decades apart, and zeros."""
    rng = np.random.default_rng(seed)
    sizes = 10.0 ** rng.uniform(-3, 2, size=(rows, width))
    found = (sizes * rng.normal(size=(rows, width))).astype(dtype)
    found[rng.random((rows, width)) < 0.3] = 0.0
    return found


@pytest.mark.parametrize("rooted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_errors_are_at_most_half_the_gap_and_zero_is_exact(rooted, dtype):
    numbers = mixed(3 * BLOCK + 7, 2, dtype=dtype)
    numbers = np.square(numbers) if rooted else numbers
    held = EightBitArray.zeros(len(numbers), 2, dtype, rooted)
    assert not held.decoded().any()
    held.encode(numbers)
    found = held.decoded()
    assert ((found == 0.0) >= (numbers == 0.0)).all()
    if rooted:  # nothing becomes zero, which a step would be divided by
        assert ((found == 0.0) == (numbers == 0.0)).all()
    seen, wanted = (np.sqrt(found), np.sqrt(numbers)) if rooted else (found, numbers)
    table = (UNSIGNED if rooted else SIGNED).values
    for first in range(0, len(numbers), BLOCK):
        part = slice(first, first + BLOCK)
        scale = np.abs(wanted[part]).max(axis=0)
        share = wanted[part] / scale
        above = np.clip(np.searchsorted(table, share), 1, 255)
        gap = table[above] - table[above - 1]
        slack = 1e-6 + gap * ((share > 0) & (share < table[UNSIGNED.zero + 1]) & rooted)
        assert (np.abs(seen[part] / scale - share) <= gap / 2 + slack).all()


@pytest.mark.parametrize("rooted", [False, True])
def test_what_was_decoded_comes_back_to_the_same_bits(rooted):
    numbers = mixed(1000, 3)
    held = EightBitArray.zeros(1000, 3, np.float32, rooted)
    held.encode(np.square(numbers) if rooted else numbers)
    codes, scales = held.codes.copy(), held.scales.copy()
    again = EightBitArray.zeros(1000, 3, np.float32, rooted)
    again.encode(held.decoded())
    assert (again.codes == codes).all()
    assert (again.scales == scales).all()


def test_what_is_no_number_is_seen():
    for bad in (np.nan, np.inf):
        numbers = mixed(2 * BLOCK, 1)
        numbers[3] = bad
        held = EightBitArray.zeros(len(numbers), 1, np.float32, rooted=False)
        with np.errstate(invalid="ignore"):
            held.encode(numbers)
            found = held.decoded()
        assert not np.isfinite(found[:BLOCK]).all()
        assert np.isfinite(found[BLOCK:]).all()


def test_slices_of_whole_blocks_are_views():
    numbers = mixed(5 * BLOCK + 3, 1)
    held = EightBitArray.zeros(len(numbers), 1, np.float32, rooted=False)
    for cut in ((0, BLOCK), (BLOCK, 3 * BLOCK), (3 * BLOCK, len(numbers))):
        held[slice(*cut)].encode(numbers[slice(*cut)])
    whole = EightBitArray.zeros(len(numbers), 1, np.float32, rooted=False)
    whole.encode(numbers)
    assert (held.decoded() == whole.decoded()).all()


def test_linear_codes_would_lose_what_this_one_keeps():
    """The broken twin: 127 equal steps flush small second moments to zero."""
    v = np.square(mixed(2048, 1, dtype=np.float64))
    held = EightBitArray.zeros(2048, 1, np.float64, rooted=True)
    held.encode(v)
    own = np.abs(held.decoded() - v)[v > 0] / v[v > 0]
    scale = v.max() / 127
    linear = np.abs(np.rint(v / scale) * scale - v)[v > 0] / v[v > 0]
    assert np.median(own) < 0.05 < 0.5 < np.median(linear)


RULES = {
    "adam": Adam(),
    "adagrad": Adagrad(),
    "momentum": Velocity(0.9),
    "nesterov": Velocity(0.9, looks_ahead=True),
}


def parts_of(rule, columns, width):
    kept = {n: rule.allocate(n, columns, width, np.float32) for n in rule.state_names}
    return ColumnViews(np.zeros((columns, width), np.float32), kept)


@pytest.mark.parametrize("name", RULES)
def test_steps_in_eight_bits_stay_near_those_in_full(name):
    rule = RULES[name]
    assert SMALL <= 2048 * 2
    wide, narrow = parts_of(rule, 2048, 2), parts_of(InEightBits(rule), 2048, 2)
    assert all(isinstance(kept, EightBitArray) for kept in narrow.arrays.values())
    target = mixed(2048, 2, seed=1)
    target /= np.abs(target).max()
    moved = np.abs(target).sum()
    for number in range(60):
        turn = Turn(number, 0.02 if name == "adam" else 0.05)
        for part, own in ((wide, rule), (narrow, InEightBits(rule))):
            own.step(part, part.weights - target, 1.0, turn, 0.0)
    difference = np.abs(wide.weights - narrow.weights).sum()
    assert 0 < difference < 0.1 * moved
    assert not narrow.weights[target == 0.0].any()  # absent columns do not drift


def test_velocities_are_those_of_the_recurrence():
    rng = np.random.default_rng(0)
    for looks_ahead, update in ((False, HeavyBall(0.8)), (True, Nesterov(0.8))):
        rule = Velocity(0.8, looks_ahead)
        own = ColumnViews(np.zeros((9, 1)), {"velocity": np.zeros((9, 1))})
        both = ColumnViews(np.zeros((9, 2)), {})
        for number in range(5):
            g, turn = rng.normal(size=(9, 1)), Turn(number, 0.1)
            rule.step(own, g.copy(), 1.0, turn, 0.03)
            LinearRule(update).step(both, g.copy(), 1.0, turn, 0.03)
        assert np.abs(own.weights - both.weights[:, :1]).max() < 1e-14

"""States in files of two halves: what is read back, what is counted, what survives."""

import errno
import os

import numpy as np
import pytest

from hpcsgd.agreements.more.infinity.store import (
    RING,
    Generation,
    TilePlan,
    TileStore,
    place_in,
)
from hpcsgd.agreements.more.infinity.tiles import (
    PAGE,
    Stamp,
    Stamps,
    columns_for,
    step_bytes,
)
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.glm import ColumnViews, Turn, make_rule, make_update
from tests.helpers.harness import config_for, make_problem
from tests.helpers.tiles import WORDS, layout, made


def whole(store, name, columns):
    """One state of a store of one replica, as an array."""
    out = np.empty((columns, store.layout.widths[name]), store.layout.dtype)
    for number, words in store.read(name, is_step=False):
        out[store.plan.tile(number)] = words[name]
    store.pipeline.check()
    return out


# ---------------------------------------------------------------------------- plans


@pytest.mark.parametrize("columns", [1, 5, 37, 64])
@pytest.mark.parametrize("replicas", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("height", [1, 8, 64])
def test_parts_of_all_replicas_are_all_columns_once(columns, replicas, height):
    plans = [TilePlan(columns, height, replicas, r) for r in range(replicas)]
    seen = []
    for number in plans[0]:
        parts = [plan.part(number) for plan in plans]
        assert [p.stop - p.start for p in parts] == plans[0].sizes(number)
        assert max(plan.rows(number) for plan in plans) <= plans[0].most
        seen += [c for part in parts for c in range(part.start, part.stop)]
    assert seen == list(range(columns))
    assert sum(plan.total for plan in plans) == columns


def test_a_budget_that_holds_no_column_is_refused():
    with pytest.raises(ConfigError, match="holds no column.*use at least"):
        columns_for(1e-6, 100, 10)
    assert columns_for(1.0, 2**10, 10**6) == 2**10


# ---------------------------------------------------------------------------- files


@pytest.mark.parametrize("columns", [1, 1023, 1025, 3001])
def test_a_size_that_is_no_multiple_of_a_page_round_trips(tmp_path, columns):
    """Every word, the last ones too, after the files were closed and opened again."""
    assert columns * 4 % PAGE
    store = made(tmp_path / "a", layout(columns, 700))
    given = np.arange(1, columns + 1, dtype=np.float32)[:, None]

    def step(number, words):
        for name, one in words.items():
            one[...] = given[store.plan.tile(number)] * (1 + list(WORDS).index(name))

    store.update(step)
    store.commit({"exchanges": 1})
    store.close()
    again = TileStore(tmp_path / "a", store.layout, 0)
    again.open_at(1)
    for k, name in enumerate(WORDS):
        assert np.array_equal(whole(again, name, columns), given * (1 + k))
        file = again.files[name]
        assert os.path.getsize(file.path) == file.size and file.size % PAGE == 0
    again.close()


@pytest.mark.parametrize("columns, height", [(1000, 300), (4099, 512)])
@pytest.mark.parametrize("replicas", [1, 3])
def test_bytes_of_a_step_are_the_formula(tmp_path, columns, height, replicas):
    """Of fp32 Adam 12D/P + 4D/P read and 12D/P written, over all ranks exactly."""
    read = written = 0
    for replica in range(replicas):
        of = layout(columns, height, replicas)
        store = made(tmp_path / f"r{replica}c0", of, replica)
        for _ in range(2):
            for _ in store.read("weights", is_step=True):
                pass
            store.update(lambda number, words: None)
            store.commit({"exchanges": 1})
        own = store.plan.total
        expected = step_bytes(own, 3, 4, 1)
        assert expected == (16 * own, 12 * own)
        assert store.traffic.read == 2 * expected[0]
        assert store.traffic.written == 2 * expected[1]
        most = 2 * 7 * store.plan.count * PAGE
        assert 0 <= store.traffic.padding < most
        read += store.traffic.read
        written += store.traffic.written
        store.close()
    assert (read, written) == (2 * 16 * columns, 2 * 12 * columns)


def test_buffers_are_a_ring_whatever_the_size(tmp_path):
    small = made(tmp_path / "a", layout(4096, 1024))
    large = made(tmp_path / "b", layout(65536, 1024))
    for store in (small, large):
        for _ in store.read("weights", is_step=True):
            pass
        store.update(lambda number, words: None)
        assert store.pipeline.held == RING * 3 * 1024 * 4
        store.close()


def test_the_page_cache_is_passed_by_where_the_drive_can(tmp_path):
    """The same words by both ways; where it is refused, by the other one."""
    found = []
    for direct in (False, True):
        store = made(tmp_path / str(direct), layout(3001, 700), direct=direct)
        store.update(lambda number, words: words["weights"].fill(number + 1))
        store.commit({"exchanges": 1})
        found.append(whole(store, "weights", 3001))
        store.close()
    assert np.array_equal(*found) and found[0][-1] == 5


def test_a_drive_that_refuses_direct_files_gets_others(tmp_path, monkeypatch):
    opened = os.open

    def refuse(path, flags, *more):
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no")
        return opened(path, flags, *more)

    monkeypatch.setattr(os, "open", refuse)
    store = made(tmp_path / "a", layout(300, 70), direct=True)
    assert store.is_open and not store.is_direct
    store.close()


# ---------------------------------------------------------------------------- steps

KINDS = ("sgd", "momentum", "nesterov", "adagrad", "adam")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("height", [29, 100, 1000])
def test_steps_on_disk_have_the_bits_of_steps_in_memory(tmp_path, kind, height):
    """The same gradients, twenty steps, whatever the tile."""
    columns, rng = 517, np.random.default_rng(0)
    config = config_for(make_problem("logistic"), update={"kind": kind}).update
    linear = make_update(kind, 0.0 if kind == "sgd" else config.momentum)
    rule = make_rule(config, linear)
    widths = {"weights": 2 * rule.states, **dict.fromkeys(rule.state_names, 2)}
    held = {name: np.zeros((columns, w), np.float32) for name, w in widths.items()}
    store = made(tmp_path / "a", layout(columns, height, widths=widths))
    for t in range(20):
        gradient = rng.standard_normal((columns, 2)).astype(np.float32)
        turn = Turn(t, 0.1)

        def take(words, some, gradient=gradient, turn=turn):
            kept = {name: words[name] for name in rule.state_names}
            part = ColumnViews(words["weights"], kept)
            rule.step(part, gradient[some].copy(), 0.5, turn, 0.01)

        take(held, slice(None))
        store.update(
            lambda number, words, take=take: take(words, store.plan.tile(number))
        )
        store.commit({"exchanges": t + 1})
    for name, expected in held.items():
        assert np.array_equal(whole(store, name, columns), expected), name
        assert expected.any()
    store.close()


# --------------------------------------------------------------------------- stamps


def test_the_newest_whole_stamp_counts(tmp_path):
    stamps = Stamps(tmp_path / "stamp")
    stamps.create(Stamp(0, {"x": "begin"}))
    for version in (1, 2, 3):
        stamps.write(Stamp(version, {"x": str(version)}))
    assert [s.version for s in Stamps(stamps.path).read()] == [3, 2]
    data = bytearray(stamps.path.read_bytes())
    data[PAGE + 3 % 2 * stamps.slot + 20] ^= 1
    stamps.path.write_bytes(data)
    assert [s.version for s in Stamps(stamps.path).read()] == [2]


@pytest.mark.parametrize("length", [0, 1, 9, 20])
def test_a_torn_stamp_is_none(tmp_path, length):
    """Any part of it over the one before the last."""
    stamps = Stamps(tmp_path / "stamp")
    stamps.create(Stamp(0, {"exchanges": 0}))
    for version in (1, 2):
        stamps.write(Stamp(version, {"exchanges": version}))
    whole_slot = stamps.path.read_bytes()
    stamps.write(Stamp(3, {"exchanges": 3}))
    torn = bytearray(whole_slot)
    first = PAGE + 3 % 2 * stamps.slot
    torn[first : first + length] = stamps.path.read_bytes()[first : first + length]
    stamps.path.write_bytes(torn)
    assert Stamps(stamps.path).read()[0].version == 2


def test_an_uncommitted_step_is_not_there(tmp_path):
    store = made(tmp_path / "a", layout(50, 7))
    store.update(lambda number, words: words["weights"].fill(1.0))
    store.commit({"exchanges": 1})
    store.update(lambda number, words: words["weights"].fill(2.0))
    store.close()
    again = TileStore(tmp_path / "a", store.layout, 0)
    assert [s.version for s in again.versions()] == [1, 0]
    again.open_at(1)
    assert (whole(again, "weights", 50) == 1.0).all()
    with pytest.raises(DataError, match="no complete step 5.*--resume no"):
        again.open_at(5)
    again.close()


# ------------------------------------------------------------------- other layouts


def test_columns_are_found_whatever_the_layout(tmp_path):
    """Three replicas with tiles of 7, dealt anew to two with tiles of 5, and back."""
    columns = 53
    given = np.arange(columns, dtype=np.float32)[:, None] + 1

    def deal(generation, replicas, height, fill):
        for r in range(replicas):
            of = layout(columns, height, replicas)
            store = TileStore(place_in(tmp_path, generation, r, 0), of, r)
            store.create({"exchanges": 4}, fill)
            store.close()
        return Generation(tmp_path / f"{generation:06d}")

    def first(name, some, out):
        out[...] = given[some] * (1 + list(WORDS).index(name))

    old = deal(1, 3, 7, first)
    for generation, (replicas, height) in enumerate([(2, 5), (1, 64), (4, 3)], 2):
        assert old.version == 0 and old.document(0) == {"exchanges": 4}
        fill = lambda name, some, out, old=old: old.fill(name, 0, some, out)  # noqa: E731
        old = deal(generation, replicas, height, fill)
    out = np.empty((40, 1), np.float32)
    for k, name in enumerate(WORDS):
        old.fill(name, 0, slice(9, 49), out)
        assert np.array_equal(out, given[9:49] * (1 + k))


def test_a_layout_that_lacks_a_rank_is_not_whole(tmp_path):
    for r in (0, 1):
        store = made(place_in(tmp_path, 1, r, 0), layout(20, 5, 3), r)
        store.close()
    assert Generation(tmp_path / "000001").version is None


# ------------------------------------------------------------------------- failures


def test_a_full_disk_is_said_before_the_first_step(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(DataError, match="No space left.*make room"):
        made(tmp_path / "a", layout(50, 7))


def test_a_write_that_fails_leaves_the_last_step(tmp_path, monkeypatch):
    store = made(tmp_path / "a", layout(50, 7))
    store.update(lambda number, words: words["weights"].fill(1.0))
    store.commit({"exchanges": 1})
    write, calls = os.pwritev, []

    def fails(*arguments):
        calls.append(arguments)
        if len(calls) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(*arguments)

    monkeypatch.setattr(os, "pwritev", fails)
    seen = []
    store.update(lambda number, words: seen.append(number))
    assert seen == list(store.plan)  # to the end: other ranks are in the same step
    with pytest.raises(DataError, match="No space left.*last complete step is kept"):
        store.commit({"exchanges": 2})
    assert len(calls) == 5  # and nothing was written after it
    assert store.version == 1 and (whole(store, "weights", 50) == 1.0).all()
    store.close()


def test_a_file_that_ends_too_soon_is_said(tmp_path):
    store = made(tmp_path / "a", layout(5000, 700))
    os.truncate(store.files["adam_v"].path, PAGE)
    store.update(lambda number, words: None)
    with pytest.raises(DataError, match="cannot be read.*repair the drive"):
        store.commit({"exchanges": 1})
    store.close()


def test_a_link_in_place_of_a_folder_is_named_and_no_bytes_are(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "a").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="a cannot be made .*link.*remove what") as said:
        made(tmp_path / "a", layout(10, 4))
    assert "bytes" not in str(said.value)

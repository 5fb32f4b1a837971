"""States on disk that something else has changed: told from those that were written."""

import logging

import numpy as np
import pytest

from hpcsgd.agreements.more.infinity.store import (
    CHECKSUMS,
    Generation,
    TileLayout,
    TileStore,
)
from hpcsgd.agreements.more.infinity.tiles import Stamp, Stamps
from hpcsgd.cli.models import describe
from hpcsgd.errors import DataError
from tests.helpers.on_disk import go
from tests.helpers.tiles import WORDS, layout, made

HEIGHT = 7
REMEDY = "restore .*--resume no"


def flip(file, half, number, byte=0):
    """One bit of a tile."""
    with open(file.path, "r+b") as raw:
        raw.seek(file._place(half, number) + byte)
        own = raw.read(1)[0]
        raw.seek(-1, 1)
        raw.write(bytes([own ^ 16]))


def of_two_steps(folder):
    """Both halves have words of their own."""
    store = made(folder, layout(50, HEIGHT))
    for step in (1, 2):
        store.update(lambda number, words, s=step: [w.fill(s) for w in words.values()])
        store.commit({"exchanges": step})
    store.close()
    return TileStore(folder, store.layout, 0)


@pytest.mark.parametrize("name", WORDS)
@pytest.mark.parametrize("version", [1, 2])
def test_one_bit_of_any_tile_is_found(tmp_path, name, version):
    store = of_two_steps(tmp_path / "a")
    file = store.files[name]
    for number in store.plan:
        assert store.differs_at(version) == ""
        last = file.bytes_of(number) - 1
        flip(file, version % 2, number, last)
        assert store.differs_at(version) == f"tile {number} of {file.path}"
        assert store.differs_at(3 - version) == ""  # the other half is as it was
        flip(file, version % 2, number, last)
    flip(file, version % 2, 0, file.bytes_of(0))  # padding, which nobody reads
    assert store.differs_at(version) == ""


def test_files_as_they_are_made_are_whole(tmp_path):
    store = made(tmp_path / "a", layout(50, HEIGHT))
    store.close()
    again = TileStore(tmp_path / "a", store.layout, 0)
    assert again.differs_at(0) == ""
    flip(again.files["adam_v"], 0, 7)
    assert again.differs_at(0).startswith("tile 7 of ")


def test_checksums_of_one_step_are_not_those_of_another(tmp_path):
    """A half that the drive never got: the words of two steps before."""
    store = of_two_steps(tmp_path / "a")
    file = store.files["weights"]
    before = file.path.read_bytes()
    store.open_at(2)
    for step in (3, 4):
        store.update(lambda number, words, s=step: [w.fill(s) for w in words.values()])
        store.commit({"exchanges": step})
    store.close()
    file.path.write_bytes(before)
    again = TileStore(tmp_path / "a", store.layout, 0)
    assert again.differs_at(4) and again.differs_at(3)


def stores_of(run, replicas):
    for replica in range(replicas):
        folder = run / "tiles" / "000001" / f"r{replica}c0"
        found = Stamps(folder / "stamp").read()
        of = TileLayout(**found[0].document["layout"])
        yield TileStore(folder, of, replica), found


@pytest.mark.parametrize("replicas", [1, 3])
def test_a_run_goes_on_from_the_step_before(tmp_path, caplog, replicas):
    """Which all ranks have, bit for bit; where that is changed too, it does not."""
    reference = go(tmp_path / "whole", epochs=2, replicas=replicas)
    caplog.set_level(logging.WARNING)
    for halves in (1, 2):
        run = tmp_path / f"run{halves}"
        go(run, replicas=replicas)
        *_, (store, stamps) = stores_of(run, replicas)
        for stamp in stamps[:halves]:
            flip(store.files["adam_m"], stamp.version % 2, 0)
        if halves == 1:
            result = go(run, "", "auto", epochs=2, replicas=replicas)
            assert result.weights_sha256 == reference.weights_sha256
            assert "does not match its checksum; the run goes on from" in caplog.text
        else:
            with pytest.raises(DataError, match=f"tile 0 of .* and tile 0.*{REMEDY}"):
                go(run, "", "auto", epochs=2, replicas=replicas)


def test_words_that_are_dealt_anew_are_checked_too(tmp_path):
    run = tmp_path / "run"
    go(run, replicas=2)
    *_, (store, stamps) = stores_of(run, 2)
    flip(store.files["adam_v"], stamps[0].version % 2, 0)
    with pytest.raises(DataError, match=f"r1c0/adam_v.state does not match.*{REMEDY}"):
        go(run, "", "auto", epochs=2, replicas=3)
    flip(store.files["adam_v"], stamps[0].version % 2, 0)
    assert go(run, "", "auto", epochs=2, replicas=3).status.value == "completed"


@pytest.mark.parametrize("replicas", [1, 2])
def test_states_of_earlier_versions_are_believed_with_a_note(
    tmp_path, caplog, replicas
):
    """By the same grid and by another one."""
    reference = go(tmp_path / "whole", epochs=2, replicas=replicas)
    run = tmp_path / "run"
    go(run)
    for store, stamps in stores_of(run, 1):
        for stamp in stamps:
            said = {k: v for k, v in stamp.document.items() if k != CHECKSUMS}
            store.stamps.read()
            store.stamps.write(Stamp(stamp.version, said))
    caplog.set_level(logging.WARNING)
    result = go(run, "", "auto", epochs=2, replicas=replicas)
    assert "have no checksums, which earlier versions did not write" in caplog.text
    if replicas == 1:
        assert result.weights_sha256 == reference.weights_sha256
    newest = max(run.glob("tiles/0*"))
    found = Generation(newest)
    assert all(CHECKSUMS in s.document for one in found.held for s in one.stamps)


def test_checksums_take_four_bytes_a_tile(tmp_path):
    store = of_two_steps(tmp_path / "a")
    said = store.versions()[0].document[CHECKSUMS]
    assert set(said) == set(WORDS)
    words = -(-4 * store.plan.count // 3) * 4  # base64
    assert {len(text) for text in said.values()} == {words}
    assert np.all([file.checksums.shape == (2, 8) for file in store.files.values()])


def test_a_checkpoint_of_states_on_disk_can_be_inspected(tmp_path):
    """It holds no weights, and says where they are."""
    go(tmp_path / "run")
    for one in (tmp_path / "run" / "checkpoints").iterdir():
        facts = describe(one)
        assert "files of the run" in facts["states"] and "norm" not in facts

"""Which checkpoint a run goes on from, and what becomes of those it cannot."""

import errno
import logging
import os
import shutil
from pathlib import Path

import pytest

from hpcsgd.errors import ConfigError, DataError
from hpcsgd.files import HEADER_BYTES, write_sealed
from hpcsgd.runs.checkpoint import CheckpointStore
from tests.helpers.harness import config_for, make_problem, train_on

PROBLEM = make_problem("logistic")


def train(out, resume="auto", **sections):
    """The result of a run of ten exchanges that keeps its last three checkpoints."""
    return train_on(
        1,
        config_for(
            PROBLEM,
            run={"out": str(out), "resume": str(resume)},
            checkpoint={"every": 1, "keep": 3},
            **sections,
        ),
        PROBLEM,
    )


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("original") / "run"
    train(folder)
    return folder


@pytest.fixture
def out(original, tmp_path):
    """A run folder that a test may spoil."""
    return Path(shutil.copytree(original, tmp_path / "run"))


def truncate(path):
    os.truncate(path, path.stat().st_size // 2)


def empty(path):
    os.truncate(path, 0)


def cut_in_header(path):
    os.truncate(path, HEADER_BYTES - 1)


def flip_in_data(path):
    content = bytearray(path.read_bytes())
    content[-100] ^= 1
    path.write_bytes(content)


def flip_in_header(path):
    content = bytearray(path.read_bytes())
    content[20] ^= 1  # the first letter of "bytes"
    path.write_bytes(content)


PROVEN = [truncate, empty, cut_in_header, flip_in_data, flip_in_header]


def zeros(path):
    """As a file system leaves it whose power failed."""
    path.write_bytes(bytes(path.stat().st_size))


def other_kind(path):
    write_sealed(path, "result", 1, {}, {})


def no_state(path):
    """Whole, and of a program that is not ours."""
    write_sealed(path, "checkpoint", 1, {}, {})


def names(out):
    return sorted(path.name for path in (out / "checkpoints").iterdir())


@pytest.mark.parametrize("spoil", PROVEN)
def test_what_is_proven_damaged_is_renamed_once_there_is_an_older_one(
    spoil, out, caplog
):
    newest, before, _ = CheckpointStore(out, 3).paths()
    spoil(newest)
    with caplog.at_level(logging.WARNING):
        path, found = CheckpointStore(out, 3).newest(tidies=True)
    assert path == before and found.exchanges == 9
    assert f"{newest.name}.damaged" in names(out) and newest.name not in names(out)
    assert newest.name in caplog.text and "falling back" in caplog.text


@pytest.mark.parametrize("spoil", [zeros, other_kind, no_state])
def test_what_is_merely_strange_is_passed_over_and_keeps_its_name(spoil, out, caplog):
    newest, before, _ = CheckpointStore(out, 3).paths()
    spoil(newest)
    kept, content = names(out), newest.read_bytes()
    with caplog.at_level(logging.WARNING):
        assert CheckpointStore(out, 3).newest(tidies=True)[0] == before
    assert names(out) == kept and newest.read_bytes() == content
    assert newest.name in caplog.text


def fails(path, monkeypatch, number):
    """Reading `path` fails as a disk or a network does."""
    opened = os.open

    def failing(name, *arguments, **more):
        if Path(name) == path:
            raise OSError(number, os.strerror(number))
        return opened(name, *arguments, **more)

    monkeypatch.setattr(os, "open", failing)


@pytest.mark.parametrize("number", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_a_file_that_cannot_be_read_now_is_left_alone_and_said(
    number, out, monkeypatch
):
    newest, *_ = CheckpointStore(out, 3).paths()
    kept = names(out)
    with monkeypatch.context() as patch:
        fails(newest, patch, number)
        with pytest.raises(DataError, match="cannot be read") as raised:
            train(out)
    said = str(raised.value)
    assert newest.name in said and os.strerror(number) in said and "\n" not in said
    assert names(out) == kept
    assert train(out).report["resumes"] == 1, "the disk is back: nothing is lost"


def test_a_folder_in_the_place_of_a_file_is_left_alone_and_said(out):
    place = out / "checkpoints" / "000099-exchange-000000010.h5"
    place.mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        train(out)
    assert place.is_dir()


def test_a_checkpoint_folder_that_cannot_be_listed_is_no_empty_one(out):
    folder = out / "checkpoints"
    folder.rename(out / "elsewhere")
    folder.symlink_to(folder)  # ELOOP, for root too
    with pytest.raises(DataError, match="cannot be read"):
        train(out)
    assert not (out / "earlier-1").exists()


@pytest.mark.parametrize("version", [0, 2, 9999])
def test_a_file_of_another_version_is_left_alone_and_said(version, out):
    newest, *_ = CheckpointStore(out, 3).paths()
    content = newest.read_bytes()
    said = f"hpcsgd checkpoint {version}\nwhatever that version says".encode()
    newest.write_bytes(said.ljust(HEADER_BYTES) + content[HEADER_BYTES:])
    kept = names(out)
    with pytest.raises(DataError, match=f"version {version} .*use the hpcsgd"):
        train(out)
    assert names(out) == kept


@pytest.mark.parametrize("spoil", [*PROVEN, zeros])
def test_where_none_is_whole_every_try_says_so(spoil, out):
    for path in CheckpointStore(out, 3).paths():
        spoil(path)
    kept, result = names(out), (out / "result.h5").read_bytes()
    for _ in range(2):
        with pytest.raises(DataError, match="none of the 3 checkpoints.*--resume no"):
            train(out)
    assert names(out) == kept
    assert (out / "result.h5").read_bytes() == result
    assert not (out / "earlier-1").exists()


def test_where_only_renamed_ones_are_left_every_try_says_so(out):
    for path in CheckpointStore(out, 3).paths():
        path.rename(path.with_name(f"{path.name}.damaged"))
    with pytest.raises(DataError, match="none of the 3 checkpoints"):
        train(out)
    assert not (out / "earlier-1").exists()
    assert train(out, "no").report["resumes"] == 0
    assert len(names(out / "earlier-1")) == 3


@pytest.mark.parametrize("name", ["run", "run/checkpoints/{newest}"])
def test_nothing_is_renamed_in_a_folder_that_is_not_our_own(name, out, tmp_path):
    newest, *_ = CheckpointStore(out, 3).paths()
    truncate(newest)
    kept = names(out)
    place = tmp_path / name.format(newest=newest.name)
    if place.is_dir():
        assert train(tmp_path / "other", place).report["resumes"] == 1
    else:
        with pytest.raises(DataError, match="cannot be used"):
            train(tmp_path / "other", place)
    assert names(out) == kept


@pytest.mark.parametrize("name", ["auto", "run", "run/../run"])
def test_the_own_folder_by_any_name_is_tidied(name, out):
    newest, *_ = CheckpointStore(out, 3).paths()
    truncate(newest)
    place = "auto" if name == "auto" else out.parent / name
    assert train(out, place).report["resumes"] == 1
    assert f"{newest.name}.damaged" in names(out)


def test_another_run_in_the_folder_is_put_aside(out, tmp_path):
    """It goes on from a run that lies elsewhere: what was here is another one."""
    other = tmp_path / "other"
    train(other, "no", sampling={"seed": 9})
    kept = {f.name: f.read_bytes() for f in other.iterdir() if f.is_file()}
    saved = names(other)
    (path, *_) = CheckpointStore(out, 3).paths()
    assert train(other, path).report["resumes"] == 1
    earlier = other / "earlier-1"
    assert {f.name: f.read_bytes() for f in earlier.iterdir() if f.is_file()} == kept
    assert names(earlier) == saved
    assert train(other, out).report["resumes"] == 1
    assert (other / "earlier-2").is_dir()


@pytest.mark.parametrize("name", ["auto", "path", "folder", "link", "alias"])
def test_the_run_that_goes_on_in_its_own_folder_stays_there(name, out, tmp_path):
    path = CheckpointStore(out, 3).paths()[1]
    link, alias = tmp_path / "link", tmp_path / "best.h5"
    link.symlink_to(out)
    alias.symlink_to(path)
    places = {
        "auto": "auto",
        "path": path,
        "folder": out,
        "link": link / "checkpoints" / path.name,
        "alias": alias,
    }
    assert train(out, places[name]).report["resumes"] == 1
    assert not (out / "earlier-1").exists()


def test_an_earlier_run_of_the_folder_is_another_run(out):
    train(out, "no")
    (path, *_) = CheckpointStore(out / "earlier-1", 3).paths()
    saved = names(out)
    assert train(out, path).report["resumes"] == 1
    assert names(out / "earlier-2") == saved


def test_a_name_that_cannot_be_looked_up_is_refused_in_one_sentence(out, tmp_path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(DataError, match="cannot be read"):
        train(out, loop)
    with pytest.raises(ConfigError, match="does not exist"):
        train(out, tmp_path / "none")

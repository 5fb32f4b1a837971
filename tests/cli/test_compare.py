"""`hpcsgd compare`: full runs, in turns, at an equal global batch, in one table."""

import json
import os
import re

import pytest

from hpcsgd.runs.result import load_result
from tests.helpers.command_line import only_json
from tests.helpers.comparisons import BASE, refused

SGD, CA = "sgd: products=direct steps=1", "ca-sgd: products=gram steps=4"


def compare(data, *more, settings=(SGD, CA)):
    flags = [word for text in settings for word in ("--setting", text)]
    return ["compare", "--data", data, *BASE, *flags, *more]


@pytest.fixture
def no_matplotlib(tmp_path, monkeypatch):
    """A package of that name that cannot be imported stands before the real one."""
    (tmp_path / "fake" / "matplotlib").mkdir(parents=True)
    text = "raise ImportError('not here')\n"
    (tmp_path / "fake" / "matplotlib" / "__init__.py").write_text(text)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "fake"), prepend=os.pathsep)


def test_each_row_is_a_full_run_of_train(hpcsgd, susy):
    """The same bits and the same words as the command alone; nothing adds up."""
    common = ("--ranks", 2, "--json")
    said = only_json(hpcsgd(*compare(susy, "--repeats", 2, *common)))
    assert [row["name"] for row in said["settings"]] == ["sgd", "ca-sgd"]
    assert said["ranks"] == 2 and said["repeats"] == 2 and said["equal_global_batch"]
    for row, flags in zip(
        said["settings"],
        (("--products", "direct", "--steps", 1), ("--products", "gram", "--steps", 4)),
        strict=True,
    ):
        alone = only_json(hpcsgd("train", "--data", susy, *BASE, *flags, *common))
        assert row["weights_sha256"] == alone["weights_sha256"]
        assert row["loss"] == alone["loss"]
        for figure in ("calls", "words", "bytes"):
            assert (
                row["ledger"]["products"][figure]
                == (alone["ledger"]["products"][figure])
            )
        assert row["synchronisations"] == alone["ledger"]["products"]["calls"]
        assert row["words"] == alone["ledger"]["products"]["words"]
        assert len(row["seconds_of_repeats"]) == 2
        assert row["seconds"] == pytest.approx(sum(row["seconds_of_repeats"]) / 2)


def test_gaps_and_speed_ups_are_those_to_the_first(hpcsgd, susy):
    first, second = only_json(hpcsgd(*compare(susy, "--json")))["settings"]
    assert first["loss_gap"] == 0.0 and first["speed_up"] == 1.0
    gap = (second["loss"] - first["loss"]) / first["loss"]
    assert second["loss_gap"] == pytest.approx(gap)
    assert second["speed_up"] == pytest.approx(first["seconds"] / second["seconds"])


def test_one_table_from_one_launch_and_turns(hpcsgd, susy):
    done = hpcsgd(*compare(susy, "--ranks", 2, "--repeats", 2))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("speed-up") == 1 and "UNEQUAL" not in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if "fp64" in line]
    assert [row[0] for row in rows] == ["sgd", "ca-sgd"]
    assert [row[1] for row in rows] == ["32", "32"]
    assert [row[2] for row in rows] == ["1", "4"]
    assert [row[8] for row in rows] == ["126", "32"], "synchronisations"
    assert len(done.stderr.splitlines()) == 4, "a line for each run, no more"
    turns = re.findall(r"(\S+), run (\d) of 2", done.stderr)
    assert turns == [("sgd", "1"), ("ca-sgd", "1"), ("sgd", "2"), ("ca-sgd", "2")]


def test_one_rank_is_what_rows_are_held_to(hpcsgd, susy, tmp_path):
    """A comparison on one rank, then rows on two that are held to the best of it."""
    one = only_json(hpcsgd(*compare(susy, "--ranks", 1, "--out", "one", "--json")))
    best = min(row["seconds"] for row in one["settings"])
    two = only_json(hpcsgd(*compare(susy, "--ranks", 2, "--one-rank", "one", "--json")))
    assert [run["name"] for run in two["one_rank"]] == ["sgd", "ca-sgd"]
    for row in two["rows"]:
        assert row["speed_up_one_rank"] == pytest.approx(best / row["seconds"])
        assert row["efficiency"] == pytest.approx(best / row["seconds"] / 2)
    (tmp_path / "empty").mkdir()
    done = hpcsgd(*compare(susy, "--ranks", 2, "--one-rank", "empty"))
    refused(done, "empty holds no")


def test_s_is_the_steps_between_messages(hpcsgd, susy):
    """Steps of a direct product on one replica share a loop, not a sum."""
    sgd, local = "sgd: products=direct", "local: products=direct grid=2x1 batch=16"
    done = hpcsgd(
        *compare(susy, "--ranks", 2, "--repeats", 1, settings=(sgd, CA, local))
    )
    rows = [line.split() for line in done.stdout.splitlines() if "fp64" in line]
    assert [row[2] for row in rows] == ["1", "4", "8"]


@pytest.mark.full
def test_settings_do_not_leak_into_each_other(hpcsgd, susy):
    """Reproducible sums are two calls, of the setting that asked for them alone."""
    settings = ("a: products=gram reproducible=true", "b: products=gram")
    more = ("--ranks", 2, "--json", "--repeats", 1)
    a, b = only_json(hpcsgd(*compare(susy, *more, settings=settings)))["settings"]
    assert a["synchronisations"] == 2 * b["synchronisations"]


UNEQUAL = ("sgd: batch=32", "local: grid=2x1 batch=32 products=direct")


def test_other_global_batches_are_refused_with_the_equal_one(hpcsgd, susy):
    done = hpcsgd(*compare(susy, "--ranks", 2, settings=UNEQUAL))
    refused(done, "sgd 32 (batch 32 x 1 replicas)", "local 64 (batch 32 x 2 replicas)")
    assert "batch=32 for sgd, batch=16 for local" in done.stderr
    assert "--allow-unequal" in done.stderr


def test_a_batch_that_replicas_cannot_share_is_rounded_up_for_all(hpcsgd, susy):
    settings = ("sgd: batch=31", "local: grid=2x1 batch=31 products=direct")
    done = hpcsgd(*compare(susy, settings=settings))
    refused(done, "batch=32 for sgd, batch=16 for local to make it 32 for all")


def test_unequal_batches_are_marked_where_allowed(hpcsgd, susy, tmp_path):
    more = ("--ranks", 2, "--allow-unequal", "--repeats", 1, "--out", "c")
    done = hpcsgd(*compare(susy, *more, settings=UNEQUAL))
    assert done.returncode == 0, done.stderr
    assert "UNEQUAL GLOBAL BATCHES" in done.stdout and "64 *" in done.stdout
    said = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert said["equal_global_batch"] is False
    assert [row["global_batch"] for row in said["settings"]] == [32, 64]


FILE = """
[schedule]
batch = 32
epochs = 2
[rate]
value = 0.5
[precision]
recipe = "fp64"
[compare.sgd]
"products.kind" = "direct"
steps = 1
[compare.ca-sgd]
products = { kind = "gram" }
schedule = { steps = 4 }
"""


def test_settings_of_a_file(hpcsgd, susy, tmp_path):
    (tmp_path / "c.toml").write_text(FILE)
    more = ("--data", susy, "--repeats", 1, "--json")
    said = only_json(hpcsgd("compare", "c.toml", *more, "--setting", "again: steps=2"))
    flags = only_json(hpcsgd(*compare(susy, "--repeats", 1, "--json")))
    assert [r["name"] for r in said["settings"]] == ["sgd", "ca-sgd", "again"]
    for row, other in zip(said["settings"], flags["settings"], strict=False):
        assert row["weights_sha256"] == other["weights_sha256"]
    assert [row["steps"] for row in said["settings"]] == [1, 4, 1]


def test_run_folders_account_and_figure(hpcsgd, susy, tmp_path):
    command = compare(susy, "--repeats", 2, "--out", "c", "--plot", "curve.png")
    for _ in range(2):
        assert hpcsgd(*command).returncode == 0
    runs = {f"{name}-{k}" for name in ("sgd", "ca-sgd") for k in (1, 2)}
    account = {"compare.json", "compare.png", "report.html"}
    earlier = {f"compare-earlier-1.{kind}" for kind in ("json", "png", "html")}
    assert {p.name for p in (tmp_path / "c").iterdir()} == runs | account | earlier
    said = json.loads((tmp_path / "c" / "compare.json").read_text())
    result = load_result(tmp_path / "c" / "ca-sgd-2")
    assert result.weights_sha256 == said["settings"][1]["weights_sha256"]
    page = (tmp_path / "c" / "report.html").read_text()
    assert "4 runs in c" in page and ">ca-sgd</th>" in page
    for figure in (tmp_path / "c" / "compare.png", tmp_path / "curve.png"):
        assert figure.read_bytes().startswith(b"\x89PNG")


def test_a_figure_without_matplotlib(hpcsgd, susy, tmp_path, no_matplotlib):
    """Asked for: refused before anything runs. Not asked for: left out, and said."""
    extra = "pip install 'hpcsgd[plot]'"
    refused(hpcsgd(*compare(susy, "--plot", "a.png")), extra)
    done = hpcsgd(*compare(susy, "--out", "c", "--repeats", 1))
    assert done.returncode == 0, done.stderr
    assert "not drawn in c" in done.stderr and "pip install" in done.stderr
    assert (tmp_path / "c" / "compare.json").exists()
    page = (tmp_path / "c" / "report.html").read_text()
    assert "<svg" not in page and "Figures need matplotlib" in page


def test_a_figure_that_cannot_be_written(hpcsgd, susy):
    done = hpcsgd(*compare(susy, "--plot", "no/where.png", "--repeats", 1, "-q"))
    refused(done, "no/where.png", "choose a folder")


WRONG = [
    ((), ["nothing to compare", "--setting"]),
    (("sgd",), ["'NAME: key=value", "sgd"]),
    (("steps=4 batch=2",), ["'NAME: key=value"]),
    (("a: steps",), ["setting 'a'", "'steps' is no key=value"]),
    (("a: stepz=4",), ["setting 'a'", "unknown key 'stepz'", "steps"]),
    (("a: schedule.stepz=4",), ["setting 'a'", "unknown: ['stepz']", "'steps'"]),
    (("a: steps=0",), ["setting 'a'", "steps = 0", "at least 1"]),
    (("a: grid=2",), ["setting 'a'", "RxC"]),
    (("a: steps=1", "A: steps=2"), ["two settings", "a name of its own"]),
    (("--: steps=1",), ["needs a letter or a digit"]),
    (("a: data=other.h5",), ["data.path must be the same for all"]),
    (("a: run.comm=mpi",), ["run.comm must be the same for all"]),
    (("a: steps=1", "b: grid=3x1 batch=12 products=direct"), ["global batch"]),
    (("a: batch=30", "b: grid=3x1 batch=10"), ["needs 3 ranks", "--ranks 3"]),
    (("a: precision=fp7",), ["fp7", "fp32"]),
]


@pytest.mark.cases(7)
@pytest.mark.parametrize("settings, words", WRONG, ids=lambda x: " | ".join(x))
def test_wrong_settings(hpcsgd, susy, tmp_path, settings, words):
    done = hpcsgd(*compare(susy, "--out", "c", settings=settings))
    refused(done, *words)
    assert not (tmp_path / "c").exists(), "found before anything was trained"


def test_wrong_flags_and_files(hpcsgd, susy, tmp_path):
    refused(hpcsgd(*compare(susy, "--repeats", 0)), "--repeats 0", "at least 1")
    refused(hpcsgd("compare", "--setting", SGD, "--ranks", 2), "no data", "--data")
    (tmp_path / "c.toml").write_text('[compare]\nproducts = "gram"\n')
    refused(hpcsgd("compare", "c.toml"), "not a table", "[compare.NAME]")


def test_an_error_in_a_run_names_the_setting(hpcsgd, susy):
    settings = ("b: products=cached sampling=reshuffle",)
    done = hpcsgd(*compare(susy, "-q", settings=settings))
    refused(done, "setting 'b'", "shuffle-once")


def test_a_setting_that_ends_above_where_it_began(hpcsgd, susy):
    """Its run went to the end; the table, the document and the exit code say more."""
    settings = ("good: rate=0.5", "bad: rate=100")
    done = hpcsgd(*compare(susy, "--repeats", 1, settings=settings))
    assert done.returncode == 1
    (row,) = (line for line in done.stdout.splitlines() if line.split()[:1] == ["bad"])
    assert "worse" in row.split()
    assert "bad ended above where it began (loss" in done.stderr
    assert "lower its rate" in done.stderr and "diverged" not in done.stderr
    done = hpcsgd(*compare(susy, "--repeats", 1, "--json", settings=settings))
    assert done.returncode == 1
    for table in ("rows", "settings"):
        ended = [row["status"] for row in json.loads(done.stdout)[table]]
        assert ended == ["completed", "worse"]


def test_a_setting_that_diverges(hpcsgd, susy):
    settings = ("good: rate=0.5", "bad: rate=1e300")
    done = hpcsgd(*compare(susy, "--repeats", 1, settings=settings))
    assert done.returncode == 1
    assert "diverged" in done.stdout and "bad diverged; lower" in done.stderr
    assert "Traceback" not in done.stderr

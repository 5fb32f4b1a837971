"""One run in a process of its own: its report, its last words, its end."""

import json
import sys

import pytest

from hpcsgd.files import parse_object
from hpcsgd.studies import run as module
from hpcsgd.studies.folder import FIGURES, line
from hpcsgd.studies.plan import StudyAxes, StudyPlan
from hpcsgd.studies.run import command, last_sentence, launch

POINT = next(StudyPlan("strong", (2,), axes=StudyAxes(methods=("casgd",))).runs())


@pytest.fixture
def program(monkeypatch):
    """Runs this text of Python in the place of `hpcsgd train`."""

    def give(text):
        words = [sys.executable, "-c", text]
        monkeypatch.setattr(module, "command", lambda config, ranks: words)

    return give


def test_the_report_and_the_log_are_kept_apart(program, tmp_path):
    program("import sys; print('{\"a\": 1}'); print('said', file=sys.stderr)")
    ended = launch(tmp_path / "x.toml", 1, tmp_path / "x.log", 60)
    assert (ended.code, ended.report, ended.error) == (0, {"a": 1}, "")
    assert not ended.timed_out and ended.cpu_seconds > 0
    assert (tmp_path / "x.log").read_text() == "said\n"


@pytest.mark.parametrize("said, seen", [(None, "1"), ("3", "3")])
def test_a_rank_that_is_alone_has_one_blas_thread(
    said, seen, program, tmp_path, monkeypatch
):
    """As those of many have: with all cores it would be no baseline of theirs."""
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    if said:
        monkeypatch.setenv("OPENBLAS_NUM_THREADS", said)
    program("import json, os; print(json.dumps(dict(os.environ)))")
    ended = launch(tmp_path / "x.toml", 1, tmp_path / "x.log", 60)
    assert ended.report["OPENBLAS_NUM_THREADS"] == seen


def test_a_run_that_fails_says_its_own_sentence(program, tmp_path):
    text = (
        "import sys; print('hpcsgd: error: no such luck; try again', file=sys.stderr)"
    )
    program(f"{text}; sys.exit(2)")
    ended = launch(tmp_path / "x.toml", 1, tmp_path / "x.log", 60)
    assert (ended.code, ended.report) == (2, None)
    assert ended.error == "no such luck; try again"


def test_a_run_without_a_word_is_pointed_to(tmp_path):
    log = tmp_path / "x.log"
    log.write_text("Traceback\n  nothing that begins as ours do\n")
    assert last_sentence(log, 7) == "it ended with exit code 7; see x.log"
    assert last_sentence(log, 0) == ""


@pytest.mark.cases(1)
@pytest.mark.parametrize("deaf", ["", "signal.signal(signal.SIGINT, signal.SIG_IGN);"])
def test_a_late_run_is_ended_however_deaf_it_is(program, tmp_path, monkeypatch, deaf):
    monkeypatch.setattr(module, "GRACE", 0.5)
    term = "signal.signal(signal.SIGTERM, signal.SIG_IGN);" if deaf else ""
    program(f"import signal, time; {deaf}{term} time.sleep(300)")
    ended = launch(tmp_path / "x.toml", 1, tmp_path / "x.log", 1.0)
    assert ended.timed_out and ended.report is None and ended.code < 0
    assert "longer than the 1 s of --point-timeout" in ended.error


def test_the_last_words_of_a_late_run_are_no_report(program, tmp_path):
    """It was preempted: what it prints then is of half a run."""
    leave = "signal.signal(signal.SIGTERM, lambda *_: (print('{}'), sys.exit(75)))"
    program(f"import signal, sys, time; {leave}; time.sleep(300)")
    ended = launch(tmp_path / "x.toml", 1, tmp_path / "x.log", 1.0)
    assert ended.timed_out and ended.report is None
    assert ended.code in (75, -15), "-15 where it was ended before it could listen"


def test_the_command():
    alone, many = command("x.toml", 1), command("x.toml", 4)
    assert alone[1:5] == ["-m", "hpcsgd", "train", "x.toml"] and "--ranks" not in alone
    assert many[-2:] == ["--ranks", "4"] and "--json" in many


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"\xff"])
def test_what_is_no_report_is_none(text):
    assert parse_object(text) is None


def test_a_failed_run_has_a_line_of_nulls():
    said = line(POINT, "/data/x.h5", None, error="why", machine={"cores": 1})
    assert said["status"] == "failed" and said["error"] == "why"
    assert all(said[name] is None for name in FIGURES)
    assert said["data"] == "x.h5" and said["batch"] == 32 and said["steps"] == 8
    assert said["grid"] == {"replicas": 1, "members": 2}
    assert said["oversubscribed"] is True and said["schema"] == 1
    assert said["run"] == "runs/casgd-p2-s8-b32-1x2-fp32-seed0-r1"
    assert json.loads(json.dumps(said)) == said
    roomy = line(POINT, "x.h5", None, machine={"cores": 2})
    assert roomy["oversubscribed"] is False
    eight = list(
        StudyPlan(
            "strong", (1,), emulated=(8,), axes=StudyAxes(methods=("sgd",))
        ).runs()
    )[1]
    assert line(eight, "x.h5", None, machine={"cores": 1})["oversubscribed"] is False
    wide = next(StudyPlan("strong", (2,), base={"run": {"threads": 2}}).runs())
    assert line(wide, "x.h5", None, machine={"cores": 3})["oversubscribed"] is True
    assert line(POINT, "x.h5", None)["oversubscribed"] is None

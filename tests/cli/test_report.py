"""`hpcsgd report` as a process, and its page in a browser where there is one."""

import json
import os
import re
import shutil
import subprocess

import pytest

from hpcsgd.cli import main
from tests.helpers.limits import HANG
from tests.helpers.studies import line_of, real_run, write_study

NAMES = ("chromium", "chromium-browser", "google-chrome-stable")
BROWSER = next((path for path in map(shutil.which, NAMES) if path), None)
FLAGS = (
    *("--headless", "--disable-gpu", "--hide-scrollbars", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update"),
    *("--disable-sync", "--enable-logging=stderr", "--v=0"),
    *("--host-resolver-rules=MAP * ~NOTFOUND", "--window-size=1280,2400"),
)
OWN = re.compile(r"https?://([a-z0-9]+\.)*google(apis)?\.com/")  # what browsers ask


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A small study of two methods on one and two ranks."""
    lines = [
        line_of(real_run(method, ranks), method, repeat)
        for method in ("sgd", "casgd")
        for ranks in (1, 2)
        for repeat in (1, 2)
    ]
    return write_study(tmp_path_factory.mktemp("studies") / "strong", lines)


@pytest.fixture
def report(tmp_path, monkeypatch, capsys):
    """`hpcsgd report ...` in an empty folder: (code, standard output, error)."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        code = main(["report", *map(str, words)])
        return code, *capsys.readouterr()

    return run


def test_the_page_the_figures_and_the_sentence(hpcsgd, study, tmp_path):
    done = hpcsgd("report", study, "--out", "r/page.html", "--figures", "f")
    assert done.returncode == 0, done.stderr
    assert "Fastest to the loss" in done.stdout and "7 figures" in done.stdout
    text = (tmp_path / "r" / "page.html").read_text()
    assert text.count("<svg") == 7
    names = {path.stem for path in (tmp_path / "f").iterdir()}
    assert {"loss-time", "loss-words", "speed-up", "time-split"} <= names
    for name in names:
        for kind in ("svg", "csv", "png"):
            assert (tmp_path / "f" / f"{name}.{kind}").exists()


def test_the_document_alone_writes_nothing(report, study, tmp_path):
    code, out, _ = report(study, "--json")
    said = json.loads(out)
    assert code == 0 and said["files"] == [] and list(tmp_path.iterdir()) == []
    (part,) = said["parts"]
    assert {s["method"] for s in part["settings"]} == {"SGD", "CA-SGD"}


def test_a_run_folder_of_train(hpcsgd, report, susy, tmp_path):
    flags = ("--steps", 4, "--batch", 32, "--epochs", 1, "--quiet")
    done = hpcsgd("train", "--data", susy, "--out", "runs/ca", *flags)
    assert done.returncode == 0, done.stderr
    code, out, _ = report("runs/ca")
    assert code == 0 and "Only one setting can be compared, ca" in out
    text = (tmp_path / "report.html").read_text()
    assert "1 run in ca" in text and os.uname().nodename in text
    assert report("runs")[0] == 0, "the folder around it"


@pytest.mark.parametrize(
    "words, said",
    [
        (("nowhere",), "nowhere is no folder"),
        (("empty",), "holds no points.jsonl, compare.json or result.json"),
        ((), "DIR"),
    ],
)
def test_wrong_input(report, tmp_path, words, said):
    (tmp_path / "empty").mkdir()
    code, out, error = report(*words)
    assert code == 2 and out == ""
    assert len(error.strip().splitlines()) == 1 and said in error


def seen(page, folder):
    """(screenshot, what the console said, addresses asked for) of a page."""
    picture, log = folder / "page.png", folder / "net.json"
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()
    done = subprocess.run(
        [
            *(BROWSER, *FLAGS, *root, f"--user-data-dir={folder / 'browser'}"),
            *(f"--log-net-log={log}", f"--screenshot={picture}", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
    assert picture.exists(), f"{BROWSER} drew nothing: {last}"
    said = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    events = json.loads(log.read_text())["events"]
    urls = {e["params"].get("url", "") for e in events if "params" in e}
    asked = {u for u in urls if u.startswith("http") and not OWN.match(u)}
    return picture, said, asked


@pytest.fixture
def browser(tmp_path):
    """One that draws an empty page: then it has to draw ours."""
    if BROWSER is None:
        pytest.skip("no chromium is installed")
    blank, folder = tmp_path / "blank.html", tmp_path / "blank"
    blank.write_text("<!doctype html><title>blank</title>")
    folder.mkdir()
    try:
        seen(blank, folder)
    except AssertionError as error:
        pytest.skip(f"it does not start here: {error}")


@pytest.mark.usefixtures("browser")
def test_a_browser_draws_it_in_silence_and_asks_nobody(report, study, tmp_path):
    assert report(study)[0] == 0
    picture, said, asked = seen(tmp_path / "report.html", tmp_path)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 50_000, "an empty page is smaller"
    assert said == [] and asked == set()


@pytest.mark.usefixtures("browser")
def test_a_browser_tells_of_what_is_planted(tmp_path):
    page = tmp_path / "x.html"
    page.write_text(
        '<img src="http://example.invalid/x.png"><script>console.error("!")</script>'
    )
    _, said, asked = seen(page, tmp_path)
    assert said and asked == {"http://example.invalid/x.png"}

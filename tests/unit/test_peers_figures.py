"""What the benchmarks of peers keep, skip and show."""

import json

import pytest

from benchmarks import bench_ddp, bench_peers
from benchmarks.peers.clock import Outcome
from benchmarks.peers.methods import Tuned
from benchmarks.peers.notebook import Notebook
from benchmarks.peers.table import table


class Counted:
    """A method that does nothing, and counts; it may break at one of its calls."""

    def __init__(self, name, breaks_at=None):
        self.name, self.breaks_at, self.calls = name, breaks_at, []

    def _call(self, what):
        self.calls.append(what)
        if len(self.calls) == self.breaks_at:
            raise KeyboardInterrupt
        return Outcome(True, float(len(self.calls)), 1, 0.001)

    def tune(self, problem, trials, cap):
        if trials > 1:  # else it is the warm-up
            self._call("tune")
        if self.breaks_at == 0:
            raise ValueError("not for me")
        return Tuned({"rate": 1.0}, Outcome(True, 1.0, 1, 0.0), trials, 1.0)

    def settle(self, problem, setting, cap):
        return setting

    def time(self, problem, setting, seed, cap):
        return self._call(f"time {seed}")


def _run(monkeypatch, path, names, **more):
    """One call of the bench on a tiny set; what each of these methods was asked."""
    counted = [Counted(name, more.pop(name, None)) for name in names]
    monkeypatch.setattr(bench_peers, "methods", lambda problem: counted)
    monkeypatch.setattr(bench_peers, "pin_to_one_core", lambda: None)
    arguments = ["--out", str(path), "--problems", "susy", "--rows", "300"]
    for flag, value in ({"repeats": 2, "trials": 3} | more).items():
        arguments += [f"--{flag}", str(value)]
    asked = bench_peers._arguments(arguments)
    try:
        bench_peers.run(asked)
    except KeyboardInterrupt:
        assert path.exists()
    return [method.calls for method in counted]


ALL = ["tune", "time 0", "time 1", "time 2"]


@pytest.mark.full
def test_what_is_finished_is_skipped(monkeypatch, tmp_path):
    path = tmp_path / "figures.json"
    assert _run(monkeypatch, path, ["one", "two"]) == [ALL, ALL]
    assert _run(monkeypatch, path, ["one", "two"]) == [[], []]
    assert _run(monkeypatch, path, ["one", "three"]) == [[], ALL]
    assert _run(monkeypatch, path, ["one"], repeats=3) == [[*ALL, "time 3"]]


@pytest.mark.full
def test_an_interrupted_run_goes_on(monkeypatch, tmp_path):
    path = tmp_path / "figures.json"
    assert _run(monkeypatch, path, ["one", "two"], two=4) == [ALL, ALL]
    before = json.loads(path.read_text())["figures"]["problems"]["susy"]["methods"]
    assert _run(monkeypatch, path, ["one", "two"]) == [[], ["time 0", "time 2"]]
    after = json.loads(path.read_text())["figures"]["problems"]["susy"]["methods"]
    assert after["one"] == before["one"] and len(after["two"]["runs"]) == 2


def test_a_method_that_fails_takes_nobody_along(monkeypatch, tmp_path, capsys):
    path = tmp_path / "figures.json"
    assert _run(monkeypatch, path, ["one", "two"], one=0)[1] == ALL
    rows = json.loads(path.read_text())["figures"]["problems"]["susy"]["methods"]
    assert rows["one"] == {"failed": "ValueError: not for me"}
    assert "one: failed (ValueError: not for me)" in capsys.readouterr().out
    assert _run(monkeypatch, path, ["one", "two"]) == [ALL, []]
    rows = json.loads(path.read_text())["figures"]["problems"]["susy"]["methods"]
    assert "failed" not in rows["one"]


def test_figures_of_another_configuration_are_not_mixed(tmp_path):
    path = tmp_path / "figures.json"
    book = Notebook(path, {"cores": 2}, {"rows": 10})
    book.problem("p")["gap"] = float("inf")
    book.save()
    assert json.loads(path.read_text())["figures"]["problems"]["p"]["gap"] is None
    assert "gap" in Notebook(path, {"cores": 2}, {"rows": 10}).problem("p")
    for other in (
        Notebook(path, {"cores": 4}, {"rows": 10}),
        Notebook(path, {"cores": 2}, {"rows": 11}),
        Notebook(path, {"cores": 2}, {"rows": 10}, fresh=True),
    ):
        assert other.started_anew and "gap" not in other.problem("p")


def test_a_summary_counts_the_runs_that_did_not_get_there():
    there = {"reached": True, "seconds": 1.0, "epochs": 2, "gap": 0.004}
    never = {"reached": False, "seconds": 9.0, "epochs": 9, "gap": None}
    later = there | {"seconds": 20.0}
    assert bench_peers.summary([later, there, never])["seconds"] == 20.0
    assert bench_peers.summary([there, never, never])["seconds"] is None
    assert not bench_peers.summary([there, never])["reached"]


def test_the_table_puts_the_fastest_first():
    def row(seconds):
        runs = [{"reached": bool(seconds), "seconds": seconds, "epochs": 1, "gap": 0.1}]
        given = {"tuning": {"seconds": 2.0}, "setting": {"rate": 0.5}, "runs": runs}
        return given | bench_peers.summary(runs)

    rows = {"slow": row(4.0), "never": row(0), "fast": row(2.0), "untimed": {}}
    part = {"rows": 3, "columns": 2, "family": "poisson", "optimum": {"loss": 1.5}}
    lines = table("p", part | {"methods": rows}).splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["fast", "slow", "never"]
    assert "2.00" in lines[3] and "never" in lines[4].split()[1]


def test_ratios_are_of_the_fastest_of_each_kind():
    rows = {
        "hpcsgd auto": {"us": 20.0},
        "hpcsgd gather": {"us": 10.0},
        "bare rows": {"us": 30.0},
        "bare columns": {"us": 15.0},
        "ddp": {"us": 700.0},
    }
    found = bench_ddp.ratios(rows)
    assert found["best"] == "hpcsgd gather"
    assert found["ddp"] == {"beside": "ddp", "times": 70.0, "target": 60.0, "met": True}
    assert (found["bare"]["beside"], found["bare"]["times"]) == ("bare columns", 1.5)
    assert not found["bare"]["met"]
    assert "ddp" not in bench_ddp.ratios({k: rows[k] for k in rows if k != "ddp"})


def test_a_ratio_to_ddp_names_the_product_that_it_is_of():
    """Plain SGD is called so: a ratio of it is no figure of CA-SGD."""
    us = {"hpcsgd auto": 20.0, "hpcsgd gram": 60.0, "ddp": 700.0}
    rows = {
        name: {"us": time, "steps_per_second": 1e6 / time, "loss": 0.5}
        for name, time in us.items()
    }
    rows["hpcsgd auto"] |= {"s": 32, "product": "direct"}
    rows["hpcsgd gram"] |= {"s": 4, "product": "gram"}
    part = {"methods": rows, "ratios": bench_ddp.ratios(rows)}
    text = bench_ddp.in_words("epsilon", part)
    assert "hpcsgd auto (plain SGD, direct) / ddp: 35.00" in text

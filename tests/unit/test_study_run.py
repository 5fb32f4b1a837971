"""The runs of a study, on threads in the place of processes: order, ends, going on."""

import json
import logging
import tomllib

import numpy as np
import pytest
from scipy.sparse import random_array

from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.data.hdf5 import StoreLayout
from hpcsgd.data.readers import open_reader
from hpcsgd.data.store import StoreWriter
from hpcsgd.data.synthetic import write_synthetic
from hpcsgd.errors import ConfigError, DataError, HpcsgdError
from hpcsgd.studies import folder, strong, sweep, weak
from hpcsgd.studies import run as module
from hpcsgd.studies.folder import first_rows, rows_in
from hpcsgd.studies.run import RunEnd

CONFIG = {"rate": {"value": 0.5}, "run": {"evaluate_every": 0}}


class Launches:
    """Trains at once, or does what `bad` says of a point."""

    def __init__(self):
        self.names, self.bad = [], {}

    def __call__(self, config, ranks, log, limit):
        self.names.append(config.stem)
        for word, act in self.bad.items():
            if word in config.stem:
                return act()
        tables = RunConfig.parse(tomllib.loads(config.read_text()))
        try:
            (report, *_) = run_ranks(ranks, lambda world: train(tables, world=world))
        except HpcsgdError as error:
            return RunEnd(2, None, str(error), 0.1, 0.1)
        document = json.loads(report.json())
        return RunEnd(report.status.exit_code, document, "", 0.1, 0.1)


@pytest.fixture
def launches(monkeypatch):
    found = Launches()
    monkeypatch.setattr(module, "launch", found)
    return found


@pytest.fixture
def few(tmp_path):
    path = tmp_path / "few.h5"
    write_synthetic(path, "susy", 96, 18, 0)
    return path


@pytest.fixture
def out(tmp_path):
    return tmp_path / "study"


def lines(out):
    return [json.loads(s) for s in (out / "points.jsonl").read_text().splitlines()]


def test_every_method_says_what_its_formula_says(launches, few, out):
    """On real runs of the whole way from a plan to its account."""
    methods = ["sgd", "casgd", "local", "hybrid"]
    found = strong(few, [1, 4], out, CONFIG, methods=methods, steps=[2, 3], repeats=1)
    assert found.runs == 2 + 4 + 4 + 2 and found.failures == ()
    assert all(row.expected is True for row in found.rows)
    assert {row.method for row in found.rows if row.calls} == set(methods)


def test_runs_take_turns_and_none_is_run_twice(launches, few, out):
    asked = {"methods": ["sgd", "casgd"], "steps": [2], "repeats": 2}
    first = strong(few, [1], out, CONFIG, **asked)
    order = [name[:3] + name[-2:] for name in launches.names]
    assert order == ["sgdr1", "casr1", "sgdr2", "casr2"]
    again = strong(few, [1], out, CONFIG, resume=True, **asked)
    assert len(launches.names) == 4 and again == first


def test_bad_runs_are_run_again_and_good_ones_are_not(launches, few, out):
    launches.bad["casgd"] = lambda: RunEnd(1, None, "a rank was killed", 0.1, 0.1)
    asked = {"methods": ["casgd", "local"], "steps": [2], "repeats": 2}
    found = strong(few, [2], out, CONFIG, **asked)
    assert [bad["error"] for bad in found.failures] == ["a rank was killed"] * 2
    assert found.runs == 2 and len(launches.names) == 4, "the others went on"
    launches.bad.clear()
    found = strong(few, [2], out, CONFIG, resume=True, **asked)
    assert [n[:5] for n in launches.names[4:]] == ["casgd"] * 2
    assert (found.runs, found.failures) == (4, ())
    assert len(lines(out)) == 6, "what was bad stays written down"


def test_what_diverges_is_bad_and_is_over(launches, few, out):
    config = {"rate": {"value": 1e12}, "problem": {"family": "gaussian"}}
    config["run"] = {"fall_back": False}
    asked = {"methods": ["sgd"], "repeats": 1}
    found = strong(few, [1], out, config, **asked)
    (bad,) = found.failures
    assert bad["status"] == "diverged" and "lower the rate" in bad["error"]
    (line,) = lines(out)
    assert line["expected"] is None and line["ledger"] is not None
    strong(few, [1], out, config, resume=True, **asked)
    assert len(launches.names) == 1


def test_a_study_that_is_stopped_lets_its_folder_go(launches, few, out):
    def stop():
        raise KeyboardInterrupt

    launches.bad["-r2"] = stop
    asked = {"methods": ["sgd"], "repeats": 2}
    with pytest.raises(KeyboardInterrupt):
        strong(few, [1], out, CONFIG, **asked)
    assert len(lines(out)) == 1
    launches.bad.clear()
    assert strong(few, [1], out, CONFIG, resume=True, **asked).runs == 2


def test_weak_runs_see_their_share_of_the_rows(launches, few, out):
    weak(few, [1, 2, 4], out, CONFIG, methods=["casgd"], repeats=1, batch=[8])
    assert [line["rows"] for line in lines(out)] == [24, 48, 96]
    assert {line["batch"] for line in lines(out)} == {8}
    assert {line["data"] for line in lines(out)} == {"few.h5"}
    assert sorted(p.name for p in (out / "data").iterdir()) == [
        "few-24.h5",
        "few-48.h5",
    ]


def test_a_sweep_has_all_grids(launches, few, out):
    found = sweep(few, [4], out, CONFIG, methods=["hybrid"], steps=[2], repeats=1)
    assert [row.grid for row in found.rows] == ["1x4", "2x2", "4x1"]
    assert found.best is not None and found.best.grid in ("1x4", "2x2", "4x1")


def test_more_ranks_than_cores_are_warned_of(launches, few, out, caplog, monkeypatch):
    monkeypatch.setattr(folder, "own_cores", lambda: [0, 1])
    with caplog.at_level(logging.WARNING, "hpcsgd"):
        found = strong(few, [2, 4], out, CONFIG, methods=["sgd"], repeats=1)
    assert "up to 4 ranks share 2 cores" in caplog.text
    assert "--emulate-members 4" in caplog.text
    assert [row.oversubscribed for row in found.rows] == [False, True]


def test_emulated_ranks_crowd_nobody(launches, few, out, caplog, monkeypatch):
    monkeypatch.setattr(folder, "own_cores", lambda: [0])
    asked = {"methods": ["sgd"], "repeats": 1, "emulate_members": [8]}
    with caplog.at_level(logging.WARNING, "hpcsgd"):
        found = strong(few, [1], out, CONFIG, **asked)
    assert caplog.text == "" and not any(row.oversubscribed for row in found.rows)
    assert [row.loss is None for row in found.rows] == [False, True]
    assert lines(out)[1]["run"].endswith("sgd-p8-s1-b32-1x8-fp32-seed0-r1")


def test_wrong_words_from_python_are_refused(few, out):
    with pytest.raises(ConfigError, match="unknown: \\['method'\\]"):
        strong(few, [1], out, method=["sgd"])
    with pytest.raises(DataError, match=r"nosuch\.h5 does not exist"):
        strong(few.with_name("nosuch.h5"), [1], out)
    assert not out.exists()


@pytest.mark.parametrize("element", ["fp32", "fp64"])
@pytest.mark.parametrize("is_sparse", [False, True])
def test_the_first_rows_are_the_same_bits(tmp_path, element, is_sparse):
    rng, rows, columns = np.random.default_rng(0), 50, 7
    dtype = np.float32 if element == "fp32" else np.float64
    X = rng.normal(size=(rows, columns)).astype(dtype)
    if is_sparse:
        X = random_array((rows, columns), density=0.4, rng=rng, format="csr")
        X = X.astype(dtype)
    y, c, o = rng.normal(size=(3, rows))
    path, names = tmp_path / "x.h5", ("y", "sample_weight", "offset")
    with StoreWriter(
        path, StoreLayout(columns, element=element, is_sparse=is_sparse), columns=names
    ) as writer:
        writer.append(X, y, abs(c), o)
    assert rows_in(str(path)) == rows
    first = open_reader(first_rows(path, tmp_path / "data", 20))
    some, all_columns = slice(0, 20), slice(0, columns)
    assert (first.rows, first.cols) == (20, columns)
    read = first.read_csr if is_sparse else first.read
    kept = read(some, all_columns)
    kept = kept.toarray() if is_sparse else kept
    assert kept.dtype == dtype
    assert np.array_equal(kept, (X.toarray() if is_sparse else X)[:20])
    assert np.array_equal(first.targets(some), y[:20])
    assert np.array_equal(first.sample_weight(some), abs(c)[:20])
    assert np.array_equal(first.offset(some), o[:20])
    first.close()


def test_a_study_for_slurm_is_not_run_here(launches, few, out):
    with pytest.raises(ConfigError, match="--on slurm"):
        strong(few, [1], out, CONFIG, on="slurm")
    assert launches.names == []

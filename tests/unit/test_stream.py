"""Streamed rows: the iterates of the rows in memory, in a fraction of the memory."""

import re
import subprocess
import sys
import threading
import time
from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.data.hdf5 import Hdf5Reader, StoreLayout
from hpcsgd.data.sampling import Sampler
from hpcsgd.data.store import StoreWriter
from hpcsgd.data.stream import WINDOWS, Route, StreamedMatrix
from hpcsgd.data.synthetic import write_synthetic
from hpcsgd.errors import ConfigError
from hpcsgd.formats import encode
from tests.helpers.harness import what_is_read
from tests.helpers.limits import HANG
from tests.helpers.pairwise import pairwise

X = np.random.default_rng(0).normal(size=(137, 3)).astype(np.float32)


def sampler_of(rows=137, block=8, window=3, seed=1):
    return Sampler("blocks", seed, rows, 0, block, window)


@pytest.mark.parametrize("rows, block, window", [(137, 8, 3), (5, 8, 3), (64, 8, 8)])
def test_an_epoch_is_every_row_once_window_by_window(rows, block, window):
    sampler = sampler_of(rows, block, window)
    order = sampler.order(4)
    assert sorted(order) == list(range(rows))
    first = 0
    for blocks in sampler.windows(4):
        wanted = np.concatenate([sampler.rows_of(b) for b in blocks])
        part = order[first : first + len(wanted)]
        assert sorted(part) == sorted(wanted)
        first += len(wanted)
    assert list(sampler.order(5)) != list(order) or rows < 8


def streamed(sampler, epochs=3, read=None):
    read = read or (lambda part: X[part])

    def fill(part, out):
        out[...] = read(part)

    return StreamedMatrix(fill, X.shape, X.dtype, Route(sampler, epochs))


@pytest.mark.parametrize("group", [1, 7, 24])
def test_rows_are_there_when_they_are_due(group):
    """The feed is one group ahead, as in the engine; a slow file changes nothing."""
    reads = []

    def slow(part):
        reads.append(part)
        time.sleep(0.001)
        return X[part]

    sampler = sampler_of()
    matrix = streamed(sampler, read=slow)
    due = []
    for epoch in range(3):
        order = sampler.order(epoch)
        due += [(epoch, i, order[i : i + group]) for i in range(0, len(order), group)]
    matrix.follow(due[0][0], due[0][1], len(due[0][2]))
    for (_, _, rows), ahead in zip(due, [*due[1:], None], strict=True):
        if ahead:
            matrix.follow(ahead[0], ahead[1], len(ahead[2]))
        buffer, places = matrix.locate(rows)
        np.testing.assert_array_equal(buffer[places], X[rows])
        assert buffer.shape == (WINDOWS * 24, 3)
    matrix.close()
    assert len(reads) == 3 * 18  # every block once an epoch


def test_nothing_is_read_far_ahead():
    reads = []

    def read(part):
        reads.append(part)
        return X[part]

    matrix = streamed(sampler_of(), read=read)
    matrix.follow(0, 0, 4)
    matrix.locate(sampler_of().order(0)[:4])
    time.sleep(0.2)
    assert len(reads) == 6  # the window in use and the next
    matrix.close()


def test_what_the_file_says_reaches_whoever_waits():
    def broken(part):
        raise OSError("the disk is gone")

    matrix = streamed(sampler_of(), read=broken)
    matrix.follow(0, 0, 4)
    with pytest.raises(OSError, match="the disk is gone"):
        matrix.locate(np.arange(4))


@pytest.mark.parametrize("element", ["fp64", "fp32", "bf16", "fp16", "scaled"])
@pytest.mark.parametrize("matrix", ["fp64", "fp32", "bf16"])
def test_blocks_come_without_a_copy_where_the_bits_agree(element, matrix, tmp_path):
    values = np.random.default_rng(0).normal(size=(100, 700))
    kind, scale = ("fp32", 0.5) if element == "scaled" else (element, 1.0)
    with StoreWriter(
        tmp_path / "a.h5", StoreLayout(700, element=kind, scale=scale)
    ) as writer:
        writer.append(values, values[:, 0])
    reader = Hdf5Reader(tmp_path / "a.h5")
    fill = reader.filler_of_blocks(matrix)
    assert (fill is not None) == (element == matrix)
    rows, cols = slice(13, 77), slice(250, 600)
    wanted = encode(reader.read(rows, cols), matrix)
    if fill is not None:
        found = np.zeros((64, 400), wanted.dtype)
        fill(rows, cols, found[:, :350])
        np.testing.assert_array_equal(found[:, :350], wanted)
        assert not found[:, 350:].any()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("stream") / "susy.h5"
    write_synthetic(path, "susy", 6000, 18, 0)
    return path


def config_for(data, memory, **sections):
    tables = {
        "data": {"path": str(data)},
        "sampling": {"mode": "blocks", "block": 64, "window": 4},
        "schedule": {"batch": 16, "steps": 4, "epochs": 3},
        "run": {"memory": memory, "evaluate_every": 1},
        "rate": {"value": 0.1},
    }
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}
    return RunConfig.parse(what_is_read(tables, "sampling"))


FACTORS = {
    "product": ["direct", "gram", "gather", "look-ahead"],
    "recipe": ["fp64", "fp32", "c"],
    "grid": [(1, 1), (1, 3), (2, 2)],
    "update": ["sgd", "momentum"],
}


def counted(monkeypatch):
    """The matrices that are streamed from here on."""
    made = []
    begin = StreamedMatrix.__init__

    def counting(self, *arguments):
        made.append(self)
        begin(self, *arguments)

    monkeypatch.setattr(StreamedMatrix, "__init__", counting)
    return made


@pytest.mark.parametrize("element", ["fp32", "fp16"])
@pytest.mark.parametrize("matrix", ["fp16", "fp8-e4m3"])
def test_streamed_rows_are_scaled_as_rows_in_memory(
    element, matrix, tmp_path, monkeypatch
):
    """A file that holds fp16 may not be copied as it is; values are counted once."""
    values = np.random.default_rng(0).normal(size=(900, 6)) * [1, 1e-3, 30, 1, 5, 1]
    with StoreWriter(tmp_path / "a.h5", StoreLayout(6, element=element)) as writer:
        writer.append(values, (values[:, 0] > 0).astype(float))
    tables = {"precision": {"matrix": matrix, "scale": "none"}, "rate": {"value": 1e-4}}
    config = config_for(tmp_path / "a.h5", 0.0, products={"kind": "gram"}, **tables)
    for scale in ("none", "column"):
        precision = replace(config.precision, scale=scale)
        scaled, results = replace(config, precision=precision), []
        for streams in (False, True):
            monkeypatch.setattr(
                "hpcsgd.runs.opened_run.check_memory", lambda *a, s=streams: s
            )
            results.append(run_ranks(2, lambda w, c=scaled: train(c, world=w))[0])
        memory, file = results
        assert memory.weights_sha256 == file.weights_sha256
        lost = [r.report["matrix_flushed"] for r in results]
        flushes = scale == "none" and matrix == "fp8-e4m3"
        assert lost[0] == lost[1] and (lost[0] > 0) == flushes


@pytest.mark.cases(2)
@pytest.mark.parametrize("case", pairwise(FACTORS), ids=str)
def test_streamed_runs_have_the_bits_of_runs_in_memory(case, data, monkeypatch):
    look_ahead = case["product"] == "look-ahead"
    config = config_for(
        data,
        0.0,
        products={
            "kind": "gram" if look_ahead else case["product"],
            "look_ahead": "on" if look_ahead else "off",
        },
        precision={"recipe": case["recipe"]},
        grid={"replicas": case["grid"][0], "members": case["grid"][1]},
        update={"kind": case["update"]},
    )
    ranks = case["grid"][0] * case["grid"][1]
    made, results = counted(monkeypatch), []
    for streams in (False, True):
        monkeypatch.setattr(
            "hpcsgd.runs.opened_run.check_memory", lambda *a, s=streams: s
        )
        results.append(run_ranks(ranks, lambda world: train(config, world=world))[0])
    assert len(made) == ranks
    memory, file = results
    assert memory.weights_sha256 == file.weights_sha256
    assert memory.loss == pytest.approx(file.loss, rel=1e-12)
    assert memory.report["data_fingerprint"] == file.report["data_fingerprint"]
    assert not any(thread.name == "stream" for thread in threading.enumerate())


def test_a_streamed_run_goes_on_bit_for_bit(data, tmp_path, monkeypatch):
    from tests.helpers.resumed import PreemptAt

    monkeypatch.setattr("hpcsgd.runs.opened_run.check_memory", lambda *a: True)

    def run(folder, stop_at=None):
        out = {"out": str(tmp_path / folder), "resume": "auto", "check_every": 1}
        config = config_for(data, 0.0, run=out)
        callbacks = [PreemptAt(stop_at)] if stop_at else []
        return train(config, callbacks=callbacks)

    whole = run("whole")
    assert run("parts", stop_at=130).exchanges == 130
    again = run("parts")
    assert again.report["resumes"] == 1
    assert again.weights_sha256 == whole.weights_sha256


def test_blocks_mix_well_enough(data):
    """After as many epochs, the loss of rows shuffled by windows is that of rows
    shuffled as a whole: the file's order carries no information here."""
    losses = {}
    for mode in ("blocks", "reshuffle"):
        config = config_for(data, 0.0, sampling={"mode": mode}, schedule={"epochs": 8})
        losses[mode] = train(config).loss
    assert losses["blocks"] == pytest.approx(losses["reshuffle"], rel=5e-3)


def test_sorted_labels_are_mixed_across_windows(tmp_path):
    """The worst file: all of one class first. Windows draw blocks from everywhere."""
    import h5py

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(6000, 5))
    y = (rows @ rng.normal(size=5) + rng.normal(size=6000) > 0).astype(float)
    order = np.argsort(y, kind="stable")
    with h5py.File(tmp_path / "sorted.h5", "w") as file:
        file["X"], file["y"] = rows[order], y[order]
    losses = {}
    for mode in ("blocks", "reshuffle"):
        config = config_for(
            tmp_path / "sorted.h5",
            0.0,
            sampling={"mode": mode, "block": 64, "window": 16},
            schedule={"epochs": 8},
        )
        losses[mode] = train(config).loss
    assert losses["blocks"] == pytest.approx(losses["reshuffle"], rel=2e-2)


RSS = """
import resource, sys
import hpcsgd, hpcsgd.api, h5py, scipy.special
from hpcsgd.cli.parser import run
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
before = peak()
code = run(sys.argv[1:])
print(f"PEAK {peak() - before}", file=sys.stderr)
sys.exit(code)
"""


def test_a_file_four_times_as_large_as_the_memory(tmp_path):
    """64 MiB allowed, 256 MiB of values: at most 100 MiB more than that are taken."""
    path = tmp_path / "large.h5"
    write_synthetic(path, "synth", 67_200, 1000, 0)
    assert path.stat().st_size > 4 * 64 * 2**20
    flags = ["train", "--data", path, "--sampling", "blocks", "--memory", "164MiB"]
    flags += ["--set", "sampling.block=256", "--set", "sampling.window=4"]
    flags += ["--products", "direct", "--batch", 64, "--steps", 4, "--json"]
    done = subprocess.run(
        [sys.executable, "-c", RSS, *map(str, flags)],
        capture_output=True,
        text=True,
        timeout=HANG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    peak = int(re.search(r"PEAK (\d+)", done.stderr)[1])
    assert peak <= 164, peak


def test_what_does_not_fit_either_way_is_refused(data):
    for mode in ("reshuffle", "blocks"):
        with pytest.raises(ConfigError, match="out of memory before anything"):
            train(config_for(data, 0.001, sampling={"mode": mode}))


def test_a_window_must_hold_an_exchange(data, monkeypatch):
    monkeypatch.setattr("hpcsgd.runs.memory.SCAN_BYTES", 3 * 4096)
    monkeypatch.setattr("hpcsgd.runs.memory.process_bytes", lambda: 0)
    sampling = {"mode": "blocks", "block": 8, "window": 4}
    with pytest.raises(ConfigError, match="needs a window of as many"):
        train(config_for(data, 0.00102, sampling=sampling))

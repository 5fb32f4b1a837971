"""Parts of `make gpu` that hang, die or spoil the GPU take no others with them."""

import json
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import bench_gpu
from benchmarks.gpu import prepare, sanitizer, worker
from hpcsgd.backends.cuda.kernels import build_of
from hpcsgd.errors import MissingPackage
from tests.helpers import strict_cupy

STUB = """
import json, os, signal, subprocess, sys, time
names = sys.argv[sys.argv.index("--only") + 1 :]
tell = lambda **told: print(json.dumps(told), flush=True)
if names[0] == "ddp":
    sys.exit(2)
tell(facts={"gpu": "A GPU", "first": names[0]})
for name in names:
    if name == "exchange":
        own = subprocess.Popen(["sleep", "600"])
        open(sys.argv[1], "w").write(str(own.pid))
        time.sleep(600)
    if name == "kernels":
        os.kill(os.getpid(), signal.SIGSEGV)
    figure = {"name": name, "says": "it", "reached": 1.0}
    lost = name == "ceilings"
    tell(name=name, figures=[figure], seconds=1.5, state="hot", lost=lost)
    if lost:
        sys.exit(0)
"""


@pytest.fixture
def stub(tmp_path, monkeypatch):
    """A worker that has no GPU and does as its parts are called."""
    path = tmp_path / "stub.py"
    path.write_text(STUB)
    command = [sys.executable, str(path), str(tmp_path / "pid")]
    monkeypatch.setattr(worker, "COMMAND", command)
    # What hangs is the second part of its worker, whose start may take its time.
    limits = {"exchange": 1.5}
    monkeypatch.setattr(bench_gpu, "time_limit", lambda name: limits.get(name, 60.0))
    return tmp_path


def run(folder, capsys, *names):
    out = folder / "gpu.json"
    code = bench_gpu.main(["--out", str(out), "--only", *names])
    return code, out, capsys.readouterr().out


def test_every_other_part_is_measured(stub, capsys):
    names = ("gram-small", "exchange", "kernels", "ceilings", "gram-large")
    code, out, said = run(stub, capsys, *names)
    found = json.loads(out.read_text())
    figures = {one["name"]: one for one in found["figures"]}
    assert code == 1 and list(figures) == list(names)
    failed = {name: one["failure"] for name, one in figures.items() if one["failure"]}
    assert failed == {
        "kernels": "it ended its process with code -11",
        "exchange": "it was ended: not done after 1.5 s",
    }
    machine = found["machine"]
    assert machine["first"] == "gram-small" and machine["seconds"]["ceilings"] == 1.5
    assert machine["state_after"] == "hot" and "2 of 5 not met" in said
    assert is_gone(int((stub / "pid").read_text()))


def test_a_worker_ends_with_whoever_listens(stub, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(worker.Worker, "next_line", interrupted)
    ended, end = [], worker.Worker.end
    monkeypatch.setattr(worker.Worker, "end", lambda self: ended.append(end(self)))
    with pytest.raises(KeyboardInterrupt):
        run(stub, capsys, "exchange")
    assert ended == [-9]


def is_gone(number):
    """What a worker has started ends with it; whoever reaps it may take a moment."""
    for _ in range(100):
        try:
            if "\nState:\tZ" in Path(f"/proc/{number}/status").read_text():
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


def test_without_a_gpu_nothing_is_written(stub, capsys):
    code, out, _ = run(stub, capsys, "ddp", "ceilings")
    assert code == 2 and not out.exists()


def test_a_gpu_that_does_not_come_back_fails_the_rest(stub, capsys):
    code, out, _ = run(stub, capsys, "ceilings", "ddp", "gram-small")
    figures = json.loads(out.read_text())["figures"]
    assert code == 1 and [one["met"] for one in figures] == [True, False, False]
    assert figures[2]["failure"] == "the GPU cannot be opened any more"


def test_minutes_count_from_when_the_caller_began(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(bench_gpu, "apart", lambda *all_of: given.append(all_of) or [])
    since = str(time.time() - 120)
    assert bench_gpu.main(["--since", since, "--only", "ddp"]) == 2
    ((names, minutes, limit),) = given
    assert names == ["ddp"] and 5.9 < minutes <= 6
    assert limit("memcheck") > sanitizer.LIMIT > limit("ddp")


def test_a_sanitizer_ends_when_its_time_is_over(tmp_path, monkeypatch):
    """And is told what to watch: nothing that CuPy expects to fail."""
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(f"#!/bin/sh\necho $@ > {tmp_path}/said\nexec sleep 600\n")
    tool.chmod(0o755)
    monkeypatch.setattr(sanitizer, "places", lambda: iter([tool]))
    assert sanitizer.checked("memcheck", 3.0).failure == "not done in 3 s"
    said = (tmp_path / "said").read_text()
    assert said.startswith("--tool memcheck --report-api-errors no --error-exitcode 86")
    limits, bench = [], SimpleNamespace(left=100.0)
    monkeypatch.setattr(sanitizer, "checked", lambda name, limit: limits.append(limit))
    for bench.left in (1000.0, 100.0, 5.0):
        sanitizer.tool_named("racecheck")(bench)
    assert limits == [300, 160, 65]


def test_what_parts_print_is_no_line_of_theirs():
    text = (
        "import os; from benchmarks.gpu import worker\n"
        "with worker.own_line() as line:\n"
        "    print('by a part', flush=True); os.system('echo by a child')\n"
        "    worker.tell({'name': 'a'}, line)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, cwd=worker.ROOT
    )
    assert done.stdout == '{"name": "a"}\n', done.stderr
    assert "by a part" in done.stderr and "by a child" in done.stderr


@pytest.fixture
def cupy(monkeypatch):
    """One GPU that is made of NumPy, and two kernels for it."""
    found = strict_cupy.install(monkeypatch)
    two = [build_of(name, "bf16", "90") for name in ("margin", "round")]
    monkeypatch.setattr(prepare, "all_builds", lambda arch: two)
    monkeypatch.setattr(prepare, "build_host_kernels", lambda: None)
    return found


def test_all_kernels_are_compiled_beforehand(cupy, monkeypatch, capsys):
    used = []
    monkeypatch.setattr(strict_cupy.Device, "use", lambda self: used.append(self.id))
    assert prepare.main([]) == 0
    made = {name for name, _ in strict_cupy.RawModule.made}
    assert made == {"margin", "round_values"} and len(used) >= 3
    assert "2 of 2 kernels" in capsys.readouterr().err


def test_a_kernel_that_is_refused_is_said(cupy, monkeypatch, capsys):
    get = strict_cupy.RawModule.get_function

    def refuse(module, name):
        if name == "margin":
            raise strict_cupy.CompileException("no such type\nand more")
        return get(module, name)

    monkeypatch.setattr(strict_cupy.RawModule, "get_function", refuse)
    assert prepare.main([]) == 0
    said = capsys.readouterr().err
    assert "kernel margin for sm_90 (no such type)" in said and "1 of 2" in said


def test_a_gpu_that_cannot_be_opened_is_one_sentence(cupy, monkeypatch, capsys):
    def fail(*_):
        raise strict_cupy.CUDARuntimeError("cudaErrorDevicesUnavailable: busy")

    monkeypatch.setattr(strict_cupy.Device, "use", fail)
    assert prepare.main([]) == 2
    said = capsys.readouterr().err
    assert said.startswith("gpu: GPU 0 of ") and "busy" in said
    assert len(said.splitlines()) == 1


def test_cupy_is_installed_once(monkeypatch, capsys):
    called = []

    def run(command, **_):
        called.append(command[2:])
        return subprocess.CompletedProcess(command, 0)

    def missing():
        raise MissingPackage("a GPU needs CuPy")

    monkeypatch.setattr(prepare, "load_cupy", missing)
    monkeypatch.setattr(prepare, "driver_major", lambda: 13)
    monkeypatch.setattr(prepare.subprocess, "run", run)
    assert prepare.main([]) == 0
    assert called[0][:3] == ["pip", "install", "-q"] and len(called) == 2
    assert prepare.main([prepare.INSTALLED]) == 2 and len(called) == 2
    assert capsys.readouterr().err.endswith("gpu: a GPU needs CuPy\n")

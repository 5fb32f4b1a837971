"""Parts of `make gpu` that hang, die or spoil the GPU take no others with them."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import bench_gpu
from benchmarks.gpu import sanitizer, worker

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
    monkeypatch.setattr(bench_gpu, "_limit", lambda name: 2.0)
    return tmp_path


def run(folder, capsys, *names):
    out = folder / "gpu.json"
    code = bench_gpu.main(["--out", str(out), "--only", *names])
    return code, out, capsys.readouterr().out


def test_every_other_part_is_measured(stub, capsys):
    names = ("gram-small", "kernels", "ceilings", "exchange", "gram-large")
    code, out, said = run(stub, capsys, *names)
    found = json.loads(out.read_text())
    figures = {one["name"]: one for one in found["figures"]}
    assert code == 1 and list(figures) == list(names)
    failed = {name: one["failure"] for name, one in figures.items() if one["failure"]}
    assert failed == {
        "kernels": "it ended its process with code -11",
        "exchange": "it was ended: not done after 2 s",
    }
    machine = found["machine"]
    assert machine["first"] == "gram-small" and machine["seconds"]["ceilings"] == 1.5
    assert machine["state_after"] == "hot" and "2 of 5 not met" in said
    assert is_gone(int((stub / "pid").read_text()))


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


def test_minutes_count_from_when_the_caller_began(monkeypatch, tmp_path):
    given = []
    monkeypatch.setattr(bench_gpu, "apart", lambda *all_of: given.append(all_of) or [])
    since = str(time.time() - 120)
    assert bench_gpu.main(["--since", since, "--only", "ddp"]) == 2
    ((names, minutes, limit),) = given
    assert names == ["ddp"] and 5.9 < minutes <= 6
    assert limit("memcheck") > sanitizer.LIMIT > limit("ddp")


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

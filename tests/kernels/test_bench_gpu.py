"""The whole of `make gpu`'s figures without a GPU: CuPy of NumPy, emulated kernels.

What is measured here is nothing; that everything is called as CuPy has it, and that a
part which fails leaves the others, is what a loan of a GPU would else be spent on.
"""

import json
import re
import sys

import pytest

from benchmarks import bench_gpu
from benchmarks.gpu import every_kernel, exchanges, gram_wgmma, sanitizer
from benchmarks.gpu.figure import Figure, table
from benchmarks.gpu.sizes import CASES, Case, Sizes
from hpcsgd.backends.cuda import device, driver, kernels
from hpcsgd.backends.cuda.kernels import VARIANTS
from tests.helpers import strict_cupy

TINY = Sizes(
    turns=1,
    least=1e-6,
    copy_bytes=4096,
    square=64,
    height=256,
    batch=8,
    small=(70, 40),
    large=(130, 48),
    tall=(96, 40),
    wide=(40, 200),
    rotate_bytes=10_000,
    most_sets=2,
    exchange=(8, 4, 40),
    epochs=1,
    sgd_turns=1,
    cases=tuple(Case(c.shape, c.family, c.rate, 128) for c in CASES),
)


@pytest.fixture
def cupy(monkeypatch):
    """This one is found, and no GPU that another test has opened."""
    device.opened.devices.clear()
    yield strict_cupy.install(monkeypatch)
    device.opened.devices.clear()


@pytest.fixture
def no_sanitizer(monkeypatch):
    """Whatever this machine has."""
    monkeypatch.setattr(sanitizer, "places", lambda: iter(()))


def run(tmp_path, *given, sizes=TINY):
    """(exit code, what the file says)."""
    out = tmp_path / "gpu.json"
    code = bench_gpu.main(["--out", str(out), *given], sizes)
    return code, json.loads(out.read_text())


def named(found):
    return {figure["name"]: figure for figure in found["figures"]}


@pytest.mark.full
def test_all_figures_are_measured(cupy, no_sanitizer, tmp_path, capsys):
    code, found = run(tmp_path, "--minutes", "60")
    figures = named(found)
    failed = {n: f["failure"] for n, f in figures.items() if f["failure"]}
    assert set(failed) == set(sanitizer.TOOLS), failed
    assert all("pip install nvidia-cuda-sanitizer-api" in f for f in failed.values())
    assert code == 1
    shapes = [
        f"{case.shape} {what}"
        for case in CASES
        for what in ("naive", "plain", "+12us", "+30us", "loss")
    ]
    assert set(figures) == {
        *("kernels", "copy", "bf16", "gram small", "gram large", "gram large rate"),
        *(
            "ddp",
            "ddp by the host",
            "offload",
            "offload, late",
            "zero2",
            "zero3",
            "exchange",
            "margin tall",
            "update tall",
            "margin wide",
            "update wide",
        ),
        *(*shapes, *sanitizer.TOOLS),
    }
    assert figures["kernels"]["reached"] == 0
    assert all(figures[name]["met"] for name in shapes if name.endswith("loss"))
    assert found["machine"]["gpu"] == "Made of NumPy"
    assert found["machine"]["arch"] == "90"
    printed = capsys.readouterr().out
    assert all(name in printed for name in figures) and "not met" in printed


def test_the_fairness_of_the_gram_is_written_down(cupy, tmp_path):
    """Every way of theirs was timed, and what each multiplies is counted."""
    _, found = run(tmp_path, "--only", "gram-large")
    details = named(found)["gram large"]["details"]
    ways = {f"{a} + {b}" for a in ("take", "gather_rows")
            for b in ("gemmEx + gemv", "one gemmEx")}  # fmt: skip
    assert set(details["us"]) == {"ours", "ours by cuBLAS", *ways}
    assert details["theirs"] in ways
    best = min(details["us"][way]["median"] for way in ways)
    assert details["us"][details["theirs"]]["median"] == best
    assert details["operations"]["theirs"] == 2 * 130 * 130 * 48
    assert (
        details["operations"]["ours"] == 2 * 5 * 64 * 64 * 48
    )  # the last is one batch


def test_an_exchange_is_one_graph_launch_with_nccl_in_it(cupy, tmp_path, monkeypatch):
    _, found = run(tmp_path, "--only", "exchange")
    figure = named(found)["exchange"]
    assert "NCCL of one rank" in figure["says"] and strict_cupy.Graph.launches > 2
    assert strict_cupy.NcclCommunicator.sums == 2  # once at once, once recorded
    monkeypatch.setattr(cupy.cuda.nccl, "available", False)
    _, found = run(tmp_path, "--only", "exchange")
    figure = named(found)["exchange"]
    assert "left out (CuPy finds no NCCL)" in figure["says"]
    assert figure["details"]["counted"] == "alone"


def test_a_part_that_fails_leaves_the_others(cupy, tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("cudaErrorIllegalAddress\nand more")

    monkeypatch.setattr(exchanges, "Epoch", fail)
    code, found = run(tmp_path, "--only", "exchange", "ceilings")
    figures = named(found)
    assert code == 1 and figures["copy"]["reached"] > 0
    assert figures["exchange"]["failure"] == "RuntimeError: cudaErrorIllegalAddress"


def test_the_file_is_there_after_every_part(cupy, tmp_path, monkeypatch):
    """A loan may end: what was measured before stays."""

    def end(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(exchanges, "Epoch", end)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, "--only", "ceilings", "exchange")
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert set(named(found)) == {"copy", "bf16"}


def test_no_part_begins_when_time_is_over(cupy, tmp_path):
    code, found = run(tmp_path, "--minutes", "-1", "--only", "ceilings")
    assert code == 1
    assert "use --only ceilings" in named(found)["ceilings"]["failure"]


def test_wrong_products_have_no_figure(cupy, tmp_path, monkeypatch):
    gemm = device.CudaDevice.gemm_bf16

    def off(self, out, left, right):
        gemm(self, out, left, right)
        out.held[...] *= 1.01

    monkeypatch.setattr(device.CudaDevice, "gemm_bf16", off)
    _, found = run(tmp_path, "--only", "gram-small")
    assert "differ by 0.01" in named(found)["gram-small"]["failure"]


def large_tiles(monkeypatch):
    """For small exchanges, too."""
    monkeypatch.setattr(kernels, "LARGE_ROWS", 128)
    monkeypatch.setattr(kernels, "LARGE_COLS", 32)


def by_itself(monkeypatch, text):
    """What the kernel does in a process of its own."""
    monkeypatch.setattr(gram_wgmma, "ALONE_COMMAND", [sys.executable, "-c", text])


@pytest.mark.full
def test_products_of_warpgroups_are_measured_beside_ours(cupy, tmp_path, monkeypatch):
    large_tiles(monkeypatch)
    by_itself(monkeypatch, "pass")
    _, found = run(tmp_path, "--only", "gram-wgmma")
    figure = named(found)["gram large wgmma"]
    assert figure["reached"] > 0 and not figure["failure"]
    assert set(figure["details"]["us"]) == {"ours", "wgmma", "cublas"}
    by_itself(monkeypatch, "print('an illegal instruction'); raise SystemExit(3)")
    code, found = run(tmp_path, "--only", "gram-wgmma")
    failure = named(found)["gram large wgmma"]["failure"]
    assert code == 1 and "ended with 3: an illegal instruction" in failure


def test_gpus_without_warpgroups_have_no_such_figure(cupy, tmp_path, monkeypatch):
    large_tiles(monkeypatch)
    monkeypatch.setattr(strict_cupy.Device, "compute_capability", "100")
    code, found = run(tmp_path, "--only", "gram-wgmma")
    assert code == 0 and not found["figures"]


def test_what_no_gpu_has_run_is_asked_for_late(cupy):
    """What follows a fault in a process is lost; sanitizers take longest."""
    last = list(bench_gpu.parts(TINY))[-1 - len(sanitizer.TOOLS) :]
    assert last == ["gram-wgmma", *sanitizer.TOOLS]
    assert list(every_kernel.calls())[-1:] == list(every_kernel.ALONE)
    assert not set(every_kernel.ALONE) & set(every_kernel.proved())


def test_without_a_gpu_it_says_so(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(driver, "driver_major", lambda: None)
    assert bench_gpu.main(["--out", str(tmp_path / "x.json")], TINY) == 2
    assert "no NVIDIA driver is here" in capsys.readouterr().err


@pytest.mark.full
def test_every_kernel_of_the_table_is_launched(cupy, capsys):
    """The driver that compute-sanitizer watches leaves none out."""
    assert every_kernel.main() == 0
    said = capsys.readouterr().out
    assert int(re.search(r"launched (\d+) kernels", said)[1]) > 20
    entries = {name for name, _ in strict_cupy.RawModule.made}
    table = [variant for variants in VARIANTS.values() for variant in variants]
    assert entries == {variant.entry or variant.source for variant in table}


@pytest.mark.parametrize(
    "code, text, reached, failure",
    [
        (0, "launched 40 kernels, 0 of 9\n===== ERROR SUMMARY: 0 errors", 0, ""),
        (86, "launched 40 kernels, 0 of 9\n===== ERROR SUMMARY: 3 errors", 3, ""),
        (86, "launched 4 kernels\n= RACECHECK SUMMARY: 2 hazards displayed", 2, ""),
        (3, "launched 40 kernels, 1 of 9\n===== ERROR SUMMARY: 0 errors", 0, ""),
        (0, "===== ERROR SUMMARY: 0 errors", None, "ended with 0 and no summary"),
        (1, "no such device", None, "ended with 1 and no summary: no such device"),
    ],
)
def test_a_sanitizer_is_read(code, text, reached, failure):
    found = sanitizer.judged("memcheck", "", code, text)
    assert found.reached == reached and failure in found.failure
    assert found.is_met == (reached == 0)


def test_a_table_says_what_was_missed():
    figures = [
        Figure("a", "of it", 2.0, reached=2.5, unit="x"),
        Figure("b", "of it", 2.0, True, reached=2.5),
        Figure("c", "", failure="it broke"),
    ]
    _, *lines = table(figures).splitlines()
    assert "met" in lines[0] and ">= 2" in lines[0] and "<= 2" in lines[1]
    assert "missed" in lines[1] and "FAILED" in lines[2] and "it broke" in lines[3]

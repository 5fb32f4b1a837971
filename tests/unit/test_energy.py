"""Energy: counters that begin again, are hidden, or are shared by ranks of a node."""

import ctypes
import os
from pathlib import Path

import pytest

from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.runs import energy
from hpcsgd.runs.energy import (
    Counter,
    EnergyMeter,
    EnergyReport,
    Gain,
    make_meter,
    rapl,
    total,
)
from tests.helpers.harness import config_for, make_problem

RANGE = 262_143_328_850  # what servers say


def domain(tree, number, name, count, period=RANGE):
    folder = tree / f"intel-rapl:{number}"
    folder.mkdir(parents=True)
    (folder / "name").write_text(f"{name}\n")
    (folder / "energy_uj").write_text(f"{count}\n")
    (folder / "max_energy_range_uj").write_text(f"{period}\n")
    return folder / "energy_uj"


@pytest.fixture
def tree(tmp_path):
    """Two packages, one with a domain inside, and a platform counter over all."""
    domain(tmp_path, 0, "package-0", 1_000_000)
    domain(tmp_path, "0:0", "core", 7)
    domain(tmp_path, 1, "package-1", RANGE - 500_000)
    domain(tmp_path, 2, "psys", 99)
    return tmp_path


class Ticks:
    """A clock that says what it is told."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def test_packages_alone_are_counted_and_may_begin_again(tree):
    counters = rapl("here", tree)
    assert [c.name for c in counters] == ["package-0", "package-1"]
    meter = EnergyMeter(counters)
    meter.resume()
    (tree / "intel-rapl:0" / "energy_uj").write_text("4000000")
    (tree / "intel-rapl:1" / "energy_uj").write_text("1500000")  # went round
    meter.pause()
    assert meter.joules == [pytest.approx(3.0), pytest.approx(2.0)]
    found, why = total([meter.report()])
    assert found["joules"] == pytest.approx(5.0) and not why
    assert found["source"] == "rapl" and found["nodes"] == 1


def test_the_second_interface_to_a_package_counts_nothing_twice(tree):
    domain(tree, "x", "package-0", 5)
    (tree / "intel-rapl:x").rename(tree / "intel-rapl-mmio:0")
    assert [c.name for c in rapl("here", tree)] == ["package-0", "package-1"]


def test_nothing_is_counted_while_paused(tree):
    file, clock = tree / "intel-rapl:0" / "energy_uj", Ticks()
    meter = EnergyMeter(rapl("here", tree), clock=clock)
    meter.resume()
    file.write_text("2000000")
    clock.now = 3.0
    meter.pause()
    file.write_text("9000000")  # an evaluation
    clock.now = 10.0
    meter.resume()
    file.write_text("9500000")
    clock.now = 11.0
    meter.pause()
    assert meter.joules[0] == pytest.approx(1.5)
    assert meter.seconds == pytest.approx(4.0)


def test_long_runs_see_every_turn_of_the_counter(tmp_path):
    file, clock = domain(tmp_path, 0, "package-0", 0, period=10_000_000), Ticks()
    meter = EnergyMeter(rapl("here", tmp_path), clock=clock)
    meter.resume()
    for count in (8, 6, 4, 2):  # +8, then three times once round less two
        clock.now += 30
        file.write_text(str(count * 1_000_000))
        meter.count_if_due()
    meter.pause()
    assert meter.joules[0] == pytest.approx(8 + 3 * 8)
    assert meter.seconds == 120.0


def test_readings_are_rare():
    reads = []
    counter = Counter("n", "c", "rapl", lambda: reads.append(1) or len(reads), 1.0)
    clock = Ticks()
    meter = EnergyMeter([counter], clock=clock)
    meter.resume()
    for _ in range(1000):
        clock.now += 0.001
        meter.count_if_due()
    assert len(reads) == 1


def test_a_counter_that_goes_back_without_a_period_is_no_energy(tmp_path):
    file = domain(tmp_path, 0, "package-0", 500, period="")
    meter = EnergyMeter(rapl("here", tmp_path))
    meter.resume()
    file.write_text("400")
    meter.pause()
    found, why = total([meter.report()])
    assert found is None and "went back from 500 to 400" in why


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_named(tree):
    (tree / "intel-rapl:0" / "energy_uj").chmod(0)
    meter = make_meter("", {}, tree)
    assert "intel-rapl:0/energy_uj" in meter.reason and "chmod" in meter.reason


def test_a_file_that_cannot_be_read_is_named(tree, monkeypatch):
    """As for users who are not root: Linux shows the file to root alone."""
    real = Path.read_text

    def refuse(path, *more):
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied")
        return real(path, *more)

    monkeypatch.setattr(Path, "read_text", refuse)
    meter = make_meter("", {}, tree)
    found, why = total([meter.report()])
    assert found is None and "Permission denied" in why and "chmod a+r" in why
    assert "intel-rapl:0/energy_uj" in why


def test_a_counter_that_goes_away_is_no_energy(tree):
    meter = EnergyMeter(rapl("here", tree))
    meter.resume()
    (tree / "intel-rapl:1" / "energy_uj").unlink()
    meter.pause()
    found, why = total([meter.report()])
    assert found is None and "cannot be read any more" in why


def test_a_machine_without_counters_says_so(tmp_path):
    found, why = total([make_meter("", {}, tmp_path).report()])
    assert found is None and str(tmp_path) in why


def test_one_rank_of_a_node_reads(tree):
    first = make_meter("", {"MPI_LOCALRANKID": "0"}, tree)
    second = make_meter("", {"MPI_LOCALRANKID": "1"}, tree)
    assert len(first.counters) == 2 and second.counters == () and not second.reason


def said(node, joules, name="package-0", seconds=2.0, reason=""):
    gains = () if reason else (Gain(node, name, "rapl", joules),)
    return EnergyReport(gains, seconds, reason)


def test_nodes_add_up_and_ranks_of_one_node_do_not():
    found, _ = total([said("a", 3.0), said("a", 3.1), said("b", 4.0)])
    assert found["joules"] == pytest.approx(7.1)
    assert found["nodes"] == 2 and found["seconds"] == 2.0


def test_a_node_without_leaves_no_sum():
    found, why = total([said("a", 3.0), said("b", 0, reason="no counter here")])
    assert found is None and why == "no counter here"


class FakeNvml:
    """The four calls of NVML that are used."""

    def __init__(self, code=0):
        self.count, self.code, self.asked = 1000, code, None
        self.nvmlErrorString = lambda code: b"Not Supported"

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetHandleByPciBusId_v2(self, address, handle):
        self.asked = address.value
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, count):
        ctypes.cast(count, ctypes.POINTER(ctypes.c_ulonglong))[0] = self.count
        return self.code


def test_a_gpu_is_asked_by_its_address(tree, monkeypatch):
    library = FakeNvml()
    monkeypatch.setattr(energy, "open_library", lambda: library)
    meter = make_meter("0000:1B:00.0", {"MPI_LOCALRANKID": "1"}, tree)
    meter.resume()
    library.count = 3500
    meter.pause()
    assert library.asked == b"0000:1B:00.0"
    both, _ = total([meter.report(), said("elsewhere", 1.0)])
    assert both["joules"] == pytest.approx(3.5) and both["source"] == "nvml+rapl"


def test_a_gpu_that_cannot_say_is_a_reason(tree, monkeypatch):
    monkeypatch.setattr(energy, "open_library", lambda: FakeNvml(code=3))
    assert "Not Supported" in make_meter("0000:1B:00.0", {}, tree).reason


def trained(monkeypatch, ranks=2):
    """A run whose counter gains a joule whenever it is read."""
    reads = []

    def read():
        reads.append(None)
        return len(reads) * 1_000_000

    def counters(node, powercap):
        return [Counter(node, "package-0", "rapl", read, 1e-6)]

    monkeypatch.setattr(energy, "rapl", counters)
    problem = make_problem("logistic")
    config = config_for(problem, run={"evaluate_every": 1})
    results = run_ranks(
        ranks, lambda world: train(config, X=problem.X, y=problem.y, world=world)
    )
    return results, reads


def test_a_run_says_it_in_its_report_and_evaluations_are_left_out(monkeypatch):
    (result,), reads = trained(monkeypatch, ranks=1)
    # Two epochs: from begin to loss, from loss to loss, from there to the end.
    assert len(reads) == 6
    assert result.report["energy"]["joules"] == pytest.approx(3.0)
    assert result.report["energy"]["nodes"] == 1
    assert result.report["energy_reason"] == ""


def test_no_message_more_is_sent_for_it(tmp_path, monkeypatch):
    """It travels with the resident set; the ranks are threads of one node."""
    results, _ = trained(monkeypatch)
    calls = results[0].ledger["control"]["calls"]
    monkeypatch.setattr(energy, "rapl", lambda node, powercap: rapl(node, tmp_path))
    problem = make_problem("logistic")
    config = config_for(problem, run={"evaluate_every": 1})
    plain = run_ranks(
        2, lambda world: train(config, X=problem.X, y=problem.y, world=world)
    )
    assert plain[0].report["energy"] is None
    assert plain[0].report["energy_reason"]
    assert plain[0].ledger["control"]["calls"] == calls
    assert results[0].report["energy"] == results[1].report["energy"]
    assert results[0].report["energy"]["nodes"] == 1


def test_every_record_of_the_history_knows_the_words_so_far():
    problem = make_problem("logistic")
    config = config_for(problem, run={"evaluate_every": 1})
    result = run_ranks(
        2, lambda world: train(config, X=problem.X, y=problem.y, world=world)
    )[0]
    words = [record["words"] for record in result.history]
    assert words[0] == 0 and words == sorted(words)
    assert words[-1] == result.ledger["products"]["words"]

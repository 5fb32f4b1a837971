"""Energy to solution, as processors and GPUs count it."""

import ctypes
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from typing import Any

from hpcsgd.comm.gpu import local_place

# The energy that an NVIDIA GPU has used, as its driver's library counts it.

LIBRARY = "libnvidia-ml.so.1"  # comes with the driver, not with a package


def gpu_counter(address: str, library: Any = None) -> Callable[[], int]:
    """Return a function that reads the millijoules used by a GPU.

    They count from the start of its driver. `address` is the PCI bus address of the
    GPU. OSError is raised if its counter cannot be read.
    """
    nvml = library or open_library()
    _check(nvml, nvml.nvmlInit_v2(), "opened")
    handle = ctypes.c_void_p()
    status = nvml.nvmlDeviceGetHandleByPciBusId_v2(
        ctypes.c_char_p(address.encode()), ctypes.byref(handle)
    )
    _check(nvml, status, f"asked for the GPU {address}")

    def read() -> int:
        count = ctypes.c_ulonglong()
        code = nvml.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(count))
        _check(nvml, code, f"asked for the energy of the GPU {address}")
        return int(count.value)

    read()
    return read


def open_library() -> Any:
    """Return the library of the NVIDIA driver; raise OSError if it cannot be loaded."""
    try:
        return ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise OSError(f"{LIBRARY} cannot be loaded ({error})") from error


def _check(nvml: Any, code: int, what: str) -> None:
    if code:
        nvml.nvmlErrorString.restype = ctypes.c_char_p
        message = nvml.nvmlErrorString(code)
        raise OSError(f"{LIBRARY} cannot be {what}: {(message or b'').decode()}")


# Energy to solution: what processors and GPUs count themselves, while a run trains.
#
# Every rank that reads counters reports their gains by name; ranks that read the same
# hardware report the same name, which counts once.

POWERCAP = Path("/sys/class/powercap")
BOOT = Path("/proc/sys/kernel/random/boot_id")
PACKAGE = re.compile("intel-rapl.*:.*")  # folders of processors and their parts
# 2^32 counts of 61 microjoules are over after a quarter of an hour at 300 W.
OFTEN = 20.0  # seconds between two readings, at most


@dataclass(frozen=True)
class Counter:
    """A hardware counter of the energy that a processor or GPU has used."""

    node: str
    name: str  # with the node: the same wherever the same hardware is read
    source: str  # rapl or nvml
    read: Callable[[], int]
    joules: float  # of one count
    period: int = 0  # counts after which it begins again at 0; 0 = never

    def gained(self, before: int, after: int) -> float:
        """Return the joules between two readings of the counter.

        A counter with a `period` may have wrapped around once. OSError is raised if
        another one went back.
        """
        counts = after - before
        if counts < 0:
            if not self.period:
                raise OSError(
                    f"the energy counter {self.name} went back from {before} to {after}"
                )
            counts += self.period
        return counts * self.joules


class EnergyMeter:
    """A meter of the energy that this rank's counters measure while it is not paused.

    It is paused in set-up and evaluations.
    """

    def __init__(
        self,
        counters: Sequence[Counter],
        reason: str = "",
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self.counters = tuple(counters)
        self.reason = reason  # why nothing is counted; "" if there is no reason
        self.joules = [0.0] * len(self.counters)
        self.seconds = 0.0
        self._clock = clock
        self._read_at = 0.0
        self._before: list[int] | None = None  # None: paused

    def resume(self) -> None:
        """Start to count: training begins or continues."""
        self._before = self._read()
        self._read_at = self._clock()

    def pause(self) -> None:
        """Stop to count: training pauses or ends."""
        self._count()
        self._before = None

    def count_if_due(self) -> None:
        """Read the counters if the last reading is more than OFTEN seconds old.

        No counter can then wrap around twice between two readings.
        """
        if self._before is not None and self._clock() - self._read_at > OFTEN:
            self._count()

    def report(self) -> "EnergyReport":
        """Return the energy that this rank has measured, to be gathered from all."""
        gains = [
            Gain(c.node, c.name, c.source, joules)
            for c, joules in zip(self.counters, self.joules, strict=True)
        ]
        return EnergyReport(tuple(gains), self.seconds, self.reason)

    def _count(self) -> None:
        if self._before is None:
            return
        after = self._read()
        now = self._clock()
        try:
            for number, counter in enumerate(self.counters):
                gained = counter.gained(self._before[number], after[number])
                self.joules[number] += gained
        except OSError as error:
            self._give_up(str(error))
        self.seconds += now - self._read_at
        self._before = after[: len(self.counters)]
        self._read_at = now

    def _read(self) -> list[int]:
        try:
            return [counter.read() for counter in self.counters]
        except (OSError, ValueError) as error:
            self._give_up(f"a counter of energy cannot be read any more ({error})")
            return []

    def _give_up(self, reason: str) -> None:
        """Stop measuring and store the reason.

        The energy of only some counters, or of some of the time, is of no use.
        """
        self.counters = ()
        self.joules = []
        self.reason = reason


@dataclass(frozen=True)
class Gain:
    """The energy that one counter has measured in training, in joules."""

    node: str
    name: str
    source: str
    joules: float


@dataclass(frozen=True)
class EnergyReport:
    """The energy measured by one rank.

    It has no gains if another rank of the node reads the counters, and a `reason` if a
    counter could not be read.
    """

    gains: tuple[Gain, ...] = ()
    seconds: float = 0.0
    reason: str = ""


def total(everyone: Iterable[EnergyReport]) -> tuple[dict[str, Any] | None, str]:
    """Return (energy of all nodes, ""), or (None, reason) if it is not complete.

    `everyone` are the reports of all ranks.
    """
    ranks = list(everyone)
    reasons = [report.reason for report in ranks if report.reason]
    if reasons:
        return None, reasons[0]  # the energy of some of the nodes is of no use
    gains = {(g.node, g.name): g for report in ranks for g in report.gains}
    if not gains:
        return None, "no rank could read a counter of energy"
    return {
        "joules": sum(gain.joules for gain in gains.values()),
        "source": "+".join(sorted({gain.source for gain in gains.values()})),
        "nodes": len({gain.node for gain in gains.values()}),
        "seconds": max(report.seconds for report in ranks),
    }, ""


def make_meter(
    gpu: str = "",
    environment: Mapping[str, str] = os.environ,
    powercap: Path = POWERCAP,
) -> EnergyMeter:
    """Return the meter of this rank.

    The first rank of each node reads the counters of its processors, and each rank that
    of its GPU. If a counter cannot be read, the meter counts nothing and has the
    reason.

    Parameters
    ----------
    gpu : PCI bus address of the GPU that the rank uses; "" without a GPU
    environment : environment variables, which give the number of the rank on its node
    powercap : folder in which the system shows the counters of processors
    """
    node = _node()
    counters: list[Counter] = []
    try:
        if not local_place(environment)[0]:
            counters += rapl(node, powercap)
        if gpu:
            read = gpu_counter(gpu)
            counters.append(Counter(node, f"gpu {gpu}", "nvml", read, 1e-3))
    except OSError as error:
        return EnergyMeter((), str(error))
    return EnergyMeter(counters)


def rapl(node: str, powercap: Path = POWERCAP) -> list[Counter]:
    """Return the energy counters of the node's processors, one for each package.

    OSError is raised if there are none, or if they cannot be read.
    """
    counters: dict[str, Counter] = {}
    try:
        names = sorted(os.listdir(powercap))
    except OSError:
        names = []
    for domain in (powercap / name for name in names if PACKAGE.fullmatch(name)):
        name = _text(domain / "name")
        # A second interface to the same packages must not count them twice.
        if name.startswith("package") and name not in counters:
            counters[name] = _package(node, name, domain)
    if not counters:
        raise OSError(f"this system has no energy counter in {powercap}")
    return list(counters.values())


def _package(node: str, name: str, domain: Path) -> Counter:
    file = domain / "energy_uj"

    def read() -> int:
        return int(file.read_text())

    try:
        read()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it holds no number"
        raise OSError(
            f"{file} cannot be read ({why}); if permission is missing, ask the"
            f" administrator of this machine for it (chmod a+r {file})"
        ) from error
    period = _text(domain / "max_energy_range_uj")
    whole = int(period) if period.isdigit() else 0
    return Counter(node, name, "rapl", read, 1e-6, whole)


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


@cache
def _node() -> str:
    """Return a name of the node, equal for containers that share its counters."""
    return _text(BOOT) or os.uname().nodename

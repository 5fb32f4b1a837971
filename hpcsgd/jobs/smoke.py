"""The smoke job: checks of ranks, sums, versions, GPUs, files and clocks at a site."""

import os
import platform
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import numpy as np

import hpcsgd
from hpcsgd.backends import compiled_calls
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.mpi import mpi_facts
from hpcsgd.errors import DataError, HpcsgdError, TransportError
from hpcsgd.files import replace_file
from hpcsgd.jobs.resources import counted

# Files as in training: written as a whole, flushed, moved, visible to all ranks.

PATIENCE = 10.0  # seconds for a network file system to show what another node wrote
MOST_READ = 64  # files of other ranks that a rank reads, about
SIZE = 2**16


def check_files(world: Communicator, folder: Path) -> str:
    """Check that all ranks see files that other ranks write. Collective.

    Each rank writes one file into a new folder inside `folder`, and waits for the files
    of at most 2 `MOST_READ` ranks; then the new folder is removed. Return a sentence
    with the times of the slowest ranks.
    """
    names = world.exchange_objects(f"smoke-{uuid.uuid4().hex[:12]}")
    place = folder / names[0]
    try:
        seconds = world.exchange_objects(world.together(lambda: _write(place, world)))
        waited = world.exchange_objects(world.together(lambda: _read(place, world)))
    finally:
        world.exchange_objects(None)
        if world.rank == 0:
            shutil.rmtree(place, ignore_errors=True)
    return (
        f"files of {folder} written in {1e3 * max(seconds):.0f} ms, seen by all after"
        f" {max(waited):.1f} s"
    )


def content(rank: int) -> bytes:
    """Return the bytes that a rank writes, which differ from rank to rank."""
    return f"rank {rank}\n".encode() * (SIZE // 8)


def _write(place: Path, world: Communicator) -> float:
    """Write, flush and move this rank's file; return the seconds that this took."""
    began = time.perf_counter()
    try:
        place.mkdir(parents=True, exist_ok=True)
        replace_file(place / f"{world.rank}", content(world.rank))
    except OSError as error:
        raise DataError(
            f"rank {world.rank} on {os.uname().nodename} cannot write into"
            f" {place.parent}: {error.strerror}; choose a folder that all nodes share"
        ) from error
    return time.perf_counter() - began


def _read(place: Path, world: Communicator) -> float:
    """Wait until files of the ranks are visible and complete; return the seconds.

    Of many ranks, only every k-th is waited for. Raise DataError after `PATIENCE`
    seconds.
    """
    began = time.perf_counter()
    step = max(1, world.size // MOST_READ)
    for rank in range(0, world.size, step):
        while not _holds(place / f"{rank}", rank):
            if time.perf_counter() - began > PATIENCE:
                raise DataError(
                    f"rank {world.rank} on {os.uname().nodename} does not see the file"
                    f" of rank {rank} in {place.parent}; choose a folder that all nodes"
                    " share"
                )
            time.sleep(0.05)
    return time.perf_counter() - began


def _holds(path: Path, rank: int) -> bool:
    try:
        return path.read_bytes() == content(rank)
    except OSError:
        return False


# Checks of ranks, sums, versions, GPUs, files and clocks.

WORDS = (1, 2048, 2**18)  # sizes of sums on the three paths of messages
MOST_SKEW = 5.0  # seconds between clocks; times of files are wrong beyond
SHORT = 8  # bytes of the sum whose latency is measured
LONG = 8 * 2**20  # bytes of the sum whose bandwidth is measured
REPEATS = {SHORT: 101, LONG: 7}  # timed sums, after WARM_UP others
WARM_UP = 3
Facts = dict[str, str | int | float]
Look = Callable[[], str | tuple[str, Facts]]


@dataclass(frozen=True)
class SmokeCheck:
    """The result of one check: whether it passed, a sentence, and figures."""

    name: str
    good: bool
    text: str
    facts: Facts = field(default_factory=dict)


def smoke(
    world: Communicator,
    folder: Path,
    device: str = "cpu",
    transport: str = "auto",
    expected: int | None = None,
) -> list[SmokeCheck]:
    """Run all checks on all ranks; all ranks return the same results. Collective.

    Parameters
    ----------
    world : all ranks
    folder : where runs will write
    device, transport : as `[run]` has them
    expected : how many ranks there must be; None accepts any number
    """
    checks: dict[str, Look] = {
        "ranks": lambda: check_ranks(world, expected),
        "sums": lambda: check_sums(world),
        "speed": lambda: measure_speed(world),
        "versions": lambda: check_versions(world),
        "gpus": lambda: check_gpus(world, device, transport),
        "files": lambda: check_files(world, folder),
        "clocks": lambda: check_clocks(world),
    }
    return [_check(name, check) for name, check in checks.items()]


def verdict(checks: Sequence[SmokeCheck]) -> str:
    """Return the verdict on all checks in one line: good or bad, and why."""
    bad = [f"{check.name}: {check.text}" for check in checks if not check.good]
    if bad:
        return f"smoke: bad: {'; '.join(bad)}"
    return f"smoke: good: {'; '.join(check.text for check in checks)}"


def _check(name: str, look: Look) -> SmokeCheck:
    """Run the check `look`; an error that all ranks raise becomes a bad result."""
    try:
        seen = look()
        text, facts = (seen, {}) if isinstance(seen, str) else seen
        return SmokeCheck(name, True, text, facts)
    except HpcsgdError as error:
        return SmokeCheck(name, False, str(error))


def check_ranks(world: Communicator, expected: int | None) -> tuple[str, Facts]:
    """Check that there are `expected` ranks, or any number if it is None. Collective.

    Return a sentence on the ranks and their nodes, and the names of transport and MPI.
    """
    if expected is not None and world.size != expected:
        raise TransportError(
            f"{expected} ranks were expected and {world.size} were started; ask for"
            f" --tasks {expected}, and check [launcher] in the site file"
        )
    node = os.environ.get("SLURMD_NODENAME") or os.uname().nodename
    nodes = Counter(world.exchange_objects(node))
    places = f"{counted(world.size, 'rank')} on {counted(len(nodes), 'node')}"
    facts: Facts = {"library": world.transport}
    if world.mpi_handle is not None:
        facts["provider"] = mpi_facts()["provider"]
    through = ", ".join(map(str, facts.values()))
    return f"{places}, {max(nodes.values())} at most on one, {through}", facts


def check_sums(world: Communicator) -> str:
    """Check sums over all ranks whose results are known. Collective.

    Their sizes are `WORDS`, one for each path that messages take. Return a sentence.
    """
    right = sum(map(content_of, range(world.size)))
    for words in WORDS:
        workspace = world.workspace(words, np.float32)
        workspace.array[:] = content_of(world.rank)
        total = workspace.sum("control")
        is_right = bool((total == right).all())
        _agree(world, is_right, f"a sum of {words} words is wrong")
    return f"sums of {WORDS[0]} to {WORDS[-1]} words are right"


def measure_speed(world: Communicator) -> str | tuple[str, Facts]:
    """Time sums over all ranks of arrays on the host, one short and one long.

    Collective. Return a sentence, and with several ranks also the figures. A time is
    the median over the repeats on a rank, for the slowest rank. Bandwidth is payload:
    the bytes of the array that a rank gives to the sum, each counted once, by that
    time.
    """
    if world.size == 1:
        return "one rank sends nothing"
    short, long = (_sum_seconds(world, size) for size in (SHORT, LONG))
    facts: Facts = {
        "latency_bytes": SHORT,
        "latency_us": 1e6 * short,
        "bandwidth_bytes": LONG,
        "bandwidth_us": 1e6 * long,
        "gb_per_second": 1e-9 * LONG / long,
    }
    text = (
        f"a sum of {SHORT} bytes takes {1e6 * short:.1f} µs, one of {LONG // 2**20} MiB"
        f" {1e3 * long:.2f} ms ({1e-9 * LONG / long:.2f} GB/s of payload)"
    )
    return text, facts


def _sum_seconds(world: Communicator, size: int) -> float:
    """Return the median seconds of a sum of `size` bytes, for the slowest rank.

    Collective.
    """
    buffer = np.zeros(size // 8)
    times = []
    for repeat in range(WARM_UP + REPEATS[size]):
        began = time.perf_counter()
        world.sum(buffer, "control")
        if repeat >= WARM_UP:
            times.append(time.perf_counter() - began)
    return float(max(world.exchange_objects(float(np.median(times)))))


def content_of(rank: int) -> int:
    """Return the number that rank `rank` adds in `check_sums`.

    Sums of these numbers over 2^18 ranks are exact in float32.
    """
    return 1 + rank % 63


def check_versions(world: Communicator) -> str:
    """Check that all ranks run the same versions of the programs. Collective.

    Return a sentence with the versions.
    """
    versions = {
        "hpcsgd": hpcsgd.__version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "h5py": metadata.version("h5py"),
        "mpi": mpi_facts()["library"] if world.mpi_handle is not None else "none",
        "kernels": compiled_calls.instructions() or "none",
    }
    rank_versions = world.exchange_objects(versions)
    for rank, other in enumerate(rank_versions):
        differing = [name for name in versions if other[name] != rank_versions[0][name]]
        if differing:
            name = differing[0]
            raise TransportError(
                f"versions differ: rank {rank} has {name} {other[name]}, and rank 0 has"
                f" {rank_versions[0][name]}; use one environment on all nodes, and (for"
                " kernels) nodes with one type of processor"
            )
    shown = ("hpcsgd", "python", "kernels")
    return ", ".join(f"{name} {rank_versions[0][name]}" for name in shown)


def check_gpus(world: Communicator, device: str, transport: str) -> str:
    """Check that each rank has a GPU and that a sum through the transport is right.

    Collective. Nothing is checked unless `device` is "cuda"; one rank sums nothing.
    Return a sentence with the number of GPUs and the transport.
    """
    if device != "cuda":
        return "no GPUs asked for"
    from hpcsgd.config import RunConfig
    from hpcsgd.runs.gpu import open_gpu

    settings = {"run": {"device": device, "transport": transport}}
    opened, over = open_gpu(RunConfig.parse(settings), world)
    place = opened.layer.place if opened else "none"
    places = set(world.exchange_objects(place))
    return f"{counted(len(places), 'GPU')}, {over.transport}"


def check_clocks(world: Communicator) -> str:
    """Check that clocks of ranks differ by at most `MOST_SKEW` seconds. Collective.

    The difference includes the time of a message. Return a sentence with it.
    """
    world.exchange_objects(None)
    times = world.exchange_objects(time.clock_gettime(time.CLOCK_REALTIME))
    skew = max(times) - min(times)
    if skew > MOST_SKEW:
        late = times.index(max(times))
        raise TransportError(
            f"the clock of rank {late} is {skew:.0f} s ahead of that of rank"
            f" {times.index(min(times))}; ask the site to synchronise its clocks (NTP)"
        )
    return f"clocks within {max(skew, 0.01):.2f} s"


def _agree(world: Communicator, is_good: bool, text: str) -> None:
    """Raise TransportError on all ranks unless `is_good` is true on all. Collective.

    `text` is the fact that the message states of the first rank where it is false.
    """
    bad = [r for r, good in enumerate(world.exchange_objects(is_good)) if not good]
    if bad:
        raise TransportError(
            f"{text} on rank {bad[0]}; the MPI of the launcher and that of mpi4py may"
            " differ: look at hpcsgd info on a node"
        )

"""The smoke job: checks of ranks, sums, bindings, GPUs, files and clocks at a site."""

import os
import platform
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

import hpcsgd
from hpcsgd.backends import compiled_calls
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.gpu import (
    ROOT,
    GpuChoice,
    GpuRequest,
    adapters,
    as_ranges,
    nearest,
    numbers_of,
    rank_place,
)
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
    place = folder / str(world.share_object(f"smoke-{uuid.uuid4().hex[:12]}"))
    try:
        seconds = world.max_number(world.together(lambda: _write(place, world)))
        waited = world.max_number(world.together(lambda: _read(place, world)))
    finally:
        world.max_flag(0)  # all ranks have read
        if world.rank == 0:
            shutil.rmtree(place, ignore_errors=True)
    return (
        f"files of {folder} written in {1e3 * seconds:.0f} ms, seen by all after"
        f" {waited:.1f} s"
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
Facts = dict[str, Any]
Look = Callable[[], str | tuple[str, Facts] | tuple[str, Facts, list[str]]]


@dataclass(frozen=True)
class SmokeCheck:
    """The result of one check: whether it passed, a sentence, figures, and a table."""

    name: str
    good: bool
    text: str
    facts: Facts = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)  # of a table for the terminal


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
        "binding": lambda: check_binding(world, device),
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
        return SmokeCheck(name, True, *((seen,) if isinstance(seen, str) else seen))
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
    return world.max_number(float(np.median(times)))


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


@dataclass(frozen=True)
class RankBinding:
    """The cores of a rank, and the devices that are near to them.

    Attributes
    ----------
    host : name of the node
    cores, nodes : the cores and their NUMA nodes, as ranges; "" if not known
    gpu, gpu_node : PCI address and NUMA node of its GPU; "" and -1 without one
    gpu_why : why it has this GPU
    gpu_is_far : whether another GPU of the node is nearer to its cores
    nics : the adapters that are nearest to its GPU, or else to its cores
    """

    host: str
    cores: str
    nodes: str
    gpu: str = ""
    gpu_node: int = -1
    gpu_why: str = ""
    gpu_is_far: bool = False
    nics: tuple[str, ...] = ()

    def describe(self) -> str:
        """Return cores, NUMA nodes, GPU and adapters in one line."""
        parts = [f"cores {self.cores}", f"NUMA {self.nodes or 'not known'}"]
        if self.gpu:
            where = f"NUMA {self.gpu_node}" if self.gpu_node >= 0 else "NUMA not known"
            far = "far, " if self.gpu_is_far else ""
            parts.append(f"GPU {self.gpu} ({far}{where})")
        if self.nics:
            parts.append(f"NIC {'/'.join(self.nics)}")
        return ", ".join(parts)


def check_binding(
    world: Communicator,
    device: str,
    environment: Mapping[str, str] = os.environ,
    root: Path = ROOT,
) -> tuple[str, Facts, list[str]]:
    """Return cores, NUMA node, GPU and network adapter of each rank. Collective.

    The result is a sentence that warns of ranks that share cores and of GPUs that are
    far from the cores of their ranks, the bindings of all ranks, and a table.
    """
    chosen = None
    if device == "cuda":
        from hpcsgd.runs.gpu import choose_gpu

        with suppress(HpcsgdError):  # raised on all ranks; `check_gpus` reports it
            chosen = choose_gpu(world, False, environment, root)
    bindings = world.exchange_objects(binding_of(chosen, root))
    facts = {"ranks": [asdict(binding) for binding in bindings]}
    return "; ".join(_on_bindings(bindings)), facts, binding_table(bindings)


def binding_of(
    chosen: tuple[GpuRequest, GpuChoice] | None, root: Path = ROOT
) -> RankBinding:
    """Return the binding of the calling rank, which has `chosen` its GPU."""
    place = rank_place(root)
    cores = as_ranges(place.cores)
    nodes = as_ranges(place.nodes)
    near_nodes: Sequence[int] = place.nodes
    if chosen is None:
        nics = nearest(adapters(root), near_nodes, root)
        return RankBinding(place.host, cores, nodes, nics=tuple(n.name for n in nics))
    request, choice = chosen
    gpu = request.gpus[choice.number]
    if gpu.node >= 0:
        near_nodes = (gpu.node,)
    nics = nearest(adapters(root), near_nodes, root)
    return RankBinding(
        place.host,
        cores,
        nodes,
        gpu.name,
        gpu.node,
        choice.why,
        choice.is_far,
        tuple(nic.name for nic in nics),
    )


def _on_bindings(bindings: Sequence[RankBinding]) -> list[str]:
    """Return sentences on cores that ranks share, and on GPUs far from their ranks."""
    sharing = [rank for rank, shares in enumerate(_share_cores(bindings)) if shares]
    text = "ranks have cores of their own"
    if sharing:
        text = (
            f"{counted(len(sharing), 'rank')} may run on cores of other ranks, as rank"
            f" {sharing[0]} (srun --cpu-bind=cores binds ranks)"
        )
    if len(bindings) == 1:
        text = f"cores {bindings[0].cores}"
    far = [rank for rank, binding in enumerate(bindings) if binding.gpu_is_far]
    if far:
        one = bindings[far[0]]
        return [
            text,
            f"warning: {counted(len(far), 'rank')} far from their GPUs, as rank"
            f" {far[0]} on {one.host} with cores on NUMA node {one.nodes} and its GPU"
            f" on {one.gpu_node} (bind each rank to the cores beside one GPU)",
        ]
    whys = dict.fromkeys(binding.gpu_why for binding in bindings if binding.gpu)
    return [text, *(f"GPUs: {why}" for why in whys)]


def _share_cores(bindings: Sequence[RankBinding]) -> list[bool]:
    """Return for each rank whether another rank of its node may use a core of it."""
    users: Counter[tuple[str, int]] = Counter()
    own = [[(b.host, core) for core in numbers_of(b.cores)] for b in bindings]
    for cores in own:
        users.update(cores)
    return [any(users[core] > 1 for core in cores) for cores in own]


MOST_KINDS = 4  # nodes with different bindings that a table shows


def binding_table(bindings: Sequence[RankBinding]) -> list[str]:
    """Return the lines of a table of bindings, in which equal nodes appear once."""
    nodes: dict[str, list[tuple[int, str]]] = {}
    for rank, binding in enumerate(bindings):
        nodes.setdefault(binding.host, []).append((rank, binding.describe()))
    kinds: dict[tuple[str, ...], list[str]] = {}
    for host, ranks in nodes.items():
        kinds.setdefault(tuple(text for _, text in ranks), []).append(host)
    lines = []
    for hosts in list(kinds.values())[:MOST_KINDS]:
        others = f", and {counted(len(hosts) - 1, 'node')} like it"
        lines.append(f"{hosts[0]}{others if len(hosts) > 1 else ''}:")
        lines.extend(f"  rank {rank}: {text}" for rank, text in nodes[hosts[0]])
    left = len(kinds) - MOST_KINDS
    return [*lines, *([f"{left} other kinds of nodes, see --json"] if left > 0 else [])]


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
    world.max_flag(0)  # all ranks read their clocks now
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
    first = -world.max_flag(-(world.size if is_good else world.rank))
    if first < world.size:
        raise TransportError(
            f"{text} on rank {first}; the MPI of the launcher and that of mpi4py may"
            " differ: look at hpcsgd info on a node"
        )

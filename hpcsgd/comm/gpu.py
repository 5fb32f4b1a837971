"""Communicators whose arrays are on GPUs, the protocol of a device, and bindings."""

import os
import socket
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, Protocol, Self

import numpy as np

from hpcsgd.comm.communicator import Collective, Communicator, Transfer, Workspace
from hpcsgd.errors import ConfigError, DeviceLost, TransportError
from hpcsgd.formats import Array

# What transports need of a GPU; `hpcsgd.backends.cuda.driver` does it through CuPy.
#
# Streams and events are whatever the layer makes of them. Work that is given to a
# stream happens later; only `synchronize`, `wait` and a true `is_done` show that it is
# over.


class StreamGraph(Protocol):
    """Recorded work of a stream; each call queues all of it once more."""

    def __call__(self) -> None: ...

    def release(self) -> None:
        """Free the graph on the GPU; it must have run, and is not called again."""


class Layer(Protocol):
    """The protocol of one GPU: what transports need of it, on the rank that uses it."""

    @property
    def nccl(self) -> Any:
        """The module of NCCL, named as in CuPy."""

    @property
    def place(self) -> str:
        """Return the name of the GPU, equal for two ranks only if they share it."""

    def owns(self, array: Any) -> bool:
        """Return whether an array is in the memory of GPUs."""

    def empty(self, words: int, dtype: Any) -> Any:
        """Allocate an array on the GPU."""

    def pinned(self, words: int, dtype: Any) -> Array:
        """Allocate a page-locked array on the host, which the GPU copies by itself."""

    def current_stream(self) -> Any:
        """Return the stream of work that is queued without naming a stream."""

    def new_stream(self) -> Any:
        """Create another stream."""

    def synchronize(self, stream: Any) -> None:
        """Wait until all work of the stream is done."""

    def record(self, stream: Any) -> Any:
        """Return an event that is done once the work queued on `stream` so far is."""

    def stream_wait_event(self, stream: Any, event: Any) -> None:
        """Queue a wait of the stream for the event; the host continues."""

    def is_done(self, event: Any) -> bool:
        """Return whether the event is done, without waiting."""

    def wait(self, event: Any) -> None:
        """Wait until the event is done."""

    def address(self, array: Any) -> int:
        """Return the address of the first element of an array, as NCCL takes it."""

    def handle(self, stream: Any) -> int:
        """Return the handle of the stream, as NCCL takes it."""

    def to_host(self, array: Any, host: Array, stream: Any) -> None:
        """Queue the copy host ← array on the stream.

        `host` is page-locked and as long as `array`, and both are contiguous.
        """

    def to_device(self, host: Array, array: Any, stream: Any) -> None:
        """Queue the copy array ← host on the stream."""

    def for_mpi(self, array: Any) -> Any:
        """Return a buffer that MPI accepts for an array whose queued work is done."""

    def narrow(self, values: Any, bits: Any, stream: Any) -> None:
        """Queue bits ← float32 values as bf16, rounded to nearest even."""

    def widen(self, bits: Any, values: Any, stream: Any) -> None:
        """Queue values ← bf16 bits as float32."""

    def add_bits(self, parts: Any, ranks: int, total: Any, stream: Any) -> None:
        """Queue total ← the sum of `ranks` parts, all in bf16 bits.

        The parts are added in order, in float32, and the sum is rounded to bf16.
        """


def is_half(dtype: np.dtype[Any]) -> bool:
    """Return whether words of `dtype` are 16-bit floats.

    bf16 has no dtype of its own: its bits are stored as uint16.
    """
    return dtype.char in "eH"


def fetched(layer: Layer, array: Any, stream: Any) -> Array:
    """Return a copy of a device array on the host, complete when this returns."""
    host = layer.pinned(array.size, array.dtype)
    layer.to_host(array, host, stream)
    layer.synchronize(stream)
    return host


# What carries arrays of GPUs: as a transport does, for the device.


class Carrier(ABC):
    """Base class of carriers, which send contiguous device arrays between ranks.

    The ranks are those of the communicator `host`.
    """

    def __init__(self, host: Communicator, layer: Layer, stream: Any = None) -> None:
        self.host = host
        self.layer = layer
        self._stream = stream
        self.up = self.down = 0  # bytes that it copied by way of the host

    @property
    def stream(self) -> Any:
        """Return the stream that collectives wait for, and that waits for them."""
        stream = self._stream
        return self.layer.current_stream() if stream is None else stream

    @abstractmethod
    def begin(self, collective: Collective, blocking: bool) -> Transfer:
        """Start a collective of device arrays, as `Transport.begin` does on the host.

        `wait` may return once the work is queued on the stream. The kinds of
        `Collective` that it takes are sum, reduce, broadcast, gather, exchange, parts
        and ordered_parts.
        """

    def _to_host(self, array: Any, host: Any) -> None:
        self.layer.to_host(array, host, self.stream)
        self.down += array.nbytes

    def _to_device(self, host: Any, array: Any) -> None:
        self.layer.to_device(host, array, self.stream)
        self.up += array.nbytes

    def close(self) -> None:
        """Free the resources of the carrier; the default does nothing."""
        return

    def abort_pending(self) -> None:
        """Abort pending collectives after a loss of ranks; the default does nothing."""
        return


# A group of ranks whose arrays may be on GPUs.
#
# Arrays of the host, flags and objects go the way of the host's communicator; arrays
# of the device go through a carrier. Both are booked in one ledger by the same lines,
# so that all transports count alike.


class DeviceCommunicator(Communicator):
    """A communicator for arrays on GPUs and on hosts.

    It wraps the communicator `host` for arrays on the host. That communicator stays
    usable, and `close` closes it, too.
    """

    kind = ""  # every transport has its own
    remedy = ""  # what else may work where it does not
    by_host = True  # whether the host's communicator carries device arrays
    captures = False  # whether sums may be part of a graph that the GPU repeats
    own_part_is_first = False  # whether a sum of parts ends at the start of a buffer

    def __init__(self, host: Communicator, layer: Layer, stream: Any = None) -> None:
        super().__init__(host.rank, host.size, host.ledger, host.reproducible)
        self.host = host
        self.layer = layer
        self._stream = stream
        self.waits_busily = host.waits_busily
        self.node_sharing = host.node_sharing
        self.carrier = self._open()
        self.transport = f"{self._described()} beside {host.transport}"

    @abstractmethod
    def _open(self) -> Carrier:
        """Open the carrier of device arrays. Collective."""

    def _described(self) -> str:
        """Return the name of the transport for reports, with details if known."""
        return self.kind

    @property
    def host_group(self) -> Communicator:
        """The host's communicator; communicators split from it open no carrier."""
        return self.host

    @property
    def mpi_handle(self) -> Any:
        """The communicator of mpi4py of the host, or None."""
        return self.host.mpi_handle

    @property
    def stream(self) -> Any:
        """The stream that device arrays are written and read on."""
        stream = self._stream
        return self.layer.current_stream() if stream is None else stream

    @property
    def processes(self) -> int:
        """Return the number of ranks of the host's communicator that really run."""
        return self.host.processes

    @property
    def charged(self) -> float | None:
        """Seconds that the emulated network of `host` took so far.

        None if `host` has none, or does not carry the device arrays.
        """
        return self.host.charged if self.by_host else None

    @property
    def copied(self) -> tuple[int, int]:
        """Bytes that the carrier copied (up, down) between GPU and host, so far."""
        return self.carrier.up, self.carrier.down

    def has_lost_ranks(self, error: BaseException) -> bool:
        """Return whether the host's communicator sees lost ranks in this error."""
        return self.host.has_lost_ranks(error)

    def survivors(self) -> "DeviceCommunicator":
        """Return the group of the ranks that are left, each on the GPU that it had."""
        self.carrier.abort_pending()
        return type(self)(self.host.survivors(), self.layer, self._stream)

    def watch(self, timeout: float) -> None:
        """Set the limit of waits, and start the watchdog of the host's communicator.

        It watches both communicators, since they have the same ledger. `timeout` is in
        seconds.
        """
        super().watch(timeout)
        self.host.watch(timeout)

    def unwatch(self) -> None:
        """End the limit of waits, and stop the watchdog of the host's communicator."""
        super().unwatch()
        self.host.unwatch()

    def share_nodes(self, how: str) -> None:
        """Set how ranks of a node share memory, here and in the host's communicator."""
        super().share_nodes(how)
        self.host.share_nodes(how)

    def settle(self) -> None:
        """Wait for the stream; `synchronize` of a backend must call this.

        Transports that only queue their collectives report here that one has failed.
        """
        self.layer.synchronize(self.stream)

    @contextmanager
    def ordered_sums(self, is_ordered: bool = True) -> Iterator[None]:
        """Return a context in which sums on host and device are reproducible.

        If `is_ordered` is False, the context changes nothing.
        """
        with super().ordered_sums(is_ordered), self.host.ordered_sums(is_ordered):
            yield

    def queue_sum(self, buffer: Any) -> None:
        """Add a sum of `buffer` to the graph that is being recorded on the stream.

        Transports without `captures` raise TransportError.
        """
        raise self._no_graphs()

    def adopt(self, graph: StreamGraph) -> None:  # noqa: B027
        """Note a recorded graph with sums, to release it before this object closes.

        Transports without `captures` have no such graphs, and do nothing.
        """

    def replay(self, graph: StreamGraph, buffers: Sequence[Any], purpose: str) -> None:
        """Launch a graph that contains the sums of these buffers, in this order.

        All ranks must call it, as they call `sum`. The ledger counts it as these sums.
        Transports without `captures` raise TransportError.
        """
        raise self._no_graphs()

    def _no_graphs(self) -> TransportError:
        return TransportError(
            f"transport {self.kind} cannot record sums in a CUDA graph; use transport ="
            " nccl"
        )

    def split(self, color: int, key: int) -> Self:
        """Return the group of the ranks with this color, ordered by key. Collective.

        It has a carrier of its own.
        """
        return type(self)(self.host.split(color, key), self.layer, self._stream)

    def close(self) -> None:
        """Close the carrier, then the host's communicator."""
        self.carrier.close()
        self.host.close()

    def abort(self, code: int = 1) -> NoReturn:
        """End all ranks now, by the host's communicator, with the exit code `code`.

        An abort by NCCL could wait for ranks that have ended already.
        """
        self.host.abort(code)

    def begin(self, collective: Collective, blocking: bool) -> Transfer:
        """Begin a collective on the host or on the device, where its arrays are.

        A collect of device arrays takes place on the host. A swap or deal of device
        arrays raises TransportError.
        """
        c = collective
        if not self.layer.owns(c.send):
            return self.host.begin(c, blocking)
        if c.kind == "collect":  # into the host's memory: rank 0 writes it down
            part = fetched(self.layer, c.send, self.stream)
            return self.host.begin(c.with_arrays(part, c.receive), blocking)
        if c.kind in ("swap", "deal"):
            raise TransportError(
                f"transport {self.kind} cannot {c.kind} arrays on a GPU; copy them to"
                f" the host and {c.kind} the copies"
            )
        if not c.send.flags.c_contiguous:
            raise TransportError(
                "a device array with gaps cannot be sent; send a contiguous copy"
            )
        return self.carrier.begin(c, blocking)

    def _own_part(self, buffer: Array, counts: Sequence[int]) -> Array:
        """Return the view in which a sum of parts leaves the part of this rank.

        On the device it is the part's place before the sum, unless the transport writes
        it to the start of the buffer.
        """
        if self.own_part_is_first or not self.layer.owns(buffer):
            return super()._own_part(buffer, counts)
        first = sum(counts[: self.rank])
        return buffer[first : first + counts[self.rank]]

    def _workspace(self, words: int, dtype: Any) -> Workspace | None:
        return self.host._workspace(words, dtype)

    def _keep(self, array: Array) -> Array:
        if not self.layer.owns(array):
            return self.host._keep(array)
        with self.stream:  # CuPy copies on the current one, which no other waits for
            return array.copy()


# One small sum at the start: whether a transport of device arrays works here.

PROOF = 64  # words of the sum at the start


def check_transport(world: DeviceCommunicator) -> None:
    """Check that a small sum of device arrays over all ranks is right. Collective.

    A failure on one rank is an error on all ranks.
    """
    world.together(lambda: _prove(world))


def _prove(world: DeviceCommunicator) -> None:
    words = np.arange(PROOF, dtype=np.float32)
    layer = world.layer
    stream = world.stream
    host = layer.pinned(PROOF, np.float32)
    buffer = layer.empty(PROOF, np.float32)
    host[...] = words * (world.rank + 1)
    layer.to_device(host, buffer, stream)
    try:
        world.sum(buffer, "control")
        world.settle()
    except DeviceLost:
        raise
    except RuntimeError as error:  # errors of mpi4py and of this package are such
        raise TransportError(_no(world, f"failed ({error})")) from error
    sums = fetched(layer, buffer, stream)
    expected = words * (world.size * (world.size + 1) // 2)
    wrong = np.flatnonzero(sums != expected)
    if wrong.size:
        shown = f"gave {sums[wrong[0]]:g} instead of {expected[wrong[0]]:g}"
        raise TransportError(_no(world, shown))


def _no(world: DeviceCommunicator, what: str) -> str:
    return (
        f"transport {world.kind} does not work here: a small sum of arrays on the GPUs"
        f" {what}; {world.remedy}"
    )


# The GPU of a rank: pure functions of the launcher's variables and visible GPUs.

# (rank on this node, ranks on this node), the innermost launcher first: under
# `srun mpiexec` all ranks inherit the Slurm variables of one task.
LAUNCHERS = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH and Intel MPI
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),  # HPE Cray
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),  # what scripts set themselves
    ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
VISIBLE = "CUDA_VISIBLE_DEVICES"
SHARE = (
    "start fewer ranks on each node, or set share_gpus = true (not with transport ="
    " nccl)"
)


def gpu_of_rank(
    environment: Mapping[str, str],
    visible: int,
    local_ranks: int | None = None,
    share_gpus: bool = False,
) -> int:
    """Return the number of this rank's GPU, among those that it sees.

    Parameters
    ----------
    environment : variables that the launcher has set, such as `os.environ`
    visible : GPUs that this process sees
    local_ranks : ranks on this node; None takes the launcher's number
    share_gpus : several ranks may use one GPU
    """
    if visible < 1:
        raise ConfigError(_none_visible(environment))
    rank, launcher_ranks = local_place(environment)
    ranks = local_ranks or launcher_ranks or 1
    if rank is None and ranks > 1:
        raise ConfigError(
            f"{ranks} ranks are on this node and no launcher says which one this is;"
            f" start them with srun or mpiexec, or set {LAUNCHERS[-1][0]} to the number"
            " of each rank on its node"
        )
    rank = rank or 0
    if _has_its_own(environment, visible, ranks):
        return 0
    if max(ranks, rank + 1) > visible and not share_gpus:
        raise ConfigError(
            f"there are {max(ranks, rank + 1)} ranks on this node and {visible} GPU"
            f"{'s' if visible > 1 else ''}; {SHARE}"
        )
    return rank % visible


def local_place(environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    """Return (this rank's number on its node, number of ranks on the node).

    Each is None if the launcher's variables do not state it.
    """
    for rank, size in LAUNCHERS:
        if environment.get(rank, "").isdigit():
            return int(environment[rank]), _number(environment.get(size, ""))
    return None, None


def check_own_gpu(places: Sequence[str], share_gpus: bool, kind: str) -> None:
    """Raise ConfigError if several ranks use one GPU, unless `share_gpus`.

    `places` are the names of the GPUs of all ranks, in order. Where each rank sees only
    one GPU, no other check shows whether it is the same one.
    """
    place, ranks = Counter(places).most_common(1)[0]
    if ranks == 1 or share_gpus:
        return
    remedy = "use transport = mpi-host with share_gpus = true"
    if kind != "nccl":
        remedy = (
            "let each rank see another GPU (srun --gpus-per-task=1), or set share_gpus"
            " = true"
        )
    raise ConfigError(
        f"{ranks} ranks use one GPU ({place}), which is refused with transport {kind};"
        f" {remedy}"
    )


def _has_its_own(environment: Mapping[str, str], visible: int, ranks: int) -> bool:
    """Return whether the launcher shows each rank a GPU of its own.

    That is so if this rank sees one GPU, which CUDA_VISIBLE_DEVICES names, unless Slurm
    states that the node has fewer GPUs than `ranks`.
    """
    if visible != 1 or len(_listed(environment)) != 1:
        return False
    on_node = _number(environment.get("SLURM_GPUS_ON_NODE", ""))
    return on_node is None or on_node >= ranks


def _listed(environment: Mapping[str, str]) -> list[str]:
    """Return the names of GPUs in CUDA_VISIBLE_DEVICES; [] if it is not set."""
    return [name for name in environment.get(VISIBLE, "").split(",") if name.strip()]


def _none_visible(environment: Mapping[str, str]) -> str:
    if VISIBLE in environment:
        shown = f"{VISIBLE}={environment[VISIBLE]}"
        return f"no GPU is visible and {shown}; unset it, or use --device cpu"
    if "SLURM_JOB_ID" in environment and "SLURM_GPUS_ON_NODE" not in environment:
        return "Slurm gave this job no GPU; add --gpus-per-node=N, or use --device cpu"
    return "no GPU is visible; see what nvidia-smi says, or use --device cpu"


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None


# The place of a rank in its node, from sysfs: cores, NUMA nodes, network adapters.

ROOT = Path("/")  # of the file system that has sysfs
FARTHEST = 255  # a distance of NUMA nodes for which the firmware states none
NVIDIA = "0x10de"  # a vendor of PCI devices
GRAPHICS = ("0x0300", "0x0302")  # classes of PCI devices: VGA and 3D controllers
# Adapters of InfiniBand, RoCE and Omni-Path; those of Slingshot 11.
ADAPTERS = ("sys/class/infiniband", "sys/class/cxi")


@dataclass(frozen=True)
class PciDevice:
    """A GPU or a network adapter; `node` is its NUMA node, -1 if it is not known."""

    name: str
    node: int


@dataclass(frozen=True)
class RankPlace:
    """The node of a rank, its cores, and the NUMA nodes that contain these cores.

    Attributes
    ----------
    host : name of the node
    cores : numbers of the cores that the rank may run on
    nodes : NUMA nodes of these cores, of which there are `of_nodes` with cores
    """

    host: str
    cores: tuple[int, ...]
    nodes: tuple[int, ...]
    of_nodes: int

    @property
    def is_bound(self) -> bool:
        """Return whether some NUMA node with cores has none of this rank's cores."""
        return 0 < len(self.nodes) < self.of_nodes


def rank_place(root: Path = ROOT) -> RankPlace:
    """Return the place of the calling thread, whose cores may be bound."""
    own = set(own_cores())
    nodes = {node: cores for node, cores in numa_nodes(root).items() if cores}
    mine = tuple(node for node, cores in nodes.items() if own & cores)
    return RankPlace(socket.gethostname(), tuple(sorted(own)), mine, len(nodes))


def own_cores() -> Iterable[int]:
    """Return the numbers of the cores that the calling thread may run on."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)


def numa_nodes(root: Path = ROOT) -> dict[int, set[int]]:
    """Return NUMA node -> its cores, in order of the nodes; {} without sysfs."""
    nodes = {}
    for folder in (root / "sys/devices/system/node").glob("node[0-9]*"):
        with suppress(OSError, ValueError):
            cores = numbers_of((folder / "cpulist").read_text())
            nodes[int(folder.name.removeprefix("node"))] = set(cores)
    return dict(sorted(nodes.items()))


def numbers_of(text: str) -> list[int]:
    """Return the numbers of a list of sysfs such as "0-3,8"."""
    numbers: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def as_ranges(numbers: Iterable[int]) -> str:
    """Return sorted numbers as a list of sysfs.

    >>> as_ranges([0, 1, 2, 3, 8])
    '0-3,8'
    """
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(f"{a}-{b}" if a < b else f"{a}" for a, b in ranges)


def node_of_bus(bus: str, root: Path = ROOT) -> int:
    """Return the NUMA node of a PCI address; -1 if sysfs does not state it."""
    return _node_in(root / "sys/bus/pci/devices" / plain_bus(bus))


def plain_bus(bus: str) -> str:
    """Return a PCI address as sysfs writes it, from that of CUDA or nvidia-smi.

    >>> plain_bus("00000000:3B:00.0")
    '0000:3b:00.0'
    """
    domain, _, rest = bus.lower().partition(":")
    return f"{domain[-4:]:0>4}:{rest}"


def adapters(root: Path = ROOT) -> list[PciDevice]:
    """Return the fast network adapters of the node, by name."""
    folders = [path for kind in ADAPTERS for path in (root / kind).glob("*")]
    return [
        PciDevice(path.name, _node_in(path / "device"))
        for path in sorted(folders, key=lambda path: path.name)
    ]


def gpus_in(root: Path = ROOT) -> list[PciDevice]:
    """Return the NVIDIA GPUs of the node, visible or not, by PCI address."""
    gpus = []
    for folder in sorted((root / "sys/bus/pci/devices").glob("*")):
        with suppress(OSError):
            vendor = (folder / "vendor").read_text().strip()
            kind = (folder / "class").read_text().strip()
            if vendor == NVIDIA and kind.startswith(GRAPHICS):
                gpus.append(PciDevice(folder.name, _node_in(folder)))
    return gpus


def _node_in(folder: Path) -> int:
    with suppress(OSError, ValueError):
        return int((folder / "numa_node").read_text())
    return -1


def distance(nodes: Iterable[int], node: int, root: Path = ROOT) -> int:
    """Return the least distance of a NUMA node to one of `nodes`, 10 within a node.

    It is that of the firmware, in sysfs; `FARTHEST` if there is none.
    """
    known = list(numa_nodes(root))  # in the order of the columns of the files
    distances = [10 if one == node else FARTHEST for one in nodes]
    for index, one in enumerate(nodes):
        file = root / f"sys/devices/system/node/node{one}/distance"
        with suppress(OSError, ValueError, IndexError):
            distances[index] = int(file.read_text().split()[known.index(node)])
    return min(distances, default=FARTHEST)


def nearest(
    devices: Iterable[PciDevice], nodes: Sequence[int], root: Path = ROOT
) -> list[PciDevice]:
    """Return the devices that are nearest to `nodes`, of those whose node is known."""
    far = [(distance(nodes, d.node, root), d) for d in devices if d.node >= 0]
    least = min((length for length, _ in far), default=0)
    return [device for length, device in far if length == least]


# The choice of the GPUs of a node: the nearest ones to the cores of its ranks.


Slot = tuple[str, int]  # a GPU, and the number of a place on it


@dataclass(frozen=True)
class GpuRequest:
    """The GPUs that a rank may use, as it reports them to the other ranks.

    Attributes
    ----------
    host : name of the node
    number : the GPU of its local number, among the visible ones
    gpus : the visible GPUs, in the order of CUDA; name is the PCI address
    distances : from the cores of the rank to each GPU; () if they are not known
    why : why distances are not known, or do not matter; "" otherwise
    is_far : whether the only visible GPU is farther from the cores than another one
    """

    host: str
    number: int
    gpus: tuple[PciDevice, ...]
    distances: tuple[int, ...] = ()
    why: str = ""
    is_far: bool = False


@dataclass(frozen=True)
class GpuChoice:
    """The number of a rank's GPU among the visible ones, and why it is this one."""

    number: int
    why: str
    is_far: bool = False  # another GPU of the node is nearer to the rank's cores


def gpu_request(
    environment: Mapping[str, str],
    buses: Sequence[str],
    share_gpus: bool = False,
    root: Path = ROOT,
) -> GpuRequest:
    """Return the request of this rank; raise ConfigError if it can have no GPU.

    `buses` are the PCI addresses of the visible GPUs.
    """
    number = gpu_of_rank(environment, len(buses), share_gpus=share_gpus)
    place = rank_place(root)
    gpus = tuple(PciDevice(plain_bus(bus), node_of_bus(bus, root)) for bus in buses)
    unknown = [gpu.name for gpu in gpus if gpu.node < 0]
    is_far = False
    if len(gpus) == 1:
        why = "it is the only GPU that this rank sees"
        if place.is_bound and not unknown:
            near = nearest([*gpus_in(root), *gpus], place.nodes, root)
            is_far = gpus[0].node not in {gpu.node for gpu in near}
    elif unknown:
        why = f"sysfs states no NUMA node of the GPU {unknown[0]}"
    elif not place.nodes:
        why = "sysfs lists no NUMA node of this rank's cores"
    elif not place.is_bound:
        why = "the rank may run on every NUMA node of its node"
    else:
        far = tuple(distance(place.nodes, gpu.node, root) for gpu in gpus)
        return GpuRequest(place.host, number, gpus, far)
    return GpuRequest(place.host, number, gpus, why=why, is_far=is_far)


def choose_gpus(requests: Sequence[GpuRequest]) -> list[GpuChoice]:
    """Return the GPU of each rank, from the requests of all ranks, in rank order.

    On each node, as many ranks as possible have the GPU that is nearest to their cores,
    and two ranks share a GPU only if there are fewer GPUs than ranks. Where distances
    are equal or not known, a rank has the GPU of its local number. The result depends
    on the requests only, so all ranks compute the same one.
    """
    choices: dict[int, GpuChoice] = {}
    for host in dict.fromkeys(request.host for request in requests):
        ranks = [rank for rank, r in enumerate(requests) if r.host == host]
        choices |= zip(ranks, _choose([requests[r] for r in ranks]), strict=True)
    return [choices[rank] for rank in range(len(requests))]


def _choose(requests: Sequence[GpuRequest]) -> list[GpuChoice]:
    """Return the GPUs of the ranks of one node."""
    if not any(request.distances for request in requests):
        return [GpuChoice(r.number, r.why, r.is_far) for r in requests]
    # Slots of GPUs: as many of each as ranks must share it.
    names = {gpu.name for request in requests for gpu in request.gpus}
    layers = range(-(-len(requests) // len(names)))
    wishes = [_by_distance(request) for request in requests]
    owners: dict[Slot, int] = {}

    def slots(rank: int, most: int) -> list[Slot]:
        """Return the slots of the GPUs within `most` beyond the nearest one."""
        gpus = requests[rank].gpus
        near = [gpus[number].name for beyond, number in wishes[rank] if beyond <= most]
        return [(name, layer) for name in near for layer in layers]

    def seat(rank: int, tried: set[Slot]) -> bool:
        """Give a rank a nearest GPU, for which other ranks may move to one of theirs.

        (The augmenting paths of Kuhn's algorithm for bipartite matchings.)
        """
        near = slots(rank, 0)
        for slot in [s for s in near if s not in owners]:
            owners[slot] = rank
            return True
        for slot in near:
            if slot not in tried:
                tried.add(slot)
                if seat(owners[slot], tried):
                    owners[slot] = rank
                    return True
        return False

    # 1. nearest GPUs, for as many ranks as possible  2. free GPUs for the others
    for rank in [rank for rank in range(len(requests)) if not seat(rank, set())]:
        free = [slot for slot in slots(rank, FARTHEST) if slot not in owners]
        owners |= dict.fromkeys(free[:1], rank)
    seats = {rank: name for (name, _), rank in owners.items()}
    return [_choice(r, seats.get(rank)) for rank, r in enumerate(requests)]


def _by_distance(request: GpuRequest) -> list[tuple[int, int]]:
    """Return (distance beyond the nearest, number) of a rank's GPUs, in its order.

    Of GPUs that are equally far, that of the local number comes first.
    """
    far = request.distances or (0,) * len(request.gpus)
    own = request.number
    pairs = [(length - min(far), number) for number, length in enumerate(far)]
    return sorted(pairs, key=lambda pair: (pair[0], pair[1] != own, pair[1]))


def _choice(request: GpuRequest, name: str | None) -> GpuChoice:
    """Return the choice of the GPU `name`; that of the local number for None."""
    names = [gpu.name for gpu in request.gpus]
    if name is None or names[request.number] == name:
        number = request.number
    else:
        number = names.index(name)
    far = request.distances
    if not far:
        return GpuChoice(number, request.why, request.is_far)
    if far[number] > min(far):
        return GpuChoice(number, "nearer GPUs serve other ranks", is_far=True)
    if min(far) == max(far):
        return GpuChoice(number, "all GPUs are equally near to its cores")
    return GpuChoice(number, "it is nearest to its cores")


# How arrays of GPUs travel: one row each, and the one way to open them.

TRANSPORTS = {
    "nccl": "hpcsgd.comm.nccl:NcclCommunicator",
    "mpi-cuda": "hpcsgd.comm.gpu_mpi:CudaAwareCommunicator",
    "mpi-host": "hpcsgd.comm.gpu_mpi:StagedCommunicator",
}


def open_transport(
    kind: str,
    host: Communicator,
    layer: Layer,
    *,
    stream: Any = None,
    share_gpus: bool = False,
) -> DeviceCommunicator:
    """Return a communicator of the ranks of `host` for device arrays. Collective.

    A small sum checks it if there are several ranks. `layer` is the GPU of this rank.
    If `stream` is None, the current stream at each call is used. `share_gpus` lets
    several ranks use one GPU, except with "nccl".
    """
    transport = transport_of(kind)
    places = host.exchange_objects(layer.place)
    check_own_gpu(places, share_gpus and kind != "nccl", kind)
    world = transport(host, layer, stream)
    if world.size > 1:
        check_transport(world)
    return world


def transport_of(kind: str) -> type[DeviceCommunicator]:
    """Return the class of the transport `kind`; raise ConfigError if it is unknown."""
    if kind not in TRANSPORTS:
        raise ConfigError(
            f"[run] unknown transport: {kind!r}; known: {', '.join(TRANSPORTS)}"
        )
    module, name = TRANSPORTS[kind].split(":")
    transport: type[DeviceCommunicator] = getattr(import_module(module), name)
    return transport

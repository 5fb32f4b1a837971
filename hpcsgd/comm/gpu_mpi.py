"""GPU arrays over MPI: staged through the host, or by a CUDA-aware library."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hpcsgd.comm.communicator import DONE, Collective, Communicator, Transfer
from hpcsgd.comm.gpu import Carrier, DeviceCommunicator, Layer, fetched
from hpcsgd.comm.messages import NarrowPieces, NarrowSum
from hpcsgd.comm.shared_memory import share
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array

# transport = mpi-host: device arrays travel through pinned memory of the host.
#
# A large sum goes in chunks through two buffers: while MPI adds one, the GPU copies the
# next. It is one collective for the ledger, whatever the number of chunks.

CHUNK = 4 * 2**20  # bytes; the copies of one are some hundred microseconds


class PinnedBuffers:
    """Buffers of pinned memory, used again once the GPU is done with them."""

    def __init__(self, layer: Layer) -> None:
        self.layer = layer
        self._free: dict[tuple[int, str], list[tuple[Array, Any]]] = {}

    def take(self, words: int, dtype: np.dtype[Any]) -> Array:
        """Return a free buffer of `words` words, or a new one if none is free.

        Buffers are reused because pinning memory takes long.
        """
        free = self._free.setdefault((words, dtype.str), [])
        if not free:
            return self.layer.pinned(words, dtype)
        buffer, last_copy = free.pop()
        self.layer.wait(last_copy)
        return buffer

    def give(self, buffer: Array, stream: Any) -> None:
        """Take back a buffer; copies of it may still be queued on `stream`."""
        free = self._free.setdefault((buffer.size, buffer.dtype.str), [])
        free.append((buffer, self.layer.record(stream)))


class HostStaging(Carrier):
    """A carrier that copies device arrays to the host, and sends them from there."""

    def __init__(self, host: Communicator, layer: Layer, stream: Any = None) -> None:
        super().__init__(host, layer, stream)
        self.pinned = PinnedBuffers(layer)

    def begin(self, collective: Collective, blocking: bool) -> Transfer:
        """Copy the arrays to the host and begin the collective there.

        `wait` of the transfer queues the copy of the result to the device. A blocking
        collective in place goes chunk by chunk; on return all its copies are queued.
        """
        c = collective
        in_place = c.receive is c.send
        if in_place and blocking:
            self._in_chunks(c)
            return DONE
        sent = self._down(c.send)
        borrowed = [sent]
        if in_place:
            received = sent
        elif c.kind in ("parts", "ordered_parts"):
            received = sent[: c.receive.size]
        else:
            received = self.pinned.take(c.receive.size, c.receive.dtype)
            borrowed.insert(0, received)
        transfer = self.host.begin(c.with_arrays(sent, received), blocking)

        def wait() -> None:
            transfer.wait()
            stream = self.stream
            self._to_device(received, c.receive)
            for buffer in borrowed:
                self.pinned.give(buffer, stream)

        return Transfer(wait)

    def _down(self, array: Any) -> Array:
        host = self.pinned.take(array.size, array.dtype)
        stream = self.stream
        self._to_host(array, host)
        self.layer.wait(self.layer.record(stream))
        return host

    def _in_chunks(self, whole: Collective) -> None:
        """Run a collective in place by chunks, while the next chunk is copied.

        All ranks use the same chunks. Within a stream no copy overtakes another.
        """
        layer, stream, flat = self.layer, self.stream, whole.send.reshape(-1)
        chunks = chunks_of(flat.size, flat.dtype.itemsize)
        longest = max(chunk.stop - chunk.start for chunk in chunks)
        slots = [self.pinned.take(longest, flat.dtype) for _ in chunks[:2]]

        def descend(number: int) -> tuple[Array, Any]:
            chunk = flat[chunks[number]]
            host = slots[number % 2][: chunk.size]
            self._to_host(chunk, host)
            return host, layer.record(stream)

        below = descend(0)
        for number, chunk in enumerate(chunks):
            host, copied = below
            if number + 1 < len(chunks):
                below = descend(number + 1)
            layer.wait(copied)
            self.host.begin(whole.with_arrays(host, host), True).wait()
            self._to_device(host, flat[chunk])
        for slot in slots:
            self.pinned.give(slot, stream)


def chunks_of(words: int, itemsize: int) -> list[slice]:
    """Return ranges of words of at most CHUNK bytes each, at least one range."""
    step = CHUNK // itemsize
    return [slice(i, min(i + step, words)) for i in range(0, max(words, 1), step)]


class StagedCommunicator(DeviceCommunicator):
    """The communicator of transport mpi-host: any MPI; ranks may share GPUs."""

    kind = "mpi-host"
    remedy = "check this GPU and the MPI between these ranks, or use --device cpu"

    def _open(self) -> HostStaging:
        return HostStaging(self.host, self.layer, self._stream)


# The paths of arrays on GPUs on this node, by its kernel and its settings.
#
# Pure functions of a root directory ("/" of this machine) and an environment. They
# return what is possible; the log of a transport (NCCL_DEBUG=INFO) has what it does.

PEER_MEMORY = ("nvidia_peermem", "nv_peer_mem")  # modules that lend GPU memory to RDMA
STORAGE = "nvidia_fs"  # the one that lends it to drives
DMABUF_SINCE = (5, 12)  # of Linux
FAR = ("LOC", "0")  # NCCL_NET_GDR_LEVEL at which no adapter is near enough
ON = ("1", "ON", "TRUE", "YES")
MPI_SETTINGS = ("MPICH_GPU_SUPPORT_ENABLED", "UCX_TLS", "OMPI_MCA_opal_cuda_support")


class PathCheck(NamedTuple):
    """The result of a check: whether a path of data is possible, and why."""

    possible: bool
    why: str

    def __str__(self) -> str:
        return f"{'possible' if self.possible else 'no'} ({self.why})"


def rdma_way(root: Path, environment: Mapping[str, str]) -> PathCheck:
    """Return whether NCCL can send GPU memory by RDMA, without host memory, and why.

    `root` is the root folder of the system.
    """
    adapters = adapters_in(root)
    if environment.get("NCCL_IB_DISABLE", "0") not in ("", "0"):
        return PathCheck(
            False, f"NCCL_IB_DISABLE={environment['NCCL_IB_DISABLE']}; unset it"
        )
    if not adapters:
        return PathCheck(False, "no adapter in /sys/class/infiniband")
    level = environment.get("NCCL_NET_GDR_LEVEL", "")
    if level.upper() in FAR:
        return PathCheck(False, f"NCCL_NET_GDR_LEVEL={level}; unset it")
    lender = _lender(root, environment)
    if not lender:
        return PathCheck(
            False, f"{PEER_MEMORY[0]} is not loaded; have it loaded: modprobe"
        )
    return PathCheck(True, f"{' '.join(adapters)} by {lender}")


def adapters_in(root: Path) -> list[str]:
    """Return the names of InfiniBand and RoCE adapters, sorted.

    `root` is the root folder of the system.
    """
    folder = root / "sys/class/infiniband"
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def is_loaded(root: Path, module: str) -> bool:
    """Return whether the kernel has loaded `module`."""
    if (root / "sys/module" / module).is_dir():
        return True
    lines = _text(root / "proc/modules").splitlines()
    return any(line.split()[:1] == [module] for line in lines)


def has_dmabuf(root: Path, environment: Mapping[str, str]) -> bool:
    """Return whether the kernel can lend GPU memory by dma-buf.

    It needs NVIDIA's open driver modules and Linux 5.12, and NCCL_DMABUF_ENABLE must
    not be 0.
    """
    if environment.get("NCCL_DMABUF_ENABLE", "1") == "0":
        return False
    is_open = "Open Kernel Module" in _text(root / "proc/driver/nvidia/version")
    return is_open and _linux(root) >= DMABUF_SINCE


def storage_way(
    root: Path, environment: Mapping[str, str], kvikio: str | None, cufile: str | None
) -> PathCheck:
    """Return whether drives can write to GPU memory without host memory, and why.

    `kvikio` is the version of that package, `cufile` the library; None: not installed.
    """
    mode = environment.get("KVIKIO_COMPAT_MODE", "")
    for missing, why in (
        (kvikio is None, "kvikio is not installed: pip install kvikio-cu13, or -cu12"),
        (mode.upper() in ON, f"KVIKIO_COMPAT_MODE={mode}; unset it"),
        (cufile is None, "libcufile is not found: install CUDA's cufile"),
        (not (root / "run/udev").is_dir(), "/run/udev is not there; mount it"),
        (not is_loaded(root, STORAGE), f"{STORAGE} is not loaded; have it loaded"),
    ):
        if missing:
            return PathCheck(False, why)
    return PathCheck(True, f"kvikio {kvikio} by {STORAGE}")


def mpi_way(reads: bool | None, environment: Mapping[str, str]) -> PathCheck:
    """Return whether MPI takes addresses on GPUs, and why.

    `reads` is what the MPI library itself reports. If it is None, since the library
    cannot report it, MPICH_GPU_SUPPORT_ENABLED = 1 decides.
    """
    answers = {None: "MPI cannot be asked", True: "MPI says so", False: "MPI denies it"}
    variables = [
        f"{name}={environment[name]}" for name in MPI_SETTINGS if name in environment
    ]
    switched_on = environment.get("MPICH_GPU_SUPPORT_ENABLED") == "1"
    possible = switched_on if reads is None else reads
    return PathCheck(possible, ", ".join([answers[reads], *variables]))


def version_text(number: int) -> str:
    """Return a version of NCCL as text: 2.27.3 for 22703, and 2.8.3 for 2803."""
    major = 10000 if number >= 10000 else 1000
    return f"{number // major}.{number % major // 100}.{number % 100}"


def _lender(root: Path, environment: Mapping[str, str]) -> str:
    for module in PEER_MEMORY:
        if is_loaded(root, module):
            return module
    return "dmabuf" if has_dmabuf(root, environment) else ""


def _linux(root: Path) -> tuple[int, int]:
    release = re.match(r"(\d+)\.(\d+)", _text(root / "proc/sys/kernel/osrelease"))
    return (int(release[1]), int(release[2])) if release else (0, 0)


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


# transport = mpi-cuda: MPI is given the addresses of device arrays.

REMEDY = "use transport = mpi-host, or transport = nccl"


class CudaAware(Carrier):
    """A carrier that passes device addresses to MPI.

    MPI knows no streams: the stream is synchronised first.
    """

    def _ready(self, *arrays: Any) -> list[Any]:
        self.layer.synchronize(self.stream)
        return [self.layer.for_mpi(array) for array in arrays]

    def begin(self, collective: Collective, blocking: bool) -> Transfer:
        """Begin the collective on the addresses of the device arrays.

        A sum of parts in rank order is computed on the host.
        """
        c = collective
        if c.kind == "ordered_parts":
            return self._begin_ordered_parts(c)
        if c.receive is c.send:
            (send,) = self._ready(c.send)
            receive = send
        else:
            send, receive = self._ready(c.send, c.receive)
        return self.host.begin(c.with_arrays(send, receive), blocking)

    def _begin_ordered_parts(self, parts: Collective) -> Transfer:
        """Begin a sum in rank order on the host: MPI guarantees no order on devices."""
        sent = fetched(self.layer, parts.send, self.stream)
        self.down += parts.send.nbytes
        total = sent[: parts.receive.size]
        transfer = self.host.begin(parts.with_arrays(sent, total), False)

        def wait() -> None:
            transfer.wait()
            self._to_device(total, parts.receive)
            self.layer.synchronize(self.stream)

        return Transfer(wait)


class CudaAwareCommunicator(DeviceCommunicator):
    """The communicator of transport mpi-cuda, which must be chosen explicitly.

    No safe test shows whether an MPI supports it.
    """

    kind = "mpi-cuda"
    remedy = f"this MPI does not read the memory of GPUs: {REMEDY}"
    own_part_is_first = True  # where MPI writes it

    def _described(self) -> str:
        if self.host.mpi_handle is None:
            return self.kind
        from hpcsgd.comm.mpi import reads_device_memory

        return f"{self.kind} {mpi_way(reads_device_memory(), os.environ)}"

    def _open(self) -> CudaAware:
        if self.host.mpi_handle is not None:
            check_support()
        return CudaAware(self.host, self.layer, self._stream)


def check_support() -> None:
    """Raise ConfigError if MPI reports that it cannot read device memory.

    A device address that MPI cannot read would end the job.
    """
    from hpcsgd.comm.mpi import reads_device_memory

    if reads_device_memory() is False:
        raise ConfigError(
            "transport mpi-cuda needs a CUDA-aware MPI and this MPI reports that it is"
            f" not CUDA-aware; {REMEDY}, or load the site's CUDA-aware MPI (MPICH"
            " reads device memory with MPICH_GPU_SUPPORT_ENABLED=1 only)"
        )


# bf16 sums of device arrays: the two collectives of `narrow`, on the GPU's own bits.
#
# The same pieces, roundings and order, and so the same bits as on the host, through any
# transport: MPI adds no 16-bit floats, and NCCL rounds at every rank that it passes.


class DeviceNarrowSum(NarrowSum):
    """A message of `words` float32 words on the device that travels as bf16."""

    group: DeviceCommunicator

    def __init__(
        self, group: DeviceCommunicator, words: int, array: Any = None
    ) -> None:
        """Prepare the sum of `array`, which has `words` words, in place.

        If `array` is None, a new array is allocated.
        """
        self.group = group
        layer = group.layer
        pieces = [share(words, group.size, rank) for rank in range(group.size)]
        lengths = [int(piece.stop - piece.start) for piece in pieces]
        own_words = lengths[group.rank]
        self._array: Any = layer.empty(words, np.float32) if array is None else array
        self._sent: NarrowPieces = DevicePieces(group, lengths)
        self._received: NarrowPieces = DevicePieces(group, [own_words] * group.size)
        self._own: NarrowPieces = DevicePieces(group, [own_words])
        self._totals: NarrowPieces = DevicePieces(group, lengths)
        self._prepare()

    def _finish(self, purpose: str) -> None:
        group = self.group
        own_piece = self._own
        group.layer.add_bits(
            self._received.held, group.size, own_piece.held, group.stream
        )
        group.run(self._gather, purpose)
        self._totals.read(self._array)


class DevicePieces(NarrowPieces):
    """Pieces of a device array in bf16, one after the other, without exponents."""

    def __init__(self, group: DeviceCommunicator, lengths: Sequence[int]) -> None:
        self.group = group
        self.counts = list(lengths)
        self.held = group.layer.empty(sum(lengths), np.uint16)

    def write(self, values: Any) -> None:
        """Queue held ← `values`, rounded to bf16."""
        self.group.layer.narrow(values, self.held, self.group.stream)

    def read(self, out: Any) -> None:
        """Queue out ← the values of the pieces, in float32."""
        self.group.layer.widen(self.held, out, self.group.stream)

"""transport = nccl: sums of device arrays by NCCL, queued on a stream.

A sum returns when it is queued, not when it is done: what follows on the stream comes
after it. No more than AHEAD of them are ever under way. A graph that holds sums is
recorded once and launched again and again; every launch is booked as its sums are.
"""

import os
from collections.abc import Callable, MutableMapping, Sequence
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, NoReturn

import numpy as np

from hpcsgd.comm import sizes, wire
from hpcsgd.comm.gpu_paths import rdma_way, version_text
from hpcsgd.comm.hooks import Array
from hpcsgd.comm.layer import Graph, is_half
from hpcsgd.comm.nccl_carrier import Nccl
from hpcsgd.comm.on_device import OnDevice
from hpcsgd.comm.pending import Pending
from hpcsgd.comm.place import Place
from hpcsgd.errors import ConfigError

AHEAD = 16  # larger = the host runs further ahead of its GPU, and hears later of errors
# One algorithm for every message; NVLS adds in an order of its own each time.
PINNED = {"NCCL_NVLS_ENABLE": ("0",), "NCCL_ALGO": ("Ring", "Tree")}
PINNED["NCCL_PROTO"] = ("Simple",)
# Buffers of graphs that NCCL has registered have hung without a word between nodes
# (github.com/NVIDIA/nccl/issues/2389); whoever sets it to 1 keeps that.
SAFER = {"NCCL_GRAPH_REGISTER": "0"}


class Call(NamedTuple):
    """One collective of a sum: what it is called, what it asks for, what it costs."""

    what: str
    action: Callable[[int], None]  # of a stream
    cost: Callable[[int, int], float]  # bytes on the wire, of a payload among ranks


def pin(environment: MutableMapping[str, str]) -> None:
    """Make NCCL add in one order; it reads this once, before its first group."""
    for name, allowed in PINNED.items():
        asked = environment.setdefault(name, allowed[0])
        if asked not in allowed:
            raise ConfigError(
                f"{name}={asked} is not reproducible; unset it or set it to"
                f" {' or '.join(allowed)}, or run without --reproducible"
            )


class NcclCommunicator(OnDevice):
    """Device arrays by NCCL, all else by the host's communicator."""

    kind = "nccl"
    remedy = "set NCCL_DEBUG=WARN to see why, or use transport = mpi-host"
    by_host = False
    captures = True
    carrier: Nccl

    def _open(self) -> Nccl:
        if self.reproducible:
            pin(os.environ)
        for name, value in SAFER.items():
            os.environ.setdefault(name, value)
        with self._inside("start of NCCL", "control"):
            return Nccl(self.host, self.layer, self._stream)

    def _described(self) -> str:
        if self.size == 1:
            return self.kind
        version = version_text(self.layer.nccl.get_version())
        rdma = rdma_way(Path("/"), os.environ)
        return f"{self.kind} {version}, GPUDirect RDMA {rdma},"

    def sum(self, buffer: Array, purpose: str) -> Array:
        """As everywhere; NCCL adds 16-bit floats, too, bf16 as the bits it is held in.

        Those are one collective also where all is reproducible: every rank has the
        same bits anyway.
        """
        if not self._adds_halves(buffer):
            return super().sum(buffer, purpose)
        began = perf_counter()
        with self._inside("sum", purpose):
            self._sum(buffer)
        self._book(purpose, buffer, wire.sum_bytes(buffer.nbytes, self.size), began)
        return buffer

    def start_sum(self, buffer: Array, purpose: str) -> Pending:
        """On a second stream; `wait` makes the first one wait, not the host."""
        if not self._adds_halves(buffer):
            return super().start_sum(buffer, purpose)
        began = perf_counter()
        with self._inside("start of the sum", purpose):
            finish = self._start_sum(buffer)
        number = self.begun
        self._book(purpose, buffer, wire.sum_bytes(buffer.nbytes, self.size), began)
        return Pending(buffer, lambda: self._wait(finish, purpose, number))

    def split(self, color: int, key: int) -> OnDevice:
        """Those of a part are waited for in one order with those of the whole."""
        part = super().split(color, key)
        assert isinstance(part, NcclCommunicator)
        part.carrier.follow(self.carrier)
        return part

    def queue_sum(self, buffer: Any) -> None:
        """Nothing is looked at or booked here: all of that is for `replay`."""
        if self.size == 1:
            return
        self.carrier.now = ("capture of a sum", "a graph", self.begun)
        for call in self._calls(buffer):
            self.carrier.record(call.action)

    def adopt(self, graph: Graph) -> None:
        """NCCL would wait for it for ever; what is launched is known anyway."""
        self.carrier.adopt(graph)

    def replay(self, graph: Graph, buffers: Sequence[Any], purpose: str) -> None:
        """One launch, in the place of its first collective."""
        if self.size == 1 or not buffers:
            graph()
            return
        began = perf_counter()
        calls = [(call, one) for one in buffers for call in self._calls(one)]
        alone = len(calls) == 1
        what = calls[0][0].what if alone else f"graph of {len(calls)} collectives"
        with self._inside(what, purpose):
            self.carrier.launch(graph)
        self.begun += len(calls) - 1
        for call, buffer in calls:
            self._book(purpose, buffer, call.cost(buffer.nbytes, self.size), began)
            began = perf_counter()

    def _calls(self, buffer: Any) -> list[Call]:
        """The collectives that `sum` makes of it, one after the other."""
        carrier, halves = self.carrier, self._adds_halves(buffer)
        if not halves:
            sizes.check_summable(buffer.dtype)
        if halves or not self.reproducible:
            return [Call("sum", carrier.sum_calls(buffer), wire.sum_bytes)]
        reduction = carrier.reduce_calls(buffer)
        broadcast = carrier.broadcast_calls(buffer, 0)
        return [
            Call("reduction", reduction, wire.reduce_bytes),
            Call("broadcast", broadcast, wire.broadcast_bytes),
        ]

    @property
    def newest(self) -> Any:
        """Queued by all groups of this rank."""
        under_way = self.carrier.under_way
        return under_way[-1] if under_way else None

    def reach(self, begun: Any) -> None:
        """In its place, and with an eye on errors."""
        if begun is not None:
            self.carrier.reach(begun)

    def settle(self) -> None:
        """Wait for the collectives, each in its place, then for the stream."""
        self.carrier.keep_pace(0)
        super().settle()

    def abort(self, code: int = 1) -> NoReturn:
        """End all ranks; NCCL is not asked to, it could wait for the others."""
        self.carrier.under_way.clear()
        super().abort(code)

    def _adds_halves(self, buffer: Array) -> bool:
        is_device = self.size > 1 and self.layer.owns(buffer)
        return is_device and is_half(np.dtype(buffer.dtype))

    def _inside(self, what: str, purpose: str) -> Place:
        carrier = getattr(self, "carrier", None)  # none while it is opened
        if carrier is not None:
            carrier.keep_pace(AHEAD)
        place = super()._inside(what, purpose)
        if carrier is not None:
            carrier.now = (what, purpose, self.begun)
        return place

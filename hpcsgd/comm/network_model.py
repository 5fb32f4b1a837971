"""Emulation of networks (latency, bandwidth) and of ranks that do not exist."""

import ctypes
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from math import ceil, log2
from time import perf_counter
from typing import Any, NoReturn

import numpy as np

from hpcsgd.comm.communicator import (
    DONE,
    Collective,
    Communicator,
    SentObject,
    Transfer,
    Workspace,
    start_parts_in_order,
    sum_bytes,
)
from hpcsgd.comm.ledger import Ledger
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array

# A network in two numbers: what it would charge, and how one is written.


@dataclass(frozen=True)
class Network:
    """Latency and bandwidth of an emulated network, and its number of ranks."""

    alpha: float  # seconds per hop of a tree
    bandwidth: float  # bytes per second of one rank's link
    ranks: int = 0  # emulated number of ranks; 0 = the ranks of the run
    jitter: float = 0.0  # a charge grows by up to this share, at random
    seed: int = 0

    def __post_init__(self) -> None:
        if not (0 <= self.alpha < float("inf") and self.bandwidth > 0):
            raise ConfigError(
                "a network needs alpha >= 0 and bandwidth > 0, as in"
                " alpha=5e-5,bandwidth=1.25e9"
            )
        if self.ranks < 0 or self.jitter < 0 or self.seed < 0:
            raise ConfigError(
                "a network's ranks, jitter and seed must be at least 0; leave them out"
                " for the number of ranks of the run and no jitter"
            )


NETWORKS = {
    "hpc": Network(5e-6, 25e9),
    "lan": Network(50e-6, 1.25e9),
    "cloud": Network(200e-6, 1.25e9),
}


def parse_network(text: str) -> Network:
    """Return the network that a text describes: a preset's name, or its numbers.

    Numbers are written as alpha=5e-5,bandwidth=1.25e9[,ranks=64][,jitter=0.1][,seed=1].
    """
    if text in NETWORKS:
        return NETWORKS[text]
    field_types = {field.name: field.type for field in fields(Network)}
    values: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not equals or name.strip() not in field_types:
            raise ConfigError(
                f"--network {text}: {part!r} is not known; name one of"
                f" {', '.join(NETWORKS)}, or give {', '.join(field_types)} as"
                " alpha=5e-5,bandwidth=1.25e9"
            )
        kind = int if name.strip() in ("ranks", "seed") else float
        try:
            values[name.strip()] = kind(value)
        except ValueError as error:
            raise ConfigError(
                f"--network {text}: {value!r} is no"
                f" {'whole number' if kind is int else 'number'}; write it as in"
                " alpha=5e-5,bandwidth=1.25e9"
            ) from error
    if not {"alpha", "bandwidth"} <= set(values):
        raise ConfigError(
            f"--network {text}: both alpha and bandwidth are needed, as in"
            " alpha=5e-5,bandwidth=1.25e9"
        )
    return Network(**values)


# What one rank can put on an emulated network, and how it waits.

PR_SET_TIMERSLACK = 29


class NetworkLink:
    """The link of one rank to the network: one transfer after the other."""

    def __init__(self, network: Network, rank: int, spins: bool = False) -> None:
        self.network = network
        self.free_at = 0.0
        self.charged = 0.0  # seconds of all transfers so far
        self._rng = np.random.default_rng((network.seed, rank))
        self.wait_until = _spin_until if spins else sleep_until
        if not spins:
            _sleep_sharply()

    def book(self, seconds: float) -> float:
        """Queue a transfer of `seconds`, and return the time at which it will be done.

        The network's jitter makes the transfer longer. Times are those of
        `time.perf_counter`.
        """
        if self.network.jitter:
            seconds *= 1.0 + self.network.jitter * self._rng.uniform()
        self.charged += seconds
        self.free_at = max(perf_counter(), self.free_at) + seconds
        return self.free_at

    def is_over(self, moment: float) -> bool:
        """Return whether the time `moment`, at which a transfer is done, has passed."""
        return perf_counter() >= moment


def _spin_until(moment: float) -> None:
    """Spin until the time `moment`, which keeps the core as warm as a wait of MPI.

    A sleep adds some microseconds, lets ranks wake apart and caches cool, which makes
    every message slower than the emulated network, above all for methods that send
    most. Ranks that own a core each, and whose MPI spins anyway, can do better.
    """
    while perf_counter() < moment:
        pass


def sleep_until(moment: float) -> None:
    """Sleep until the time `moment`: other ranks can use the core meanwhile."""
    left = moment - perf_counter()
    if left > 0:
        time.sleep(left)


def _sleep_sharply() -> None:
    """Ask Linux not to add its usual 50 µs to this thread's sleeps."""
    if sys.platform != "linux":
        return
    try:
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    except (OSError, AttributeError):
        return  # a libc without prctl: sleeps are coarser, nothing else changes


# A network on a desk: every collective takes as long as a slower network would.
#
# A collective over p ranks is charged α⌈log₂p⌉ plus its wire bytes over the bandwidth,
# a swap of two ranks α plus its bytes over it.
# Blocking ones wait the charge after the inner collective; non-blocking ones start when
# posted; all of a rank queue on one link.


class DelayedCommunicator(Communicator):
    """A communicator whose collectives take as long as on an emulated network.

    It counts the same calls, words and bytes as its inner communicator.
    """

    def __init__(
        self, inner: Communicator, network: Network, link: NetworkLink | None = None
    ) -> None:
        super().__init__(inner.rank, inner.size, inner.ledger, inner.reproducible)
        self.inner = inner
        self.transport = f"{inner.transport}, delayed"
        self.serves_threads = inner.serves_threads
        self.address = inner.address
        self.network = network
        owns_a_core = inner.waits_busily and inner.processes <= (os.cpu_count() or 1)
        self.link = link or NetworkLink(network, inner.rank, spins=owns_a_core)
        # A tree over the emulated ranks, if there are more than there are.
        self.modelled_ranks = max(network.ranks, inner.size) if inner.size > 1 else 1

    @property
    def mpi_handle(self) -> Any:
        """The communicator of mpi4py beneath, or None: its calls are not delayed."""
        return self.inner.mpi_handle

    @property
    def processes(self) -> int:
        """Return the number of ranks of the inner communicator that really run."""
        return self.inner.processes

    @property
    def is_patient(self) -> bool:
        """True where ranks of the inner communicator sleep as they wait for control."""
        return self.inner.is_patient

    @is_patient.setter
    def is_patient(self, is_patient: bool) -> None:
        self.inner.is_patient = is_patient

    @property
    def charged(self) -> float:
        """Seconds of all transfers of this rank on its link to the network, so far.

        Communicators that are split from this one share the link.
        """
        return self.link.charged

    @property
    def copied(self) -> tuple[int, int]:
        """Bytes that the inner communicator copied (up, down) for collectives, so far.

        The copies are between GPU and host.
        """
        return self.inner.copied

    def has_lost_ranks(self, error: BaseException) -> bool:
        """Return whether the inner communicator sees lost ranks in this error."""
        return self.inner.has_lost_ranks(error)

    def exit_abruptly(self) -> None:
        """End this rank as the inner communicator does."""
        self.inner.exit_abruptly()

    def survivors(self) -> "DelayedCommunicator":
        """Return the group of the ranks that are left, each with the link it had."""
        return DelayedCommunicator(self.inner.survivors(), self.network, self.link)

    def watch(self, timeout: float) -> None:
        """Start the watchdog of the inner communicator, which has the same ledger."""
        super().watch(timeout)
        self.inner.watch(timeout)

    def unwatch(self) -> None:
        """Stop the watchdog of the inner communicator."""
        super().unwatch()
        self.inner.unwatch()

    def split(self, color: int, key: int) -> "DelayedCommunicator":
        """Split the inner communicator; the resulting communicators share the link."""
        return DelayedCommunicator(
            self.inner.split(color, key), self.network, self.link
        )

    def close(self) -> None:
        """Close the inner communicator."""
        self.inner.close()

    def abort(self, code: int = 1) -> NoReturn:
        """End all ranks of the inner communicator."""
        self.inner.abort(code)

    def share_nodes(self, how: str) -> None:
        """Set whether ranks of a node share memory, for the inner communicator."""
        self.inner.share_nodes(how)

    @contextmanager
    def ordered_sums(self, is_ordered: bool = True) -> Iterator[None]:
        """Return a context in which this group is reproducible, if `is_ordered`.

        The inner communicator is, too.
        """
        with super().ordered_sums(is_ordered), self.inner.ordered_sums(is_ordered):
            yield

    def charge(self, wire_bytes: float) -> float:
        """Return the seconds of a collective: α⌈log₂p⌉ + bytes / bandwidth.

        p is the modelled number of ranks, and the bytes are those of one rank.
        """
        hops = ceil(log2(self.modelled_ranks))
        return self.network.alpha * hops + wire_bytes / self.network.bandwidth

    def begin(self, collective: Collective, blocking: bool) -> Transfer:
        """Begin the inner collective; it ends when it would end on the network."""
        transfer = self.inner.begin(collective, blocking)
        if not blocking:
            return self.postpone(transfer, self._seconds(collective))
        transfer.wait()
        self.link.wait_until(self.link.book(self._seconds(collective)))
        return DONE

    def _seconds(self, collective: Collective) -> float:
        """Return the seconds of a collective on the network.

        Those of an exchange of objects depend on the objects of all ranks once they are
        received, as after a blocking call, and before that on this rank's alone.
        """
        moved = collective.wire_bytes(self.modelled_ranks)
        if collective.kind == "swap":
            return self.network.alpha + moved / self.network.bandwidth
        if collective.kind == "objects" and collective.receive:
            # All ranks wait for the objects of all ranks, which differ in size.
            sizes = [SentObject(item).nbytes for item in collective.receive]
            moved = (self.modelled_ranks - 1) * sum(sizes) / len(sizes)
        return self.charge(moved)

    def postpone(self, transfer: Transfer, seconds: float) -> Transfer:
        """Return `transfer`, delayed until a message posted now would have arrived.

        The message takes `seconds`, behind earlier messages on the link.
        """
        done_at = self.link.book(seconds)

        def wait() -> None:
            transfer.wait()
            self.link.wait_until(done_at)

        is_done = transfer.is_done
        if is_done is None:
            return Transfer(wait)
        return Transfer(wait, lambda: self.link.is_over(done_at) and is_done())

    def _workspace(self, words: int, dtype: Any) -> Workspace | None:
        inner = self.inner._workspace(words, dtype)
        return None if inner is None else DelayedWorkspace(self, inner)

    def _keep(self, array: Array) -> Array:
        return self.inner._keep(array)


class DelayedWorkspace(Workspace):
    """The workspace of the inner communicator, with sums as slow as on the network."""

    def __init__(self, group: DelayedCommunicator, inner: Workspace) -> None:
        super().__init__(group, 0, inner.array.dtype)
        self.inner = inner
        self._link = group.link
        self._seconds = group.charge(
            sum_bytes(inner.array.nbytes, group.modelled_ranks)
        )

    @property
    def array(self) -> Array:
        """The array for this rank's part of the next sum, in the inner workspace."""
        return self.inner.array

    def add(self) -> Array:
        """Sum over ranks, then wait as long as the network would take."""
        total = self.inner.add()
        self._link.wait_until(self._link.book(self._seconds))
        return total


# One rank as one of many: its work is real, the messages of the other ranks are not.
#
# Sums return what this rank wrote, and a gather returns copies of this rank's part: as
# many bytes are written as on many ranks, but the numbers have no meaning.
# Behind an emulated network this shows how long an exchange of many ranks takes.


class EmulatedCommunicator(Communicator):
    """One process that acts as rank 0 of `size` ranks; the other ranks do not exist."""

    waits_busily = True

    def __init__(
        self,
        size: int,
        parts: Sequence[int],
        ledger: Ledger | None = None,
        reproducible: bool = False,
    ) -> None:
        super().__init__(0, size, ledger or Ledger(), reproducible)
        self.transport = f"one process as one of {size}"
        self.parts = list(parts)  # sizes of the groups that will be split off, in order

    def split(self, color: int, key: int) -> "EmulatedCommunicator":
        """Return the next of the groups whose sizes are in `parts`."""
        size = self.parts.pop(0)
        return EmulatedCommunicator(size, (), self.ledger, self.reproducible)

    def close(self) -> None:
        """Do nothing: there is nothing to free."""

    def abort(self, code: int = 1) -> NoReturn:
        """End this process."""
        sys.exit(code)

    @property
    def processes(self) -> int:
        """One process: the other ranks do not exist."""
        return 1

    def begin(self, collective: Collective, blocking: bool) -> Transfer:
        """Fill `receive` with copies of this rank's words in place of all ranks' words.

        A collective in place leaves its array as it is. A sum of parts adds one copy of
        the first piece for each rank.
        """
        c = collective
        if c.kind in ("parts", "ordered_parts"):
            return start_parts_in_order(self, c)
        if c.kind == "objects":
            c.receive[:] = [c.send.value] * self.size
        elif c.kind in ("exchange", "deal"):
            c.receive[...] = np.resize(c.send[: c.counts[0]], c.receive.shape)
        elif c.receive is not c.send:
            c.receive[...] = np.resize(c.send, c.receive.shape)
        return DONE

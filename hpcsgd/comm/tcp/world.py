"""Ranks that speak through sockets of TCP, without MPI."""

import atexit
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np

from hpcsgd.comm import sizes
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.board import LostRank
from hpcsgd.comm.hooks import Array
from hpcsgd.comm.launched import Launched, launched
from hpcsgd.comm.ledger import Ledger
from hpcsgd.comm.pending import Arrival
from hpcsgd.comm.tcp.engine import Engine, Moves
from hpcsgd.comm.tcp.letters import END, Letters, TcpMail
from hpcsgd.comm.tcp.mesh import Mesh, connect_all
from hpcsgd.comm.tcp.moves import Group, bytes_of
from hpcsgd.comm.tcp.parcel import pack, unpack
from hpcsgd.comm.tcp.where import Port, SharedFile, place_of
from hpcsgd.comm.tcp.wire import Wire
from hpcsgd.comm.uncaught import abort_on_uncaught
from hpcsgd.comm.watch import Watchdog
from hpcsgd.errors import ConfigError, HpcsgdError


class Ends:
    """All that this process holds of its connections, once and for its whole life."""

    def __init__(self, mesh: Mesh, at_exit: bool = True) -> None:
        self.mesh = mesh
        self.letters = Letters(mesh)
        wires = [Wire(rank, sock) for rank, sock in sorted(mesh.words.items())]
        self.engine = Engine(wires, self._lost)
        self.groups = 0  # that this rank has given a number
        self.worlds = 0
        if at_exit:
            atexit.register(self.leave)

    def _lost(self, rank: int, has_left: bool) -> NoReturn:
        raise LostRank(self.letters.why_lost(rank, has_left).text)

    def leave(self) -> None:
        """The end of a program that ends well: wait for the others, as MPI does."""
        self.letters.close()
        if self.letters.ending is not None:
            return  # the main thread knows, and has said so
        try:
            self.engine.leave()
        except LostRank as error:
            own = self.mesh.own
            self._say(f"hpcsgd: rank {own.rank} of {own.size} ends: {error}")
            os._exit(1)

    def drop(self) -> None:
        """Close all connections."""
        self.letters.drop()
        for sock in (*self.mesh.words.values(), *self.mesh.letters.values()):
            sock.close()

    @staticmethod
    def _say(text: str) -> None:
        with suppress(OSError, ValueError):
            print(text, file=sys.stderr)
            sys.stdout.flush()
            sys.stderr.flush()


_ends: list[Ends] = []  # at most one: ranks meet once


class TcpCommunicator(Communicator):
    """A group of ranks with a connection between any two."""

    transport = "TCP"
    reads_devices = False

    def __init__(
        self,
        ends: Ends,
        group: Group,
        ledger: Ledger | None = None,
        reproducible: bool = False,
    ) -> None:
        super().__init__(group.rank, group.size, ledger or Ledger(), reproducible)
        self._ends, self._group = ends, group
        self._watchdog: Watchdog | None = None

    def watch(self, timeout: float) -> None:
        """Start a watchdog beside the thread that calls this."""
        super().watch(timeout)
        if self.size == 1 or timeout <= 0 or self._watchdog is not None:
            return
        group = self._group
        mail = TcpMail(self._ends.letters, group.number, group.members, self.rank)
        self._watchdog = Watchdog(
            self.ledger.place, self.rank, self.size, timeout, mail, self.abort
        )
        self._watchdog.start()

    def unwatch(self) -> None:
        """Stop it once all ranks are here, the last wait that it watches."""
        super().unwatch()
        dog, self._watchdog = self._watchdog, None
        if dog is None:
            return
        with self._inside("end of the run", "control"):
            self._max(0)
        dog.stop()
        with self._inside("end of the run", "control"):
            self._max(0)  # nobody posts any more
        while dog.mail is not None and dog.mail.fetch() is not None:
            continue

    def split(self, color: int, key: int) -> "TcpCommunicator":
        """Ranks of one color; the first of them gives the new group its number."""
        with self._inside("split", "control"):
            ends, own = self._ends, self._group
            said = self._objects((color, key, ends.groups))
        group = sorted((k, r) for r, (c, k, _) in enumerate(said) if c == color)
        ranks = [r for _, r in group]
        ends.groups += 1
        members = [own.members[r] for r in ranks]
        number = (members[0] + 1 << 32) + said[ranks[0]][2]
        own = Group(ends.engine, number, members, ranks.index(self.rank))
        part = TcpCommunicator(ends, own, self.ledger, self.reproducible)
        part.share_nodes(self.node_sharing)
        return part

    def close(self) -> None:
        """The connections stay, for the next world of this program."""
        self.unwatch()

    def abort(self, code: int = 1) -> NoReturn:
        """End all ranks, also from a part of the world or after `close`."""
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            self._ends.letters.tell_all(END, code)
            os._exit(code)

    def _sum(self, buffer: Array) -> None:
        self._run(self._group.next().sum(_flat(buffer)))

    def _start_sum(self, buffer: Array) -> Callable[[], None]:
        return self._start(self._group.next().sum(_flat(buffer)))

    def _reduce(self, buffer: Array) -> None:
        self._run(self._group.next().reduce(_flat(buffer)))

    def _gather(self, part: Array, counts: Sequence[int], out: Array) -> None:
        self._run(self._group.next().gather(_flat(part), counts, _flat(out)))

    def _start_gather(
        self, part: Array, counts: Sequence[int], out: Array
    ) -> Callable[[], None]:
        return self._start(self._group.next().gather(_flat(part), counts, _flat(out)))

    def _start_exchange(
        self, pieces: Array, counts: Sequence[int], out: Array
    ) -> Callable[[], None]:
        received = [counts[self.rank]] * self.size
        return self._start(
            self._group.next().deal(_flat(pieces), counts, _flat(out), received)
        )

    def _start_swap(self, array: Array, out: Array, peer: int) -> Callable[[], None]:
        told: list[int] = []
        turn = self._group.swap_with(peer)
        finish = self._start(turn.swap(array, out, peer, told))

        def check() -> None:
            finish()
            sizes.check_swapped(self.rank, peer, told[0], out.nbytes)

        return check

    def _deal(
        self,
        pieces: Array,
        counts: Sequence[int],
        out: Array,
        received: Sequence[int],
    ) -> None:
        self._run(self._group.next().deal(_flat(pieces), counts, _flat(out), received))

    def _collect(self, part: Array, counts: Sequence[int], out: Array) -> None:
        self._run(self._group.next().collect(_flat(part), counts, out))

    def _broadcast(self, buffer: Array, root: int) -> None:
        self._run(self._group.next().broadcast(_flat(buffer), root))

    def _max(self, value: int) -> int:
        room = np.empty(self.size, dtype=np.int64)
        room[0] = value
        self._run(self._group.next().collect_blocks(bytes_of(room), room.itemsize))
        return int(room.max())

    def _objects(self, item: Any) -> list[Any]:
        said: list[Any] = []
        self._run(self._group.next().everybody(pack(item), said))
        return [unpack(one) for one in said]

    def _run(self, moves: Moves) -> None:
        self._ends.engine.run(moves)

    def _start(self, moves: Moves) -> Arrival:
        engine = self._ends.engine
        transfer = engine.start(moves)
        return Arrival(lambda: engine.wait(transfer), lambda: engine.has_come(transfer))


def _flat(array: Array) -> Array:
    """The words in the order of memory, which is the same on all ranks."""
    if array.ndim == 1:
        return array
    return array.reshape(-1, order="A")


def open_tcp_world(
    reproducible: bool = False,
    said: str = "",
    environ: Mapping[str, str] = os.environ,
) -> TcpCommunicator:
    """All ranks of this program; they meet when it is called first.

    `said` is the meeting place, "" what the environment says. An uncaught exception on
    any of them ends them all.
    """
    if not _ends:
        _ends.append(Ends(_connected(_own(environ), place_of(environ, said), environ)))
    ends = _ends[0]
    ends.worlds += 1
    size = ends.mesh.own.size
    group = Group(ends.engine, ends.worlds, range(size), ends.mesh.own.rank)
    world = TcpCommunicator(ends, group, reproducible=reproducible)
    if size > 1:
        abort_on_uncaught(world)
    return world


def _connected(
    own: Launched, place: Port | SharedFile, environ: Mapping[str, str]
) -> Mesh:
    try:
        return connect_all(own, place, environ)
    except HpcsgdError as error:
        error.is_own = not error.on_all_ranks  # there is no way to tell others
        raise


def _own(environ: Mapping[str, str]) -> Launched:
    own = launched(environ)
    if own is None:
        raise ConfigError(
            "no launcher says which of how many ranks this is; start them with srun or"
            " torchrun, or set HPCSGD_RANK and HPCSGD_EXPECT_RANKS on each"
        )
    return own

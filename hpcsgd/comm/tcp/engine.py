"""What is under way on all connections of a rank, and who waits for it.

A transfer is a generator: it yields the frames that it waits for, and goes on when they
are there. Whoever waits for one transfer moves all of them, so that ranks may wait for
theirs in different orders. Nothing happens while nobody waits: there is no thread.
"""

import select
from collections.abc import Callable, Generator, Iterable
from typing import NoReturn

from hpcsgd.comm.tcp.wire import BYE, Receipt, Sent, Wire
from hpcsgd.errors import TransportError

Moves = Generator[list[Receipt | Sent | None], None, None]
LOOKS = 20  # at a socket before this thread sleeps: some microseconds each


class Transfer:
    """One generator, and what it waits for now."""

    __slots__ = ("done", "moves", "waits")

    def __init__(self, moves: Moves) -> None:
        self.moves = moves
        self.waits: list[Receipt | Sent | None] = []
        self.done = False

    def advance(self) -> bool:
        """Go on as far as what has come allows; True at the end."""
        while all(one is None or one.done for one in self.waits):
            check_lengths(self.waits)
            try:
                self.waits = next(self.moves)
            except StopIteration:
                self.done = True
                return True
        return False


class Engine:
    """All connections of one rank."""

    def __init__(
        self, wires: Iterable[Wire], lost: Callable[[int, bool], NoReturn]
    ) -> None:
        self.wires = {wire.rank: wire for wire in wires}
        self.lost = lost  # called with a rank that is gone, and whether it has said so
        self.under_way: list[Transfer] = []
        self._gone: tuple[int, bool] | None = None  # what `lost` was called with
        self._by_fd = {wire.fd: wire for wire in self.wires.values()}
        self._poll = select.poll()
        self._asked: dict[int, int] = {}  # what the poll is asked of each

    def start(self, moves: Moves) -> Transfer:
        """Begin a transfer; as much as can be done at once is done."""
        if self._gone is not None:  # whoever cleans up must not wait for the others
            self.lost(*self._gone)
        transfer = Transfer(moves)
        if not transfer.advance():
            self.under_way.append(transfer)
        return transfer

    def wait(self, transfer: Transfer) -> None:
        """Until it is done."""
        looks = LOOKS
        while not transfer.done:
            if looks:
                looks -= 1
                came = self._look(transfer)
            else:
                came = self._sleep()
            if came:
                self._go_on()
                looks = LOOKS

    def has_come(self, transfer: Transfer) -> bool:
        """Whether it is done; what has come is taken, and nothing waited for."""
        if not transfer.done:
            self._sleep(0)
            self._go_on()
        return transfer.done

    def run(self, moves: Moves) -> None:
        """Begin, and wait."""
        transfer = self.start(moves)
        if not transfer.done:
            self.wait(transfer)

    def leave(self) -> None:
        """Say that nothing comes any more, and wait until all others have said it."""
        for wire in self.wires.values():
            wire.send(BYE, memoryview(b""))
        while any(wire.out or not wire.has_ended for wire in self.wires.values()):
            self._sleep()

    def _look(self, transfer: Transfer) -> bool:
        """At the connections that it waits for, and at those that have more to send."""
        came = False
        for one in transfer.waits:
            if isinstance(one, Receipt) and not one.done:
                wire = self.wires[one.source]
                came |= wire.pull()
                self._check(wire)
        for wire in self.wires.values():
            if wire.out:
                wire.push()
                came |= not wire.out
        return came

    def _sleep(self, milliseconds: int | None = None) -> bool:
        """Until something comes, or there is room for what leaves."""
        self._ask()
        came = False
        for fd, event in self._poll.poll(milliseconds):
            wire = self._by_fd[fd]
            if event & select.POLLOUT:
                wire.push()
                came = True
            if event & ~select.POLLOUT:
                came |= wire.pull()
                self._check(wire)
        return came

    def _ask(self) -> None:
        """Whom there is something to hear from, and who may have room for more."""
        for fd, wire in self._by_fd.items():
            wanted = select.POLLOUT if wire.out else 0
            wanted |= 0 if wire.has_ended else select.POLLIN
            if wanted == self._asked.get(fd, 0):
                continue
            self._asked[fd] = wanted
            if wanted:
                self._poll.register(fd, wanted)
            else:  # it would be said again and again that it is closed
                self._poll.unregister(fd)

    def _check(self, wire: Wire) -> None:
        """Whether it has ended; one that has said so is missed where it is awaited."""
        if wire.is_lost or (wire.has_left and wire.waiting):
            self._gone = wire.rank, wire.has_left
            self.lost(*self._gone)

    def _go_on(self) -> None:
        self.under_way = [one for one in self.under_way if not one.advance()]


def check_lengths(waits: list[Receipt | Sent | None]) -> None:
    """All ranks must have meant the same words."""
    for one in waits:
        if isinstance(one, Receipt) and one.is_wrong():
            expected = one.target.nbytes if one.target is not None else 0
            raise TransportError(
                f"rank {one.source} sent {one.length} bytes, not {expected}; pass the"
                " same counts on all ranks"
            )

"""One connection to one rank: frames that leave, and frames that come.

A frame is its name (16 bytes: group, number of the collective, step), its length, and
its words. What comes goes straight to where somebody waits for it; what nobody waits
for yet is kept under its name.
"""

import struct
from collections import deque
from typing import Any

HEAD = struct.Struct("<QIIQ")
NAME = struct.Struct("<QII")
BYE = NAME.pack(0, 0xFFFFFFFF, 0)  # the last frame of a rank that ends well
COPY = 1 << 16  # bytes; what is shorter is copied rather than waited for
ROOM = 1 << 18  # bytes that one look at a socket may bring


class Receipt:
    """A frame that is waited for, or that has come before anybody did."""

    __slots__ = ("any_length", "done", "length", "source", "target", "view")

    def __init__(self, source: int, target: memoryview | None = None) -> None:
        self.source = source
        self.target = target  # where it is to go; None: wherever it has room
        self.view = target  # where it goes
        self.length = 0  # bytes that came
        self.any_length = target is None
        self.done = False

    @property
    def words(self) -> memoryview:
        """What has come."""
        assert self.view is not None
        return self.view

    def settle(self) -> None:
        """It has come as a whole."""
        self.done = True
        target = self.target
        if target is None or target is self.view:
            return
        if target.nbytes == self.length:
            target[:] = self.words

    def is_wrong(self) -> bool:
        """Whether it is shorter or longer than was expected."""
        return (
            not self.any_length
            and self.target is not None
            and self.length != self.target.nbytes
        )


class Sent:
    """A frame that has not left yet: its words must not be written."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False


class Wire:
    """This rank's end."""

    def __init__(self, rank: int, sock: Any) -> None:
        self.rank, self.sock = rank, sock
        self.fd: int = sock.fileno()
        self.out: deque[tuple[memoryview, Sent | None]] = deque()
        self.has_left = False  # nothing comes any more, as it has said
        self.is_lost = False  # nothing comes any more, and it has not said why
        self.waiting: dict[bytes, Receipt] = {}
        self._early: dict[bytes, Receipt] = {}
        self._room = memoryview(bytearray(ROOM))
        self._held = 0  # bytes of the room that are not understood yet
        self._now: Receipt | None = None  # whose words are coming
        self._rest: memoryview = self._room[:0]  # where the rest of them goes

    @property
    def has_ended(self) -> bool:
        """True where nothing comes any more."""
        return self.has_left or self.is_lost

    def send(self, name: bytes, words: memoryview) -> Sent | None:
        """Put a frame on its way; None where its words may be written again at once."""
        head = name + words.nbytes.to_bytes(8, "little")
        gone = 0
        if not self.out:
            try:
                gone = self.sock.sendmsg((head, words))
            except BlockingIOError:
                gone = 0
            except OSError:  # whoever reads from it hears of its end
                return None
            if gone == len(head) + words.nbytes:
                return None
        if gone < len(head):
            self.out.append((memoryview(head)[gone:], None))
        rest = words[max(0, gone - len(head)) :]
        if rest.nbytes <= COPY:
            self.out.append((memoryview(bytes(rest)), None))
            return None
        sent = Sent()
        self.out.append((rest, sent))
        return sent

    def push(self) -> None:
        """Send what the connection takes now."""
        while self.out:
            words, sent = self.out[0]
            try:
                gone = self.sock.send(words) if words.nbytes else 0
            except BlockingIOError:
                return
            except OSError:
                self.drop()
                return
            if gone < words.nbytes:
                self.out[0] = (words[gone:], sent)
                return
            self.out.popleft()
            if sent is not None:
                sent.done = True

    def drop(self) -> None:
        """Nobody reads it any more."""
        for _, sent in self.out:
            if sent is not None:
                sent.done = True
        self.out.clear()

    def post(self, name: bytes, target: memoryview | None) -> Receipt:
        """Wait for a frame."""
        early = self._early.pop(name, None)
        if early is None:
            receipt = self.waiting[name] = Receipt(self.rank, target)
            return receipt
        early.target, early.any_length = target, target is None
        if early.done:
            early.settle()
        return early

    def pull(self) -> bool:
        """Take what has come; True if anything has."""
        came = False
        while not self.has_ended:
            into = self._rest if self._rest.nbytes else self._room[self._held :]
            try:
                size = self.sock.recv_into(into)
            except BlockingIOError:
                return came
            except OSError:
                size = 0
            if size == 0:
                self.is_lost = True
                self.drop()
                return True
            came = True
            if self._rest.nbytes:
                self._rest = self._rest[size:]
                if not self._rest.nbytes:
                    self._finish()
            else:
                self._held += size
                self._understand()
            if size < into.nbytes:
                return True
        return came

    def _understand(self) -> None:
        """All frames in the room; the rest of the last goes straight to its place."""
        room, at, held = self._room, 0, self._held
        while held - at >= HEAD.size:
            name = bytes(room[at : at + NAME.size])
            length = int.from_bytes(room[at + NAME.size : at + HEAD.size], "little")
            at += HEAD.size
            if name == BYE:
                self.has_left = True
                return
            view = self._begin(name, length)
            here = min(length, held - at)
            view[:here] = room[at : at + here]
            at += here
            if here < length:
                self._rest = view[here:]
            else:
                self._finish()
        if at and at < held:
            room[: held - at] = bytes(room[at:held])
        self._held = held - at

    def _begin(self, name: bytes, length: int) -> memoryview:
        receipt = self.waiting.pop(name, None)
        if receipt is None:
            receipt = self._early[name] = Receipt(self.rank)
        if receipt.view is None or receipt.view.nbytes != length:
            receipt.view = memoryview(bytearray(length))
        receipt.length = length
        self._now = receipt
        return receipt.view

    def _finish(self) -> None:
        assert self._now is not None
        self._now.settle()
        self._now = None

"""Letters between watchdogs over MPI, from a thread that must never block."""

import os
from typing import Any

from hpcsgd.comm.usage import node, process_state


class MpiMail:
    """Owns its communicator; made and closed by all ranks together."""

    def __init__(self, comm: Any) -> None:
        self.comm = comm
        self.rank, self.size = int(comm.rank), int(comm.size)
        self._leaving: list[Any] = []
        self._arriving: list[Any] = []
        homes = comm.allgather((node(), os.getpid()))
        own = homes[self.rank][0]
        self._mates = {r: pid for r, (home, pid) in enumerate(homes) if home == own}

    def post(self, rank: int, message: Any) -> None:
        """Hand it to MPI; what has left is forgotten."""
        self._leaving = [sent for sent in self._leaving if not sent.Test()]
        self._leaving.append(self.comm.isend((self.rank, message), rank))

    def fetch(self) -> tuple[int, Any] | None:
        """The next letter that has arrived whole; else this is one cheap look."""
        try:
            while (letter := self.comm.improbe()) is not None:
                self._arriving.append(letter.irecv())
        except RuntimeError:  # ranks were lost: the main thread hears of it, not we
            return None
        for request in self._arriving:
            arrived, content = request.test()
            if arrived:
                self._arriving.remove(request)
                sender, message = content
                return sender, message
        return None

    def look(self, rank: int) -> str:
        """From /proc, where the rank is on this node."""
        return process_state(self._mates[rank]) if rank in self._mates else ""

    def close(self) -> None:
        """Throw away what came too late; all ranks have stopped posting."""
        while self.fetch() is not None:
            continue
        self.comm.Free()

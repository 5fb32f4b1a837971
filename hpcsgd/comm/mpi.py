"""Ranks over MPI, host buffers; the home of mpi4py."""

import atexit
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np

from hpcsgd.comm import sizes
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.hooks import Array
from hpcsgd.comm.launched import launched
from hpcsgd.comm.ledger import Ledger
from hpcsgd.comm.leftovers import remove_leftovers
from hpcsgd.comm.mail import MpiMail
from hpcsgd.comm.meeting import meet
from hpcsgd.comm.pending import Arrival
from hpcsgd.comm.start_limit import FORWARDING, TIMEOUT, start_limit, start_seconds
from hpcsgd.comm.ulfm import is_loss, shrink, vanish
from hpcsgd.comm.uncaught import abort_on_uncaught
from hpcsgd.comm.verdict import PATIENCE
from hpcsgd.comm.watch import Watchdog
from hpcsgd.comm.ways import Ways
from hpcsgd.comm.workspace import Workspace
from hpcsgd.errors import ConfigError, MissingPackage

NAP = 1e-4  # seconds between looks of a patient rank
SITE = (
    "load the MPI of the site (as: module load openmpi), name its library in"
    " MPI4PY_LIBMPI, or build mpi4py for it: MPICC=mpicc pip install --no-binary mpi4py"
    " mpi4py"
)


def why_not_loaded(error: ImportError | RuntimeError) -> str:
    """Return why mpi4py cannot be used, in the loader's words, with the remedy.

    A site's MPI is never to be replaced: an installed mpi4py is pointed at it.
    """
    if isinstance(error, ModuleNotFoundError):
        return (
            "MPI ranks need mpi4py, which is not installed; on a cluster: load its MPI"
            " and pip install mpi4py; elsewhere: pip install mpi4py mpich"
        )
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"mpi4py finds no MPI library ({'; '.join(lines)}); {SITE}"


def load_mpi(timeout: float = TIMEOUT) -> Any:
    """Return mpi4py's MPI module, initialised within `start_seconds(timeout)`.

    A rank whose time is over is ended with one sentence, because the others have ended
    or never begun.
    """
    if "mpi4py.MPI" in sys.modules and sys.modules["mpi4py.MPI"].Is_initialized():
        loaded = sys.modules["mpi4py.MPI"]
        if loaded.Is_finalized():  # the first call of MPI would end the interpreter
            raise ConfigError(
                "ranks cannot meet any more: MPI has been finalised; call this before"
                " MPI.Finalize()"
            )
        return loaded
    remove_leftovers(os.environ)
    own = launched(os.environ)
    rank, size = (0, 1) if own is None else (own.rank, own.size)
    with start_limit(start_seconds(timeout), rank, size):
        try:
            from mpi4py import MPI
        except (ImportError, RuntimeError) as missing:
            # Wheels raise RuntimeError where no library loads, others ImportError.
            raise MissingPackage(why_not_loaded(missing)) from missing
        if not MPI.Is_initialized():
            # `mpi_facts` was here first and imported it without starting it.
            MPI.Init_thread()
            atexit.register(MPI.Finalize)
    return MPI


class MpiCommunicator(Communicator):
    """A group of MPI ranks; owns the mpi4py communicator it is given."""

    waits_busily = True

    def __init__(
        self,
        comm: Any,
        ledger: Ledger | None = None,
        reproducible: bool = False,
        ways: Ways | None = None,
    ) -> None:
        super().__init__(comm.rank, comm.size, ledger or Ledger(), reproducible)
        self._comm = comm
        self._mpi = load_mpi()
        self.transport = library_name(self._mpi)
        level = self._mpi.Query_thread()
        self.serves_threads = level >= self._mpi.THREAD_SERIALIZED
        self._ways = ways or Ways(comm, self._mpi)
        # One word for flags, allocated once: they are asked for all the time.
        self._flag = np.zeros(1, dtype=np.int64)
        self._watchdog: Watchdog | None = None
        self._groups: list[Any] = []  # what was split off: revoked with us

    @property
    def mpi_handle(self) -> Any:
        """What mpi4py calls a communicator."""
        return self._comm

    def has_lost_ranks(self, error: BaseException) -> bool:
        """What an MPI with ULFM raises instead of ending the job."""
        return is_loss(self._mpi, error)

    def vanish(self) -> None:
        """What an MPI with ULFM notices."""
        vanish()

    def survivors(self) -> "MpiCommunicator":
        """Those that are left, in the order they had."""
        dog, self._watchdog = self._watchdog, None
        groups = [group for group in self._groups if group]
        if dog is not None:
            dog.stop()
            groups += [dog.mail.comm] if isinstance(dog.mail, MpiMail) else []
        left = shrink(self._mpi, self._comm, groups)
        return MpiCommunicator(left, Ledger(), self.reproducible)

    def watch(self, timeout: float) -> None:
        """Start a watchdog beside the thread that calls this."""
        super().watch(timeout)
        if self.size == 1 or timeout <= 0 or self._watchdog is not None:
            return
        limit = PATIENCE * start_seconds(timeout)
        meet(self._mpi, self._comm, timeout, limit, self.abort)
        dog = self._watchdog = Watchdog(
            self.ledger.place, self.rank, self.size, timeout, None, self.abort
        )
        dog.start()
        if self._mpi.Query_thread() == self._mpi.THREAD_MULTIPLE:
            with self._inside("start of the run", "control"):
                dog.mail = MpiMail(self._comm.Dup())

    def unwatch(self) -> None:
        """Stop it once all ranks are here, the last wait that it watches."""
        super().unwatch()
        dog, self._watchdog = self._watchdog, None
        if dog is None:
            return
        with self._inside("end of the run", "control"):
            self._comm.Barrier()
        dog.stop()
        if isinstance(dog.mail, MpiMail):
            self._comm.Barrier()  # nobody posts any more
            dog.mail.close()

    def split(self, color: int, key: int) -> "MpiCommunicator":
        """MPI_Comm_split."""
        with self._inside("split", "control"):
            part = self._comm.Split(color, key)
            # Without those that are closed: a world may outlive thousands of runs.
            self._groups = [group for group in self._groups if group] + [part]
            self._ways.release()
            ways = self._ways.of_part(part)
            group = MpiCommunicator(part, self.ledger, self.reproducible, ways)
            group.share_nodes(self.node_sharing)
        return group

    def close(self) -> None:
        """Free the communicator, with all others."""
        self.unwatch()
        self._ways.close()
        self._comm.Free()

    def abort(self, code: int = 1) -> NoReturn:
        """MPI_Abort of the whole job, also from a part of it or after `close`."""
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # a closed pipe must not keep the others waiting
            self._mpi.COMM_WORLD.Abort(code)
        raise SystemExit(code)

    def _sum(self, buffer: Array) -> None:
        self._comm.Allreduce(self._mpi.IN_PLACE, buffer)

    def _workspace(self, words: int, dtype: Any) -> Workspace:
        return self._ways.workspace(self, words, dtype)

    def _keep(self, array: Array) -> Array:
        return self._ways.keep(self.node_sharing, array)

    def _start_sum(self, buffer: Array) -> Callable[[], None]:
        request = self._comm.Iallreduce(self._mpi.IN_PLACE, buffer)
        return Arrival(request.Wait, request.Test)

    def _start_sum_parts(
        self, buffer: Array, counts: Sequence[int]
    ) -> Callable[[], None]:
        mpi = self._mpi
        request = self._comm.Ireduce_scatter(mpi.IN_PLACE, buffer, counts, mpi.SUM)
        return lambda: request.Wait()

    def _reduce(self, buffer: Array) -> None:
        if self.rank == 0:
            self._comm.Reduce(self._mpi.IN_PLACE, buffer, root=0)
        else:
            self._comm.Reduce(buffer, None, root=0)

    def _gather(self, part: Array, counts: Sequence[int], out: Array) -> None:
        if _are_equal(counts):
            self._comm.Allgather(_sendable(part), _sendable(out))
        else:
            self._comm.Allgatherv(_sendable(part), [_sendable(out), counts])

    def _start_gather(
        self, part: Array, counts: Sequence[int], out: Array
    ) -> Callable[[], None]:
        if _are_equal(counts):
            request = self._comm.Iallgather(_sendable(part), _sendable(out))
        else:
            received = [_sendable(out), counts]
            request = self._comm.Iallgatherv(_sendable(part), received)
        return lambda: request.Wait()

    def _exchange(self, pieces: Array, counts: Sequence[int], out: Array) -> None:
        if _are_equal(counts):
            self._comm.Alltoall(_sendable(pieces), _sendable(out))
        else:
            self._comm.Alltoallv(*self._pieces(pieces, counts, out))

    def _start_exchange(
        self, pieces: Array, counts: Sequence[int], out: Array
    ) -> Callable[[], None]:
        if _are_equal(counts):
            request = self._comm.Ialltoall(_sendable(pieces), _sendable(out))
        else:
            request = self._comm.Ialltoallv(*self._pieces(pieces, counts, out))
        return lambda: request.Wait()

    def _start_swap(self, array: Array, out: Array, peer: int) -> Callable[[], None]:
        told = self._mpi.Status(), self._mpi.Status()
        # Received first: what then arrives has where to go.
        taken = self._comm.Irecv(_sendable(out), peer)
        requests = taken, self._comm.Isend(_sendable(array), peer)

        def finish() -> None:
            self._mpi.Request.Waitall(requests, told)
            got = told[0].Get_count(self._mpi.BYTE)
            sizes.check_swapped(self.rank, peer, got, out.nbytes)

        return finish

    def _deal(
        self,
        pieces: Array,
        counts: Sequence[int],
        out: Array,
        received: Sequence[int],
    ) -> None:
        sent, taken = [_sendable(pieces), counts], [_sendable(out), received]
        self._comm.Alltoallv(sent, taken)

    def _pieces(
        self, pieces: Array, counts: Sequence[int], out: Array
    ) -> tuple[list[Any], list[Any]]:
        """What is sent and what is received, each with its counts."""
        received = [counts[self.rank]] * self.size
        return [_sendable(pieces), counts], [_sendable(out), received]

    def _collect(self, part: Array, counts: Sequence[int], out: Array) -> None:
        into = [_sendable(out), counts] if self.rank == 0 else None
        self._comm.Gatherv(_sendable(part), into, root=0)

    def _broadcast(self, buffer: Array, root: int) -> None:
        self._comm.Bcast(_sendable(buffer), root=root)

    def _max(self, value: int) -> int:
        self._flag[0] = value
        self._comm.Allreduce(self._mpi.IN_PLACE, self._flag, op=self._mpi.MAX)
        return int(self._flag[0])

    def _objects(self, item: Any) -> list[Any]:
        if self.is_patient:
            # MPI spins while it waits, on a core that others could use.
            all_here = self._comm.Ibarrier()
            while not all_here.Test():
                time.sleep(NAP)
        items: list[Any] = self._comm.allgather(item)
        return items


def _sendable(array: Array) -> Array:
    """16-bit floats as the bits they are: MPI moves them, it only cannot add them."""
    if array.dtype.char == "e" or array.dtype.kind == "V":
        return array.view(f"u{array.dtype.itemsize}")
    return array


def _are_equal(counts: Sequence[int]) -> bool:
    """Then MPI has calls that take half as long as those with counts of each rank."""
    return min(counts) == max(counts)


def open_mpi_world(
    reproducible: bool = False, comm: Any = None, timeout: float = TIMEOUT
) -> MpiCommunicator:
    """All ranks of `comm` (all there are), in a communicator of our own.

    An uncaught exception on any of them ends them all, and so does a rank that does
    not come within `start_seconds(timeout)`, or, where a program gives `comm` and may
    do other things before, within PATIENCE times as long. It is named in a warning
    after `timeout` seconds.
    """
    if comm is not None:
        _check_usable(comm)
    mpi = load_mpi(timeout)
    source = mpi.COMM_WORLD if comm is None else comm
    if source.size > 1:
        limit = start_seconds(timeout) * (1 if comm is None else PATIENCE)
        meet(mpi, source, timeout, limit, lambda code: _end_all(mpi, code))
    world = MpiCommunicator(source.Dup(), reproducible=reproducible)
    if world.size > 1:
        abort_on_uncaught(world)
    return world


def _end_all(mpi: Any, code: int) -> None:
    time.sleep(FORWARDING)  # an abort may overtake what the launcher has to forward
    mpi.COMM_WORLD.Abort(code)


def _check_usable(comm: Any) -> None:
    """Refuse a communicator of the caller that is empty, or while MPI does not run.

    MPI would end the interpreter at the first use of it.
    """
    from mpi4py import MPI

    if MPI.Is_finalized():
        raise ConfigError(
            "comm cannot be used any more: MPI has been finalised; call this before"
            " MPI.Finalize()"
        )
    if not MPI.Is_initialized():
        raise ConfigError(
            "comm cannot be used yet: MPI has not been initialised; call MPI.Init()"
            " first, or leave mpi4py.rc.initialize at True"
        )
    if not comm:
        raise ConfigError(
            "comm is MPI.COMM_NULL, which has no ranks: this rank was left out when it"
            " was made, or it has been freed; leave this call to the ranks of comm"
        )


def library_name(mpi: Any) -> str:
    """The first line of what the library says of itself."""
    said: str = mpi.Get_library_version().strip("\x00 \n").splitlines()[0]
    return " ".join(said.split())

"""Ranks of MPI: the home of mpi4py, what its library can do, and how ranks meet."""

import atexit
import ctypes
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np

from hpcsgd.comm.communicator import (
    DONE,
    Collective,
    Communicator,
    Transfer,
    Workspace,
    check_swapped,
    start_parts_in_order,
)
from hpcsgd.comm.launchers import (
    abort_on_uncaught,
    is_loss,
    is_one_node,
    kill_process,
    launched,
    remove_leftovers,
    shrink,
    sleep_where_crowded,
)
from hpcsgd.comm.ledger import Ledger
from hpcsgd.comm.rank_ends import (
    FORWARDING,
    TIMEOUT,
    first_turn,
    has_turn,
    start_limit,
    start_seconds,
)
from hpcsgd.comm.shared_memory import SumChoice, agreed
from hpcsgd.comm.watchdog import (
    PATIENCE,
    PipeMail,
    Watchdog,
    WatchedRank,
    node,
    process_state,
)
from hpcsgd.errors import ConfigError, MissingPackage
from hpcsgd.formats import Array

# Messages between watchdogs over MPI, from a thread that must never block.


class MpiMail:
    """Messages of a watchdog over its own MPI communicator.

    All ranks must open and close it together. `mates` has the processes of the ranks on
    this node, by rank.
    """

    def __init__(self, comm: Any, mates: Mapping[int, int]) -> None:
        self.comm = comm
        self.rank = int(comm.rank)
        self.size = int(comm.size)
        self._leaving: list[Any] = []
        self._arriving: list[Any] = []
        self._mates = mates

    def post(self, rank: int, message: Any) -> None:
        """Start to send `message` to `rank`; drop it if the rank cannot be reached."""
        self._leaving = [sent for sent in self._leaving if not _has_left(sent)]
        # The watchdog finds by the rank's silence that it is gone.
        with suppress(RuntimeError):
            self._leaving.append(self.comm.isend((self.rank, message), rank))

    def fetch(self) -> tuple[int, Any] | None:
        """Return (sender, message) of the next complete message, or None.

        The call never waits.
        """
        try:
            while (letter := self.comm.improbe()) is not None:
                self._arriving.append(letter.irecv())
        except RuntimeError:  # ranks were lost: the main thread gets that error
            return None
        for request in self._arriving:
            arrived, content = request.test()
            if arrived:
                self._arriving.remove(request)
                sender, message = content
                return sender, message
        return None

    def poll(self, rank: int) -> str:
        """Return the state of a rank's process from /proc; "" on another node."""
        return process_state(self._mates[rank]) if rank in self._mates else ""

    def close(self) -> None:
        """Discard late messages and free the communicator. Collective.

        Call it after all ranks stopped posting.
        """
        while self.fetch() is not None:
            continue
        self.comm.Free()


def open_mail(mpi: Any, comm: Any) -> MpiMail | PipeMail | None:
    """Return the way of messages between the watchdogs of all ranks. Collective.

    Ranks of one node write into pipes. Between nodes a watchdog has to call MPI, which
    must allow calls of several threads at once; None if it does not.
    """
    reader, pipe = os.pipe()
    many_threads = mpi.Query_thread() == mpi.THREAD_MULTIPLE
    ranks = comm.allgather((node(), os.getpid(), pipe, many_threads))
    homes, pids, pipes, allowed = zip(*ranks, strict=True)
    by_pipes = PipeMail(comm.rank, pids, pipes, reader)
    is_reached = by_pipes.can_reach((comm.rank + 1) % comm.size)
    if agreed(comm, mpi, len(set(homes)) == 1 and is_reached):
        return by_pipes
    by_pipes.close()
    if not all(allowed):
        return None
    own_node = homes[comm.rank]
    mates = {r: pids[r] for r, home in enumerate(homes) if home == own_node}
    return MpiMail(comm.Dup(), mates)


def _has_left(request: Any) -> bool:
    """Return whether a send request is done, or can never be done."""
    try:
        return bool(request.Test())
    except RuntimeError:  # its receiver is gone
        return True


# All ranks of a communicator come together, and those that do not are named.
#
# A barrier that does not block. If all ranks reach it in time, nothing else is sent. A
# rank that waits too long sends a word to all others, which answer with the same word;
# a rank that has not answered is missing.

log = logging.getLogger("hpcsgd")
TAG = 32761  # of a word between ranks that wait; up to 2¹⁵−1 all tags exist
SPINS = 1000  # tests without sleep, for ranks that come together
MEETING_NAP = 1e-3  # seconds between tests behind them
HEARING = 2.0  # seconds that an answer may take


def meet(
    mpi: Any,
    comm: Any,
    timeout: float,
    limit: float,
    end: Callable[[int], object],
    say: Callable[[str], None] | None = None,
) -> None:
    """Return when all ranks of `comm` have called this function. Collective.

    After `timeout` seconds (0 = wait for ever) a rank that waits logs a warning that
    names the missing ranks. After `limit` seconds it passes a sentence that names them
    to `say` (by default to stderr), and calls `end` with the exit code 1. Both come a
    few seconds later, since ranks first answer each other.
    """
    arrived = comm.Ibarrier()
    if timeout <= 0:
        arrived.Wait()
        return
    words = _Words(mpi, comm)
    began = time.perf_counter()
    tests = 0
    warned = False
    hearing = HEARING + first_turn(comm.rank)
    while not arrived.Test():
        tests += 1
        if tests < SPINS:
            continue
        time.sleep(MEETING_NAP)
        words.answer()
        waited = time.perf_counter() - began
        if waited < timeout:
            continue
        words.call()
        missing = words.missing()
        if not missing or waited < timeout + hearing or not has_turn(comm.rank):
            continue
        text = _sentence(comm, waited, missing)
        if waited >= limit + hearing:
            (say or _say)(
                f"hpcsgd: {text}; the job ends ({limit:g} s are allowed;"
                " --timeout SECONDS or run.timeout changes it, 0 = wait for ever)"
            )
            end(1)
        elif not warned:
            warned = True
            log.warning("%s; the limit is %g s", text, limit)


def _sentence(comm: Any, waited: float, missing: list[int]) -> str:
    named = ", ".join(map(str, missing[:8])) + (", ..." if len(missing) > 8 else "")
    ranks = f"rank {named} has" if len(missing) == 1 else f"ranks {named} have"
    return (
        f"rank {comm.rank} of {comm.size} has waited {waited:.0f} s: {ranks} not made"
        " the same call of hpcsgd (as fit(comm=...)), which all ranks of a communicator"
        " have to make"
    )


class _Words:
    """The one-byte messages with which waiting ranks show that they are present."""

    def __init__(self, mpi: Any, comm: Any) -> None:
        self._mpi = mpi
        self._comm = comm
        self._present = {int(comm.rank)}
        self._told = {int(comm.rank)}
        self._word = np.zeros(1, dtype=np.uint8)
        self._sent: list[Any] = []

    def call(self) -> None:
        """Send this rank's message to all ranks to which it was not sent yet."""
        for rank in set(range(self._comm.size)) - self._told:
            self._tell(rank)

    def answer(self) -> None:
        """Receive the messages that have arrived, and answer their senders.

        A rank that already has this rank's message gets no second one.
        """
        status = self._mpi.Status()
        while self._comm.Iprobe(self._mpi.ANY_SOURCE, TAG, status):
            rank = status.Get_source()
            self._comm.Recv(np.zeros(1, dtype=np.uint8), rank, TAG)
            self._present.add(rank)
            if rank not in self._told:
                self._tell(rank)

    def missing(self) -> list[int]:
        """Return the ranks from which no message has arrived."""
        return sorted(set(range(self._comm.size)) - self._present)

    def _tell(self, rank: int) -> None:
        self._told.add(rank)
        self._sent.append(self._comm.Isend(self._word, rank, TAG))


def _say(text: str) -> None:
    """Write a text to stderr at once, without Python's buffers."""
    os.write(2, (text + "\n").encode())


# Ranks over MPI, host buffers; the home of mpi4py.

NAP = 1e-4  # seconds between polls of a patient rank
PATIENT = ("objects", "broadcast", "max")  # what it waits for asleep
LEVEL = "MPI4PY_RC_THREAD_LEVEL"  # of a user, read by mpi4py
SITE = (
    "load the MPI of the site (as: module load openmpi), name its library in"
    " MPI4PY_LIBMPI, or build mpi4py for it: MPICC=mpicc pip install --no-binary mpi4py"
    " mpi4py"
)


def why_not_loaded(error: ImportError | RuntimeError) -> str:
    """Return why mpi4py cannot be used, with the loader's error and the remedy.

    The remedy never replaces the MPI of a site: it points an installed mpi4py to it.
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

    A rank that takes longer is ended with one sentence: another rank has ended, is
    stopped, or was never started. ConfigError is raised if MPI has been finalised,
    MissingPackage if mpi4py or its library cannot be loaded. Its level of thread
    support is MPI_THREAD_SERIALIZED, which makes short messages twice as fast as
    MPI_THREAD_MULTIPLE, unless watchdogs need MPI for messages between nodes. The
    variable MPI4PY_RC_THREAD_LEVEL asks for another level.
    """
    if "mpi4py.MPI" in sys.modules and sys.modules["mpi4py.MPI"].Is_initialized():
        loaded = sys.modules["mpi4py.MPI"]
        if loaded.Is_finalized():  # the first call of MPI would end the interpreter
            raise ConfigError(
                "ranks cannot communicate any more: MPI has been finalised; call this"
                " function before MPI.Finalize()"
            )
        return loaded
    remove_leftovers(os.environ)
    sleep_where_crowded(os.environ)
    launcher = launched(os.environ)
    rank, size = (0, 1) if launcher is None else (launcher.rank, launcher.size)
    with start_limit(start_seconds(timeout), rank, size):
        try:
            import mpi4py

            if LEVEL not in os.environ:
                mpi4py.rc.thread_level = thread_level(os.environ, timeout)
            from mpi4py import MPI
        except (ImportError, RuntimeError) as missing:
            # Wheels raise RuntimeError where no library loads, others ImportError.
            raise MissingPackage(why_not_loaded(missing)) from missing
        if not MPI.Is_initialized():
            # `mpi_facts` was here first and imported it without starting it.
            MPI.Init_thread(getattr(MPI, f"THREAD_{mpi4py.rc.thread_level.upper()}"))
            atexit.register(MPI.Finalize)
    return MPI


def thread_level(environment: Mapping[str, str], timeout: float) -> str:
    """Return the level of thread support that MPI needs, as mpi4py names it.

    A watchdog calls MPI beside the main thread of its rank, "multiple", only to reach
    ranks on other nodes. Without a `timeout` there is no watchdog.
    """
    alone = timeout <= 0 or (is_one_node(environment) and process_state() != "")
    return "serialized" if alone else "multiple"


class MpiCommunicator(Communicator):
    """A communicator of MPI ranks, which owns the mpi4py communicator `comm`."""

    waits_busily = True

    def __init__(
        self,
        comm: Any,
        ledger: Ledger | None = None,
        reproducible: bool = False,
        ways: SumChoice | None = None,
    ) -> None:
        super().__init__(comm.rank, comm.size, ledger or Ledger(), reproducible)
        self._comm = comm
        self._mpi = load_mpi()
        self.transport = library_name(self._mpi)
        level = self._mpi.Query_thread()
        self.serves_threads = level >= self._mpi.THREAD_SERIALIZED
        self._ways = ways or SumChoice(comm, self._mpi)
        self._watchdog: Watchdog | None = None
        self._mail: MpiMail | PipeMail | None = None  # of the watchdog, if possible
        self._groups: list[Any] = []  # what was split off: revoked with us

    @property
    def mpi_handle(self) -> Any:
        """Return the mpi4py communicator that this object owns."""
        return self._comm

    def has_lost_ranks(self, error: BaseException) -> bool:
        """Return whether `error` is a report of lost ranks by an MPI with ULFM."""
        return is_loss(self._mpi, error)

    def exit_abruptly(self) -> None:
        """Kill this process, so that an MPI with ULFM notices the loss of a rank."""
        kill_process()

    def survivors(self) -> "MpiCommunicator":
        """Return a communicator of the remaining ranks, in rank order. Collective.

        It replaces this communicator after a loss of ranks.
        """
        groups = [group for group in self._groups if group]
        if self._watchdog is not None:
            self._watchdog.stop()
            self._watchdog = None
        if isinstance(self._mail, MpiMail):
            groups.append(self._mail.comm)
        elif self._mail is not None:
            self._mail.close()
        self._mail = None
        left = shrink(self._mpi, self._comm, groups)
        return MpiCommunicator(left, Ledger(), self.reproducible)

    def watch(self, timeout: float) -> None:
        """Start a watchdog thread that watches the calling thread. Collective.

        `timeout` is in seconds. Nothing is started for one rank, or if it is 0.
        """
        super().watch(timeout)
        if self.size == 1 or timeout <= 0 or self._watchdog is not None:
            return
        limit = PATIENCE * start_seconds(timeout)
        meet(self._mpi, self._comm, timeout, limit, self.abort)
        watched = WatchedRank(self.ledger.place, self.rank, self.size, self.abort)
        dog = self._watchdog = Watchdog(watched, timeout)
        dog.start()
        with self.enter("start of the run", "control"):
            dog.mail = self._mail = open_mail(self._mpi, self._comm)

    def unwatch(self) -> None:
        """Stop the watchdog after a barrier of all ranks. Collective.

        The barrier is the last wait that the watchdog checks.
        """
        super().unwatch()
        dog = self._watchdog
        self._watchdog = None
        if dog is None:
            return
        with self.enter("end of the run", "control"):
            self._comm.Barrier()
        dog.stop()
        if self._mail is not None:
            self._comm.Barrier()  # no rank posts any more
            self._mail.close()
            self._mail = None

    def split(self, color: int, key: int) -> "MpiCommunicator":
        """Return a communicator of the ranks with this color. Collective.

        Its ranks are ordered by `key`.
        """
        with self.enter("split", "control"):
            part = self._comm.Split(color, key)
            # Without those that are closed: a world may outlive thousands of runs.
            self._groups = [group for group in self._groups if group] + [part]
            self._ways.release()
            sum_choice = self._ways.of_part(part)
            group = MpiCommunicator(part, self.ledger, self.reproducible, sum_choice)
            group.share_nodes(self.node_sharing)
        return group

    def close(self) -> None:
        """Stop the watchdog and free the communicator. Collective."""
        self.unwatch()
        self._ways.close()
        self._comm.Free()

    def abort(self, code: int = 1) -> NoReturn:
        """End all ranks of the job by MPI_Abort, with the exit code `code`.

        It ends the whole job also if this communicator has only some of its ranks, or
        is closed.
        """
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:  # a closed pipe must not keep the others waiting
            _end_all(self._mpi, code)
        raise SystemExit(code)

    def begin(self, collective: Collective, blocking: bool) -> Transfer:
        """Start the MPI call of a collective, and return its transfer.

        The call is non-blocking unless `blocking`; then it is complete on return. An
        exchange of objects always is. A swap and a sum of parts in rank order end in
        the `wait` of the transfer.
        """
        kind = collective.kind
        if blocking and kind == "sum":  # the shortest way for what repeats most
            self._comm.Allreduce(self._mpi.IN_PLACE, collective.receive)
            return DONE
        if self.is_patient and kind in PATIENT:
            self._sleep_until_all_are_here()
        if kind in OTHERS:
            return OTHERS[kind](self, collective)
        name, arguments = CALLS[kind](self._mpi, self.rank, collective)
        if blocking:
            getattr(self._comm, name)(*arguments)
            return DONE
        request = getattr(self._comm, f"I{name.lower()}")(*arguments)
        return Transfer(request.Wait, request.Test)

    def _sleep_until_all_are_here(self) -> None:
        """Wait for all ranks: MPI itself spins, on a core that others could use."""
        all_here = self._comm.Ibarrier()
        while not all_here.Test():
            time.sleep(NAP)

    def _exchange_objects(self, objects: Collective) -> Transfer:
        objects.receive[:] = self._comm.allgather(objects.send.value)
        return DONE

    def _begin_swap(self, swap: Collective) -> Transfer:
        statuses = self._mpi.Status(), self._mpi.Status()
        # The receive is posted first: a message that arrives then has a buffer.
        received = self._comm.Irecv(_sendable(swap.receive), swap.peer)
        requests = received, self._comm.Isend(_sendable(swap.send), swap.peer)

        def wait() -> None:
            self._mpi.Request.Waitall(requests, statuses)
            got = statuses[0].Get_count(self._mpi.BYTE)
            check_swapped(self.rank, swap.peer, got, swap.receive.nbytes)

        return Transfer(wait)

    def _workspace(self, words: int, dtype: Any) -> Workspace | None:
        return self._ways.workspace(self, words, dtype)

    def _keep(self, array: Array) -> Array:
        return self._ways.keep(self.node_sharing, array)


# The call of MPI for each kind of collective, and its arguments on this rank.


def _sum(mpi: Any, rank: int, c: Collective) -> tuple[str, tuple[Any, ...]]:
    return "Allreduce", (mpi.IN_PLACE, c.receive)


def _largest(mpi: Any, rank: int, c: Collective) -> tuple[str, tuple[Any, ...]]:
    return "Allreduce", (mpi.IN_PLACE, c.receive, mpi.MAX)


def _reduce(mpi: Any, rank: int, c: Collective) -> tuple[str, tuple[Any, ...]]:
    if rank == 0:
        return "Reduce", (mpi.IN_PLACE, c.receive)
    return "Reduce", (c.send, None)


def _broadcast(mpi: Any, rank: int, c: Collective) -> tuple[str, tuple[Any, ...]]:
    return "Bcast", (_sendable(c.receive), c.root)


def _parts(mpi: Any, rank: int, c: Collective) -> tuple[str, tuple[Any, ...]]:
    return "Reduce_scatter", (mpi.IN_PLACE, c.send, c.counts)


def _gather(mpi: Any, rank: int, c: Collective) -> tuple[str, tuple[Any, ...]]:
    sent = _sendable(c.send)
    received = _sendable(c.receive)
    if _are_equal(c.counts):
        return "Allgather", (sent, received)
    return "Allgatherv", (sent, [received, c.counts])


def _collect(mpi: Any, rank: int, c: Collective) -> tuple[str, tuple[Any, ...]]:
    received = [_sendable(c.receive), c.counts] if rank == 0 else None
    return "Gatherv", (_sendable(c.send), received)


def _exchange(mpi: Any, rank: int, c: Collective) -> tuple[str, tuple[Any, ...]]:
    sent = _sendable(c.send)
    received = _sendable(c.receive)
    if _are_equal(c.counts):
        return "Alltoall", (sent, received)
    counts = [c.counts[rank]] * len(c.counts)
    return "Alltoallv", ([sent, c.counts], [received, counts])


def _deal(mpi: Any, rank: int, c: Collective) -> tuple[str, tuple[Any, ...]]:
    sent = _sendable(c.send)
    received = _sendable(c.receive)
    return "Alltoallv", ([sent, c.counts], [received, c.received])


CALLS: dict[str, Callable[[Any, int, Collective], tuple[str, tuple[Any, ...]]]] = {
    "sum": _sum,
    "max": _largest,
    "reduce": _reduce,
    "broadcast": _broadcast,
    "parts": _parts,
    "gather": _gather,
    "collect": _collect,
    "exchange": _exchange,
    "deal": _deal,
}


# Collectives that are not a single call of MPI.
OTHERS: dict[str, Callable[[MpiCommunicator, Collective], Transfer]] = {
    "objects": MpiCommunicator._exchange_objects,
    "swap": MpiCommunicator._begin_swap,
    "ordered_parts": start_parts_in_order,  # MPI promises no order
}


def _sendable(array: Array) -> Array:
    """Return the array; floats that MPI cannot send are viewed as integers."""
    if array.dtype.char == "e" or array.dtype.kind == "V":
        return array.view(f"u{array.dtype.itemsize}")
    return array


def _are_equal(counts: Sequence[int]) -> bool:
    """Return whether all counts are equal.

    MPI's calls for equal counts take half as long as those for different counts.
    """
    return min(counts) == max(counts)


def open_mpi_world(
    reproducible: bool = False, comm: Any = None, timeout: float = TIMEOUT
) -> MpiCommunicator:
    """Return a new communicator of all ranks of `comm`. Collective.

    `comm` is an mpi4py communicator, by default MPI.COMM_WORLD. An uncaught exception
    on any rank ends all ranks. The ranks also end if one of them does not call this
    function within `start_seconds(timeout)`, or PATIENCE times as long if the program
    passes `comm`, since it may do other things before. A warning names that rank after
    `timeout` seconds.
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
    """Raise ConfigError if `comm` has no ranks, or if MPI is not running.

    MPI would end the interpreter when such a communicator is used.
    """
    from mpi4py import MPI

    if MPI.Is_finalized():
        raise ConfigError(
            "comm cannot be used any more: MPI has been finalised; call this function"
            " before MPI.Finalize()"
        )
    if not MPI.Is_initialized():
        raise ConfigError(
            "comm cannot be used yet: MPI has not been initialised; call MPI.Init()"
            " first, or leave mpi4py.rc.initialize at True"
        )
    if not comm:
        raise ConfigError(
            "comm is MPI.COMM_NULL, which has no ranks: this rank is not in the"
            " communicator, or the communicator has been freed; make this call only on"
            " ranks of the communicator"
        )


def library_name(mpi: Any) -> str:
    """Return the first line of the version text of MPI's library."""
    first_line: str = mpi.Get_library_version().strip("\x00 \n").splitlines()[0]
    return " ".join(first_line.split())


# What MPI reports of itself: its library, its standard, and its support of CUDA.

# Variables that choose a provider of libfabric, transports of UCX, or between these.
CHOICES = (
    "FI_PROVIDER",
    "MPIR_CVAR_OFI_USE_PROVIDER",
    "I_MPI_FABRICS",
    "I_MPI_OFI_PROVIDER",
    "OMPI_MCA_pml",
    "OMPI_MCA_mtl",
    "UCX_TLS",
    "UCX_NET_DEVICES",
)


def mpi_facts() -> dict[str, str]:
    """Return what `hpcsgd info` prints about MPI, without initialising MPI."""
    try:
        import mpi4py

        mpi4py.rc.initialize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        return {"library": "none", "why": why_not_loaded(error)}
    return {
        "library": library_name(MPI),
        "provider": provider_of(MPI.Get_library_version(), os.environ),
        "standard": ".".join(map(str, MPI.Get_version())),
        "mpi4py": mpi4py.__version__,
        "cuda_aware": _cuda_aware(MPI),
    }


def provider_of(version: str, environment: Mapping[str, str]) -> str:
    """Return a text that names what sends messages between nodes, if it is known.

    `version` is the result of MPI_Get_library_version. MPICH names its device and the
    network modules that were built in; it takes the first unless MPIR_CVAR_CH4_NETMOD
    names another. libfabric and UCX do not report what they choose: the variables of
    `environment` that restrict them are shown.
    """
    facts = []
    device = re.search(r"MPICH Device:\s*(\w+):(.*)", version)
    if device:
        built_in = re.split(r"[\s,]+", device[2].strip())
        module = environment.get("MPIR_CVAR_CH4_NETMOD") or built_in[0]
        facts.append(f"device {device[1]}:{module}")
    chosen = [name for name in CHOICES if environment.get(name)]
    facts += [f"{name}={environment[name]}" for name in chosen]
    return ", ".join(facts) or "provider not named by MPI"


def reads_device_memory() -> bool | None:
    """Return whether MPI reports support of CUDA; None if it is not known.

    The function starts MPI if necessary. It calls MPIX_Query_cuda_support, an extension
    of MPICH and Open MPI that mpi4py does not have.
    """
    try:
        ask = ctypes.CDLL(load_mpi().__file__).MPIX_Query_cuda_support
    except (OSError, AttributeError):
        return None
    return bool(ask())


def _cuda_aware(mpi: Any) -> str:
    """Return a text that begins with yes, no or unknown: whether MPI reads GPU memory.

    The library's version text and environment variables decide.
    """
    version = mpi.Get_library_version()
    if "Open MPI" in version:
        value = os.environ.get("OMPI_MCA_opal_cuda_support")  # noqa: SIM112
        return "yes" if value in ("1", "true") else "unknown (ask ompi_info)"
    if os.environ.get("MPICH_GPU_SUPPORT_ENABLED") == "1":
        return "yes"
    return "no (MPICH_GPU_SUPPORT_ENABLED is not 1)"

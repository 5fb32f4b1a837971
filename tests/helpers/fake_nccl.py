"""NCCL among ranks that are threads, as CuPy has it: on streams, in rank order."""

from weakref import WeakSet

import numpy as np

from tests.helpers.bits import add_bits

KINDS = {1: "u1", 6: "f2", 7: "f4", 8: "f8", 9: "u2"}


class FakeNccl:
    """cupy.cuda.nccl of one rank; node.faults: "init", "call" or "async" -> an error.

    node.calls is what was asked for: (name, words, kind).
    """

    def __init__(self, node, stream):
        self.node, self.depth, self.comms = node, 0, []
        self.stream = stream  # on which graphs are recorded

    def get_version(self):
        return 22703

    def get_unique_id(self):
        with self.node.lock:
            self.node.ids = getattr(self.node, "ids", 0) + 1
            return (self.node.ids,) * 128

    def NcclCommunicator(self, size, name, rank):  # noqa: N802
        self.fail("init")
        self.comms.append(FakeComm(self, size, name, rank))
        return self.comms[-1]

    def groupStart(self):  # noqa: N802
        self.depth += 1

    def groupEnd(self):  # noqa: N802
        self.depth -= 1

    def fail(self, what):
        if what in self.node.faults:
            raise self.node.faults[what]


class EachTime:
    """Work that is another one each time: `begin` says which, when it is queued."""

    def __init__(self, begin):
        self.begin = begin


class FakeComm:
    """cupy.cuda.nccl.NcclCommunicator: collectives meet under their number."""

    def __init__(self, nccl, size, name, rank):
        assert len(name) == 128
        self.nccl, self.node = nccl, nccl.node
        self.size, self.name, self.rank = size, name, rank
        self.number, self.state = 0, "open"
        self.in_graphs = WeakSet()  # collectives that graphs repeat
        self.sent, self.received = [0] * size, [0] * size

    def allReduce(self, source, to, words, kind, op, stream):  # noqa: N802
        assert op == 0
        out = memory(to, words, kind)
        self._meet("sum", source, words, kind, stream, lambda parts: add(parts, out))

    def reduce(self, source, to, words, kind, op, root, stream):
        assert op == 0
        out = memory(to, words, kind)
        land = (lambda parts: add(parts, out)) if self.rank == root else len
        self._meet("reduce", source, words, kind, stream, land)

    def reduceScatter(self, source, to, words, kind, op, stream):  # noqa: N802
        """In place: a part may lie in what is sent, at the place of this rank."""
        assert op == 0
        out, parts = memory(to, words, kind), slice(self.rank * words, None)
        size = words * self.size

        def land(said):
            add([one[parts][:words] for one in said], out)

        self._meet("reduceScatter", source, size, kind, stream, land)

    def allGather(self, source, to, words, kind, stream):  # noqa: N802
        """As NCCL: `words` are those of each rank."""
        out = memory(to, words * self.size, kind)
        land = lambda parts: np.concatenate(parts, out=out)  # noqa: E731
        self._meet("allGather", source, words, kind, stream, land)

    def broadcast(self, source, to, words, kind, root, stream):
        out = memory(to, words, kind)
        land = lambda parts: np.copyto(out, parts[root])  # noqa: E731
        self._meet("broadcast", source, words, kind, stream, land)

    def send(self, source, words, kind, peer, stream):
        box = self._meeting(self.rank, peer, self.sent[peer])
        self.sent[peer] += 1
        held = memory(source, words, kind)
        self._put(stream, lambda: box.update(mail=held.copy()))

    def recv(self, to, words, kind, peer, stream):
        box = self._meeting(peer, self.rank, self.received[peer])
        self.received[peer] += 1
        out = memory(to, words, kind)
        self._put(stream, lambda: "mail" in box and np.copyto(out, box["mail"]))

    def check_async_error(self):
        self.nccl.stream.is_free()
        assert self.state == "open"
        self.nccl.fail("async")

    def abort(self):
        self._end("aborted")

    def destroy(self):
        self._end("destroyed")

    def _end(self, state):
        assert not len(self.in_graphs), "NCCL waits for graphs, for ever"
        self.state = state

    def _meeting(self, *key):
        """What ranks of one collective share; made once, whoever asks first.

        A collection of garbage amid its making lets another rank make it, too.
        """
        with self.node.lock:
            return self.node.meetings[self.name, *key]

    def _meet(self, name, source, words, kind, stream, land):
        held = memory(source, words, kind)

        def begin():
            assert self.state == "open", "a graph of a communicator that was ended"
            self.node.calls.append((name, words, kind))
            said = self._meeting(self.number)
            self.number += 1

            def action():
                said.setdefault(self.rank, held.copy())
                if len(said) < self.size:
                    return False
                return land([said[rank] for rank in range(self.size)])

            return self._unless_aborted(action)

        self._check_call(stream)
        if self.node.streams[stream].recorded is None:
            self.node.streams[stream].put(begin())
            return
        in_graph = EachTime(begin)
        self.in_graphs.add(in_graph)
        self.node.streams[stream].put(in_graph)

    def _check_call(self, stream):
        assert self.nccl.depth and self.state == "open"
        self.nccl.fail("call")

    def _unless_aborted(self, action):
        return lambda: None if self.state == "aborted" else action()

    def _put(self, stream, action):
        self._check_call(stream)
        assert self.node.streams[stream].recorded is None, "pieces within a graph"
        self.node.streams[stream].put(self._unless_aborted(action))


def memory(address, words, kind):
    """The device memory at an address, as numbers of NCCL's kind."""
    if not words:
        return np.empty(0, KINDS[kind])
    facts = {"data": (address, False), "shape": (words,), "typestr": "<" + KINDS[kind]}
    view = type("View", (), {"__array_interface__": {**facts, "version": 3}})()
    return np.asarray(view)


def add(parts, out):
    """Σ in rank order; bf16 is wide meanwhile, where NCCL rounds at every rank."""
    if out.dtype == np.uint16:
        add_bits(np, np.concatenate(parts), len(parts), out)
        return
    np.copyto(out, parts[0])
    for part in parts[1:]:
        np.add(out, part, out=out)

"""What one exchange costs a member in some precision: bytes, and seconds here."""

from dataclasses import dataclass
from math import ceil, log2
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.backends import make_backend
from hpcsgd.backends.base import Batch
from hpcsgd.backends.scaling import make_scaling
from hpcsgd.backends.ways import emulated
from hpcsgd.bound import Exchange
from hpcsgd.comm import narrow, wire
from hpcsgd.comm.network import Network
from hpcsgd.formats import get_format
from hpcsgd.precision import FIELDS, Precision

Array = NDArray[Any]
REPEATS = 7
COPIES = 64 * 2**20  # bytes of rows that an exchange draws its own from: not of cache


@dataclass(frozen=True)
class Cost:
    """Of one exchange, one member."""

    moved: dict[str, int]  # bytes by field: read or sent in its format
    sent: int  # bytes of the messages
    seconds: float | None  # of arithmetic, measured; None where it is emulated
    network: float  # seconds of the messages, by the network's model

    @property
    def total(self) -> float:
        """Seconds; infinite where nobody can say."""
        return float("inf") if self.seconds is None else self.seconds + self.network


def cost_of(
    exchange: Exchange, precision: Precision, network: Network | None, seconds: bool
) -> Cost:
    """By counting, by measuring where it is not emulated, by the network's model."""
    moved = bytes_of(exchange, precision)
    members = len(exchange.parts)
    sent = moved["gram_wire"] + moved["margin_sum"] if members > 1 else 0
    measured = seconds and not emulated(precision)
    return Cost(
        moved=moved,
        sent=sent,
        seconds=exchange_seconds(exchange, precision) if measured else None,
        network=_network_seconds(exchange, precision, network, moved),
    )


def bytes_of(exchange: Exchange, precision: Precision) -> dict[str, int]:
    """What each field's format moves: rows from memory, words in messages.

    0 for fields whose values never leave the processor.
    """
    m, width = len(exchange.rows), exchange.parts[0].stop - exchange.parts[0].start
    scores = m * exchange.before.shape[1]
    many = len(exchange.parts) > 1
    words = {
        "matrix": m * width,
        "margin": scores,
        "margin_sum": scores if many else 0,
        "gram_wire": exchange.blocks.gram_words if many else 0,
        "residual": scores,
        "weights": 2 * width * exchange.before.shape[1],
    }
    return {
        name: words.get(name, 0) * get_format(getattr(precision, name)).dtype.itemsize
        for name in FIELDS
    }


def _network_seconds(
    exchange: Exchange,
    precision: Precision,
    network: Network | None,
    moved: dict[str, int],
) -> float:
    """One message where G and z have one format, else two; narrow ones call twice."""
    members = len(exchange.parts)
    if network is None or members == 1:
        return 0.0
    felt = network.ranks or members
    parts = [("gram_wire", moved["gram_wire"]), ("margin_sum", moved["margin_sum"])]
    if precision.one_message:
        parts = [("gram_wire", sum(size for _, size in parts))]
    calls = sum(2 if _is_narrow(getattr(precision, name)) else 1 for name, _ in parts)
    carried = wire.sum_bytes(sum(size for _, size in parts), felt)
    return calls * network.alpha * ceil(log2(felt)) + carried / network.bandwidth


def _is_narrow(name: str) -> bool:
    """Whether a sum in this format travels in pieces: two calls."""
    return narrow.is_narrow(get_format(name))


def exchange_seconds(exchange: Exchange, precision: Precision) -> float:
    """The first member's arithmetic, its rows not in cache: the shortest time of a few.

    Others on the machine, and BLAS threads that wait for a core, only ever add.
    """
    part = exchange.parts[0]
    own = np.ascontiguousarray(exchange.rows[:, part])
    backend, form = make_backend(precision), get_format(precision.matrix)
    if form.wants_scale:
        peaks = np.abs(own).max(axis=0)
        backend.scaling = make_scaling(form, peaks, slice(0, own.shape[1]), "column")
    copies = max(min(int(COPIES / max(own.nbytes, 1)), 64), 1)
    matrix = np.tile(backend.store(own), (copies, 1))
    once = _once(exchange, precision, backend, matrix)
    rng = np.random.default_rng(0)
    draws = [rng.permutation(len(matrix))[: len(own)] for _ in range(REPEATS + 1)]
    return float(min([once(rows) for rows in draws][1:]))


def _once(exchange: Exchange, precision: Precision, backend: Any, matrix: Array) -> Any:
    """Seconds of the arithmetic of one exchange on these rows of `matrix`."""
    kind, blocks = precision.working, exchange.blocks
    room = np.empty((blocks.rows, matrix.shape[1]), dtype=kind)
    gram = np.empty(blocks.gram_words, get_format(precision.gram_wire).carrier)
    shape = (blocks.rows, exchange.before.shape[1])
    margins = np.empty(shape, get_format(precision.margin_sum).carrier)
    weights = backend.zeros((matrix.shape[1], shape[1]))
    plan = backend.prepare(exchange.unrolled, blocks)
    weigh, add = exchange.weights, exchange.offsets
    batch = Batch(
        exchange.targets.astype(kind),
        None if weigh is None else weigh.astype(kind),
        None if add is None else add.astype(kind),
    )

    def once(numbers: Array) -> float:
        began = perf_counter()
        rows = backend.gather(matrix, numbers, room)
        backend.strict_gram(rows, blocks, gram)
        backend.scores(rows, weights, margins)
        if precision.margin != precision.margin_sum:
            backend.round(margins, precision.margin)
        residuals = backend.corrected_residuals(
            margins, gram, plan, exchange.family, batch, None
        )
        backend.descend(weights, rows, residuals, plan)
        return perf_counter() - began

    return once

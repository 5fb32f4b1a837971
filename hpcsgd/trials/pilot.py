"""A small run of the real thing: what rounding does to the loss on these data.

Some rows of the data are trained on in one process, by the very code of a run, once in
float64 and once for each precision that is asked about. How the gap of a long run
follows from that of a short one is said in docs/precision.md.
"""

import logging
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.agreement.settings import AgreementConfig
from hpcsgd.comm.base import Communicator
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.data.memory import MemoryReader
from hpcsgd.data.readers import RowReader, is_sparse, row_words
from hpcsgd.data.targets import LABELLED, MOST_CLASSES
from hpcsgd.families import get_family
from hpcsgd.polish.settings import PolishConfig
from hpcsgd.precision import PrecisionConfig
from hpcsgd.products.choose import ProductsConfig
from hpcsgd.result import Result
from hpcsgd.sections import GridConfig, RunSection
from hpcsgd.session import Session
from hpcsgd.stopping import StopConfig
from hpcsgd.timing import Clock

Array = NDArray[Any]
ROWS = 4096  # at most, as long as an epoch has `EXCHANGES`
BYTES = 64 * 2**20  # of rows in float64
SLICES = 32  # places of the file from which they come
EXCHANGES = 48  # at least, in as many epochs as it takes
MOST_MEMBERS = 4  # ranks that the pilot has: more would round no more
DEFAULT_STEPS = 8  # where steps are left open


@dataclass(frozen=True)
class Sample:
    """Some rows of the data, with all that belongs to them."""

    X: Any  # dense, or a scipy.sparse matrix
    y: Array
    weights: Array | None
    offsets: Array | None

    def reader(self) -> MemoryReader:
        """As a run reads them."""
        return MemoryReader(self.X, self.y, self.weights, self.offsets)


@dataclass(frozen=True)
class Gap:
    """What a precision does to the loss."""

    measured: float  # the largest (F − F_fp64) / |F_fp64| of the pilot, in size
    predicted: float  # for the run that was asked about
    diverged: bool = False


def draw_sample(
    reader: RowReader, group_rows: int, seed: int = 0, family: str = ""
) -> Sample:
    """Rows from places all over the data; all of them where there are few.

    Of a family of classes there is a row of every class, however rare.
    """
    fits = BYTES // (8 * row_words(reader))
    wanted = max(min(max(ROWS, 4 * group_rows), fits), 2 * group_rows)
    parts = _places(reader.rows, min(wanted, reader.rows), seed)
    if family and get_family(family).targets in LABELLED:
        parts += _rare_labels(reader, parts)
    every = slice(0, reader.cols)
    weights = [reader.sample_weight(part) for part in parts]
    offsets = [reader.offset(part) for part in parts]
    return Sample(
        X=_stacked([_rows(reader, part, every) for part in parts]),
        y=np.concatenate([reader.targets(part) for part in parts]),
        weights=_joined(weights),
        offsets=_joined(offsets),
    )


def _places(rows: int, wanted: int, seed: int) -> list[slice]:
    """Slices of equal length, one somewhere in each part of the data."""
    if wanted >= rows:
        return [slice(0, rows)]
    count = max(min(SLICES, wanted), 1)
    length, room = wanted // count, rows // count
    rng = np.random.default_rng(seed)
    starts = [i * room + int(rng.integers(room - length + 1)) for i in range(count)]
    return [slice(start, start + length) for start in starts]


def _rare_labels(reader: RowReader, parts: list[slice]) -> list[slice]:
    """The first row of every label that no part has."""
    y = reader.targets(slice(0, reader.rows))
    labels, firsts = np.unique(y, return_index=True)
    if len(labels) > MOST_CLASSES:
        return []  # no classes: whoever encodes them says so
    there = np.concatenate([np.unique(y[part]) for part in parts])
    return [slice(int(i), int(i) + 1) for i in firsts[~np.isin(labels, there)]]


def _rows(reader: RowReader, part: slice, columns: slice) -> Any:
    if is_sparse(reader):
        return reader.read_csr(part, columns)
    return reader.read(part, columns)


def _stacked(parts: list[Any]) -> Any:
    if hasattr(parts[0], "tocsr"):
        from scipy import sparse

        return sparse.vstack(parts, format="csr")
    return np.concatenate(parts)


def _joined(parts: list[Array | None]) -> Array | None:
    found = [part for part in parts if part is not None]
    return np.concatenate(found) if found else None


def loss_gaps(
    config: RunConfig,
    sample: Sample,
    precisions: Mapping[str, PrecisionConfig],
    members: int,
    exchanges: int,
) -> dict[str, Gap]:
    """The gap of every precision to float64, over a run of so many exchanges.

    One that ends as diverged where float64 does not has no gap: it is infinite.
    """
    pilot = pilot_config(config, len(sample.y), members)
    exact = _losses(pilot, sample, PrecisionConfig(recipe="fp64"))
    return {
        name: _gap(_losses(pilot, sample, one), exact, exchanges)
        for name, one in precisions.items()
    }


def _gap(found: Result, exact: Result, exchanges: int) -> Gap:
    """Errors of different exchanges are as good as independent: they add as roots."""
    if found.status.value == "diverged":
        return Gap(float("inf"), float("inf"), diverged=True)
    pairs = zip(_curve(found), _curve(exact), strict=True)
    worst = max(abs(low - true) / abs(true) for low, true in pairs if true)
    growth = sqrt(max(exchanges / max(exact.exchanges, 1), 1.0))
    return Gap(worst, worst * growth)


def _curve(result: Result) -> list[float]:
    return [float(record["loss"]) for record in result.history]


def _losses(pilot: RunConfig, sample: Sample, precision: PrecisionConfig) -> Result:
    """One run of the pilot, without a word of it."""
    config = replace(pilot, precision=precision)

    def on_rank(world: Communicator) -> Result:
        began, clock = time.perf_counter(), Clock()
        session = Session(config, world, lambda _: sample.reader(), [], began, clock)
        return session.run()

    with in_silence():
        found = run_ranks(config.grid.members, on_rank)
    first: Result = found[0]
    return first


def pilot_config(config: RunConfig, rows: int, members: int) -> RunConfig:
    """The same run on so many rows: nothing is written and nobody else is asked."""
    schedule = config.schedule
    steps = schedule.steps or DEFAULT_STEPS
    batch = min(schedule.batch, max(rows // (2 * steps), 1))
    each = -(-rows // (batch * steps))
    epochs = max(-(-EXCHANGES // each), 1)
    return replace(
        config,
        schedule=replace(schedule, batch=batch, steps=steps, epochs=epochs),
        grid=GridConfig(replicas=1, members=max(min(members, MOST_MEMBERS), 1)),
        products=ProductsConfig(kind="gram", look_ahead="off"),
        sampling=replace(config.sampling, mode="shuffle-once"),
        agreement=AgreementConfig(),
        polish=PolishConfig(),
        stop=StopConfig(),
        # One that fell back would be a pilot of something else.
        run=RunSection(
            comm="threads", record=0, timeout=0.0, gap_every=0, fall_back=False
        ),
    )


@contextmanager
def in_silence() -> Iterator[None]:
    """Runs of a pilot may diverge, and say much that nobody asked for."""
    log = logging.getLogger("hpcsgd")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        log.setLevel(before)

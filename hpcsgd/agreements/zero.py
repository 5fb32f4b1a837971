"""State in slices over replicas: ZeRO stages 1 to 3 (Rajbhandari et al., 2020).

Needs    s = 1, τ = 1, update sgd, momentum, nesterov, adagrad or adam, product direct,
         gather or gather-once (stage 3: direct), one model, a smooth penalty, and
         weights of at least 32 bits.
Refuses  codecs, `hierarchical` and scaled residuals; in stage 3 gradients of all rows,
         [polish], and where d < R [average] and rows that are held out; GPUs with 8-bit
         states, `wire` = bf16 or fp16 or `gradient_wire` = bf16; [average] in stages 1
         and 2 with `wire` = bf16 or fp16.
Keeps    on each of R replicas, 1/R of the rule's arrays (adam 2, adagrad 1) and of a
         velocity, from stage 2 on also of the gradient, in stage 3 also of the weights,
         and all of the other arrays: d·K words each of d columns and K classes. With
         `wire` = bf16 or fp16, stages 1 and 2 also keep 1/R of the exact weights.
Sends    an all-reduce of the tail [Σr | rows], K·i + 1 words (i = 1 with an intercept,
         else 0); for each tile a reduce-scatter of the gradient, d·K words in all, and
         an all-gather of the weights, to which a rank gives about d·K/R words in all
         (stage 3: before the scores), of 2 bytes with `wire` = bf16 or fp16; stages 1
         and 2 then gather the exact weights once at the end. With `gradient_wire` =
         bf16 the reduce-scatter is an exchange of pieces of d·K words of 2 bytes. With
         i = 1 and R > 2 member 0 broadcasts the tail to the members.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any, ClassVar

import numpy as np

from hpcsgd.agreements.base import (
    MIB,
    PURPOSE,
    AgreementSettings,
    GradientSettings,
    Overlap,
    Requires,
    RunShape,
    StateShape,
    Supports,
    tiles_of,
)
from hpcsgd.agreements.buckets import SummedColumns, add_to_tail
from hpcsgd.agreements.gradient import Gradient, GradientInputs
from hpcsgd.backends.base import HOST, VELOCITY, Memory, Rows, Wait, WordRange
from hpcsgd.backends.task import State, Task
from hpcsgd.comm.communicator import Communicator, Pending
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.ledger import Sent, SentWords
from hpcsgd.errors import ConfigError
from hpcsgd.formats import Array, decode, encode, get_format
from hpcsgd.glm import ADAPTIVE
from hpcsgd.glm.updates import BLOCK
from hpcsgd.precision import Precision
from hpcsgd.products.base import product_facts
from hpcsgd.settings import setting

# Columns cut into tiles, and every tile over all replicas.
#
# Each replica owns a slice *inside* each tile, so that all of them have a part in every
# message. Its slices lie one behind the other in arrays of its own, in the order of the
# columns. Where a tile does not divide, slices differ by one column, and the odd ones
# go round, so that replicas own as many columns each, give or take one: nothing is
# padded. Optimizer state in 8 bits has scales of whole blocks of columns. Tiles and
# slices then begin at blocks, which are those of DDP on any number of replicas.


@dataclass(frozen=True)
class Cut:
    """One tile, and the columns of it that each replica owns."""

    columns: slice  # of the tile, among the columns of this member
    own: slice  # this replica's slice, among the columns of this member
    place: slice  # the place of this replica's slice in the replica's own arrays
    heights: tuple[int, ...]  # columns of each replica's slice

    @property
    def height(self) -> int:
        """Return the number of columns of the tile."""
        return sum(self.heights)

    def counts(self, width: int) -> list[int]:
        """Return the words of each replica's slice, with `width` words per column."""
        return [height * width for height in self.heights]


class Cuts:
    """The tiles of a member's columns, with the slices that one replica owns."""

    def __init__(
        self,
        columns: int,
        width: int,
        tiles: int,
        replicas: int,
        replica: int,
        alignment: int = 1,
        unit: int = 1,
    ) -> None:
        """Cut the columns into tiles that begin at multiples of `alignment`.

        Slices of tiles begin at multiples of `unit`, of which `alignment` is one.
        """
        self.columns = columns
        self.width = width
        self.all: list[Cut] = []
        first = turn = 0
        # A member without columns has one tile of none.
        for tile in tiles_of(columns, tiles, alignment) or [slice(0, 0)]:
            heights = slice_widths(tile.stop - tile.start, replicas, turn, unit)
            turn += -(-(tile.stop - tile.start) // unit) % replicas
            start = tile.start + sum(heights[:replica])
            height = heights[replica]
            own_columns = slice(start, start + height)
            place = slice(first, first + height)
            self.all.append(Cut(tile, own_columns, place, heights))
            first += height
        self.height = first  # columns that this replica owns
        self.leaves_some_without = -(-columns // unit) < replicas

    def __iter__(self) -> Iterator[Cut]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    @property
    def largest(self) -> int:
        """Return the number of words of the largest tile."""
        return max(cut.height for cut in self.all) * self.width

    @property
    def numbers(self) -> Array:
        """Return which columns of the member this replica owns, in ascending order."""
        parts = [np.arange(cut.own.start, cut.own.stop) for cut in self.all]
        return np.concatenate(parts)

    def of(self, whole: Array) -> Array:
        """Return a copy of the rows of `whole` whose columns this replica owns.

        `whole` has one row for each column of the member.
        """
        return np.concatenate([whole[cut.own] for cut in self.all])


def slice_widths(
    columns: int, replicas: int, turn: int, unit: int = 1
) -> tuple[int, ...]:
    """Return the number of columns of each replica's slice.

    Columns are dealt in units of `unit` columns, of which the last may be shorter.
    Units that are left over by the division go, one each, to replica `turn` and the
    replicas after it, and then to replica 0 and on.
    """
    size, extra = divmod(-(-columns // unit), replicas)
    units = [size + ((r - turn) % replicas < extra) for r in range(replicas)]
    ends = [min(sum(units[: r + 1]) * unit, columns) for r in range(replicas)]
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


# Buffers for two tiles, which a step uses again and again.


class TileWorkspace:
    """Buffers of the size of the largest tile, which the tiles use in turn.

    There are `most` buffers, or as many as tiles if these are fewer; `most` is the
    number of tiles that are in use at a time.
    """

    def __init__(
        self,
        words: int,
        tiles: int,
        dtype: np.dtype,
        memory: Memory = HOST,
        most: int = 2,
    ) -> None:
        self.words = words
        self.dtype = np.dtype(dtype)
        self.memory = memory
        self._tiles: list[Any] = [None] * min(tiles, most)

    def tile(self, number: int, words: int) -> Any:
        """Return `words` words of the buffer for tile `number`.

        With two buffers, the one of the tile before stays as it is.
        """
        place = number % len(self._tiles)
        buffer = self._tiles[place]
        if buffer is None:  # it was not needed before
            buffer = self.memory.empty((self.words,), self.dtype)
            self._tiles[place] = buffer
        return buffer[:words]


# Slices of all replicas put together, tile by tile.
#
# The next tile is gathered while one is used, so that two are in memory at a time.

EXACT = "exact"  # the wire of weights that are sent in the format of the weights
WIRES = (EXACT, "bf16", "fp16")


class ColumnAssembler:
    """Assembles tiles of columns from the slices of all replicas, by all-gathers.

    `wire` is the format, of 16 bits, of words that are rounded before they are sent.
    """

    def __init__(
        self,
        replicas: Communicator,
        cuts: Cuts,
        room: TileWorkspace,
        wire: str = EXACT,
    ) -> None:
        self.replicas = replicas
        self.cuts = cuts
        self.workspace = room
        self.wire = wire
        self.overlap = Overlap(replicas)
        self._travelling: list[tuple[Pending, Array, Wait]] = []
        self._turn = 0  # of the buffers of bits
        if wire != EXACT:
            dtype = get_format(wire).dtype
            self._bits = TileWorkspace(cuts.largest, len(cuts), dtype)

    def tiles(
        self,
        own: Array,
        purpose: str,
        room: TileWorkspace | None = None,
        rounds: bool = False,
    ) -> Iterator[tuple[Cut, Array]]:
        """Yield each tile, and an array with all its columns. Collective.

        `own` contains this replica's slices. The array is valid until the next tile is
        requested. `room` contains the buffers of the tiles; the default is on the host.
        With `rounds`, the array has the words of all replicas rounded to the wire.
        """
        width = own.shape[1]
        room = room or self.workspace
        if own.dtype != room.dtype or width != self.cuts.width:
            words = self.cuts.largest // self.cuts.width * width
            room = TileWorkspace(words, len(self.cuts), own.dtype)
        later: list[tuple[Cut, Array]] = []
        for number, cut in enumerate(self.cuts):
            tile = room.tile(number, cut.height * width).reshape(-1, width)
            self.start(own[cut.place], cut, tile, purpose, rounds)
            later.append((cut, tile))
            if number:
                self.wait()
                yield later.pop(0)
        self.wait()
        yield later.pop(0)

    def join(self, own: Array, purpose: str) -> Array:
        """Return all columns of an array, joined from the slices `own`. Collective.

        `own` has the slices of this replica. A column may have any number of words.
        """
        whole = np.empty((self.cuts.columns, own.shape[1]), dtype=own.dtype)
        for cut in self.cuts:
            self.start(own[cut.place], cut, whole[cut.columns], purpose)
            self.wait(behind=1)
        self.wait()
        return whole

    def start(
        self, own: Array, cut: Cut, tile: Array, purpose: str, rounds: bool = False
    ) -> None:
        """Start the all-gather of one tile: `own` is sent, `tile` receives.

        Both arrays belong to the message until `wait`. With `rounds`, words are rounded
        to the wire, also those of this replica, so that all replicas receive the same.
        """
        whole = own if own.flags.c_contiguous else np.ascontiguousarray(own)
        part = whole.reshape(-1)  # of a host or of a device
        out = tile.reshape(-1)
        counts = cut.counts(own.shape[1])
        finish: Wait = _is_complete
        if rounds and self.wire != EXACT:
            self._turn += 1
            bits = self._bits.tile(self._turn, out.size)
            finish = partial(_widen, bits, self.wire, out)
            part, out = encode(part, self.wire), bits
        with self.overlap.posting():
            pending = self.replicas.start_gather(part, counts, out, purpose)
        self._travelling.append((pending, part, finish))

    def wait(self, behind: int = -1) -> None:
        """Wait for the all-gather that was started first.

        With `behind`, wait instead until at most `behind` all-gathers are pending.
        """
        while self._travelling and len(self._travelling) > max(behind, 0):
            pending, _, finish = self._travelling.pop(0)
            with self.overlap.waiting():
                pending.wait()
            finish()
            if behind < 0:
                return


def _is_complete() -> None:
    """Do nothing: a tile that is sent as it is has all its words on arrival."""


def _widen(bits: Array, wire: str, out: Array) -> None:
    """Write the numbers of `bits`, in the format `wire`, into `out`."""
    decode(bits, wire, out.dtype, out)


# The arrays of a replica that are slices, and how the slices make one state.
#
# stage 1, 2    the arrays of the rule; with a wire of 16 bits also the exact weights
# stage 3       also the weights, which an evaluation gathers tile by tile
#
# With a wire of 16 bits, the gradients of all replicas are at the rounded weights, and
# the steps are those of the exact ones, which each owner keeps (mixed precision,
# Micikevicius et al., 2018):
#
#     w_{t+1} = step(w_t, g(round(w_t)))
#
# Evaluations, checkpoints and the result have the exact weights.

MASTER = "master"  # in the memory: slices of the exact weights, in stages 1 and 2


class SlicedState(Gradient):
    """An agreement whose replicas store slices of the state, and assemble all of it.

    `ShardedAgreement` adds the step of the slices.
    """

    def __init__(self, grid: Grid, share: float, inputs: GradientInputs) -> None:
        super().__init__(grid, share, inputs)
        self.stage = int(inputs.settings.zero_stage)
        self.states = self.steps.rule.states
        self.replicas = grid.replicas
        # One replica sends nothing, and rounds nothing.
        wire = inputs.settings.weights_wire
        self.wire = str(wire) if grid.replicas.size > 1 else EXACT
        sums_wire = inputs.settings.sums_wire
        self.sums_wire = str(sums_wire) if grid.replicas.size > 1 else EXACT
        self.has_master = self.wire != EXACT and self.stage < 3
        self._is_settled = False  # whether all replicas have all exact weights

    def shape(self, columns: int, width: int) -> tuple[int, int]:
        """Divide the columns into tiles, and return the shape of the stored weights.

        Velocities have an array of their own. In stage 3 the weights are those of the
        columns that this replica owns.
        """
        replicas = self.replicas
        dtype = self.backend.zeros((0, 1)).dtype
        self.cuts = Cuts(
            columns,
            self.columns,
            self.tile_count(columns, dtype.itemsize),
            replicas.size,
            replicas.rank,
            max(self.inputs.role.alignment, self.steps.rule.alignment),
            self.steps.rule.alignment,
        )
        self.workspace = TileWorkspace(self.cuts.largest, len(self.cuts), dtype)
        self.joining = ColumnAssembler(replicas, self.cuts, self.workspace, self.wire)
        return (self.cuts.height if self.stage == 3 else columns), self.columns

    def start(self, state: State, exchanges: int) -> None:
        """Round the weights to the wire, and store this replica's exact ones.

        Raise ConfigError on all ranks if stage 3 cannot store all arrays: [average] and
        held-out rows keep an array with a row for each column, and some replicas own no
        column if there are fewer columns than replicas.
        """
        self._is_settled = False
        if self.has_master:
            weights = state.weights
            state.memory[MASTER][...] = self.cuts.of(weights)
            decode(encode(weights, self.wire), self.wire, weights.dtype, weights)
        if self.stage < 3 or not self.cuts.leaves_some_without:
            return
        if set(state.memory) > set(self._sliced()):
            error = ConfigError(
                f"[agreement] stage = 3 cannot divide {self.cuts.columns} columns among"
                f" {self.replicas.size} replicas with [average] or held-out rows, which"
                " need a column on each replica; use agreement.stage = 2"
            )
            error.on_all_ranks = True
            raise error

    def _sliced(self) -> tuple[str, ...]:
        """Return the names of arrays in the memory that are slices in every stage."""
        return (*self.steps.rule.state_names, *((VELOCITY,) if self.states > 1 else ()))

    def whole(self, state: State) -> Array:
        """Return [w | v], weights and velocities if any, of all columns. Collective.

        Weights are the exact ones.
        """
        parts = [self._exact(state, "control")]
        if self.states > 1:
            parts.append(self.joining.join(state.memory[VELOCITY], "control"))
        return np.hstack(parts) if len(parts) > 1 else parts[0]

    def _exact(self, state: State, purpose: str) -> Array:
        """Return the exact weights of all columns. Collective."""
        if self.has_master and not self._is_settled:
            return self.joining.join(state.memory[MASTER], purpose)
        return self.joined(state.weights)

    def put_whole(self, state: State, whole: Array) -> None:
        """Store this replica's part of `whole`, which is [w | v] of all columns.

        `start` rounds the weights, if they are rounded.
        """
        state.weights[...] = self.parted(whole)
        if self.states > 1:
            state.memory[VELOCITY][...] = self.cuts.of(whole[:, self.columns :])

    def width(self, state: State) -> int:
        """Return the number of words per column of [w | v], with velocities if any."""
        return self.columns * self.states

    def joined(self, held: Array) -> Array:
        """Return all columns of `held`, joined from slices in stage 3. Collective."""
        return held if self.stage < 3 else self.joining.join(held, "control")

    def parted(self, whole: Array) -> Array:
        """Return the part of `whole` that this replica stores as its weights."""
        weights = whole[:, : self.columns]
        return weights if self.stage < 3 else self.cuts.of(weights)

    def memory(self, state: State) -> dict[str, Array]:
        """Return the arrays of the memory with all columns. Collective.

        Those in eight bits are returned as plain numbers. Velocities and exact weights
        are missing: `whole` returns them.
        """
        return {
            name: self.joining.join(np.asarray(array), "control")
            if self._is_sliced(name)
            else array
            for name, array in state.memory.items()
            if name in self.widths(state)
        }

    def remember(self, state: State, name: str, kept: Array) -> None:
        """Store this replica's part of `kept`, an array that `memory` has returned."""
        part = self.cuts.of(kept) if self._is_sliced(name) else kept
        state.memory[name][...] = part

    def widths(self, state: State) -> dict[str, int]:
        """Return the number of words per column of each array that `memory` returns."""
        widths = super().widths(state)
        if self.states > 1:  # else a velocity, in eight bits, is an array of the rule
            widths.pop(VELOCITY, None)
        widths.pop(MASTER, None)
        return widths

    def _is_sliced(self, name: str) -> bool:
        return self.stage == 3 or name in self._sliced()

    def holds_one_state(self, state: State, exchanges: int) -> bool:
        """Return True: the assembled state is the same on all replicas."""
        return True

    def is_whole(self, exchanges: int) -> bool:
        """Return whether the weights of the state are those of a result.

        They are not while they are rounded.
        """
        return not self.has_master or self._is_settled

    def consensus(self, state: State, exchanges: int) -> State:
        """Return `state`, or a copy with the exact weights. Collective."""
        if self.is_whole(exchanges):
            return state
        return replace(state, weights=self._exact(state, "evaluate"))

    def settle(self, state: State, exchanges: int) -> None:
        """Give all replicas the exact weights at the end of a run. Collective."""
        if not self.is_whole(exchanges):
            state.weights[...] = self._exact(state, PURPOSE)
            self._is_settled = True

    def tiles(self, held: Array) -> Iterator[tuple[slice, Array]]:
        """Yield columns and weights of each tile, for the objective. Collective."""
        for cut, tile in self.joining.tiles(held, "evaluate"):
            yield cut.columns, tile


# Tiles of the gradient, summed so that each replica gets its own slice of each.
#
# A tile is sent while the next one is computed. Where the gradient is not kept whole,
# two tiles are in memory at a time: one that is sent, and one that is written.
#
# With a wire of 16 bits, each replica rounds its own sums, and sends every other one
# the piece of it, which adds up the pieces in rank order, in the format of the weights:
#
#     Σ_p round(s_p),    s_p the sums of replica p


class Tail:
    """The tail [Σr | rows] of an exchange: the sum of residuals and number of rows.

    Replicas sum it before the gradient. Σr is there for an intercept alone.
    """

    def __init__(self, overlap: Overlap, width: int, sums: bool, dtype: np.dtype):
        self.overlap = overlap
        self.words: Array = np.zeros(width * sums + 1, dtype=dtype)
        self._travels: Pending | None = None

    def clear(self) -> None:
        """Set all words of the tail to zero."""
        self.words[...] = 0.0

    def count_in(self, residuals: Array) -> None:
        """Add a batch to the number of rows and, with an intercept, to Σr."""
        add_to_tail(self.words, residuals, self.words.size - 1)

    def send(self) -> None:
        """Start the sum of the complete tail over replicas."""
        with self.overlap.posting():
            self._travels = self.overlap.replicas.start_sum(self.words, PURPOSE)

    def total(self) -> Array:
        """Return the tail summed over replicas; the first call waits for the sum."""
        if self._travels is not None:
            with self.overlap.waiting():
                self._travels.wait()
            self._travels = None
        return self.words


class Scatter:
    """The gradient of one exchange, summed over replicas by reduce-scatters of tiles.

    Its arrays are in the memory of `room`. `whole`: the whole gradient is kept until
    the step; `sums`: residuals are summed, too; `for_host`: the host reads the sums.
    """

    def __init__(
        self,
        replicas: Communicator,
        cuts: Cuts,
        room: TileWorkspace,
        whole: bool,
        sums: bool,
        for_host: bool = False,
        wire: str = EXACT,
    ) -> None:
        self.replicas = replicas
        self.wire = wire
        self.cuts = cuts
        self.workspace = room
        self.memory = room.memory
        self.for_host = for_host
        self.overlap = Overlap(replicas)
        self.tail = Tail(self.overlap, cuts.width, sums, room.dtype)
        self._whole: Any = None
        if whole:
            self._whole = self._zeros(cuts.columns)
        # Own slices move out of tiles, whose room the next ones use.
        self._slices: Any = None
        if not whole and len(cuts) > 1 and cuts.height:
            self._slices = self._zeros(cuts.height)
        self._travelling: list[tuple[int, Pending, Wait]] = []
        self._there: dict[int, Any] = {}

    @property
    def takes_residuals(self) -> bool:
        """Return whether residuals are summed, for an intercept; rows always are."""
        return self.tail.words.size > 1

    @property
    def device_values(self) -> Any:
        """Return the flat whole gradient, in which a device adds up gradients."""
        return self.gradient.reshape(-1)

    def gradient_columns(self, complete: bool) -> SummedColumns:
        """Return a stand-in for rows whose gradient a device has added.

        It waits for no copy: no tile is copied to the host before its sum.
        """
        return SummedColumns(None)

    def begin(self) -> None:
        """Start an exchange with empty sums."""
        self.tail.clear()
        self._there.clear()
        if self._whole is not None:
            self.memory.clear(self._whole)

    @property
    def gradient(self) -> Any:
        """Return the whole gradient, to which batches are added before it is sent."""
        assert self._whole is not None
        return self._whole

    def tile(self, number: int, cut: Cut) -> Any:
        """Return the array in which the gradient of a tile is added up.

        It is zero, except that a whole gradient may have sums of earlier batches.
        """
        if self._whole is not None:
            return self._whole[cut.columns]
        if len(self._travelling) == 2:
            self._settle()
        words = self.workspace.tile(number, cut.height * self.cuts.width)
        self.memory.clear(words)
        return words.reshape(-1, self.cuts.width)

    def send(self, number: int, cut: Cut, tile: Any) -> None:
        """Start the reduce-scatter of a complete tile over replicas."""
        words = tile.reshape(-1)
        counts = cut.counts(self.cuts.width)
        if self.wire != EXACT:
            self._send_rounded(number, words, counts)
            return
        with self.overlap.posting():
            pending = self.replicas.start_sum_parts(words, counts, PURPOSE)
        memory = self.memory if self.for_host else HOST
        self._travelling.append((number, pending, memory.host_wait(self.replicas)))

    def _send_rounded(self, number: int, words: Array, counts: list[int]) -> None:
        """Send each replica the rounded words of its slice of a tile."""
        rank = self.replicas.rank
        bits = encode(words, self.wire)
        pieces = np.empty(self.replicas.size * counts[rank], dtype=bits.dtype)
        with self.overlap.posting():
            pending = self.replicas.start_exchange(bits, counts, pieces, PURPOSE)
        start = sum(counts[:rank])
        own = words[start : start + counts[rank]]

        def add() -> Array:
            pending.wait()
            parts = pieces.reshape(self.replicas.size, -1)
            decode(parts[0], self.wire, own.dtype, own)
            for part in parts[1:]:
                own[...] += decode(part, self.wire, own.dtype)
            return own

        self._travelling.append(
            (number, Pending(own, add), HOST.host_wait(self.replicas))
        )

    def own(self, number: int, cut: Cut) -> Any:
        """Wait for this replica's slice of a tile, summed over replicas; return it."""
        while number not in self._there:
            self._settle()
        return self._there[number]

    def _settle(self) -> None:
        """Wait for the pending sum that was started first.

        Copy this replica's slice out of the tile if the buffer is used again.
        """
        self.tail.total()  # which was posted before
        number, pending, host_wait = self._travelling.pop(0)
        with self.overlap.waiting():
            own_slice = self.wait_for(pending, host_wait).reshape(-1, self.cuts.width)
        if self._slices is not None:
            stored_slice = self._slices[self.cuts.all[number].place]
            self.keep_slice(own_slice, stored_slice)
            own_slice = stored_slice
        self._there[number] = own_slice

    def wait_for(self, pending: Pending, host_wait: Wait) -> Any:
        """Wait until this replica's part of a sum may be read, and return it."""
        own_part = pending.wait()
        host_wait()
        return own_part

    def keep_slice(self, own: Any, kept: Any) -> None:
        """Copy this replica's slice out of a tile that a later tile overwrites."""
        self.memory.copy(own, kept)

    def _zeros(self, height: int) -> Any:
        return self.memory.zeros((height, self.cuts.width), self.workspace.dtype)


# ZeRO: replicas share the mean gradient in slices, and each steps its own.
#
# Yᵀr does not need w: so w is gathered once a step in stage 3, too, and 2 (R−1)/R of
# the words of w travel, as in an all-reduce.


@dataclass(frozen=True)
class SlicedSettings(GradientSettings):
    """The settings of agreements whose replicas own slices of a step's arrays."""

    slices: ClassVar[bool] = True
    steps_of_gradient: ClassVar[bool] = True
    reads: ClassVar[frozenset[str]] = frozenset()
    requires: ClassVar[Requires] = replace(
        GradientSettings.requires,
        updates=("sgd", "momentum", "nesterov", *ADAPTIVE),
    )
    supports: ClassVar[Supports] = Supports(
        codecs=False, leaders=False, packed_states=False, loss_scale=False
    )

    @property
    def zero_stage(self) -> int:
        """Return 2: optimizer state and gradients are divided, weights are not."""
        return 2

    @property
    def weights_wire(self) -> str:
        """Return the format in which replicas gather weights after a step: exact."""
        return EXACT

    @property
    def sums_wire(self) -> str:
        """Return the format in which replicas sum gradients: exact."""
        return EXACT


@dataclass(frozen=True)
class ShardedSettings(SlicedSettings):
    """The settings of ZeRO, which divides state, gradient and weights over replicas."""

    stage: int = setting(
        1,
        "what is divided over the replicas: optimizer state (1), also gradients (2),"
        " also weights (3)",
        choices=(1, 2, 3),
    )
    supports: ClassVar[Supports] = replace(SlicedSettings.supports, packed_states=True)
    wire: str = setting(
        EXACT,
        "format in which replicas gather weights for the next gradient: that of the"
        " weights (exact), or bf16 or fp16; steps are those of the exact weights",
        choices=WIRES,
    )
    gradient_wire: str = setting(
        EXACT,
        "format in which replicas send gradients to be summed: that of the weights"
        " (exact), or bf16",
        choices=(EXACT, "bf16"),
    )

    @property
    def weights_wire(self) -> str:
        """Return the setting `wire`."""
        return self.wire

    @property
    def sums_wire(self) -> str:
        """Return the setting `gradient_wire`."""
        return self.gradient_wire

    @property
    def slices_weights(self) -> bool:
        """Return True in stage 3, which holds slices of the weights."""
        return self.stage == 3

    @property
    def zero_stage(self) -> int:
        """Return the setting `stage`, which is 1, 2 or 3."""
        return self.stage

    def conflicts_with(self, config: Any, precision: Precision) -> Iterator[str]:
        """Yield a message for each setting that cannot be combined with others.

        Rounded weights and states in 8 bits are of the host, and no replica stores all
        weights in stage 3.
        """
        if config.update.bits == 8 and config.run.device == "cuda":
            yield (
                "steps states in 8 bits on the host, and update.bits = 8 was given with"
                " --device cuda; use update.bits = 32, or --device cpu"
            )
        if self.gradient_wire != EXACT and config.run.device == "cuda":
            yield (
                "rounds gradients on the host, and gradient_wire ="
                f" {self.gradient_wire!r} was given with --device cuda; set"
                " agreement.gradient_wire = 'exact', or use --device cpu"
            )
        if self.wire != EXACT:
            yield from self._refuses_rounded(config)
        if not self.slices_weights:
            return
        product = config.products.kind
        goal = config.stop.on
        if product_facts(product).holds_all_columns:
            yield (
                f"holds slices of w in stage 3 and [products] kind = {product!r} wants"
                " all of them; use --products direct, or agreement.stage = 2"
            )
        if config.run.evaluate != "loss" or goal in ("gradient", "gap"):
            yield (
                "holds slices in stage 3, and the gradient of F is as long as w; use"
                " run.evaluate = 'loss' and stop.on = 'none' or 'loss', or"
                " agreement.stage = 2"
            )
        if config.polish.kind != "none":
            yield (
                "holds slices of w in stage 3, and [polish] works on all of it; set"
                " polish.kind = 'none', or agreement.stage = 2"
            )

    def _refuses_rounded(self, config: Any) -> Iterator[str]:
        """Yield a message for each setting that a wire of 16 bits refuses."""
        if config.run.device == "cuda":
            yield (
                f"rounds weights on the host, and wire = {self.wire!r} was given with"
                " --device cuda; set agreement.wire = 'exact', or use --device cpu"
            )
        averages = config.average.kind != "none" and config.grid.replicas > 1
        if averages and not self.slices_weights:
            yield (
                f"stores rounded weights with wire = {self.wire!r}, and [average] would"
                " average those; set average.kind = 'none', or agreement.stage = 3"
            )


class ShardedAgreement(SlicedState):
    """ZeRO: each replica steps its own slices, and messages assemble whole weights.

    If rows are on a device, sums, slices of state, steps and gathers are there, too.
    Tiles begin where rows have whole chunks; slices of tiles begin anywhere. No array
    as large as a slice is copied to the host, except arrays that the host reads, and
    gradients that are shaped before the step.
    """

    settings: ClassVar[type[AgreementSettings]] = ShardedSettings
    adds_tiles: ClassVar[bool] = True

    def __init__(self, grid: Grid, share: float, inputs: GradientInputs) -> None:
        super().__init__(grid, share, inputs)
        self.slice_memory = inputs.memory  # where slices are stepped
        self._turn = 0  # of rooms for slices that were stepped
        self._parts: dict[tuple[int, ...], Any] = {}  # scores of a tile, by their shape

    @property
    def takes_at_once(self) -> bool:
        """Return whether an exchange takes all batches as one, as in stages 2 and 3.

        Several replicas then keep no whole gradient, to which batches could be added.
        """
        return self.stage > 1

    @property
    def holds_weights_on_device(self) -> bool:
        """Return True: the weights, or slices of them, stay on the device, if any."""
        return True

    @property
    def sums(self) -> Scatter:
        """Return the sums that gradients are added to."""
        return self.scatter

    @property
    def keeps_gradient_whole(self) -> bool:
        """Return whether all tiles of the gradient are kept until the step."""
        return self.stage == 1 or self.replicas.size == 1

    def prepare(self, state: State) -> None:
        """Allocate buffers for gradient tiles, and slices of the rule's arrays."""
        memory = self.inputs.memory
        cuts = self.cuts
        dtype = state.weights.dtype
        self.tile_room = self.workspace
        if memory.on_device:
            tiles = cuts.largest, len(cuts)
            self.tile_room = TileWorkspace(*tiles, dtype, memory)
        self.stepped_room = TileWorkspace(
            self._widest_slice(), len(cuts), dtype, self.slice_memory
        )
        self.scatter = Scatter(
            self.replicas,
            cuts,
            self.tile_room,
            self.keeps_gradient_whole,
            state.intercept is not None,
            for_host=self.steps_on_host,
            wire=self.sums_wire,
        )
        shape = cuts.height, self.columns
        if self.inputs.shapers or self.steps_on_host:  # these read the gradient
            self.incoming = memory.host_zeros(shape, dtype)
        for name in (*self._sliced(), *((MASTER,) if self.has_master else ())):
            state.memory[name] = np.zeros(shape, dtype=dtype)
        rule = self.steps.rule
        for name in rule.state_names:
            state.memory[name] = rule.allocate(name, *shape, dtype, cuts.columns)
        state.memory = self.slice_memory.mirrored(state.memory, self._sliced())
        for name in self.steps.rule.state_names:
            if state.intercept is not None:
                state.shared[name] = np.zeros((1, self.columns))
        for shaper in self.inputs.shapers:
            shaper.prepare(state)

    def device_bytes(self, columns: int) -> int:
        """Return the bytes of all arrays of a rank of `columns` columns on a device."""
        self.shape(columns, self.columns)
        cuts = self.cuts
        alone = self.replicas.size == 1
        own_words = cuts.height * self.columns
        tiles = min(len(cuts), 2)
        words = own_words if self.stage == 3 else columns * self.columns
        words += own_words * len(self._sliced())
        if self.keeps_gradient_whole:
            words += columns * self.columns
        else:
            words += tiles * cuts.largest + own_words * (tiles > 1)
        if self.stage < 3 and not alone:
            words += tiles * self._widest_slice()
        return 4 * words

    def _widest_slice(self) -> int:
        """Return the number of words of the widest of this replica's slices."""
        rank = self.replicas.rank
        return max(cut.heights[rank] for cut in self.cuts) * self.columns

    def plan_in_words(self, state: State) -> dict[str, str]:
        """Return the settings that decide the messages, which replicas compare.

        They describe whole columns and tiles, since slices differ between replicas.
        """
        tiles = (f"{cut.columns.start}:{cut.columns.stop}" for cut in self.cuts)
        return {
            **super().plan_in_words(state),
            "columns held": repr((self.cuts.columns, self.width(state))),
            "buckets": " ".join(tiles),
            "stage": repr(self.stage),
            "wire": self.wire,
            "gradient wire": self.sums_wire,
        }

    def scores(
        self, task: Task, state: State, rows: Rows, point: Array, out: Array
    ) -> None:
        """Compute out ← Y w for the rows Y; in stage 3, tile by tile."""
        if self.stage < 3:
            self.backend.scores(rows, point, out)
            return
        for number, (cut, tile) in enumerate(self._tiles_of(point)):
            part = self._part(out) if number else out
            self.backend.scores(self._of_tile(rows, cut), tile, part)
            if number:
                self.slice_memory.add(part, out)

    def _part(self, out: Any) -> Any:
        """Return a buffer for the scores of one tile, of the shape of `out`."""
        shape = tuple(out.shape)
        if shape not in self._parts:
            self._parts[shape] = self.slice_memory.empty(shape, out.dtype)
        return self._parts[shape]

    def apply_update(
        self, task: Task, state: State, rows: Rows, residuals: Array, plan: Any
    ) -> None:
        """Add Yᵀr of a batch to the gradient; after the last batch, sum and step.

        The sum over replicas is made tile by tile.
        """
        self._left -= 1
        self.scatter.tail.count_in(residuals)
        if self._left:
            self.add_gradient(self.scatter.gradient, rows, residuals)
            return
        self.scatter.tail.send()
        for number, cut in enumerate(self.cuts):
            tile = self.scatter.tile(number, cut)
            self.add_gradient(tile, self._of_tile(rows, cut), residuals)
            task.clock.lap("update")
            self.scatter.send(number, cut, tile)
            task.clock.start()  # what a sum takes is booked by the ledger
        self._step(state, task)

    def after_exchange(self, state: State, exchanges: int) -> None:
        """If this replica had no rows, send zeros to the sums, and step its slices.

        Collective. Then check that replicas agree, if a check is due.
        """
        if self._done != exchanges - 1:
            self._begin(exchanges - 1)
            if self.stage == 3:
                for _ in self._tiles_of(state.on_device("weights")):
                    pass
            self.scatter.tail.send()
            for number, cut in enumerate(self.cuts):
                self.scatter.send(number, cut, self.scatter.tile(number, cut))
            self._step(state, None)
        self._check(state, exchanges)

    def _check(self, state: State, exchanges: int) -> None:
        """Compare the arrays that all replicas store alike, if a check is due.

        Slices are not compared.
        """
        if not self.check.is_due(exchanges):  # weights stay on a device
            return
        seen = state
        if self.stage == 3:
            seen = replace(state, weights=state.weights[:0])
        self.check.after_exchange(seen, exchanges, list(state.shared.values()))

    def _tiles_of(self, own: Any) -> Iterator[tuple[Cut, Any]]:
        """Yield each tile and its weights, in the memory of the scores. Collective."""
        if self.replicas.size == 1:  # all of them, in one tile
            return iter([(self.cuts.all[0], own)])
        return self.joining.tiles(own, PURPOSE, self.tile_room, rounds=True)

    def _begin(self, number: int) -> None:
        self.scatter.begin()
        self._moment = self.steps.moment(number)
        self._done = number

    def _of_tile(self, rows: Rows, cut: Cut) -> Rows:
        if len(self.cuts) > 1:
            rows = self.backend.some_columns(rows, cut.columns)
        return rows

    def _step(self, state: State, task: Task | None) -> None:
        """Step this replica's slice of each tile, and send it to all replicas.

        In stage 3 the slices are sent later, before the next scores.
        """
        factor = 1.0 / float(self.scatter.tail.total()[-1])
        if self.inputs.shapers:
            self._shape_slices(factor)
            factor = 1.0
        for number, cut in enumerate(self.cuts):
            gradient = self.scatter.own(number, cut)
            if task is not None:
                task.clock.start()
            own_slice = self._advance(state, cut, gradient, factor)
            if task is not None:
                task.clock.lap("update")
            if self.stage < 3 and self.replicas.size > 1:  # else it is in its place
                self._spread(own_slice, cut, state.on_device("weights")[cut.columns])
        self.joining.wait()
        for name in ("weights", *self._sliced()):
            state.mark_written(name)
        self._step_intercept(state)

    def _spread(self, own: Any, cut: Cut, tile: Any) -> None:
        """Send a slice that was stepped to all replicas."""
        self.joining.start(own, cut, tile, PURPOSE, rounds=True)
        self.joining.wait(behind=1)

    def _advance(self, state: State, cut: Cut, gradient: Any, factor: float) -> Any:
        """Step this replica's slice of a tile, and return the array of the result.

        The step is in place in stage 3, with one replica, and where the exact weights
        have an array of their own. Else the result is in a buffer from which it is
        sent.
        """
        weights = state.on_device("weights")
        if self.has_master:
            own_weights = to = state.memory[MASTER][cut.place]
        else:
            own_weights = to = weights[cut.place if self.stage == 3 else cut.own]
        if self.stage < 3 and self.replicas.size > 1 and not self.has_master:
            self._turn += 1
            buffer = self.stepped_room.tile(self._turn, own_weights.size)
            to = buffer.reshape(-1, self.columns)
        arrays = {name: state.on_device(name)[cut.place] for name in self._sliced()}
        part = WordRange(own_weights, to, arrays, state.scale)
        self.steps.step_slice(part, gradient, factor, self._moment, self.slice_memory)
        return to

    def _shape_slices(self, factor: float) -> None:
        """Let shapers change all slices of this replica as one array, on the host."""
        memory = self.inputs.memory
        mean = self.incoming
        gradients = [self.scatter.own(k, cut) for k, cut in enumerate(self.cuts)]
        for gradient, cut in zip(gradients, self.cuts, strict=True):
            memory.start_to_host(gradient, mean[cut.place])()
        mean *= mean.dtype.type(factor)
        self._shape_mean(mean)
        for gradient, cut in zip(gradients, self.cuts, strict=True):
            memory.from_host(mean[cut.place], gradient)

    @property
    def _columns_of_mean(self) -> Array:
        columns: Array = self.inputs.shard.columns.start + self.cuts.numbers
        return columns

    def _total(self, words: Array) -> Array:
        """Sum words over members and over replicas, which own different columns."""
        return self.replicas.sum(super()._total(words), PURPOSE)

    def _tail(self) -> Array:
        return self._same_on_members(self.scatter.tail.total())

    @classmethod
    def messages(cls, shape: RunShape, exchanges: int) -> Sent | None:
        """Return the collectives of rank 0: one for the tail, and two for each tile.

        The tail needs an all-reduce, which counts as two in a reproducible run; a tile
        needs a reduce-scatter of its gradient and an all-gather of its weights.
        Where members may differ in a bit of the intercept's sums, one member broadcasts
        the tail to the others.
        """
        shared = shape.to_members(shape.tail) if shape.intercept else []
        return [*sent_for_sums(shape), *sent_for_weights(shape), *shared]

    @classmethod
    def last_messages(cls, shape: RunShape, exchanges: int) -> Sent:
        """Return the gathers of exact weights at the end, where they were rounded."""
        settings = shape.settings
        if settings.weights_wire == EXACT or settings.zero_stage == 3:
            return []
        return sent_for_weights(shape, exact=True)

    @classmethod
    def stage_of(cls, shape: StateShape) -> int:
        """Return the stage of ZeRO, 1, 2 or 3.

        In slices are states (1), also gradients (2), also weights (3).
        """
        return int(shape.settings.stage)

    @classmethod
    def beside(cls, shape: StateShape) -> int:
        """Return how many more arrays as long as a slice a subclass keeps; here 0."""
        return 0

    @classmethod
    def saves(cls, shape: StateShape) -> int:
        """Return the bytes of the state that the slices of all replicas make up."""
        return shape.state + shape.vector * (shape.moments + cls.beside(shape))

    @classmethod
    def holds(cls, shape: StateShape) -> Iterator[tuple[str, int]]:
        """Yield name and bytes of weights, slices, gradient, good states, and tiles.

        Slices are those of the rule's state. A good state is a copy of the state to
        which a run returns after an error.
        """
        stage = cls.stage_of(shape)
        unit = BLOCK if shape.config.update.bits == 8 else 1
        own_columns = unit * -(-shape.columns // unit // shape.replicas)
        weights = own_columns if stage == 3 else shape.columns
        slices = own_columns * (shape.states - 1 + shape.moments + cls.beside(shape))
        is_rounded = shape.settings.weights_wire != EXACT and shape.replicas > 1
        slices += own_columns * (is_rounded and stage < 3)
        gradient = shape.columns if stage == 1 else own_columns
        yield "weights", shape.itemsize * weights
        yield "slices", shape.itemsize * slices
        yield "gradient", shape.itemsize * gradient
        good = weights + shape.snapshots * (weights + slices)
        yield "good states", shape.itemsize * good
        tile = min(int(shape.settings.bucket * MIB), shape.vector)
        yield "tiles", 4 * tile
        if is_rounded:  # bits of two tiles, and of two slices that are sent
            words = tile // shape.itemsize
            yield "rounded weights", 2 * 2 * (words + -(-words // shape.replicas))
        if shape.settings.sums_wire != EXACT and shape.replicas > 1:
            # Those that are sent and received, of two tiles, or all that are kept.
            words = (shape.vector if stage == 1 else 2 * tile) // shape.itemsize
            yield "rounded gradient", 2 * 2 * words

    def facts(self) -> dict[str, Any]:
        """Return the facts on this agreement for the report of a run."""
        return {
            **self._shaped(),
            "stage": self.stage,
            "buckets": len(self.cuts),
            "codec": "identity",
            "wire": self.wire,
            "gradient_wire": self.sums_wire,
            "own_columns": self.cuts.height,
            "mended_replicas": self.check.mended,
            **self.scatter.overlap.facts(self.joining.overlap),
            **self.inputs.memory.facts(),
        }


# What rank 0 sends of slices, from sizes and settings alone.


def sent_for_sums(shape: RunShape) -> list[SentWords]:
    """Return the all-reduce of the tail, and a reduce-scatter of each gradient tile.

    In a reproducible run the all-reduce counts as two collectives. Gradients that are
    rounded are exchanged in pieces instead.
    """
    size = _wire_size(shape.settings.sums_wire)
    tiles = [shape.sent(cut.height * shape.classes, size) for cut in _cuts_of(shape)]
    return [*shape.sum(shape.tail), *tiles]


def _wire_size(wire: str) -> int:
    """Return the bytes of a word in the format `wire`; 0 is for those of a weight."""
    return 0 if wire == EXACT else get_format(wire).dtype.itemsize


def sent_for_weights(shape: RunShape, exact: bool = False) -> list[SentWords]:
    """Return the gathers to which rank 0 gives its slice of each tile of weights.

    With `exact`, words are not rounded.
    """
    size = 0 if exact else _wire_size(shape.settings.weights_wire)
    return [shape.sent(cut.heights[0] * shape.classes, size) for cut in _cuts_of(shape)]


@lru_cache(maxsize=4)
def _cuts_of(shape: RunShape) -> Cuts:
    sizes = shape.local_columns, shape.classes, shape.buckets, shape.replicas
    unit = shape.alignment
    return Cuts(*sizes, replica=0, alignment=unit, unit=unit)

"""The choice of a Gram kernel on a GPU, by measurement."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcsgd.backends.cuda import kernels
from hpcsgd.backends.cuda.device import Device
from hpcsgd.backends.cuda.exchange import DenseProducts, Products
from hpcsgd.backends.cuda.kernels import (
    LARGE,
    GramLaunch,
    build_of,
    serves,
    tile_for,
    tiles_of,
)
from hpcsgd.backends.cuda.matrix import bytes_of_rows, sent
from hpcsgd.errors import ConfigError, MissingPackage
from hpcsgd.glm.unrolling import blocks_of

# Products of rows whose Gram is computed by another kernel than our plain one.


class OtherGram(ABC):
    """Products of rows whose Gram a subclass computes; `own` computes all else.

    Y are the rows with the given `numbers` in the matrix. See
    `hpcsgd.backends.cuda.exchange.Products`.
    """

    def __init__(self, own: DenseProducts) -> None:
        self.own = own
        self.device = own.device
        self.count = own.count

    @abstractmethod
    def gram(self, numbers: Any, out: Any) -> None:
        """Compute out ← tiles of Y Yᵀ, where Y are the rows `numbers`."""

    def both(self, numbers: Any, weights: Any, gram: Any, margins: Any) -> None:
        """Compute gram ← tiles of Y Yᵀ and margins ← Y W, where Y are rows `numbers`.

        Compute only `gram` if `weights` (W) is None.
        """
        self.gram(numbers, gram)
        if weights is not None:
            self.margins(numbers, weights, margins)

    def margins(self, numbers: Any, weights: Any, out: Any) -> None:
        """Compute out ← Y W, where Y are the rows `numbers` and W the weights."""
        self.own.margins(numbers, weights, out)

    def update(self, numbers: Any, factors: Any, carry: Any, weights: Any) -> None:
        """Compute W ← W carryᵀ + Yᵀ factors, where Y are the rows `numbers`."""
        self.own.update(numbers, factors, carry, weights)

    def fetched(self, numbers: Any) -> Any:
        """Return a copy of the rows `numbers` on the host."""
        return self.own.fetched(numbers)

    def _launch(
        self, kernel: str, element: str, shape: Any, arguments: Any, **more: Any
    ) -> None:
        build = build_of(kernel, element, self.device.arch)
        self.device.kernel(build)(*shape, arguments, **more)


# The Gram of long exchanges by products of warpgroups, which GPUs of sm_90 have.
#
# It makes the tiles of our plain kernel, in the same places, and margins in the same
# launch.

KERNEL = "gram-wgmma"
ELEMENTS = ("bf16", "fp16")  # of a matrix that it can multiply


class WgmmaGram(OtherGram):
    """Products whose Gram is computed by warpgroups of a GPU of sm_90.

    Margins are computed in the same launch if each row has one.
    """

    def __init__(self, own: DenseProducts) -> None:
        super().__init__(own)
        plan = self._plan(margins=False)
        self._workspace = self.device.empty((plan.workspace,), np.float32)
        self._tickets = self.device.zeros((own.tiles.count,), np.uint32)

    def gram(self, numbers: Any, out: Any) -> None:
        """Compute out ← tiles of Y Yᵀ for the rows `numbers`, without margins."""
        self._gram(numbers, out, None, None)

    def both(self, numbers: Any, weights: Any, gram: Any, margins: Any) -> None:
        """Compute Gram and margins, in one launch if each row has one margin."""
        if weights is not None and self.own.widths.margins == 1:
            self._gram(numbers, gram, weights, margins)
        else:
            super().both(numbers, weights, gram, margins)

    def _gram(self, numbers: Any, out: Any, weights: Any, margins: Any) -> None:
        matrix = self.own.matrix
        tiles = self.own.tiles
        plan = self._plan(margins is not None)
        rows = matrix.values, matrix.stride, numbers
        sizes = np.int32(self.count), np.int32(matrix.width), tiles.numbers
        line = np.int32(tiles.count), np.int32(plan.splits), np.int32(plan.per_split)
        buffers = out, margins, self._workspace, self._tickets
        arguments = (*rows, *sizes, *line, weights, *buffers)
        shape = plan.grid, plan.block
        self._launch(KERNEL, matrix.element, shape, arguments, shared=plan.shared)

    def _plan(self, margins: bool) -> GramLaunch:
        matrix = self.own.matrix
        return kernels.wgmma_launch_of(
            self.own.tiles.count,
            self.count,
            matrix.width,
            itemsize=matrix.values.dtype.itemsize,
            sms=self.device.multiprocessors,
            margins=margins,
        )


def wgmma_bytes(tiles: int, rows: int, width: int, sms: int) -> int:
    """Return the bytes of wgmma's workspace: parts of sums, and a ticket per tile."""
    plan = kernels.wgmma_launch_of(tiles, rows, width, itemsize=2, sms=sms)
    return 4 * (plan.workspace + plan.tickets)


def check_wgmma(own: DenseProducts) -> None:
    """Raise ConfigError if wgmma does not support the matrix or the GPU of `own`."""
    element = own.matrix.element
    arch = own.device.arch
    if element not in ELEMENTS:
        raise ConfigError(
            "[products] gram_kernel = 'wgmma' needs a matrix in"
            f" {' or '.join(ELEMENTS)}, and the matrix of this run is in {element}; use"
            " --precision c, or gram_kernel = 'auto'"
        )
    if not serves(KERNEL, element, arch):
        raise ConfigError(
            "[products] gram_kernel = 'wgmma' needs a GPU of sm_90 (H100, H200), and"
            f" this GPU is of sm_{arch}; use gram_kernel = 'auto'"
        )


def has_wgmma(own: DenseProducts) -> bool:
    """Return whether wgmma can compute the tiles of `own`: some tiles, all large."""
    tiles = own.tiles
    matrix = own.matrix
    is_large = tiles.side == LARGE and tiles.count > 0
    return is_large and serves(KERNEL, matrix.element, own.device.arch)


# The Gram of long exchanges by cuBLAS, in the very tiles that our own kernel makes.
#
# Rows are gathered, multiplied in block columns from the diagonal down, and packed: the
# layout for the recurrence and for messages is that of our own kernel.

ELEMENT = "bf16"  # of a matrix that it can multiply


def cublas_bytes(rows: int, width: int, side: int) -> int:
    """Return the bytes of the workspace of cuBLAS: gathered rows, and their square."""
    square = 4 * rows * kernels.pitch_of(rows, side)
    return bytes_of_rows(rows, width, 2) + square


class CublasGram(OtherGram):
    """Products whose Gram cuBLAS computes in `parts` strips; `own` computes all else.

    A strip has some columns of the Gram, from the diagonal down.
    """

    def __init__(
        self, own: DenseProducts, parts: int = 1, like: "CublasGram | None" = None
    ) -> None:
        """Use the workspace of `like`, an object for the same products, if given."""
        super().__init__(own)
        self.strips = kernels.strips_of(own.count, parts, own.tiles.side)
        self._rows, self._square = self._room() if like is None else like.room

    @property
    def room(self) -> tuple[Any, Any]:
        """Return the arrays for the rows Y of an exchange, and for the product Y Yᵀ."""
        return self._rows, self._square

    def _room(self) -> tuple[Any, Any]:
        products = self.own
        stride = int(self.own.matrix.stride)
        pitch = kernels.pitch_of(products.count, products.tiles.side)
        rows = self.device.empty((products.count, stride), np.uint16)
        return rows, self.device.empty((products.count, pitch), np.float32)

    def gram(self, numbers: Any, out: Any) -> None:
        """Compute out ← tiles of Y Yᵀ, where Y are the rows `numbers`."""
        matrix = self.own.matrix
        tiles = self.own.tiles
        m = np.int32(self.count)
        rows = self._rows
        square = self._square
        place = matrix.stride, numbers, m, np.int32(matrix.width)
        shape = kernels.gather_rows(self.count)[:2]
        arguments = (matrix.values, *place, rows, matrix.stride)
        self._launch("gather_rows", ELEMENT, shape, arguments)
        for first, last in self.strips:
            part = square[first:, first:last]
            self.device.gemm_bf16(part, rows[first:], rows[first:last])
        operands = square, np.int64(square.shape[1]), m, tiles.shift, tiles.numbers, out
        self._launch("pack_tiles", "fp32", kernels.pack(tiles.count), operands)


# The choice of the Gram kernel of an exchange: our kernel, or a faster one.
#
# It is made once for each size of exchange, by running all kernels on rows of the
# matrix. All members need the same kernel, so they compare times summed over members.

log = logging.getLogger(__name__)
WORTH_ASKING = 1024  # rows; up to here our kernel is fastest, as one launch
PARTS = (1, 2, 4)  # of the square, from the diagonal down
WORTH_CHANGING = 0.97  # of our time, which another kernel has to beat
TURNS, TIMES = 3, 3  # of all kernels, and launches of each
# The kernels that a setting tries besides ours. A kernel that breaks a rule of the GPU
# ends its context, and the run: `auto` will try wgmma after it has run on a GPU.
ASKS = {"auto": ("cublas",), "cublas": ("cublas",), "wgmma": ("wgmma",)}
UNPROVED = ("wgmma",)  # whose tiles are compared with ours before use
NEAR = 1e-3  # of a tile's largest entry: far above rounding, far below a wrong product

Seconds = dict[str, float]


@dataclass(frozen=True)
class GramChoice:
    """The Gram kernel of an exchange, and the times by which it was chosen.

    `seconds` are sums over members, empty if no other kernel was tried.
    """

    name: str
    products: Products  # of exchanges from now on
    seconds: Mapping[str, float]


def choose_gram(
    kind: str, own: DenseProducts, add: Callable[[Seconds], Seconds] = dict
) -> GramChoice:
    """Return the Gram kernel for the rows of `own`, chosen by measured times.

    It is `own`, without a measurement, if `kind` is "own", if it is "auto" and there
    are at most `WORTH_ASKING` rows, or if no requested kernel can compute the tiles.
    Else the call is collective, because `add` is.

    Parameters
    ----------
    kind : "own", "cublas", "wgmma", or "auto", the fastest of own and cublas
    own : products of their rows by our kernels
    add : the sum over members of every figure; called by all of them or none
    """
    asks = [name for name in ASKS.get(kind, ()) if _can(name, kind, own)]
    if not asks or (kind == "auto" and own.count <= WORTH_ASKING):
        return GramChoice("own", own, {})
    candidates: dict[str, Products] = {"own": own}
    for name in asks:
        candidates |= WAYS[name](own, kind)
    seconds = add(measured_seconds(own, candidates))
    name = _best(seconds, may_stay=kind == "auto")
    if seconds[name] == float("inf"):
        raise ConfigError(
            f"[products] gram_kernel = {kind!r} cannot be used here, because it does"
            " not load or gives wrong results (the log says which); use gram_kernel ="
            " 'own'"
        )
    _say(name, seconds, own.count)
    return GramChoice(name, candidates[name], seconds)


def _can(name: str, kind: str, own: DenseProducts) -> bool:
    """Return whether the kernel `name` can compute the tiles of `own`.

    Raise ConfigError if `kind` requires it, and it does not support the matrix or GPU.
    """
    if name == "wgmma":
        if kind == name:
            check_wgmma(own)
        return has_wgmma(own)
    if kind == name and own.matrix.element != ELEMENT:
        raise ConfigError(
            f"[products] gram_kernel = 'cublas' needs a matrix in {ELEMENT}, and the"
            f" matrix of this run is in {own.matrix.element}; use --precision c, or"
            " gram_kernel = 'auto'"
        )
    return own.matrix.element == ELEMENT and own.tiles.count > 0


def _by_wgmma(own: DenseProducts, kind: str) -> dict[str, Products]:
    """Return the products by wgmma, or `own` on a GPU without memory for them.

    If `kind` is "wgmma", raise ConfigError without memory.
    """
    try:
        return {"wgmma": WgmmaGram(own)}
    except ConfigError as error:
        if kind == "wgmma":
            raise
        log.info("the Gram is not computed by wgmma: %s", error)
        return {"wgmma": own}


def _by_cublas(own: DenseProducts, kind: str) -> dict[str, Products]:
    """Return the products by cuBLAS in each number of parts.

    On a GPU without memory for cuBLAS, all of them are `own`, and are not measured; if
    `kind` is "cublas", ConfigError is raised.
    """
    names = [f"cublas in {parts}" for parts in PARTS]
    try:
        first = CublasGram(own)  # others share its workspace, some hundred MiB
    except ConfigError as error:
        if kind == "cublas":
            raise
        log.info("the Gram is not computed by cuBLAS: %s", error)
        return dict.fromkeys(names, own)
    made = (CublasGram(own, parts, first) for parts in PARTS)
    return dict(zip(names, made, strict=True))


WAYS = {"cublas": _by_cublas, "wgmma": _by_wgmma}


def bytes_asked(
    kind: str,
    plans: Iterable[Sequence[int]],
    width: int,
    element: str,
    device: Device,
    widest: int = 0,
) -> int:
    """Return the bytes of the workspaces of kernels that `kind` tries.

    `plans` contains the batch sizes of each exchange, `width` the columns of a row, and
    `widest` those of the member with most of them; 0: as many as here.
    """
    total = 0
    widest = widest or width
    for rows, tiles, side in (_shape_of(sizes, widest) for sizes in set(plans)):
        if not tiles or (kind == "auto" and rows <= WORTH_ASKING):
            continue
        for name in ASKS.get(kind, ()):
            if name == "cublas" and element == ELEMENT:
                total += cublas_bytes(rows, width, side)
            if name == "wgmma" and side == LARGE:
                total += wgmma_bytes(tiles, rows, width, device.multiprocessors)
    return total


def _shape_of(sizes: Sequence[int], widest: int) -> tuple[int, int, int]:
    """Return (rows of all batches, tiles of their Gram matrix, rows of a tile).

    `sizes` are those of the batches of an exchange, and the member with most columns
    has `widest` of them.
    """
    blocks = blocks_of(tuple(sizes))
    side = tile_for(blocks.rows, widest)
    return blocks.rows, len(tiles_of(np.asarray(blocks.starts), side)[0]), side


def allowed(kind: str, reproducible: bool) -> str:
    """Return the setting `gram_kernel` that a run may use instead of `kind`.

    In a reproducible run no measured time may decide: "auto" becomes "own". "cublas"
    raises ConfigError there, as its sums have no fixed order. Any other is unchanged.
    """
    if reproducible and kind == "cublas":
        raise ConfigError(
            "[products] gram_kernel = 'cublas' adds in an order that is not fixed; run"
            " without --reproducible, or use gram_kernel = 'own'"
        )
    return "own" if reproducible and kind == "auto" else kind


def _best(seconds: Seconds, may_stay: bool) -> str:
    others = {name: taken for name, taken in seconds.items() if name != "own"}
    name = min(others, key=lambda name: others[name])
    if may_stay and others[name] > WORTH_CHANGING * seconds["own"]:
        return "own"
    return name


def measured_seconds(own: DenseProducts, ways: Mapping[str, Products]) -> Seconds:
    """Return the shortest seconds of each kernel of `ways` for one Gram on this GPU.

    They are infinite for a kernel that was not run, or whose tiles differ from those of
    `own`.
    """
    device = own.device
    spread = np.linspace(0, own.matrix.height - 1, own.count).astype(np.int64)
    numbers = sent(device, spread)
    out = device.empty((own.tiles.words,), np.float32)
    seconds = dict.fromkeys(ways, float("inf"))
    candidates = {
        name: products
        for name, products in ways.items()
        if products is not own or name == "own"
    }
    for name in UNPROVED:
        if name in candidates and not _agrees(own, candidates[name], numbers, out):
            log.warning(
                "the Gram matrix is not computed by %s, because its results differ from"
                " those of hpcsgd's own kernel",
                name,
            )
            del candidates[name]
    for turn in range(TURNS):
        for name, products in candidates.items():
            taken = _seconds(device, products, numbers, out)
            if turn:  # the first one compiles and wakes up
                seconds[name] = min(seconds[name], taken)
    return seconds


def _agrees(own: DenseProducts, way: Products, numbers: Any, out: Any) -> bool:
    """Return whether `own` and `way` compute the same Gram tiles, up to rounding.

    `numbers` are those of the rows, and `out` is memory for the tiles.
    """
    own.gram(numbers, out)
    ours = own.device.fetch(out).reshape(own.tiles.count, -1)
    way.gram(numbers, out)
    others = own.device.fetch(out).reshape(own.tiles.count, -1)
    finite = np.isfinite(ours)  # entries that are not finite do not count
    size = np.abs(ours, where=finite, out=np.zeros_like(ours)).max(
        axis=1, keepdims=True
    )
    off = np.abs(others - ours, where=finite, out=np.zeros_like(ours))
    return bool((off <= NEAR * size).all())


def _seconds(device: Device, way: Products, numbers: Any, out: Any) -> float:
    try:
        return device.seconds(lambda: way.gram(numbers, out), TIMES)
    except MissingPackage as missing:
        log.info("the Gram is not computed by cuBLAS: %s", missing)
        return float("inf")


def _say(name: str, seconds: Seconds, count: int) -> None:
    listed = ", ".join(
        f"{kernel} {1e6 * taken:.0f}" for kernel, taken in seconds.items()
    )
    log.info(
        "the Gram matrix of %d rows is computed by kernel %s (measured microseconds,"
        " summed over members: %s)",
        count,
        name,
        listed,
    )

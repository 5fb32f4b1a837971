"""Who makes the Gram of an exchange: our kernel, or what is faster there.

Asked once for each size of exchange, by running all on rows of the matrix. All members
have to take the same one, so they decide by times that they have added.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from hpcsgd.backends.cublas_gram import ELEMENT, CublasGram, cublas_bytes
from hpcsgd.backends.device import Device
from hpcsgd.backends.device_buffers import sent
from hpcsgd.backends.device_products import DenseProducts, Products
from hpcsgd.backends.launch_gram import LARGE, tile_for, tiles_of
from hpcsgd.backends.wgmma_gram import WgmmaGram, check_wgmma, has_wgmma, wgmma_bytes
from hpcsgd.errors import ConfigError, MissingPackage

log = logging.getLogger(__name__)
WORTH_ASKING = 1024  # rows; up to here one launch of ours wins by being one
PARTS = (1, 2, 4)  # of the square, from the diagonal down
WORTH_CHANGING = 0.97  # of our time: what is no faster than this stays with us
TURNS, TIMES = 3, 3  # of everybody, and launches of each
# Whom a setting asks besides us. A kernel that breaks a rule of the GPU ends its
# context, and the run: `auto` is to ask wgmma when a GPU has been seen to run it.
ASKS = {"auto": ("cublas",), "cublas": ("cublas",), "wgmma": ("wgmma",)}
UNPROVED = ("wgmma",)  # whose tiles are held against ours before they are taken
NEAR = 1e-3  # of a tile's largest entry: far above rounding, far below a wrong product

Seconds = dict[str, float]


@dataclass(frozen=True)
class GramChoice:
    """What was found; `seconds` are of all members, empty where none was asked."""

    name: str
    products: Products  # what exchanges ask from now on
    seconds: Mapping[str, float]


def choose_gram(
    kind: str, own: DenseProducts, add: Callable[[Seconds], Seconds] = dict
) -> GramChoice:
    """Who makes the Gram of exchanges.

    Parameters
    ----------
    kind : "own", "cublas", "wgmma", or "auto", which asks
    own : products of their rows by our kernels
    add : the sum over members of every figure; called by all of them or none
    """
    asks = [name for name in ASKS.get(kind, ()) if _can(name, kind, own)]
    if not asks or (kind == "auto" and own.count <= WORTH_ASKING):
        return GramChoice("own", own, {})
    ways: dict[str, Products] = {"own": own}
    for name in asks:
        ways |= WAYS[name](own, kind)
    seconds = add(measured_seconds(own, ways))
    name = _best(seconds, may_stay=kind == "auto")
    if seconds[name] == float("inf"):
        raise ConfigError(
            f"[products] gram_kernel = {kind!r} makes no products here that can be"
            " used (the log says why); use gram_kernel = 'own'"
        )
    _say(name, seconds, own.count)
    return GramChoice(name, ways[name], seconds)


def _can(name: str, kind: str, own: DenseProducts) -> bool:
    """Whether it makes such tiles; a matrix that it cannot read is refused."""
    if name == "wgmma":
        if kind == name:
            check_wgmma(own)
        return has_wgmma(own)
    if kind == name and own.matrix.element != ELEMENT:
        raise ConfigError(
            f"[products] gram_kernel = 'cublas' needs a matrix in {ELEMENT}, and this"
            f" is in {own.matrix.element}; use --precision c, or gram_kernel = 'auto'"
        )
    return own.matrix.element == ELEMENT and own.tiles.count > 0


def _by_wgmma(own: DenseProducts, kind: str) -> dict[str, Products]:
    """As below."""
    try:
        return {"wgmma": WgmmaGram(own)}
    except ConfigError as error:
        if kind == "wgmma":
            raise
        log.info("wgmma is not asked: %s", error)
        return {"wgmma": own}


def _by_cublas(own: DenseProducts, kind: str) -> dict[str, Products]:
    """Every way; on a GPU without room they are ours, and never the fastest."""
    names = [f"cublas in {parts}" for parts in PARTS]
    try:
        first = CublasGram(own)  # others work in its room: a square of some hundred MiB
    except ConfigError as error:
        if kind == "cublas":
            raise
        log.info("cuBLAS is not asked: %s", error)
        return dict.fromkeys(names, own)
    made = (CublasGram(own, parts, first) for parts in PARTS)
    return dict(zip(names, made, strict=True))


WAYS = {"cublas": _by_cublas, "wgmma": _by_wgmma}


def bytes_asked(
    kind: str, plans: Iterable[Sequence[int]], width: int, element: str, device: Device
) -> int:
    """What those that are asked of exchanges of these batch sizes work in."""
    total = 0
    for rows, tiles, side in (_shape_of(sizes, width) for sizes in set(plans)):
        if not tiles or (kind == "auto" and rows <= WORTH_ASKING):
            continue
        for name in ASKS.get(kind, ()):
            if name == "cublas" and element == ELEMENT:
                total += cublas_bytes(rows, width, side)
            if name == "wgmma" and side == LARGE:
                total += wgmma_bytes(tiles, rows, width, device.multiprocessors)
    return total


def _shape_of(sizes: Sequence[int], width: int) -> tuple[int, int, int]:
    """(rows, tiles, their side)"""
    starts = np.array([0, *accumulate(sizes)])
    side = tile_for(int(starts[-1]), width)
    return int(starts[-1]), len(tiles_of(starts, side)[0]), side


def allowed(kind: str, reproducible: bool) -> str:
    """What may be asked for: a clock answers differently every time."""
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
    """The best of some turns of each; infinite for what there is no way or room for."""
    device = own.device
    spread = np.linspace(0, own.matrix.height - 1, own.count).astype(np.int64)
    numbers = sent(device, spread)
    out = device.empty((own.tiles.words,), np.float32)
    found = dict.fromkeys(ways, float("inf"))
    asked = {name: way for name, way in ways.items() if way is not own or name == "own"}
    for name in UNPROVED:
        if name in asked and not _agrees(own, asked[name], numbers, out):
            log.warning("the Gram is not asked of %s: its tiles are others", name)
            del asked[name]
    for turn in range(TURNS):
        for name, way in asked.items():
            taken = _seconds(device, way, numbers, out)
            if turn:  # the first one compiles and wakes up
                found[name] = min(found[name], taken)
    return found


def _agrees(own: DenseProducts, way: Products, numbers: Any, out: Any) -> bool:
    """Whether both make the same tiles of these rows, up to rounding."""
    own.gram(numbers, out)
    ours = own.device.fetch(out).reshape(own.tiles.count, -1)
    way.gram(numbers, out)
    others = own.device.fetch(out).reshape(own.tiles.count, -1)
    held = np.isfinite(ours)  # where a row has none, neither have they
    size = np.abs(ours, where=held, out=np.zeros_like(ours)).max(axis=1, keepdims=True)
    off = np.abs(others - ours, where=held, out=np.zeros_like(ours))
    return bool((off <= NEAR * size).all())


def _seconds(device: Device, way: Products, numbers: Any, out: Any) -> float:
    try:
        return device.seconds(lambda: way.gram(numbers, out), TIMES)
    except MissingPackage as missing:
        log.info("the Gram is not asked of cuBLAS: %s", missing)
        return float("inf")


def _say(name: str, seconds: Seconds, count: int) -> None:
    listed = ", ".join(f"{one} {1e6 * taken:.0f}" for one, taken in seconds.items())
    log.info("the Gram of %d rows is made by %s (us: %s)", count, name, listed)

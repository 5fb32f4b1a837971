"""Who makes the Gram of an exchange: our kernel, or cuBLAS where that is faster.

Asked once for each size of exchange, by running both on rows of the matrix. All members
have to take the same one, so they decide by times that they have added.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcsgd.backends.cublas_gram import ELEMENT, CublasGram
from hpcsgd.backends.device import Device
from hpcsgd.backends.device_buffers import sent
from hpcsgd.backends.device_products import DenseProducts, Products
from hpcsgd.errors import ConfigError, MissingPackage

log = logging.getLogger(__name__)
WORTH_ASKING = 1024  # rows; up to here one launch of ours wins by being one
PARTS = (1, 2, 4)  # of the square, from the diagonal down
WORTH_CHANGING = 0.97  # of our time: what is no faster than this stays with us
TURNS, TIMES = 3, 3  # of everybody, and launches of each

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
    kind : "own", "cublas", or "auto", which asks
    own : products of their rows by our kernels
    add : the sum over members of every figure; called by all of them or none
    """
    matrix, count = own.matrix, own.count
    if kind == "cublas" and matrix.element != ELEMENT:
        raise ConfigError(
            f"[products] gram_kernel = 'cublas' needs a matrix in {ELEMENT}, and this"
            f" is in {matrix.element}; use --precision c, or gram_kernel = 'auto'"
        )
    fits = matrix.element == ELEMENT and own.tiles.count > 0
    if kind == "own" or not fits or (kind == "auto" and count <= WORTH_ASKING):
        return GramChoice("own", own, {})
    ways = {"own": own, **_by_cublas(own, kind)}
    seconds = add(_measured(own, ways))
    name = _best(seconds, may_stay=kind == "auto")
    _say(name, seconds, count)
    return GramChoice(name, ways[name], seconds)


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


def allowed(kind: str, reproducible: bool) -> str:
    """What may be asked for: a clock answers differently every time."""
    if reproducible and kind == "cublas":
        raise ConfigError(
            "[products] gram_kernel = 'cublas' adds in an order that is not fixed; run"
            " without --reproducible, or use gram_kernel = 'own'"
        )
    return "own" if reproducible else kind


def _best(seconds: Seconds, may_stay: bool) -> str:
    others = {name: taken for name, taken in seconds.items() if name != "own"}
    name = min(others, key=lambda name: others[name])
    if may_stay and others[name] > WORTH_CHANGING * seconds["own"]:
        return "own"
    return name


def _measured(own: DenseProducts, ways: Mapping[str, Products]) -> Seconds:
    """The best of some turns of each; infinite for what there is no way or room for."""
    device = own.device
    spread = np.linspace(0, own.matrix.height - 1, own.count).astype(np.int64)
    numbers = sent(device, spread)
    out = device.empty((own.tiles.words,), np.float32)
    found = dict.fromkeys(ways, float("inf"))
    asked = {name: way for name, way in ways.items() if way is not own or name == "own"}
    for turn in range(TURNS):
        for name, way in asked.items():
            taken = _seconds(device, way, numbers, out)
            if turn:  # the first one compiles and wakes up
                found[name] = min(found[name], taken)
    return found


def _seconds(device: Device, way: Products, numbers: Any, out: Any) -> float:
    try:
        return device.seconds(lambda: way.gram(numbers, out), TIMES)
    except MissingPackage as missing:
        log.info("the Gram is not asked of cuBLAS: %s", missing)
        return float("inf")


def _say(name: str, seconds: Seconds, count: int) -> None:
    listed = ", ".join(f"{one} {1e6 * taken:.0f}" for one, taken in seconds.items())
    log.info("the Gram of %d rows is made by %s (us: %s)", count, name, listed)

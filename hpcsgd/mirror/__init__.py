"""Geometries in which replicas step: mirror maps."""

from collections.abc import Callable

from hpcsgd.mirror.base import Array, Mirror, Point
from hpcsgd.mirror.diagonal import Diagonal
from hpcsgd.mirror.entropy import Entropy
from hpcsgd.mirror.euclidean import Euclidean
from hpcsgd.mirror.pnorm import PNorm
from hpcsgd.mirror.settings import MirrorConfig
from hpcsgd.mirror.signed import Signed

Gather = Callable[[Array], Array]
MIRRORS: dict[str, Callable[[MirrorConfig, int, Gather], Mirror]] = {
    "euclidean": lambda own, d, gather: Euclidean(d, gather, own.radius),
    "entropy": lambda own, d, gather: Entropy(d, gather, own.radius or 1.0),
    "eg": lambda own, d, gather: Signed(d, gather, own.radius or 1.0),
    "p-norm": lambda own, d, gather: PNorm(d, gather, own.p),
    "diagonal": lambda own, d, gather: Diagonal(d, gather, own.epsilon),
}


def make_mirror(settings: MirrorConfig, columns: int, gather: Gather) -> Mirror:
    """The map of the section [mirror], for so many columns of all members."""
    return MIRRORS[settings.kind](settings, columns, gather)


__all__ = ["MIRRORS", "Mirror", "MirrorConfig", "Point", "make_mirror"]

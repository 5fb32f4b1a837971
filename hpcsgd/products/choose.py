"""Which product is worth it: a rule on words, until a measured model says better."""

from dataclasses import dataclass

from hpcsgd.csr import index_dtype
from hpcsgd.errors import ConfigError
from hpcsgd.precision import Precision, get_format
from hpcsgd.schedule import Schedule

CACHE_BUDGET = 512 * 2**20  # bytes of Gram that each member may keep
WORTH_HIDING = 20e-6  # seconds of latency above which a second message pays


@dataclass(frozen=True)
class ProductsConfig:
    """How members get through s steps."""

    kind: str = "auto"  # direct, gram, gather, gather-once, cached, or auto
    look_ahead: str = "auto"  # on: the next Gram travels while this group iterates

    def __post_init__(self) -> None:
        if self.look_ahead not in ("on", "off", "auto"):
            raise ConfigError(
                f"[products] look_ahead = {self.look_ahead!r}; known: on, off, auto"
            )


@dataclass(frozen=True)
class Shape:
    """What the choice depends on."""

    members: int
    rows: int  # of the replica
    columns: int  # of the whole matrix
    rows_come_again: bool  # shuffle once, and more than one epoch
    stored: float = 0.0  # values that a sparse row holds on average
    is_sparse: bool = False

    def row_bytes(self, word: int) -> float:
        """What gathering one whole row moves; sparse values travel with a column."""
        if self.is_sparse:
            return self.stored * (word + index_dtype(self.columns).itemsize)
        return float(self.columns * word)


def choose_product(shape: Shape, schedule: Schedule, precision: Precision) -> str:
    """The product with the fewest bytes on the wire that fits in memory.

    Gather moves fewer bytes than gram iff e_Y d < e_G b(s−1) + 2 e_z; sparse rows of
    k stored values on average move (e_Y + 4) k instead of e_Y d.
    """
    if shape.members == 1 or schedule.steps == 1:
        return "direct"
    batch, steps = schedule.batch, schedule.steps
    e_y, e_g, e_z = (
        get_format(name).dtype.itemsize
        for name in (precision.matrix, precision.gram_wire, precision.margin_sum)
    )
    if shape.row_bytes(e_y) < e_g * batch * (steps - 1) + 2 * e_z:
        return "gather"
    kept = shape.rows * batch * (steps - 1) // 2 * e_g
    return "cached" if shape.rows_come_again and kept <= CACHE_BUDGET else "gram"


def uses_look_ahead(config: ProductsConfig, kind: str, latency: float) -> bool:
    """Look ahead where it is asked for, or where all is left to us and it pays.

    An explicit product keeps its one collective per exchange unless told otherwise.
    """
    if config.look_ahead == "on" and kind != "gram":
        raise ConfigError(
            f"[products] look_ahead = 'on' needs kind = 'gram', not {kind!r}:"
            " nothing else has a Gram to send early; say one or the other"
        )
    free = config.kind == "auto" and config.look_ahead == "auto"
    return kind == "gram" and (
        config.look_ahead == "on" or (free and latency >= WORTH_HIDING)
    )

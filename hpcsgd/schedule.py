"""How much is done between two synchronisations, and what that puts on the wire."""

from dataclasses import dataclass
from functools import cached_property, lru_cache

from hpcsgd.errors import ConfigError

MOST_ROWS = 2048  # of an exchange whose steps are left open


@dataclass(frozen=True)
class Schedule:
    """Batch b of one replica, steps s of one exchange, exchanges τ of one agreement."""

    batch: int = 32  # larger = fewer steps in an epoch, less noise in each
    steps: int = (
        8  # larger = fewer messages, more flops (512..1024 rows are usual), or auto
    )
    period: int = 1  # larger = replicas drift further apart between agreements
    epochs: int = 1  # passes over the rows of every replica

    def __post_init__(self) -> None:
        for name in ("batch", "steps", "period", "epochs"):
            value = getattr(self, name)
            least = 0 if name == "steps" else 1
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(
                    f"[schedule] {name} = {value!r} must be a whole number"
                    f" of at least 1{', or auto' if name == 'steps' else ''}"
                )

    @property
    def most_steps(self) -> int:
        """s, or what it may become where it is left open."""
        return self.steps or max(MOST_ROWS // self.batch, 1)


@dataclass(frozen=True)
class Blocks:
    """The s batches of one exchange: where each begins, and its place in packed G.

    Packed G is the strictly-lower block triangle, one block row after the other:
    block row j is the dense matrix Y_j (Y_0 .. Y_{j-1})ᵀ of b_j × start_j words,
    so a recurrence reads contiguous memory and nothing on or above the diagonal
    is computed, stored or sent.
    """

    sizes: tuple[int, ...]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First row of each batch, and the number of rows m at the end."""
        starts = [0]
        for size in self.sizes:
            starts.append(starts[-1] + size)
        return tuple(starts)

    @cached_property
    def rows(self) -> int:
        """m = Σ b_j."""
        return self.starts[-1]

    @cached_property
    def gram_starts(self) -> tuple[int, ...]:
        """First word of each block row of packed G, and the words of all of them."""
        starts = [0]
        for size, row in zip(self.sizes, self.starts[:-1], strict=True):
            starts.append(starts[-1] + size * row)
        return tuple(starts)

    @cached_property
    def gram_words(self) -> int:
        """(m² − Σ b_j²) / 2, which is b² s (s−1) / 2 when no batch is ragged."""
        return self.gram_starts[-1]


@lru_cache(maxsize=256)
def blocks_of(sizes: tuple[int, ...]) -> Blocks:
    """The one `Blocks` of these sizes: an epoch has two or three of them."""
    return Blocks(sizes)


def uniform_blocks(batch: int, steps: int) -> Blocks:
    """s batches of b rows each."""
    return blocks_of((batch,) * steps)

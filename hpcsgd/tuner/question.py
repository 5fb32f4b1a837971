"""What is asked of the tuner, and what of it is open."""

from dataclasses import dataclass
from pathlib import Path

from hpcsgd.agreement.kinds import takes_gradients
from hpcsgd.config import RunConfig
from hpcsgd.data.readers import RowReader, open_reader
from hpcsgd.errors import ConfigError
from hpcsgd.products.choose import STEPS

BATCHES = (8, 16, 32, 64, 128)  # where --batch auto leaves them open
LEAST_SECONDS = 1.0
KINDS = ("auto", "none", "average")  # that tune knows the times of


@dataclass(frozen=True)
class Question:
    """A run, with some of its settings left open."""

    config: RunConfig
    batches: tuple[int, ...]  # one: it is settled
    seconds: float = 30.0
    any_recipe: bool = False  # the recipe is open
    any_replicas: bool = False  # grids that change what is learnt may be chosen

    def __post_init__(self) -> None:
        if not LEAST_SECONDS <= self.seconds < float("inf"):
            raise ConfigError(
                f"--seconds {self.seconds:g}: at least {LEAST_SECONDS:g} is needed;"
                " 30 is usual"
            )
        if not self.batches or min(self.batches) < 1:
            raise ConfigError("--batch: give whole numbers of at least 1, as 8,16,32")
        if self.config.run.device != "cpu":
            raise ConfigError(
                "tune measures processors; on a GPU --products auto and --steps auto"
                " choose by the figures of docs/cost.md, so use train there"
            )
        if self.config.run.emulate_members:
            raise ConfigError(
                "tune measures the ranks there are: leave --emulate-members out, and"
                " ask `hpcsgd study predict` about others"
            )
        self._check_kind()

    def _check_kind(self) -> None:
        """Its model and its bursts are of products and of plain averages."""
        asked = self.config.agreement
        if asked.kind in KINDS:
            return
        by = f"method={asked.method}" if asked.method else f"agreement={asked.kind}"
        bucket = " agreement.bucket=1" if takes_gradients(asked.kind) else ""
        rows = " ".join(
            f"--setting '{name}: {by} batch={batch}{more}'"
            for name, batch, more in (("a", 16, ""), ("b", 32, bucket))
        )
        raise ConfigError(
            f"tune chooses s, batch and product for one replica or for --agreement"
            f" average, and --{by.replace('=', ' ')} is timed by neither; run its"
            f" settings against each other, as hpcsgd compare --allow-unequal {rows}"
        )

    def reader(self) -> RowReader:
        """Of all the data."""
        return open_reader(Path(self.config.data.path))

    def grids(self, ranks: int) -> list[tuple[int, int]]:
        """R x C that may be chosen; one replica alone where that is not said."""
        grid = self.config.grid
        if grid.members or grid.replicas > 1:
            return [(grid.replicas, grid.members or max(ranks // grid.replicas, 1))]
        if not self.any_replicas:
            return [(1, ranks)]
        return [(r, ranks // r) for r in range(1, ranks + 1) if ranks % r == 0]


def parse_batches(text: str) -> tuple[int, ...]:
    """Of "auto", "32" or "8,16,32".

    >>> parse_batches("32,8")
    (8, 32)
    """
    if text == "auto":
        return BATCHES
    try:
        found = {int(word) for word in text.split(",")}
    except ValueError:
        found = {0}
    if min(found) < 1:
        raise ConfigError(
            f"--batch {text}: give a whole number, several as 8,16,32, or auto"
        )
    return tuple(sorted(found))


def probing_steps(batch: int, rows: int, most: int) -> list[int]:
    """Steps at which times are taken for the fit, small and large ones."""
    fits = [s for s in STEPS if s * batch <= min(rows, most)]
    wanted = [s for s in PROBED if s in fits]
    return wanted or fits[-1:]


PROBED = (2, 6, 20, 48, 128)

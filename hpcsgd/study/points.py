"""One run of a study: what it is called, and the configuration that it trains."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hpcsgd.study.methods import METHODS, Grid

Tables = Mapping[str, Mapping[str, Any]]
Steps = int | str  # a number, or "auto"


@dataclass(frozen=True)
class Point:
    """A method on so many ranks at one setting, one seed and one repeat.

    `batch` is that of all replicas together, `steps` those between two sums.
    """

    study: str
    method: str
    ranks: int
    emulated: int  # ranks that one process stands for; 0 = all are there
    grid: Grid
    batch: int
    steps: Steps
    recipe: str
    seed: int
    rows: int = 0  # the first so many of the data; 0 = all
    repeat: int = 1
    base: Tables = field(default_factory=dict, compare=False, repr=False)

    @property
    def setting(self) -> str:
        """What repeats and seeds share."""
        R, C = self.grid
        size = f"s{self.steps}/b{self.batch}"
        return f"{self.method}/p{self.ranks}/{size}/{R}x{C}/{self.recipe}"

    @property
    def key(self) -> str:
        """Its name in points.jsonl."""
        return f"{self.setting}/seed{self.seed}/r{self.repeat}"

    @property
    def name(self) -> str:
        """Its name as a file."""
        return self.key.replace("/", "-")

    @property
    def launched(self) -> int:
        """Ranks that are really started."""
        return 1 if self.emulated else self.ranks

    @property
    def batch_per_replica(self) -> int:
        """What `train` calls the batch."""
        return self.batch // self.grid[0]

    def again(self, repeat: int) -> "Point":
        """The same one more time."""
        return replace(self, repeat=repeat)

    def tables(self, data: str = "", out: str = "") -> dict[str, dict[str, Any]]:
        """The configuration to train; `data` and `out` lie over those of the study."""
        method, (replicas, members) = METHODS[self.method], self.grid
        own: dict[str, dict[str, Any]] = {
            **method.shares(self.batch, replicas, self.base),
            "precision": {"recipe": self.recipe},
            "sampling": {"seed": self.seed},
            "grid": {"replicas": replicas, "members": members},
            "run": {"emulate_members": self.emulated} if self.emulated else {},
            "data": {"path": data} if data else {},
        }
        if not method.sums_each:
            own["schedule"]["steps"] = self.steps
        if out and not self.emulated:  # whose weights are made up: nothing to keep
            own["run"]["out"] = out
        return method.tables(self.base, own)

"""What an engine is put together from."""

from collections.abc import Callable
from dataclasses import dataclass

from hpcsgd.assembly.feed import Feed
from hpcsgd.assembly.vocabulary import Vocabulary
from hpcsgd.columns import Columns
from hpcsgd.comm.grid import Grid
from hpcsgd.config import RunConfig
from hpcsgd.loading import Loaded
from hpcsgd.products.base import Product, Task
from hpcsgd.products.watcher import UNWATCHED


@dataclass(frozen=True)
class Parts:
    """What is there before the engine is."""

    config: RunConfig
    words: Vocabulary
    grid: Grid
    loaded: Loaded
    task: Task
    product: Product
    product_name: str
    look_ahead: bool
    feed: Feed
    columns: Columns
    undo: list[Callable[[], None]]  # what closes the groups that were opened

    @property
    def is_watched(self) -> bool:
        """Whether somebody looks at the recurrence."""
        return self.task.monitor is not UNWATCHED

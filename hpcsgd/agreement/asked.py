"""What a product that computes elsewhere asks of those who take its gradients."""

from collections.abc import Iterator
from typing import Any

from hpcsgd.agreement.buckets import Buffer
from hpcsgd.products.base import State, Task


class Asked:
    """Of the next batch of an exchange."""

    buffer: Buffer
    _left: int  # batches that are still to come

    @property
    def is_last(self) -> bool:
        """Whether a step follows it."""
        return self._left == 1

    @property
    def is_full(self) -> bool:
        """Whether the sums that it is added to are complete with it."""
        return self.is_last

    @property
    def sums(self) -> Any:
        """Those sums."""
        return self.buffer

    def ready(self, task: Task, state: State) -> Iterator[slice]:
        """Columns of w, as soon as scores may be read there."""
        yield slice(None)

"""Checkpoints while training goes on: a copy now, the disk in the background."""

import logging
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext

from hpcsgd.callbacks.base import View, Wish
from hpcsgd.checkpoint import Checkpoint, Store
from hpcsgd.products.base import State
from hpcsgd.sections import CheckpointConfig

log = logging.getLogger(__name__)
Capture = Callable[[State, View], Checkpoint]


def _unwatched(what: str) -> AbstractContextManager[None]:
    return nullcontext()


class Saver:
    """Decides when, has the state collected, and hands it to a writer thread.

    Every rank has one and `save` is called by all of them together; only the rank
    that was given a store writes.
    """

    def __init__(
        self,
        config: CheckpointConfig | None,
        capture: Capture,
        store: Store | None,
        working: Callable[[str], AbstractContextManager[None]] | None = None,
        remember: int = 0,
    ) -> None:
        self.config = config  # None: this run leaves nothing behind
        self.capture = capture
        self.store = store
        # Told what we wait for when it is no rank.
        self.working = working if working is not None else _unwatched
        # The last ones in memory, on every rank: what survivors go on from.
        self.remembered: deque[Checkpoint] = deque(maxlen=remember)
        self.failed = 0
        self.written = 0
        self._last_good: int | None = None
        # One thread for all of them: MPI libraries that keep a cache of registered
        # memory (UCX) note the end of every thread's stack, and never forget it.
        # An interpreter that ends waits for it, so the last file is whole.
        self._thread: ThreadPoolExecutor | None = None
        self._writing: Future[None] | None = None
        self._began = time.monotonic()

    def is_due(self, number: int, at_end: bool) -> bool:
        """True after the exchanges that every rank knows to be saved."""
        if self.config is None:
            return False
        return at_end or (self.config.every > 0 and number % self.config.every == 0)

    def wish(self) -> Wish:
        """SAVE when it is time, as the rank that writes sees it."""
        if self.config is None or self.store is None or not self.config.seconds:
            return Wish.NONE
        late = time.monotonic() - self._began >= self.config.seconds
        return Wish.SAVE if late and not self._is_writing() else Wish.NONE

    def save(self, state: State, view: View) -> None:
        """Collect the state; the disk is waited for only by a checkpoint before."""
        if self.config is None:
            return
        checkpoint = self.capture(state, view)
        self.remembered.append(checkpoint)
        self._began = time.monotonic()
        if self.store is None:
            return
        self.finish()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing = self._thread.submit(self._write, self.store, checkpoint)

    def finish(self) -> None:
        """Wait until what was handed over is on disk."""
        if self._writing is not None:
            with self.working("writing a checkpoint"):
                self._writing.result()
            self._writing = None

    def close(self) -> None:
        """Finish, and let go of the thread; a later `save` would start another."""
        self.finish()
        if self._thread is not None:
            self._thread.shutdown()
            self._thread = None

    def _is_writing(self) -> bool:
        return self._writing is not None and not self._writing.done()

    def _write(self, store: Store, checkpoint: Checkpoint) -> None:
        """Training is worth more than a checkpoint: what fails is said, not raised."""
        try:
            path = store.write(checkpoint)
        except (OSError, MemoryError) as error:
            self.failed += 1
            log.warning(
                "the checkpoint after exchange %d cannot be written (%s); training goes"
                " on, %s; make room in %s",
                checkpoint.exchanges,
                getattr(error, "strerror", None) or repr(error),
                self._kept(),
                store.folder,
            )
            return
        self.written += 1
        self._last_good = checkpoint.exchanges
        log.info("checkpoint after exchange %d: %s", checkpoint.exchanges, path.name)

    def _kept(self) -> str:
        if self._last_good is None:
            return "there is no earlier one"
        return f"the one after exchange {self._last_good} is kept"

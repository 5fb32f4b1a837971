"""The loss curve as JSON lines in the run folder."""

import json
import logging
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

from hpcsgd.callbacks.base import Callback, View
from hpcsgd.files import write_text
from hpcsgd.result import finite

log = logging.getLogger(__name__)


class History(Callback):
    """One record for each evaluation, written and flushed as it comes.

    Training is worth more than its curve: what cannot be written is said once, and
    comes with the next record that can.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.is_behind = False

    def on_start(self, view: View) -> None:
        """Begin with what is known: nothing, or the record that a checkpoint kept."""
        if self.path is not None:
            self._try(self.path, lambda path: write_text(path, as_lines(view.history)))

    def on_evaluate(self, view: View) -> None:
        """Add the newest."""
        if self.path is None:
            return
        if self.is_behind:
            self.on_start(view)
        else:
            newest = as_lines(view.history[-1:])
            self._try(self.path, lambda path: _append(path, newest))

    def _try(self, path: Path, write: Callable[[Path], None]) -> None:
        try:
            write(path)
        except OSError as error:
            if not self.is_behind:
                said = "%s cannot be written (%s); training goes on"
                log.warning(said, path, error.strerror)
            self.is_behind = True
        else:
            self.is_behind = False


def as_lines(records: Iterable[dict[str, object]]) -> str:
    """The text of the file."""
    return "".join(json.dumps(finite(record)) + "\n" for record in records)


def _append(path: Path, text: str) -> None:
    """Add `text`, or leave the file as it was."""
    before = path.stat().st_size
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        with suppress(OSError):
            os.truncate(path, before)
        raise

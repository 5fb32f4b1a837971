"""The loss curve as JSON lines in the run folder."""

import json
import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpcsgd.callbacks.base import Callback, View
from hpcsgd.files import open_entry
from hpcsgd.result import finite

log = logging.getLogger(__name__)


class History(Callback):
    """One record for each evaluation, written and flushed as it comes; and for events.

    Training is worth more than its history: what cannot be written (a full disk, a
    quota) is said once, and follows as soon as it can be.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.lines = 0  # records that are in the file
        self.end = 0  # bytes of these; what lies behind is a line that broke off
        self.failed = False

    def on_start(self, view: View) -> None:
        """Begin with what is known: nothing, or the record that a checkpoint kept."""
        self.lines = self.end = 0
        self._catch_up(view)

    def on_evaluate(self, view: View) -> None:
        """Add the newest."""
        self._catch_up(view)

    def on_end(self, view: View) -> None:
        """Once more for what could not be written, and for the last events."""
        if self.lines < len(view.history) + len(view.events):
            self._catch_up(view)

    def _catch_up(self, view: View) -> None:
        """Add all records that are not in the file yet."""
        if self.path is None:
            return
        try:
            self._write(self.path, in_order(view.history, view.events))
        except OSError as error:
            with suppress(OSError):
                os.truncate(self.path, self.end)
            self._warn(error)

    def _write(self, path: Path, records: Sequence[dict[str, Any]]) -> None:
        number = open_entry(path, os.O_RDWR | os.O_CREAT)
        with open(number, "r+b") as file:
            if file.seek(0, os.SEEK_END) < self.end:  # somebody has emptied it
                self.lines = self.end = 0
            file.truncate(self.end)
            file.seek(self.end)
            file.write(as_lines(records[self.lines :]).encode())
            file.flush()
            end = file.tell()
        # Some file systems notice only when it is closed that there is no room.
        self.lines, self.end = len(records), end

    def _warn(self, error: OSError) -> None:
        if self.failed:
            return
        self.failed = True
        log.warning(
            "%s cannot be written (%s); training goes on, and what is missing follows"
            " when there is room",
            self.path,
            error.strerror or error,
        )


def in_order(
    history: Sequence[dict[str, Any]], events: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """All records, each event between the losses that it came between."""
    found: list[dict[str, Any]] = []
    waiting = list(events)
    for number, record in enumerate(history):
        while waiting and waiting[0]["evaluations"] <= number:
            found.append(waiting.pop(0))
        found.append(record)
    return found + waiting


def as_lines(records: Sequence[dict[str, Any]]) -> str:
    """The text of the file."""
    return "".join(json.dumps(finite(record)) + "\n" for record in records)

"""The run folder and its files; nothing of an earlier run is lost."""

import os
from pathlib import Path

from hpcsgd.agreements.base import ROUNDS_FILE
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.files import FolderLock, read_entry_text, reason, write_text
from hpcsgd.runs.checkpoint import FOLDER, CheckpointStore
from hpcsgd.runs.progress import format_records, in_order
from hpcsgd.runs.recording import NAME
from hpcsgd.runs.result import Result, UnsavedFile, saving

HISTORY = "history.jsonl"
CERTIFICATE = "verification.json"  # written by hpcsgd verify
SWEEP = ("sweep.csv", "sweep.json", "best")  # beside the result of a sweep
FILES = (
    "resolved.toml",
    HISTORY,
    "result.h5",
    "result.json",
    NAME,
    CERTIFICATE,
    FOLDER,
    ROUNDS_FILE,
    *SWEEP,
    "weights.npy",  # of a run that keeps them on disk
    "tiles",  # and its states
)


class RunFolder:
    """The folder of a run and its files, such as resolved.toml and result.h5.

    Without a path, as on every rank but the first, the methods do nothing.
    """

    def __init__(self, path: str | None) -> None:
        self.path = Path(path) if path else None
        self.lock: FolderLock | None = None

    @property
    def history(self) -> Path | None:
        """Return the path of the loss curve; None without a folder."""
        return self.path / HISTORY if self.path else None

    def claim(self) -> None:
        """Make the folder and lock it.

        Raise ConfigError if another run holds it, or if it cannot be written.
        """
        if self.path is None:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.lock = FolderLock(self.path)
            self.lock.take()
        except OSError as error:
            raise self._unwritable(error) from error

    def begin(self, config: RunConfig, goes_on: bool) -> None:
        """Move the files of an earlier run aside, and write resolved.toml.

        They are moved to a subfolder earlier-N, unless this run resumes that one
        (`goes_on`). A certificate of `hpcsgd verify` is removed in any case.
        """
        if self.path is None:
            return
        try:
            if not goes_on:
                self._put_aside(self.path)
            # A certificate does not hold for the training that begins here.
            (self.path / CERTIFICATE).unlink(missing_ok=True)
            write_text(self.path / "resolved.toml", config.toml())
        except OSError as error:
            raise self._unwritable(error) from error

    def finish(self, result: Result) -> str:
        """Save the result; return "", or what was not saved, why, and a remedy."""
        if self.path is None:
            return ""
        # `save` would make a new folder, with nothing in it but the result.
        if not self.path.is_dir():
            path = self.path / "result.h5"
            return (
                f"{path} cannot be written (its folder was removed, or replaced by a"
                " file, during the run); keep the folder of a run that"
                f" trains, {self._way_on()}"
            )
        try:
            result.save(self.path)
            self._complete_history(self.path / HISTORY, result)
            self._write_rounds(self.path / ROUNDS_FILE, result)
        except UnsavedFile as error:
            return f"{error.cause}; make room or give write access, {self._way_on()}"
        return ""

    def release(self) -> None:
        """Release the folder for the next run."""
        if self.lock is not None:
            self.lock.release()

    def _complete_history(self, path: Path, result: Result) -> None:
        """Write the whole history if the file lacks lines, as after a full disk."""
        lines = format_records(in_order(result.history, result.events))
        with saving(path):
            if not path.is_file() or read_entry_text(path) != lines:
                write_text(path, lines)

    def _write_rounds(self, path: Path, result: Result) -> None:
        """Write the rows of each round, if the clock decided how long rounds were."""
        rounds = result.report.get("agreement", {}).get("rounds")
        if rounds is not None:
            with saving(path):
                from hpcsgd.agreements.more.anybatch import as_csv

                iterations = rounds.get("iterations", ())
                text = as_csv(rounds["chunks"], rounds["rows"], iterations)
                write_text(path, text)

    def _way_on(self) -> str:
        """Return the remedy for a result that was not saved: train again, or resume."""
        try:
            is_saved = self.path is not None and CheckpointStore(self.path, 1).paths()
        except OSError:
            is_saved = False
        if not is_saved:
            return "then train again"
        return "then start the same command again with --resume auto"

    def _unwritable(self, error: OSError) -> ConfigError:
        return ConfigError(
            f"cannot write into --out {self.path}: {reason(error)};"
            " choose a folder that can be written"
        )

    def _put_aside(self, folder: Path) -> None:
        files = [folder / name for name in FILES if os.path.lexists(folder / name)]
        if not files:
            return
        number = 1
        while os.path.lexists(folder / f"earlier-{number}"):
            number += 1
        earlier = folder / f"earlier-{number}"
        earlier.mkdir()
        for file in files:
            file.rename(earlier / file.name)

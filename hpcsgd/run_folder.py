"""What a run leaves on disk; nothing of an earlier run is lost."""

from pathlib import Path

from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.files import write_text
from hpcsgd.result import Result

FILES = ("resolved.toml", "history.jsonl", "result.h5", "result.json")


class RunFolder:
    """resolved.toml, history.jsonl, result.h5 and result.json in one folder."""

    def __init__(self, path: str | None) -> None:
        self.path = Path(path) if path else None

    @property
    def history(self) -> Path | None:
        """Where the loss curve goes."""
        return self.path / "history.jsonl" if self.path else None

    def begin(self, config: RunConfig) -> None:
        """Make the folder, put an earlier run aside, say what this one is."""
        if self.path is None:
            return
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._put_aside(self.path)
            write_text(self.path / "resolved.toml", config.toml())
        except OSError as error:
            raise ConfigError(
                f"cannot write into --out {self.path}: {error.strerror};"
                " choose a folder that can be written"
            ) from error

    def finish(self, result: Result) -> None:
        """Save the result."""
        if self.path is not None:
            result.save(self.path)

    def _put_aside(self, folder: Path) -> None:
        found = [folder / name for name in FILES if (folder / name).exists()]
        if not found:
            return
        number = 1
        while (folder / f"earlier-{number}").exists():
            number += 1
        earlier = folder / f"earlier-{number}"
        earlier.mkdir()
        for file in found:
            file.rename(earlier / file.name)

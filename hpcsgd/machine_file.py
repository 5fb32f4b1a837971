"""What machines were measured to do, in a file: later runs need not measure again."""

import json
import logging
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcsgd.cost import Machine, machine_from
from hpcsgd.errors import ConfigError
from hpcsgd.files import write_text
from hpcsgd.json_text import parse_json

log = logging.getLogger(__name__)
MOST = 4.0  # a correction beyond this is an accident, not a property


@dataclass(frozen=True)
class Known:
    """The figures of one kind of run."""

    machine: Machine
    # product -> seconds a step took, over those that the model said
    corrections: dict[str, float] = field(default_factory=dict)


class MachineFile:
    """A JSON document: kind of run -> figures. Ranks other than 0 leave it alone."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, key: str) -> Known | None:
        """What is known of this kind, if anything is."""
        entry = self._load().get(key)
        if entry is None:
            return None
        try:
            corrections = {k: float(v) for k, v in entry["corrections"].items()}
            return Known(machine_from(entry["machine"]), corrections)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise self._damaged(error) from error

    def write(self, key: str, known: Known) -> None:
        """Beside all other kinds; a file that cannot be written costs no run."""
        table = self._load()
        table[key] = {
            "machine": known.machine.as_dict(),
            "corrections": known.corrections,
        }
        self._store(table)

    def _forget(self, key: str) -> None:
        table = self._load()
        table.pop(key, None)
        self._store(table)

    def _store(self, table: dict[str, Any]) -> None:
        try:
            write_text(self.path, json.dumps(table, indent=1, sort_keys=True) + "\n")
        except OSError as error:
            log.warning("%s cannot be written: %s; the run goes on", self.path, error)

    def correct(self, key: str, product: str, ratio: float, sure: bool = False) -> None:
        """Half-way from what was known to what was seen: one run is noisy.

        Where a run was long enough to be `sure`, figures that are off by more than any
        noise are of another machine, or of another load: they are forgotten, and the
        next run measures them.
        """
        known = self.read(key)
        if known is None:
            return
        if sure and not 1 / MOST <= ratio <= MOST:
            log.info(
                "%s: off by a factor of %.2g, forgotten: %s", self.path, ratio, key
            )
            self._forget(key)
            return
        before = known.corrections.get(product, 1.0)
        after = min(max(before * (1 + ratio) / 2, 1 / MOST), MOST)
        self.write(
            key, replace(known, corrections={**known.corrections, product: after})
        )

    def _load(self) -> dict[str, Any]:
        try:
            table = parse_json(self.path.read_text())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._damaged(error) from error
        if not isinstance(table, dict):
            raise self._damaged("no table")
        return table

    def _damaged(self, why: object) -> ConfigError:
        return ConfigError(
            f"[products] machine = {str(self.path)!r} is no file of figures ({why});"
            " remove it, and it will be made anew"
        )

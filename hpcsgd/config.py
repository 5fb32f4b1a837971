"""What the user asked for: frozen sections in, TOML out, nothing unknown accepted."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hpcsgd.agreement.settings import AgreementConfig
from hpcsgd.averaging import AverageConfig
from hpcsgd.codecs.accordion_settings import AccordionConfig
from hpcsgd.codecs.settings import CodecConfig
from hpcsgd.coordinate.settings import CoordinateConfig
from hpcsgd.data.sampling import SamplingConfig
from hpcsgd.errors import ConfigError
from hpcsgd.files import open_entry
from hpcsgd.methods import with_method
from hpcsgd.mirror.settings import MirrorConfig
from hpcsgd.polish.settings import PolishConfig
from hpcsgd.precision import PrecisionConfig
from hpcsgd.problem import ProblemConfig
from hpcsgd.products.choose import ProductsConfig
from hpcsgd.rates import RateConfig
from hpcsgd.retired import why_retired, without_retired
from hpcsgd.schedule import Schedule
from hpcsgd.sections import (
    CheckpointConfig,
    DataConfig,
    GridConfig,
    RunSection,
    UpdateConfig,
)
from hpcsgd.stopping import StopConfig
from hpcsgd.sweeps.settings import SweepConfig
from hpcsgd.toml_text import numbers, parse_toml, toml_literal, toml_value


@dataclass(frozen=True)
class RunConfig:
    """Everything a run depends on.

    Examples
    --------
    >>> RunConfig.parse({"schedule": {"batch": 16}}).schedule.batch
    16
    """

    problem: ProblemConfig = field(default_factory=ProblemConfig)
    data: DataConfig = field(default_factory=DataConfig)
    schedule: Schedule = field(default_factory=Schedule)
    products: ProductsConfig = field(default_factory=ProductsConfig)
    agreement: AgreementConfig = field(default_factory=AgreementConfig)
    codec: CodecConfig = field(default_factory=CodecConfig)
    mirror: MirrorConfig = field(default_factory=MirrorConfig)
    accordion: AccordionConfig = field(default_factory=AccordionConfig)
    update: UpdateConfig = field(default_factory=UpdateConfig)
    coordinate: CoordinateConfig = field(default_factory=CoordinateConfig)
    rate: RateConfig = field(default_factory=RateConfig)
    average: AverageConfig = field(default_factory=AverageConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    sweep: SweepConfig = field(default_factory=SweepConfig)
    precision: PrecisionConfig = field(default_factory=PrecisionConfig)
    grid: GridConfig = field(default_factory=GridConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    stop: StopConfig = field(default_factory=StopConfig)
    polish: PolishConfig = field(default_factory=PolishConfig)
    run: RunSection = field(default_factory=RunSection)

    @classmethod
    def parse(cls, tables: Mapping[str, Mapping[str, Any]]) -> "RunConfig":
        """Check `tables` (section -> key -> value) against the sections."""
        tables, kinds = with_method(tables), _hints(cls)
        _reject_unknown("sections", tables, kinds)
        sections = {}
        for name, table in tables.items():
            if not isinstance(table, Mapping):
                raise ConfigError(
                    f"{name} = {table!r} stands outside a section; write it below"
                    f" the one it belongs to: {sorted(kinds)}"
                )
            sections[name] = _section(name, kinds[name], table)
        return cls(**sections)

    def tables(self) -> dict[str, dict[str, Any]]:
        """Section -> key -> value, without what was left open."""
        tables = {
            name: {k: _plain(v) for k, v in vars(section).items() if v is not None}
            for name, section in vars(self).items()
        }
        if not self.schedule.steps:
            tables["schedule"]["steps"] = "auto"
        if self.rate.is_open:
            tables["rate"]["value"] = "auto"
        return tables

    def toml(self) -> str:
        """The resolved configuration as a file that `parse` reads back."""
        parts = []
        for name, table in self.tables().items():
            lines = [f"{key} = {toml_literal(value)}" for key, value in table.items()]
            parts.append("\n".join([f"[{name}]", *lines]))
        return "\n\n".join(parts) + "\n"


def read_toml(path: str | Path) -> dict[str, dict[str, Any]]:
    """Return the tables of a configuration file, which a run may have written."""
    is_of_a_run = Path(path).name == RESOLVED
    try:
        with open(open_entry(Path(path)) if is_of_a_run else path, "rb") as file:
            tables = parse_toml(file.read().decode())
        return without_retired(tables) if is_of_a_run else tables
    except OSError as error:
        raise ConfigError(
            f"cannot read the configuration {path}: {error.strerror}; check the name"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}; mend that line") from error


def apply_settings(
    tables: Mapping[str, Mapping[str, Any]], settings: Iterable[str]
) -> dict[str, dict[str, Any]]:
    """`tables` with every `section.key=value` of `settings` laid over them."""
    merged = {
        name: dict(table) if isinstance(table, Mapping) else table
        for name, table in tables.items()
    }
    for setting in settings:
        name, equals, text = setting.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and section and key):
            raise ConfigError(
                f"--set {setting}: write it as section.key=value,"
                " for example schedule.steps=16"
            )
        merged.setdefault(section, {})[key] = toml_value(text.strip())
    return merged


RESOLVED = "resolved.toml"  # what a run writes into its folder
# Texts that may be a number, and then need no quotes.
COUNTS = {("agreement", key) for key in ("hierarchical", "groups", "periods")}
_HINTS: dict[Any, dict[str, Any]] = {}


def _hints(kind: type[Any]) -> dict[str, Any]:
    """The types of its fields, which take long to find out."""
    if kind not in _HINTS:
        _HINTS[kind] = get_type_hints(kind)
    return _HINTS[kind]


def _section(name: str, kind: type[Any], table: Mapping[str, Any]) -> Any:
    hints = _hints(kind)
    known = {f.name: hints[f.name] for f in fields(kind)}
    _reject_unknown(f"[{name}]", table, known)
    for key, value in table.items():
        if refusal := why_retired(name, key, value):
            raise ConfigError(refusal)
    return kind(**{k: _typed(name, k, known[k], v) for k, v in table.items()})


def _reject_unknown(place: str, given: Iterable[str], known: Iterable[str]) -> None:
    unknown = sorted(set(given) - set(known))
    for key in unknown:
        if said := why_retired(place.strip("[]"), key):
            raise ConfigError(said)
    if unknown:
        raise ConfigError(f"{place} unknown: {unknown}; known: {sorted(known)}")


def _typed(section: str, key: str, kind: Any, value: Any) -> Any:
    """`value` as `kind`; a whole number may stand for a real one, or for a text that
    counts something, and nothing else for anything else.
    """
    if (section, key) == ("schedule", "steps") and value in ("auto", 0):
        return _steps(value)
    if (section, key) == ("rate", "value") and value in ("auto", 0):
        return _rate(value)
    if (section, key) in COUNTS and type(value) is int:
        return str(value)
    if get_origin(kind) is tuple:
        return numbers(f"[{section}] {key}", value)
    kinds = get_args(kind) if isinstance(kind, UnionType) else (kind,)
    if value is None and type(None) in kinds:
        return None
    if tuple[float, ...] in kinds and isinstance(value, list | tuple):
        return tuple(_typed(section, key, float, item) for item in value)
    if value == "" and type(None) in kinds and str not in kinds:
        return None  # TOML has no word for it
    if float in kinds and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) not in kinds:
        names = " or ".join(k.__name__ for k in kinds if k is not type(None))
        raise ConfigError(
            f"[{section}] {key} = {value!r} must be of type {names};"
            " write it so, text in quotes"
        )
    return value


def _plain(value: Any) -> Any:
    """As TOML and JSON have it, which know lists alone."""
    return list(value) if isinstance(value, tuple) else value


def _steps(value: Any) -> int:
    """`auto`, which is 0 inside; a 0 that somebody wrote is a mistake."""
    if value != "auto":
        raise ConfigError(
            f"[schedule] steps = {value!r} must be a whole number of at least 1, or"
            ' "auto"'
        )
    return 0


def _rate(value: Any) -> float:
    """`auto`, which is 0 inside; a 0 that somebody wrote is a mistake."""
    if value != "auto":
        raise ConfigError(
            f"[rate] value = {value!r} must be positive and finite, or auto; 0.1 is a"
            " cautious start"
        )
    return 0.0

"""The catalogue: data sets that studies use, where they are, how to convert them."""

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hpcsgd import assets
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.toml_text import parse_toml

UNKNOWN, NONE = "unknown", "none"
TASKS = ("binary", "counts", "real", "classes", "positive")


@dataclass(frozen=True)
class Card:
    """What is known of a data set; "unknown" where nothing is stated or checked."""

    name: str
    title: str
    rows: int
    test_rows: int  # of a test set that comes apart; 0 = none
    columns: int
    task: str
    density: float  # share of the values that are not 0
    form: str
    source: str
    url: str  # "none" for what this package makes itself
    licence: str
    bytes: int | str  # of the file at the address
    sha256: str
    convert: str
    citation: str

    @property
    def file(self) -> str:
        """The name of the file at the address."""
        return self.url.rsplit("/", 1)[-1]

    def as_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return asdict(self)


def load_catalogue(path: Path | None = None) -> dict[str, Card]:
    """Every card by its name, checked."""
    path = path or assets.path("data/catalog.toml")
    try:
        tables = parse_toml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read ({error}); restore it") from error
    return {name: _card(name, table) for name, table in tables.items()}


def get_card(name: str) -> Card:
    """The card called `name`, in capitals or not."""
    cards = load_catalogue()
    if name.lower() not in cards:
        raise ConfigError(f"no data set is called {name!r}; known: {', '.join(cards)}")
    return cards[name.lower()]


def _card(name: str, table: dict[str, Any]) -> Card:
    wanted = {field.name for field in fields(Card)} - {"name"}
    if set(table) != wanted:
        odd = sorted(wanted ^ set(table))
        raise DataError(f"[{name}] of the catalogue: {odd} missing or not known")
    card = Card(name=name, **table)
    _check(card)
    return card


def _check(card: Card) -> None:
    """Refuse what no data set can be."""
    sound = {
        "rows": _is_count(card.rows, 1),
        "test_rows": _is_count(card.test_rows, 0),
        "columns": _is_count(card.columns, 1),
        "task": card.task in TASKS,
        "density": isinstance(card.density, float) and 0 < card.density <= 1,
        "bytes": card.bytes == UNKNOWN or _is_count(card.bytes, 1),
        "sha256": card.sha256 == UNKNOWN or _is_digest(card.sha256),
        "url": card.url == NONE or card.url.startswith(("https://", "http://")),
        "convert": card.convert.startswith("hpcsgd data "),
    }
    for key, holds in sound.items():
        if not holds:
            raise DataError(
                f"[{card.name}] of the catalogue: {key} = {getattr(card, key)!r} makes"
                " no sense; mend it"
            )


def _is_count(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def _is_digest(value: str) -> bool:
    return len(value) == 64 and set(value) <= set("0123456789abcdef")

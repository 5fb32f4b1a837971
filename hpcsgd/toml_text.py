"""TOML texts, and single values as TOML writes and reads them."""

import json
import tomllib
from typing import Any

from hpcsgd.errors import ConfigError


def parse_toml(text: str) -> dict[str, Any]:
    """Return the tables of a TOML text.

    Raises
    ------
    tomllib.TOMLDecodeError
        The text is not TOML, or is nested more deeply than the parser can follow.
    """
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise tomllib.TOMLDecodeError(
            "its tables or lists are nested more deeply than any setting is"
        ) from error


def toml_value(text: str) -> Any:
    """A TOML value, or the plain word it is."""
    try:
        return parse_toml(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def toml_literal(value: Any) -> str:
    """`value` as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, which takes DEL for a control character too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(list(value) if isinstance(value, tuple) else value)


def numbers(place: str, value: Any) -> tuple[float, ...]:
    """A list of numbers; one number alone is a mistake."""
    good = isinstance(value, list | tuple) and all(
        isinstance(one, int | float) and not isinstance(one, bool) for one in value
    )
    if not good:
        raise ConfigError(
            f"{place} = {value!r} must be a list of numbers, as [1e-5, 1e-4]"
        )
    return tuple(float(one) for one in value)

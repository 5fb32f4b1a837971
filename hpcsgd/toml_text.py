"""Single values as TOML writes and reads them."""

import json
import tomllib
from typing import Any


def toml_value(text: str) -> Any:
    """A TOML value, or the plain word it is."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def toml_literal(value: Any) -> str:
    """`value` as TOML writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        # JSON's escapes are TOML's, which takes DEL for a control character too.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)

"""JSON texts of files that others may have written."""

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises
    ------
    json.JSONDecodeError
        The text is not JSON, or is nested more deeply than the parser can follow.
    UnicodeDecodeError
        The bytes are not UTF-8.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise json.JSONDecodeError("nested too deeply", "", 0) from error

"""Numbers of the command line that must be finite and not negative."""

import argparse
import math


def not_negative(text: str) -> float:
    """Return a finite number of at least 0; argparse shows why it is refused."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a finite number of at least 0"
        )
    return value

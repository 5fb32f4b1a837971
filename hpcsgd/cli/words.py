"""What a flag's text means where it is more than a number or a name."""

import argparse

UNITS = {"KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def gib(text: str) -> float:
    """GiB of "64MiB", "1.5GiB" or a plain number of GiB."""
    number, unit = text.strip(), 2**30
    for name, size in UNITS.items():
        if number.endswith(name):
            number, unit = number.removesuffix(name), size
    try:
        return float(number) * unit / 2**30
    except ValueError as error:
        said = f"{text!r}: write it as 64MiB or 1.5GiB"
        raise argparse.ArgumentTypeError(said) from error


def numbers(text: str) -> list[float]:
    """Numbers with commas between them."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        said = f"{text!r}: write numbers with commas, as 1e-5,1e-4"
        raise argparse.ArgumentTypeError(said) from error


def steps(text: str) -> int | str:
    """A number of steps, or auto."""
    try:
        return text if text == "auto" else int(text)
    except ValueError as error:
        said = f"{text!r}: write a whole number, or auto"
        raise argparse.ArgumentTypeError(said) from error


def rate(text: str) -> float | str:
    """A step size, or auto."""
    try:
        return text if text == "auto" else float(text)
    except ValueError as error:
        said = f"{text!r}: write a number, or auto"
        raise argparse.ArgumentTypeError(said) from error

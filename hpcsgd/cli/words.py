"""What a flag's text means where it is more than a number or a name."""

from hpcsgd.errors import ConfigError

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
        raise ConfigError(f"--memory {text}: write it as 64MiB or 1.5GiB") from error


def steps(text: str) -> int:
    """A number of steps; 0 for auto."""
    if text == "auto":
        return 0
    try:
        number = int(text)
    except ValueError as error:
        raise ConfigError(f"--steps {text}: write a whole number, or auto") from error
    if number < 1:
        raise ConfigError(f"--steps {text}: at least 1, or auto")
    return number

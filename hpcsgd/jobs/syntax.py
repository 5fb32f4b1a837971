"""Times, memory, arrays and dependencies as Slurm writes them."""

import re
from dataclasses import dataclass

from hpcsgd.errors import ConfigError

TIMES = (  # every form that sbatch knows, and what its parts are
    (r"(?P<m>\d+)", "minutes"),
    (r"(?P<m>\d+):(?P<s>\d+)", "minutes:seconds"),
    (r"(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)", "hours:minutes:seconds"),
    (r"(?P<d>\d+)-(?P<h>\d+)", "days-hours"),
    (r"(?P<d>\d+)-(?P<h>\d+):(?P<m>\d+)", "days-hours:minutes"),
    (r"(?P<d>\d+)-(?P<h>\d+):(?P<m>\d+):(?P<s>\d+)", "days-hours:minutes:seconds"),
)
SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
UNITS = {"": 1, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2}  # in MiB
LONGEST = 366 * 86400
MOST_ELEMENTS = 1_000_000
AFTER = {"ok": "afterok", "any": "afterany", "notok": "afternotok"}


def seconds_of(text: str) -> int:
    """Seconds of a time limit in any of Slurm's forms."""
    for pattern, _ in TIMES:
        found = re.fullmatch(pattern, text, re.ASCII)
        if found:
            parts = found.groupdict().items()
            seconds = sum(SECONDS[unit] * int(number) for unit, number in parts)
            if 0 < seconds <= LONGEST:
                return seconds
    forms = ", ".join(form for _, form in TIMES)
    raise ConfigError(
        f"walltime = {text!r} must be a time of Slurm, more than 0 and at most 366"
        f" days, for example 02:00:00; its forms: {forms}"
    )


def written(seconds: int) -> str:
    """Seconds as hours:minutes:seconds."""
    return f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}"


def mebibytes_of(text: str) -> float:
    """MiB of an amount of memory as in 64G; without a unit it is MiB."""
    found = re.fullmatch(r"(\d{1,9})([KMGT]?)B?", text, re.ASCII | re.IGNORECASE)
    if not found or int(found[1]) == 0:
        raise ConfigError(
            f"memory = {text!r} must be a whole number with K, M, G or T, of each node,"
            " for example 64G; leave it out to take what the site gives"
        )
    return int(found[1]) * UNITS[found[2].upper()]


@dataclass(frozen=True)
class Array:
    """Elements of an array: "0-15", "0-15%4", "1,3,7", "0-8:2"."""

    text: str
    numbers: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "Array":
        """Read `text`; refuse what sbatch would."""
        elements, percent, limit = text.partition("%")
        found = [_range(part) for part in elements.split(",")]
        good = not percent or re.fullmatch(r"[1-9]\d{0,6}", limit, re.ASCII)
        if not good or None in found:
            raise ConfigError(
                f"array = {text!r} must be numbers and ranges, with the most that run"
                " at once behind a %, for example 0-15%4"
            )
        numbers = sorted({n for part in found for n in part or ()})
        return cls(text, tuple(numbers))


def _range(part: str) -> range | None:
    """The numbers of 3, 0-7 or 0-8:2; None for anything else."""
    found = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", part, re.ASCII)
    if not found:
        return None
    first, last = int(found[1]), int(found[2] or found[1])
    step = int(found[3] or 1)
    if last < first or step < 1 or last > MOST_ELEMENTS:
        return None
    return range(first, last + 1, step)


@dataclass(frozen=True)
class After:
    """A job to wait for, and how it must have ended: 123, 123:ok, 123_4:any."""

    job: str
    how: str = "ok"

    @classmethod
    def parse(cls, text: str) -> "After":
        """Read ID[:ok|any|notok]."""
        job, colon, how = text.partition(":")
        known = (how or "ok") in AFTER and not (colon and not how)
        if not known or not re.fullmatch(r"\d{1,10}(_\d{1,7})?", job, re.ASCII):
            raise ConfigError(
                f"--after {text!r}: write the number of a job, and how it must have"
                f" ended: 123, {', '.join(f'123:{how}' for how in AFTER)}"
            )
        return cls(job, how or "ok")

    @property
    def dependency(self) -> str:
        """As Slurm writes it."""
        return f"{AFTER[self.how]}:{self.job}"

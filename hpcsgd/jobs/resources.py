"""Resources of a job, in the units and syntax of Slurm."""

import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from hpcsgd.errors import ConfigError, reject_unknown

# Times, memory, arrays and dependencies as Slurm writes them.

TIMES = (  # every form that sbatch accepts, and the units of its parts
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
    """Return the seconds of a time limit in any of Slurm's forms."""
    for pattern, _ in TIMES:
        match = re.fullmatch(pattern, text, re.ASCII)
        if match:
            parts = match.groupdict().items()
            seconds = sum(SECONDS[unit] * int(number) for unit, number in parts)
            if 0 < seconds <= LONGEST:
                return seconds
    forms = ", ".join(form for _, form in TIMES)
    raise ConfigError(
        f"walltime = {text!r} must be a time of Slurm, more than 0 and at most 366"
        f" days, for example 02:00:00; its forms: {forms}"
    )


def written(seconds: int) -> str:
    """Return `seconds` as hours:minutes:seconds."""
    return f"{seconds // 3600:02d}:{seconds % 3600 // 60:02d}:{seconds % 60:02d}"


def mebibytes_of(text: str) -> float:
    """Return an amount of memory such as "64G" in MiB; a number alone is in MiB."""
    match = re.fullmatch(r"(\d{1,9})([KMGT]?)B?", text, re.ASCII | re.IGNORECASE)
    if not match or int(match[1]) == 0:
        raise ConfigError(
            f"memory = {text!r} must be the memory of each node, a whole number with K,"
            " M, G or T, for example 64G; leave it out for the default of the site"
        )
    return int(match[1]) * UNITS[match[2].upper()]


@dataclass(frozen=True)
class JobArray:
    """The elements of a job array, from text such as "0-15%4", "1,3,7" or "0-8:2"."""

    text: str
    numbers: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> "JobArray":
        """Parse `text`; raise ConfigError for text that sbatch would refuse."""
        elements, percent, limit = text.partition("%")
        ranges = [_range(part) for part in elements.split(",")]
        good = not percent or re.fullmatch(r"[1-9]\d{0,6}", limit, re.ASCII)
        if not good or None in ranges:
            raise ConfigError(
                f"array = {text!r} must be numbers and ranges of runs, and after an"
                " optional % how many may run at once, for example 0-15%4"
            )
        numbers = sorted({n for part in ranges for n in part or ()})
        return cls(text, tuple(numbers))


def _range(part: str) -> range | None:
    """Return the numbers of a text such as "3", "0-7" or "0-8:2"; None for others."""
    match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", part, re.ASCII)
    if not match:
        return None
    first = int(match[1])
    last = int(match[2] or match[1])
    step = int(match[3] or 1)
    if last < first or step < 1 or last > MOST_ELEMENTS:
        return None
    return range(first, last + 1, step)


@dataclass(frozen=True)
class JobDependency:
    """A job to wait for, and how it must have ended: 123, 123:ok, 123_4:any."""

    job: str
    how: str = "ok"

    @classmethod
    def parse(cls, text: str) -> "JobDependency":
        """Parse ID[:ok|any|notok]; raise ConfigError for any other text."""
        job, colon, how = text.partition(":")
        is_valid = (how or "ok") in AFTER and not (colon and not how)
        if not is_valid or not re.fullmatch(r"\d{1,10}(_\d{1,7})?", job, re.ASCII):
            raise ConfigError(
                f"--after {text!r} must be the number of a job, alone or with how that"
                f" job must end: 123, {', '.join(f'123:{how}' for how in AFTER)}"
            )
        return cls(job, how or "ok")

    @property
    def dependency(self) -> str:
        """Return the dependency in Slurm's syntax, as afterok:123."""
        return f"{AFTER[self.how]}:{self.job}"


# Text that a script may contain: words that are safe for Slurm and for a shell.

# Names of accounts, partitions, qualities of service and jobs in Slurm.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,127}")
# Features with counts and operators: "gpu&hbm80g", "[rack1|rack2]*2", "!old".
CONSTRAINT = re.compile(r"[A-Za-z0-9_.+:()\[\]&|*,!-]{1,256}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
LONGEST_WORD = 4096


def check_name(value: str, what: str) -> str:
    """Return `value` if it is a name in Slurm's syntax; else raise ConfigError.

    `what` is the name of the value in the message.
    """
    if not NAME.fullmatch(value):
        raise ConfigError(
            f"{what} = {value!r} may contain only letters, digits and _ . + -, and must"
            " begin with a letter or a digit"
        )
    return value


def check_names(value: str, what: str) -> str:
    """Return `value` if it has names separated by commas; else raise ConfigError.

    `what` is the name of the value in the message.
    """
    for part in value.split(","):
        check_name(part, what)
    return value


def check_constraint(value: str, what: str) -> str:
    """Return `value` if it lists features of nodes; else raise ConfigError.

    Features have no spaces or quotes. `what` is the name of the value in the message.
    """
    if not CONSTRAINT.fullmatch(value):
        raise ConfigError(
            f"{what} = {value!r} must name node features of Slurm without spaces or"
            " quotes, for example gpu&hbm80g"
        )
    return value


def check_line(value: str, what: str) -> str:
    """Return `value` if it is one line of printable text; else raise ConfigError.

    A line has at most `LONGEST_WORD` characters. `what` is the name of the value in the
    message.
    """
    if len(value) > LONGEST_WORD:
        raise ConfigError(
            f"{what} has {len(value)} characters, and a job script takes at most"
            f" {LONGEST_WORD}; shorten it, or put settings into a configuration file"
        )
    bad = next((c for c in value if not c.isprintable()), None)
    if bad is not None:
        raise ConfigError(
            f"{what} = {value!r} contains {bad!r}, which is not a printable character;"
            " write one line of printable characters"
        )
    return value


def counted(number: int, what: str) -> str:
    """Return a number and its noun, as 1 rank and 2 ranks.

    >>> counted(2, "rank")
    '2 ranks'
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def quote(value: str) -> str:
    """Return `value` quoted as one word of a shell."""
    return shlex.quote(check_line(value, "a word of the command"))


def quote_all(words: Iterable[str]) -> str:
    """Return `words` quoted and joined to a command line of a shell."""
    return " ".join(quote(word) for word in words)


def file_pattern(path: str) -> str:
    """Return `path` as an #SBATCH directive writes it where Slurm expands patterns.

    A % is doubled, since it begins a pattern. Quotes, backslashes and #, which Slurm
    interprets, raise ConfigError.
    """
    check_line(path, "the folder of the job")
    if any(c in path for c in "\"'\\#"):
        raise ConfigError(
            f"the folder of the job {path!r} has a quote, a backslash or a #, which"
            " Slurm does not take in names of logs; choose another --out"
        )
    return path.replace("%", "%%")


# The resources of a job: typed fields that are checked when they are set.

MOST = {"nodes": 100_000, "tasks": 10_000_000, "gpus": 64, "cpus": 4096}
LEAST = {"nodes": 1, "tasks": 1, "gpus": 0, "cpus": 1}


@dataclass(frozen=True)
class Resources:
    """Resources that a job requests.

    Attributes
    ----------
    nodes : int
        Nodes of the job.
    tasks : int
        All ranks of the job.
    gpus : int
        GPUs of each node.
    cpus : int
        Cores of each task, as Slurm counts them.
    memory : str
        Memory of each node, as in "64G". Empty takes Slurm's default at the site.
    walltime : str
        Time limit in any form of Slurm.
    account, partition, qos, constraint : str
        Options of Slurm with these names. Empty omits the option.
    exclusive : bool
        Whether no other job may use the nodes of the job.

    Examples
    --------
    >>> from hpcsgd.jobs.resources import Resources
    >>> Resources.parse({"tasks": 4, "walltime": "02:00:00"}).seconds
    7200
    """

    nodes: int = 1
    tasks: int = 1
    gpus: int = 0
    cpus: int = 1
    memory: str = ""
    walltime: str = "00:30:00"
    account: str = ""
    partition: str = ""
    qos: str = ""
    constraint: str = ""
    exclusive: bool = False

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            _check_count(name, getattr(self, name), least)
        for name in ("memory", "walltime", "account", "partition", "qos", "constraint"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name} = {getattr(self, name)!r} must be text")
        if not isinstance(self.exclusive, bool):
            raise ConfigError(f"exclusive = {self.exclusive!r} must be true or false")
        if self.tasks < self.nodes:
            raise ConfigError(
                f"tasks = {self.tasks} is less than nodes = {self.nodes}, and every"
                " node needs a task; ask for fewer nodes, or more tasks"
            )
        seconds_of(self.walltime)
        if self.memory:
            mebibytes_of(self.memory)
        self._check_names()

    def _check_names(self) -> None:
        for name in ("account", "qos"):
            if getattr(self, name):
                check_name(getattr(self, name), name)
        if self.partition:
            check_names(self.partition, "partition")
        if self.constraint:
            check_constraint(self.constraint, "constraint")

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> "Resources":
        """Make resources of a mapping.

        Parameters
        ----------
        table : mapping
            Field -> value.

        Returns
        -------
        Resources
        """
        check_known(table)
        return cls(**table)

    @property
    def seconds(self) -> int:
        """Return the time limit in seconds."""
        return seconds_of(self.walltime)

    @property
    def mebibytes(self) -> float:
        """Return the memory of each node in MiB; 0 if none is requested."""
        return mebibytes_of(self.memory) if self.memory else 0

    @property
    def tasks_per_node(self) -> int:
        """Return the largest number of ranks on a node."""
        return -(-self.tasks // self.nodes)

    def device_of(self, run: Mapping[str, Any]) -> str:
        """Return the device of a run.

        Parameters
        ----------
        run : mapping
            The section [run] of its settings.

        Returns
        -------
        str
            The setting `device` if there is one; else "cuda" if these resources have
            GPUs, else "cpu".
        """
        return str(run.get("device") or ("cuda" if self.gpus else "cpu"))

    def with_(self, **changes: Any) -> "Resources":
        """Return a copy with some fields changed.

        Parameters
        ----------
        **changes : dict
            Field -> value.

        Returns
        -------
        Resources
        """
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Return field -> value.

        Returns
        -------
        dict
        """
        return dict(vars(self))


KNOWN = tuple(field.name for field in fields(Resources))


def check_known(table: Mapping[str, Any], place: str = "resources") -> None:
    """Raise ConfigError for a key that is no field of Resources; list the fields.

    The message begins with `place`, the section or the argument that has the keys.
    """
    reject_unknown(place, table, KNOWN)


def _check_count(name: str, value: Any, least: int) -> None:
    if type(value) is not int or not least <= value <= MOST[name]:
        raise ConfigError(
            f"{name} = {value!r} must be a whole number from {least} to {MOST[name]}"
        )

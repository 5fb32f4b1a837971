"""What may stand in a script: text that is safe for Slurm, and words for a shell."""

import re
import shlex
from collections.abc import Iterable

from hpcsgd.errors import ConfigError

# What Slurm calls accounts, partitions, qualities of service; also names of jobs.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]{0,127}")
# Features with counts and operators: "gpu&hbm80g", "[rack1|rack2]*2", "!old".
CONSTRAINT = re.compile(r"[A-Za-z0-9_.+:()\[\]&|*,!-]{1,256}")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
LONGEST = 4096


def check_name(value: str, what: str) -> str:
    """A name as Slurm has them, or an error that says which are."""
    if not NAME.fullmatch(value):
        raise ConfigError(
            f"{what} = {value!r} must be letters, digits and _ . + - alone, and begin"
            " with a letter or a digit"
        )
    return value


def check_names(value: str, what: str) -> str:
    """One such name, or several with commas between them."""
    for part in value.split(","):
        check_name(part, what)
    return value


def check_constraint(value: str, what: str) -> str:
    """Features of nodes, without anything that ends a line or a word."""
    if not CONSTRAINT.fullmatch(value):
        raise ConfigError(
            f"{what} = {value!r} must be features as in gpu&hbm80g, without spaces or"
            " quotes"
        )
    return value


def check_line(value: str, what: str) -> str:
    """Text that stays on its line: no control characters, nothing that breaks lines."""
    if len(value) > LONGEST:
        raise ConfigError(
            f"{what} has {len(value)} characters; at most {LONGEST} fit into a job's"
            " script: put them into a file"
        )
    bad = next((c for c in value if not c.isprintable()), None)
    if bad is not None:
        raise ConfigError(
            f"{what} = {value!r} has the character {bad!r}; write it on one line of"
            " printable characters"
        )
    return value


def counted(number: int, what: str) -> str:
    """A number and its noun, as 1 rank and 2 ranks.

    >>> counted(2, "rank")
    '2 ranks'
    """
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def quote(value: str) -> str:
    """`value` as one word of a shell that stays what it is."""
    return shlex.quote(check_line(value, "a word of the command"))


def quote_all(words: Iterable[str]) -> str:
    """A command line of a shell."""
    return " ".join(quote(word) for word in words)


def file_pattern(path: str) -> str:
    """A path as the value of a directive that stands for file names.

    Slurm reads quotes, backslashes and # there, and % begins a pattern.
    """
    check_line(path, "the folder of the job")
    if any(c in path for c in "\"'\\#"):
        raise ConfigError(
            f"the folder of the job {path!r} has a quote, a backslash or a #, which"
            " Slurm does not take in names of logs; choose another --out"
        )
    return path.replace("%", "%%")

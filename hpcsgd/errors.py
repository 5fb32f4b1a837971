"""The errors a user can meet. Each message is one sentence that names the remedy."""

import os
from collections.abc import Iterable


class HpcsgdError(Exception):
    """Base of every error this package raises on purpose."""

    exit_code = 1
    on_all_ranks = False  # True: every rank raises it, nobody is left waiting
    is_own = False  # True: no other rank knows of it, this one has to say it
    was_told = False  # True: ranks that act together have told each other of it


class ConfigError(HpcsgdError, ValueError):
    """A setting that cannot work: the message shows what would."""

    exit_code = 2


class DataError(HpcsgdError, ValueError):
    """Data that cannot be used as asked: the message names the place."""

    exit_code = 2


class MissingPackage(ConfigError, ImportError):
    """An optional package is needed now: the message has the pip command."""


class TransportError(HpcsgdError, RuntimeError):
    """Ranks cannot talk as asked."""


class DeviceLost(TransportError):
    """A GPU that does nothing more: what was on it is gone."""


class NumericsError(HpcsgdError, ArithmeticError):
    """Arithmetic left the range in which its result means anything."""


class ConvergenceWarning(UserWarning):
    """A model that is not at its optimum yet: the message says what to change."""


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return the known name that is most like `word`, "" where none is like it.

    >>> nearest("tain", ["train", "tune"])
    'train'
    """
    from difflib import get_close_matches  # a run without a mistake needs none of it

    names = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), list(names), 1, likeness)
    return names[close[0]] if close else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the question to put behind an unknown name, "" where none is like it.

    >>> did_you_mean("--dta", ["--data", "--out"])
    ' (did you mean --data?)'
    """
    name = nearest(word, known)
    return f" (did you mean {name}?)" if name else ""


def did_you_mean_file(path: str | os.PathLike[str]) -> str:
    """Return the question to put behind a path that does not exist, or ""."""
    folder, word = os.path.split(path)
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError:
        return ""
    name = nearest(word, names, 0.7)
    return f" (did you mean {os.path.join(folder, name)}?)" if name else ""

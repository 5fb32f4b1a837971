"""The errors a user can meet, and the tables of names that messages list.

Each message is one sentence that names the remedy.
"""

import os
from collections.abc import Collection, Iterable
from typing import TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class NameTable(dict[Key, Value]):
    """A dict of names with a docstring of its own, which `help` shows.

    Parameters
    ----------
    rows : dict
        The names and what each stands for.
    text : str
        The docstring of this table.
    """

    def __init__(self, rows: dict[Key, Value], text: str) -> None:
        super().__init__(rows)
        self.__doc__ = text


class HpcsgdError(Exception):
    """Base class of every error that this package raises on purpose.

    Parameters
    ----------
    *args : object
        The message.
    on_all_ranks : bool, default=False
        Whether every rank raises it, so that no rank is left waiting.

    Attributes
    ----------
    exit_code : int
        The exit code of the command line.
    on_all_ranks : bool
        Whether every rank raises it.

    Examples
    --------
    >>> import hpcsgd
    >>> try:
    ...     hpcsgd.train()
    ... except hpcsgd.HpcsgdError as error:
    ...     print(error)
    no data: add --data FILE.h5, or [data] path, or X and y
    """

    exit_code = 1
    is_own = False  # True: no other rank knows of it, this one has to say it
    was_told = False  # True: ranks that act together have told each other of it

    def __init__(self, *args: object, on_all_ranks: bool = False) -> None:
        super().__init__(*args)
        self.on_all_ranks = on_all_ranks


class ConfigError(HpcsgdError, ValueError):
    """A setting or an argument that cannot work. The message names the remedy.

    Examples
    --------
    >>> import hpcsgd
    >>> hpcsgd.RunConfig.parse({"schedule": {"batch": 0}})
    Traceback (most recent call last):
        ...
    hpcsgd.errors.ConfigError: [schedule] batch = 0 must be a whole number of at least 1
    """

    exit_code = 2


class DataError(HpcsgdError, ValueError):
    """Data that cannot be used. The message names the place of the fault.

    Examples
    --------
    >>> import hpcsgd
    >>> hpcsgd.fit([[1.0], [float("nan")]], "gaussian", [1.0, 2.0])
    Traceback (most recent call last):
        ...
    hpcsgd.errors.DataError: ...
    """

    exit_code = 2


class MissingPackage(ConfigError, ImportError):
    """An optional package is not installed. The message says what to install."""


class TransportError(HpcsgdError, RuntimeError):
    """Ranks cannot exchange messages as requested."""


class DeviceLost(TransportError):
    """A GPU has failed and accepts no more requests; the data in its memory is lost."""


class ConvergenceWarning(UserWarning):
    """A model that is not at its optimum. The message says what to change.

    Examples
    --------
    >>> import warnings
    >>> import numpy as np
    >>> import hpcsgd
    >>> X = np.random.default_rng(0).normal(size=(64, 3))
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     result = hpcsgd.fit(X, "poisson", X[:, 0] > 0, epochs=1, polish=False)
    >>> caught[0].category is hpcsgd.ConvergenceWarning
    True
    """


def nearest(word: str, known: Iterable[str], likeness: float = 0.6) -> str:
    """Return the known name that is most like `word`; "" if none is similar enough.

    `likeness` is the least similarity, from 0 to 1 (equal up to the case of letters).

    >>> nearest("tain", ["train", "tune"])
    'train'
    """
    from difflib import get_close_matches  # a run without a mistake needs none of it

    names = {name.lower(): name for name in known}
    close = get_close_matches(word.lower(), list(names), 1, likeness)
    return names[close[0]] if close else ""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a question to append to a message about an unknown name.

    It suggests the most similar known name; "" if no known name is similar.

    >>> did_you_mean("--dta", ["--data", "--out"])
    ' (did you mean --data?)'
    """
    name = nearest(word, known)
    return f" (did you mean {name}?)" if name else ""


def reject_unknown(place: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise ConfigError if some `given` names are not `known`, with a suggestion.

    The message begins with `place`, the section or the argument that has the names.

    >>> reject_unknown("[grid]", ["mebers"], ["members", "replicas"])
    Traceback (most recent call last):
    hpcsgd.errors.ConfigError: [grid] unknown: ['mebers'] (did you mean members?); \
known: ['members', 'replicas']
    """
    unknown = sorted(set(given).difference(known))
    if unknown:
        hint = did_you_mean(str(unknown[0]), known)
        raise ConfigError(f"{place} unknown: {unknown}{hint}; known: {sorted(known)}")


def either(names: Iterable[object]) -> str:
    """Return names joined by commas, with "or" before the last one.

    >>> either(["sgd", "adam", "svrg"])
    'sgd, adam or svrg'
    """
    *most, last = map(str, names)
    return f"{', '.join(most)} or {last}" if most else last


def did_you_mean_file(path: str | os.PathLike[str]) -> str:
    """Return a question to append to a message about a path that does not exist.

    It suggests a similar name in the same folder; "" if there is none.
    """
    folder, word = os.path.split(path)
    try:
        names = sorted(os.listdir(folder or "."))
    except OSError:
        return ""
    name = nearest(word, names, 0.7)
    return f" (did you mean {os.path.join(folder, name)}?)" if name else ""

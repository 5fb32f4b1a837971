"""Settings that describe themselves: default, help, allowed values, and their readers.

A section of the configuration is a frozen dataclass below `Settings` whose fields are
made by `setting`. Checks, `--help`, `hpcsgd new`, `defaults.toml` and the reference of
all settings are made from these declarations.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, wraps
from typing import Any, ClassVar, Concatenate, ParamSpec, TypeVar

from hpcsgd.errors import ConfigError, did_you_mean

# section.key -> the values under which a condition holds
Condition = Mapping[str, Iterable[Any]]
# In the place of section.key: what the agreement of a run lists in `reads`.
READS = "agreement.reads"

# A value, and why it is that one.
Resolved = tuple[Any, str]


@dataclass(frozen=True)
class RunFacts:
    """Facts on an opened run, which its automatic settings follow from.

    Attributes
    ----------
    config : RunConfig
        The settings that run.
    ranks, members : int
        Numbers of all ranks, and of the members of a replica.
    columns : int
        Columns of the data.
    is_sparse : bool
        Whether rows are stored sparse.
    """

    config: Any
    ranks: int
    members: int
    columns: int
    is_sparse: bool


@dataclass(frozen=True)
class Setting:
    """The declaration of one field of a section.

    Attributes
    ----------
    help : str
        What the setting does, as a phrase.
    default : value
        The value of a setting that is not given, which needs no check.
    choices : tuple or callable
        The values that it takes, or what returns them; empty where it takes others.
    at_least, above, at_most, below : float or None
        Bounds of a number, which is finite unless `at_most` is infinite.
    remedy : str
        What follows a refusal: a usual value, or what a special value does.
    read_if : tuple of mapping
        Conditions of which one has to hold for a run to read the setting; each maps
        section.key to values, all of which have to be met. Empty: always read.
    auto : value or None
        The value that the text "auto" stands for; nobody may write it as it is.
    is_whole : bool
        Whether a number must be whole, also one that is not read from a file.
    is_count : bool
        Whether a whole number may stand for a text.
    becomes : tuple or callable or None
        The value that runs in the place of `placeholder`, and the reason: a pair, or a
        function of the facts of a run that returns it. None: no value of the setting
        stands for another.
    placeholder : value or None
        The value that stands for another; None: the default.
    """

    help: str = ""
    default: Any = None
    choices: tuple[Any, ...] | Callable[[], Iterable[Any]] = ()
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    below: float | None = None
    remedy: str = ""
    read_if: tuple[Condition, ...] = ()
    auto: Any = None
    is_whole: bool = False
    is_count: bool = False
    becomes: Resolved | Callable[[RunFacts], Resolved] | None = None
    placeholder: Any = None

    @property
    def known(self) -> tuple[Any, ...]:
        """Return the choices of the setting; empty if it has no list of choices."""
        return tuple(self.choices() if callable(self.choices) else self.choices)

    @property
    def is_bounded(self) -> bool:
        """Return whether the setting is a number with bounds."""
        bounds = (self.at_least, self.above, self.at_most, self.below)
        return any(bound is not None for bound in bounds)

    @property
    def fixed(self) -> tuple[Any, ...]:
        """Return the choices, if they cannot be extended; empty if they can."""
        return () if callable(self.choices) else self.choices

    def takes(self, value: Any) -> bool:
        """Return whether a value is one of the fixed choices, or within the bounds.

        Choices that can be extended are not checked. The value of "auto" is allowed
        outside the bounds.
        """
        if self.fixed:
            return value in self.fixed
        if self.auto is not None and value == self.auto:
            return True
        if self.is_whole and (isinstance(value, bool) or not isinstance(value, int)):
            return False
        return not self.is_bounded or (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
            and (value < math.inf if self.at_most is None else value <= self.at_most)
        )

    def is_automatic(self, value: Any) -> bool:
        """Return whether a value stands for another, which the run determines."""
        usual = self.default if self.placeholder is None else self.placeholder
        return self.becomes is not None and value == usual

    def resolve(self, facts: RunFacts) -> Resolved:
        """Return the value that an automatic value stands for, and the reason."""
        assert self.becomes is not None
        return self.becomes(facts) if callable(self.becomes) else self.becomes

    def must(self, value: Any) -> str:
        """Return the end of a refusal after "must", such as "be at least 0"."""
        if self.fixed:
            choices = ", ".join(map(str, self.fixed))
            hint = did_you_mean(value, self.fixed) if isinstance(value, str) else ""
            return f"be one of {choices}{hint}"
        words = (
            ("at least", self.at_least),
            ("above", self.above),
            ("at most", self.at_most),
            ("below", self.below),
        )
        bounds = " and ".join(
            f"{word} {bound:.9g}"
            for word, bound in words
            if bound not in (None, math.inf)
        )
        whole = "a whole number of " if self.is_whole else ""
        is_number = isinstance(value, int | float) and math.isfinite(value)
        finite = "" if is_number or self.at_most == math.inf else " and finite"
        auto = "" if self.auto is None else ', or "auto"'
        return f"be {whole}{bounds}{finite}{auto}"


def setting(
    default: Any,
    help: str = "",
    *,
    read_if: Condition | tuple[Condition, ...] = (),
    read_by: str = "",
    **facts: Any,
) -> Any:
    """Declare one field of a section.

    Parameters
    ----------
    default : value
        The value of a setting that is not given.
    help : str
        What the setting does, as a phrase.
    read_if : mapping or tuple of mapping
        Conditions of which one has to hold for a run to read the setting.
    read_by : str
        A subject of agreements: only those that list it in `reads` read the setting,
        and a condition of `read_if` has to hold, too.
    **facts
        Other fields of `Setting`.

    Returns
    -------
    dataclasses.Field

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from hpcsgd.settings import Settings, setting
    >>> @dataclass(frozen=True)
    ... class Brake(Settings, section="brake"):
    ...     force: float = setting(0.5, "force of the brake", at_least=0, at_most=1)
    >>> Brake(force=2.0)
    Traceback (most recent call last):
    hpcsgd.errors.ConfigError: [brake] force = 2.0 must be at least 0 and at most 1
    """
    conditions = (read_if,) if isinstance(read_if, Mapping) else read_if
    if read_by:
        conditions = tuple(
            {READS: (read_by,), **condition} for condition in conditions or ({},)
        )
    declared = Setting(help, default, read_if=conditions, **facts)
    return field(default=default, metadata={"setting": declared})


class Settings:
    """Base class of the sections of a configuration.

    A subclass is a frozen dataclass. It may override `conflicts`, which yields a
    sentence for each pair of values that cannot work together. All that is wrong with
    a section is refused at once.
    """

    section: ClassVar[str] = ""

    def __init_subclass__(cls, section: str = "", **more: Any) -> None:
        super().__init_subclass__(**more)
        if section:
            cls.section = section

    def __post_init__(self) -> None:
        values = vars(self)
        for name, declared in declarations(type(self)).items():
            if values[name] is not declared.default:
                refuse(self.refusals())
                return

    def refusals(self) -> Iterator[str]:
        """Yield a sentence for each value that is not allowed.

        If all are allowed, yield the sentences of `conflicts`.
        """
        is_good = True
        for name, declared in declarations(type(self)).items():
            value = getattr(self, name)
            if value is declared.default:
                continue
            is_unset = declared.default is None and isinstance(value, str) and not value
            if not is_unset and not declared.takes(value):
                is_good = False
                yield self.refusal(name, value)
        if is_good:
            yield from self.conflicts()

    @classmethod
    def refusal(cls, name: str, value: Any) -> str:
        """Return the sentence that refuses `value` for the setting `name`."""
        declared = declarations(cls)[name]
        remedy = f"; {declared.remedy}" if declared.remedy else ""
        return f"[{cls.section}] {name} = {value!r} must {declared.must(value)}{remedy}"

    def conflicts(self) -> Iterable[str]:
        """Yield a sentence for each pair of values that cannot work together."""
        return ()


_DECLARED: dict[Any, dict[str, Setting]] = {}


def declarations(kind: type[Any]) -> dict[str, Setting]:
    """Return the `Setting` of each field of a section, by the name of the field."""
    if kind not in _DECLARED:
        _DECLARED[kind] = {
            entry.name: entry.metadata.get("setting", Setting("", entry.default))
            for entry in fields(kind)
        }
    return _DECLARED[kind]


class Refusals(ConfigError):
    """An error about several settings that cannot work.

    Attributes
    ----------
    sentences : list of str
        One sentence for each refusal.
    """

    def __init__(self, sentences: list[str]) -> None:
        self.sentences = sentences
        lines = "".join(f"\n  - {sentence}" for sentence in sentences)
        super().__init__(f"{len(sentences)} settings cannot work:{lines}")


def refuse(sentences: Iterable[str]) -> None:
    """Raise one ConfigError with all of these sentences, if there are any."""
    messages = list(dict.fromkeys(sentences))
    if len(messages) == 1:
        raise ConfigError(messages[0])
    if messages:
        raise Refusals(messages)


def refuse_together(errors: Iterable[ConfigError]) -> None:
    """Raise one ConfigError with the sentences of all these errors, if any."""
    refuse(
        sentence
        for error in errors
        for sentence in getattr(error, "sentences", [str(error)])
    )


# Pure functions of settings, which many short runs in one process call again and again.

MOST_REMEMBERED = 64  # results of one function
P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")


def remembered(
    function: Callable[Concatenate[C, P], R],
) -> Callable[Concatenate[C, P], R]:
    """Return a pure function of settings that remembers its latest results.

    The first argument, the settings, is frozen, and is told by its identity: to compare
    some hundred values would take as long as many a function. The other arguments are
    compared; if one has no hash, nothing is remembered. Errors are not remembered, and
    a caller must not change a result.
    """
    results: dict[Any, tuple[C, R]] = {}

    @wraps(function)
    def remembering(settings: C, /, *others: P.args, **named: P.kwargs) -> R:
        key = (id(settings), *others, *named.items())
        try:
            entry = results.get(key)
        except TypeError:  # an argument without a hash
            return function(settings, *others, **named)
        if entry is None:
            entry = settings, function(settings, *others, **named)
            if len(results) >= MOST_REMEMBERED:
                results.clear()
            results[key] = entry  # with the settings: no others get their identity
        return entry[1]

    return remembering


# Settings, and values of settings, that earlier versions had.
#
# A file that a run wrote with one of them is read without it; a configuration that a
# person writes is refused, because what it asks for does not happen.

log = logging.getLogger("hpcsgd")
# (section, key) -> what takes its place.
RETIRED = {
    ("precision", "recheck"): "--precision auto chooses before the run; the gap monitor"
    " (--gap-every) and --fall-back watch it",
    ("run", "comm"): "ranks communicate through MPI (mpiexec, srun --mpi=pmi2 or pmix,"
    " or --ranks N)",
}


def without_retired(tables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a file that a run wrote, without retired settings.

    A log line names the settings that are left out.
    """
    retired = [
        (section, key)
        for section, key in RETIRED
        if isinstance(tables.get(section), Mapping)
        and key in tables[section]
        and _is_retired(section, key, tables[section][key])
    ]
    if not retired:
        return dict(tables)
    _log_once(", ".join(f"{section}.{key}" for section, key in retired))
    settings = dict(tables)
    for section, key in retired:
        settings[section] = {k: v for k, v in settings[section].items() if k != key}
    return settings


def why_retired(section: str, key: str, value: Any = None) -> str | None:
    """Return why a setting is refused if it is retired; None for any other."""
    if not _is_retired(section, key, value):
        return None
    name = f"{key} = {value!r}" if (section, key) == ("run", "comm") else key
    instead = RETIRED[section, key]
    return f"[{section}] {name} is no setting any more: {instead}; leave it out"


def _is_retired(section: str, key: str, value: Any) -> bool:
    """Return whether a setting is retired, or at least this value of it."""
    if (section, key) == ("run", "comm"):
        return isinstance(value, str) and (value == "tcp" or value.startswith("file:"))
    return (section, key) in RETIRED


@cache
def _log_once(names: str) -> None:
    log.info("settings or values that only earlier versions had are ignored: %s", names)

"""The parsers of the commands, their log and the report of their errors."""

import argparse
import logging
import math
import os
import re
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import hpcsgd
from hpcsgd.cli import launch
from hpcsgd.cli.interrupts import exit_when_interrupted
from hpcsgd.cli.names import COMMANDS, GROUPS, PARSERS, WORK
from hpcsgd.comm import open_world
from hpcsgd.comm.rank_ends import TIMEOUT
from hpcsgd.errors import (
    ConfigError,
    DataError,
    HpcsgdError,
    MissingPackage,
    did_you_mean,
)
from hpcsgd.files import BINARY, UNIT_BYTES

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from hpcsgd.comm.communicator import Communicator


# Numbers of the command line that must be finite and not negative.


def not_negative(text: str) -> float:
    """Return the number in `text`, which must be finite and at least 0.

    For another text raise ArgumentTypeError, which argparse shows.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise argparse.ArgumentTypeError(
            f"{text!r} must be a finite number of at least 0"
        )
    return value


# Tables on a terminal.


def new_console(width: int, stream: Any = None) -> "Console":
    """Return a console on `stream`, by default on standard output.

    It has `width` columns if the stream is not a terminal.
    """
    from rich.console import Console

    stream = stream or sys.stdout
    return Console(
        file=stream, highlight=False, width=None if stream.isatty() else width
    )


def new_table(
    title: str, texts: Iterable[str], numbers: Iterable[str], justify: Any = "left"
) -> "Table":
    """Return a table without rows: columns of texts, then columns of numbers."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(title=title, title_justify=justify, box=SIMPLE_HEAD)
    for name in texts:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def require_figures(plot: str | None) -> None:
    """Refuse --plot if matplotlib is not installed, before the work is done."""
    if plot:
        from hpcsgd.runs.figures import require

        require()


# The log on the command line: one handler, which writes the rank of every record.
#
# By default rank 0 writes INFO, and every rank writes warnings; a record that is the
# same on all ranks has `on_all_ranks` and is written once.

ROOT = "hpcsgd"
CHATTY = logging.getLogger("hpcsgd.runs.session")  # a few lines a run


def add_json(parser: Any, group: Any = None) -> None:
    """Add --json to an argument group of the parser, by default to the general one."""
    (group or parser.general).add_argument(
        "--json", action="store_true", help="print the result as one JSON document"
    )


def add_volume(parser: Any) -> None:
    """Add the flags -q and -v, which decide how much is logged."""
    volume = parser.general.add_mutually_exclusive_group()
    volume.add_argument(
        "-q", "--quiet", action="store_true", help="show errors only, no progress"
    )
    volume.add_argument(
        "-v", "--verbose", action="store_true", help="log the actions of every rank"
    )


def add_progress(parser: Any) -> None:
    """Add the flags --progress, -q and -v."""
    parser.general.add_argument(
        "--progress",
        type=not_negative,
        default=10.0,
        metavar="SECONDS",
        help="seconds between two progress lines where the output is not a terminal;"
        " 0 shows none",
    )
    add_volume(parser)


class RankHandler(logging.Handler):
    """A handler of log records that writes to the current sys.stderr.

    A progress bar may replace sys.stderr meanwhile.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rank = launch.launcher_rank() or 0
        self.size = launch.launcher_size()

    def emit(self, record: logging.LogRecord) -> None:
        """Write the record on one line, if this rank writes it."""
        try:
            if self.says(record):
                # One write, as mpiexec merges the lines of all ranks.
                sys.stderr.write(self.line(record) + "\n")
                sys.stderr.flush()
        except BrokenPipeError:
            raise
        except Exception:
            self.handleError(record)

    def says(self, record: logging.LogRecord) -> bool:
        """Return whether this rank writes the record.

        Rank 0 writes every record. Other ranks write warnings, or with --verbose every
        record, but none that is the same on all ranks.
        """
        if self.rank == 0:
            return True
        if getattr(record, "on_all_ranks", False):
            return False
        return record.levelno >= logging.WARNING or self.level <= logging.DEBUG

    def line(self, record: logging.LogRecord) -> str:
        """Return the record as a line, with the rank if there are several."""
        tag = f"[rank {self.rank}/{self.size}]" if self.size > 1 else ""
        loud = record.levelno >= logging.WARNING or record.levelno <= logging.DEBUG
        level = f"{record.levelname}: " if loud else ""
        return f"hpcsgd{tag}: {level}{self.format(record)}"


HANDLER = RankHandler()


def set_up(arguments: argparse.Namespace) -> None:
    """Install the handler of the log, with the level of -q and -v."""
    level = logging.INFO
    if getattr(arguments, "quiet", False):
        level = logging.ERROR
    elif getattr(arguments, "verbose", False):
        level = logging.DEBUG
    HANDLER.setLevel(level)
    logger = logging.getLogger(ROOT)
    logger.setLevel(level)
    logger.addHandler(HANDLER)
    CHATTY.setLevel(logging.NOTSET)


def set_rank(rank: int, size: int) -> None:
    """Set the rank and the number of ranks of log lines, from the communicator.

    Until then they are those of the launcher's variables.
    """
    HANDLER.rank = rank
    HANDLER.size = size


# A command on all ranks: open the world, work, print on rank 0.

T = TypeVar("T")


def add_comm(parser: Any, default: str | None = "auto") -> None:
    """Add --comm to a command without a configuration."""
    text = help_of("run.comm")
    parser.add_argument(
        "--comm", type=_comm, default=default, metavar="KIND", help=text
    )


def add_ranks(parser: Any) -> None:
    """Add --ranks to a command that starts its ranks itself."""
    parser.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help="start this number of MPI ranks on this machine",
    )


def _comm(text: str) -> str:
    """Return `text`, or refuse a kind of communicator that was removed."""
    if text != "tcp" and not text.startswith("file:"):
        return text
    from hpcsgd.settings import why_retired

    refusal = why_retired("run", "comm", text)
    if refusal is not None:
        raise ArgumentTypeError(refusal)
    return text


_met: list[bool] = []  # not empty if this process has opened a world


def is_world_open() -> bool:
    """Return whether this process has opened the world.

    From then on, an error of this rank can reach the other ranks.
    """
    return bool(_met)


def on_all_ranks(
    comm: str,
    action: Callable[["Communicator"], T],
    show: Callable[[T], None],
    code: Callable[[T], int],
    timeout: float = TIMEOUT,
) -> int:
    """Run `action` on all ranks of `comm`, and show its result on rank 0.

    `comm` is a kind of communicator, as --comm takes it.

    Return the exit code `code(result)`, which is the same on all ranks. It needs no
    message, as rank 0 may have ended already because its output was closed.

    A rank waits at most `timeout` seconds for a rank that makes no progress; 0 = for
    ever.
    """
    world = open_world(comm, timeout=timeout)
    _met.append(True)
    world.watch(timeout)
    set_rank(world.rank, world.size)
    result = _or_abort(world, lambda: action(world))
    if world.rank == 0:
        _or_abort(world, lambda: show(result))
    world.close()
    return code(result)


def _or_abort(world: "Communicator", action: Callable[[], T]) -> T:
    """Return the result of `action`; abort all ranks if only this rank has an error."""
    try:
        return action()
    except HpcsgdError as error:
        if world.size > 1 and not error.on_all_ranks:
            # The other ranks wait in a collective.
            print(f"hpcsgd: rank {world.rank}: error: {error}", file=sys.stderr)
            world.abort(error.exit_code)
        raise


RANK_0_FIRST = 2.0  # seconds in which rank 0 has ended if it makes the same mistake


class Flag(NamedTuple):
    """A flag of the commands that train.

    Attributes
    ----------
    name : str, the flag with its dashes
    setting : str, the `section.key` that it stands for, or a word without a dot where
        it stands for something else
    group : str, the heading that it is shown under
    options : what argparse needs to know
    common : bool, whether `--help` shows it; `--help-all` shows every flag
    fit : str, the value that `hpcsgd train` takes where no setting of SGD is named, if
        it is another than the default of SGD
    own_help : str, its meaning, if it is another than that of its setting
    """

    name: str
    setting: str
    group: str
    options: Mapping[str, Any] = MappingProxyType({})
    common: bool = False
    fit: str = ""
    own_help: str = ""

    @property
    def help(self) -> str:
        """Return the help of the flag: its own help, or else that of its setting."""
        return self.own_help or help_of(self.setting)

    @property
    def is_setting(self) -> bool:
        """Return whether the flag stands for a key of the configuration."""
        return "." in self.setting

    @property
    def metavar(self) -> dict[str, str]:
        """Return the name of the flag's value as an option of argparse, or {}.

        It is the key in capitals, unless the flag has choices, a name or no value.
        """
        if {"choices", "const", "metavar", "action"} & set(self.options):
            return {}
        return {"metavar": self.setting.split(".")[-1].upper()}


EXAMPLE = "Example:"


class Formatter(argparse.HelpFormatter):
    """Formatter of help pages: an example keeps its lines, a default is in brackets."""

    def __init__(self, prog: str, defaults: Callable[[argparse.Action], str]) -> None:
        super().__init__(prog, max_help_position=26)
        self.default_of = defaults

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith(EXAMPLE):
            return text
        return super()._fill_text(text, width, indent)

    def _get_help_string(self, action: argparse.Action) -> str | None:
        default = self.default_of(action).replace("%", "%%")
        return " ".join(filter(None, [action.help, default and f"[{default}]"]))


class HelpAll(argparse._HelpAction):
    """Action of the flag --help-all: show all flags and exit."""

    def __call__(self, parser: Any, *args: Any, **kwargs: Any) -> None:
        """Print the page of all flags on standard output, and exit."""
        print(parser.format_every_flag(), end="")
        parser.exit()


# Flags that other programs have, and ours.
OTHER_FLAGS = {
    "alpha": "--l2",
    "C": "--l2, 1/(C·n) for n rows",
    "lambda": "--l2",
    "penalty": "--l2 or --l1",
    "l1-ratio": "--l1 and --l2",
    "max-iter": "--epochs",
    "learning-rate": "--rate",
    "lr": "--rate",
    "batch-size": "--batch",
    "cv": "hpcsgd sweep --folds",
    "random-state": "--seed",
    "loss": "--family",
    "replicas": "--grid RxC, replicas x members",
    "members": "--grid RxC, replicas x members",
}
# Settings whose names a program can add to, by a function called `register`.
REGISTERED = ("problem.family", "agreement.kind", "agreement.codec")


def _meant_family(name: str) -> str:
    """Return a hint on the family that other programs call `name`, or ""."""
    from hpcsgd.glm import nearest_family

    meant = nearest_family(name)
    return f" (did you mean {meant}?)" if meant else ""


class Parser(argparse.ArgumentParser):
    """A parser with a page of common flags and one of all flags.

    Its errors are raised, so that one rank can report them for all.

    Parameters
    ----------
    example : str, a command line that works; it ends the page
    menu : heading -> the commands below it, where the commands have headings
    **options : those of `argparse.ArgumentParser`
    """

    def __init__(
        self,
        *,
        example: str = "",
        menu: Mapping[str, Container[str]] | None = None,
        **options: Any,
    ) -> None:
        options.setdefault("allow_abbrev", False)
        epilog = f"{EXAMPLE}\n  {example}" if example else None
        super().__init__(add_help=False, epilog=epilog, **options)
        self.example = example
        self.menu = menu
        self.rare: set[str] = set()  # destinations that --help leaves out
        self.fits: dict[str, str] = {}  # destination -> its value without SGD settings
        self.general = self.add_argument_group("general")
        self.general.add_argument(
            "-h", "--help", action="help", help="show this page and exit"
        )

    def add_argument_group(self, *args: Any, **kwargs: Any) -> Any:
        """Add a group ahead of the general one, which ends the page."""
        group = super().add_argument_group(*args, **kwargs)
        if hasattr(self, "general"):
            self._action_groups.remove(self.general)
            self._action_groups.append(self.general)
        return group

    def add_flags(self, flags: Iterable[Flag], fit: bool) -> None:
        """Add flags below the headings of their groups, and --help-all.

        `fit`: without settings of SGD the command has the defaults of `hpcsgd.fit`.
        """
        groups: dict[str, Any] = {}
        for flag in flags:
            if flag.group not in groups:
                groups[flag.group] = self.add_argument_group(flag.group)
            options = {"default": None, **flag.metavar, **flag.options}
            help_text = flag.help.replace("%", "%%")
            groups[flag.group].add_argument(
                flag.name, dest=flag.setting, help=help_text, **options
            )
            if not flag.common:
                self.rare.add(flag.setting)
            if fit and flag.fit:
                self.fits[flag.setting] = flag.fit
        self.general.add_argument(
            "--help-all", action=HelpAll, help="show all flags by group and exit"
        )

    def format_usage(self) -> str:
        """Return the line of the command with its required flags and arguments."""
        formatter = self._get_formatter()
        formatter.add_usage(self._usage(), [], [])
        return formatter.format_help()

    def format_help(self) -> str:
        """Return the page of the common flags."""
        return self._page(self.rare)

    def format_every_flag(self) -> str:
        """Return the page of all flags."""
        return self._page(set())

    def _page(self, hidden: set[str]) -> str:
        formatter = self._get_formatter()
        formatter.add_usage(self._usage(), [], [])
        formatter.add_text(self.description)
        for group in self._action_groups:
            if group is self._subparsers:
                self._add_menu(formatter)
                continue
            formatter.start_section(group.title)
            formatter.add_text(group.description)
            formatter.add_arguments(
                a for a in group._group_actions if a.dest not in hidden
            )
            formatter.end_section()
        formatter.add_text(self.epilog)
        return formatter.format_help()

    def _add_menu(self, formatter: argparse.HelpFormatter) -> None:
        """Add the commands below this one, under their headings."""
        for action in filter(_is_menu, self._actions):
            shown: Any = action
            title = f"{str(action.metavar).lower()}s"
            menu = self.menu or {title: [c.dest for c in shown._choices_actions]}
            for heading, names in menu.items():
                formatter.start_section(heading)
                formatter.add_arguments(
                    c for c in shown._choices_actions if c.dest in names
                )
                formatter.end_section()

    def _usage(self) -> str:
        """Return the command with its required flags and arguments, and [OPTIONS]."""
        words = [self.prog]
        for action in self._actions:
            if action.option_strings and action.required:
                words.append(f"{action.option_strings[-1]} {_value(action)}")
        if any(a.option_strings and not a.required for a in self._actions):
            words.append("[OPTIONS]")
        for action in self._actions:
            if not action.option_strings:
                word = _value(action) + (" ..." if _is_menu(action) else "")
                words.append(f"[{word}]" if action.nargs in ("?", "*") else word)
        return " ".join(words).replace("%", "%%")

    def _get_formatter(self) -> argparse.HelpFormatter:
        return Formatter(self.prog, self.default_of)

    def default_of(self, action: argparse.Action) -> str:
        """Return the default of a flag or argument as text, "" if there is none."""
        fit = self.fits.get(action.dest, "")
        if action.nargs == 0:
            return f"{fit}; for SGD off" if fit else ""
        is_setting = "." in action.dest
        value = _sgd_default(action.dest) if is_setting else action.default
        if value is None or value in ("", [], (), argparse.SUPPRESS):
            return ""
        if "default" in (action.help or ""):  # the text describes it
            return ""
        text = f"{value:g}" if isinstance(value, float) else str(value)
        return f"{fit}; for SGD {text}" if fit else text

    def menu_of(self, words: Sequence[str]) -> str:
        """Return the help of the command `words` if it lacks a subcommand, else ""."""
        menus: list[Any] = [a for a in self._actions if _is_menu(a)]
        if not menus:
            return ""
        if not words:
            return self.format_help()
        below = menus[0].choices.get(words[0])
        return below.menu_of(words[1:]) if below else ""

    def parse_known_args(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the arguments; refuse unknown ones with a suggestion."""
        namespace, left = super().parse_known_args(*args, **kwargs)
        if left:
            self._refuse(left[0])
        return namespace, left

    def _refuse(self, word: str) -> NoReturn:
        flags = [flag for action in self._actions for flag in action.option_strings]
        if word.startswith("-"):
            name = word.partition("=")[0]
            ours = OTHER_FLAGS.get(name.lstrip("-").replace("_", "-"))
            hint = f"; take {ours}" if ours else did_you_mean(name, flags)
            self.error(f"there is no flag {name}{hint}")
        takes_data = "--data" in flags and word.endswith((".h5", ".hdf5"))
        hint = f" (did you mean --data {word}?)" if takes_data else ""
        self.error(f"{word!r} is one argument too many{hint}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is no choice, and suggest the nearest."""
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        hint = did_you_mean(str(value), choices)
        if action.dest == "problem.family":
            hint = _meant_family(str(value)) or hint
        listed = ", ".join(choices)
        if _is_menu(action):
            kind = str(action.metavar).lower()
            self.error(f"there is no {kind} {value!r}{hint}; known: {listed}")
        text = f"invalid choice: {value!r}{hint}; choose one of {listed}"
        if action.dest in REGISTERED:
            text += f"; --set {action.dest}={value} takes a name that a program added"
        raise argparse.ArgumentError(action, text)

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError with the message and the command that shows the help."""
        page = "--help-all" if self.rare else "--help"
        raise ConfigError(f"{message}; see {self.prog} {page}")


def _is_menu(action: argparse.Action) -> bool:
    return isinstance(action, argparse._SubParsersAction)


def _value(action: argparse.Action) -> str:
    """Return the name of an argument's value."""
    return str(action.metavar or action.dest.upper())


# The help and the defaults of settings: parsers read them from the file that
# `hpcsgd new` writes, because the declarations of the settings need NumPy.

ONE_OF = "; one of "  # between the help of a setting and its choices
KEY = re.compile(r'(?P<key>\w+) = .*|# (?P<unset>\w+) = ""(  # .*)?')


@cache
def _defaults_file() -> str:
    """Return the text of the file of defaults that the package ships."""
    path = os.path.join(os.path.dirname(hpcsgd.__file__), "defaults.toml")
    with open(path, encoding="utf-8") as file:
        return file.read()


@cache
def _sgd_defaults() -> dict[str, Any]:
    """Return section -> key -> the default of a setting."""
    import tomllib

    return tomllib.loads(_defaults_file())


def _sgd_default(setting: str) -> Any:
    section, _, key = setting.partition(".")
    return _sgd_defaults().get(section, {}).get(key)


@cache
def _helps() -> dict[str, str]:
    """Return section.key -> the comment above or beside it in the file of defaults.

    The choices at the end of a comment are left out.
    """
    texts = {}
    section = ""
    remarks = list[str]()
    for line in _defaults_file().splitlines():
        match = KEY.fullmatch(line)
        if match:
            key = match["key"] or match["unset"]
            beside = line.removeprefix("# ").partition("  # ")[2]
            text = " ".join([*remarks, beside] if beside else remarks)
            texts[f"{section}.{key}"] = text.partition(ONE_OF)[0]
        elif line.startswith("["):
            section = line.strip("[]")
        remarks = [*remarks, line[2:]] if line.startswith("# ") and not match else []
    return texts


def help_of(setting: str) -> str:
    """Return the help of a setting, "" for a word that is no setting."""
    return _helps().get(setting, "")


def make_parser(word: str = "") -> Parser:
    """Return the parser of the command `word`, or of all if it names no command."""
    parser, commands = _without_commands()
    for name in [word] if word in COMMANDS else COMMANDS:
        module, _, function = PARSERS[name].partition(":")
        getattr(import_module(module), function)(commands)
    return parser


def make_menu() -> Parser:
    """Return a parser with the names of all commands, which imports none of them.

    It handles `--help`, `--version` and a command that does not exist.
    """
    parser, commands = _without_commands()
    for name, purpose in COMMANDS.items():
        commands.add_parser(name, help=purpose)
    return parser


def _without_commands() -> tuple[Parser, Any]:
    """Return the parser of `hpcsgd`, and the action to which commands are added."""
    parser = Parser(
        prog="hpcsgd",
        description="Communication-avoiding SGD for generalized linear models."
        " `hpcsgd COMMAND --help` explains a command.",
        example="hpcsgd train --data rows.h5 --out runs/first",
        menu=GROUPS,
    )
    parser.general.add_argument(
        "--version",
        action="version",
        version=f"hpcsgd {hpcsgd.__version__}",
        help="show the version and exit",
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    return parser, commands


def _is_said_by_rank_0(error: HpcsgdError) -> bool:
    """Return whether rank 0 reports `error`: it has the same error, or receives it.

    Before the world is open, ranks do not know of each other: a flag or a file may be
    bad on this rank alone. Then rank 0 is alive after RANK_0_FIRST seconds, as it waits
    for this rank.
    """
    is_bad_input = isinstance(error, ConfigError | DataError)
    if error.on_all_ranks or is_world_open() or not is_bad_input:
        return True
    time.sleep(RANK_0_FIRST)
    return not launch.is_rank_0_on_node()


def run(argv: Sequence[str]) -> int:
    """Parse and run a command; print an error as one sentence; return the exit code."""
    launch.restore_signal_handlers()
    try:
        with exit_when_interrupted():
            is_known = bool(argv) and argv[0] in COMMANDS
            parser = make_parser(argv[0]) if is_known else make_menu()
            if page := parser.menu_of(argv):
                if launch.is_rank_0_of_launcher():
                    print(page, end="", file=sys.stderr)
                return ConfigError.exit_code
            arguments = parser.parse_args(argv)
            for name in WORK.get(arguments.command, ()):
                import_module(name)
        set_up(arguments)
        code: int = arguments.run(arguments, list(argv))
        return code
    except HpcsgdError as error:
        if launch.is_rank_0_of_launcher():
            print(f"hpcsgd: error: {error}", file=sys.stderr)
        elif error.is_own or not _is_said_by_rank_0(error):
            who = f"rank {launch.launcher_rank()}"
            print(f"hpcsgd: {who}: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader of the output (a pager, head) has ended: this is no error.
        sys.stderr.close()
        return 0


# `hpcsgd completion`: a script that completes commands, flags, choices and files.

SHELLS = ("bash", "zsh", "tcsh")
FOLDERS = ("DIR", "FOLDER")
FILES = ("FILE", "MODEL", "DATA", "PATH", "RUN", "SRC", "TEMPLATE", ".H5", ".TOML")


def add_completion_parser(commands: Any) -> None:
    """Add `completion` to the commands."""
    parser = commands.add_parser(
        "completion",
        help=COMMANDS["completion"],
        description="Print a script that completes commands, flags, choices and files."
        ' eval "$(hpcsgd completion bash)" switches it on in bash.',
        example="hpcsgd completion bash",
    )
    parser.add_argument(
        "shell",
        type=_shell,
        choices=SHELLS,
        metavar="SHELL",
        help=f"shell of the script: {', '.join(SHELLS)}",
    )
    parser.set_defaults(run=print_completion)


def print_completion(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the completion script, which is made from the parsers of all commands."""
    try:
        import shtab
    except ImportError as missing:
        raise MissingPackage(
            "completion needs shtab; install it with: pip install 'hpcsgd[completion]'"
        ) from missing
    parser = make_parser()
    _name_files(parser, shtab.FILE, shtab.DIRECTORY)
    print(shtab.complete(parser, arguments.shell))
    return 0


def _shell(text: str) -> str:
    """Return `text` if it names a shell with a completion script, else raise."""
    if text not in SHELLS:
        raise argparse.ArgumentTypeError(
            f"there is no completion for {text}; choose one of {', '.join(SHELLS)}"
        )
    return text


def _name_files(parser: argparse.ArgumentParser, file: Any, folder: Any) -> None:
    """Mark each argument whose metavar shows that it takes a file or a folder."""
    for action in parser._actions:  # argparse offers no other way to list them
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                _name_files(command, file, folder)
        elif action.choices is None and action.nargs != 0:
            shown = str(action.metavar or action.dest).upper()
            if shown.startswith(FOLDERS):
                action.complete = folder  # type: ignore[attr-defined]
            elif any(name in shown for name in FILES):
                action.complete = file  # type: ignore[attr-defined]


# Parsers of the values of flags that are more than a number or a name.


def gib(text: str) -> float:
    """Return the GiB of "64MiB", "1.5GiB" or a plain number of GiB."""
    number = text.strip()
    unit = 2**30
    for name in BINARY[1:]:
        if number.endswith(name):
            number = number.removesuffix(name)
            unit = UNIT_BYTES[name]
    try:
        return float(number) * unit / 2**30
    except ValueError as error:
        message = f"{text!r}: write it as 64MiB or 1.5GiB"
        raise argparse.ArgumentTypeError(message) from error


def numbers(text: str) -> list[float]:
    """Return the numbers of a text such as 1e-5,1e-4."""
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        message = f"{text!r}: write numbers with commas, as 1e-5,1e-4"
        raise argparse.ArgumentTypeError(message) from error


def whole_or_auto(text: str) -> int | str:
    """Return a whole number of steps or epochs, or auto."""
    try:
        return text if text == "auto" else int(text)
    except ValueError as error:
        message = f"{text!r}: write a whole number, or auto"
        raise argparse.ArgumentTypeError(message) from error


def rate(text: str) -> float | str:
    """Return a learning rate, or auto."""
    try:
        return text if text == "auto" else float(text)
    except ValueError as error:
        message = f"{text!r}: write a number, or auto"
        raise argparse.ArgumentTypeError(message) from error

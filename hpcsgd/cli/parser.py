"""The commands' parsers, and what happens to their errors."""

import argparse
import logging
import math
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import hpcsgd
from hpcsgd.cli import launch
from hpcsgd.cli.interrupts import exit_when_interrupted
from hpcsgd.cli.names import COMMANDS, PARSERS, WORK
from hpcsgd.comm import open_world
from hpcsgd.comm.start_limit import TIMEOUT
from hpcsgd.errors import ConfigError, DataError, HpcsgdError

if TYPE_CHECKING:
    from hpcsgd.comm.communicator import Communicator


# Numbers of the command line that must be finite and not negative.


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


# What the command line shows of the log: one handler, every record with its rank.
#
# By default rank 0 shows INFO, and every rank shows warnings; what all ranks would say
# alike carries `on_all_ranks` and is shown once.

ROOT = "hpcsgd"
CHATTY = logging.getLogger("hpcsgd.runs.session")  # a few lines a run


def add_volume(parser: Any) -> None:
    """Add -q and -v."""
    volume = parser.add_mutually_exclusive_group()
    volume.add_argument(
        "-q", "--quiet", action="store_true", help="errors only, no progress"
    )
    volume.add_argument(
        "-v", "--verbose", action="store_true", help="what every rank does, and when"
    )


def add_progress(parser: Any) -> None:
    """How much is said while it runs."""
    parser.add_argument(
        "--progress",
        type=not_negative,
        default=10.0,
        metavar="SECONDS",
        help="between progress lines when the output is no terminal; 0 = none",
    )
    add_volume(parser)


class RankHandler(logging.Handler):
    """Writes to what standard error is now, which a progress bar may have replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.rank, self.size = launch.launcher_rank() or 0, launch.launcher_size()

    def emit(self, record: logging.LogRecord) -> None:
        """One line, if it is this rank's to say."""
        try:
            if self.says(record):
                # One write: lines of several ranks meet behind mpiexec.
                sys.stderr.write(self.line(record) + "\n")
                sys.stderr.flush()
        except BrokenPipeError:
            raise
        except Exception:
            self.handleError(record)

    def says(self, record: logging.LogRecord) -> bool:
        """Whether the user should read this record, and from this rank."""
        if self.rank == 0:
            return True
        if getattr(record, "on_all_ranks", False):
            return False
        return record.levelno >= logging.WARNING or self.level <= logging.DEBUG

    def line(self, record: logging.LogRecord) -> str:
        """The record as a line, told apart from those of other ranks."""
        tag = f"[rank {self.rank}/{self.size}]" if self.size > 1 else ""
        loud = record.levelno >= logging.WARNING or record.levelno <= logging.DEBUG
        level = f"{record.levelname}: " if loud else ""
        return f"hpcsgd{tag}: {level}{self.format(record)}"


HANDLER = RankHandler()


def set_up(arguments: argparse.Namespace) -> None:
    """Install the one handler, as loud as was asked for."""
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
    """What the communicator says; a launcher's variables were the best guess so far."""
    HANDLER.rank, HANDLER.size = rank, size


# What a command does on all ranks: open the world, work, let rank 0 speak.

T = TypeVar("T")
COMM_HELP = (
    "how ranks communicate: auto (what the launcher's variables say), serial or mpi"
)


def add_comm(parser: Any, default: str | None = "auto") -> None:
    """Add --comm to a command whose configuration does not hold it."""
    parser.add_argument(
        "--comm", type=_comm, default=default, metavar="KIND", help=COMM_HELP
    )


def _comm(text: str) -> str:
    """Return `text`, or refuse what earlier versions took."""
    if text != "tcp" and not text.startswith("file:"):
        return text
    from hpcsgd.config import why_retired

    refusal = why_retired("run", "comm", text)
    if refusal is not None:
        raise ArgumentTypeError(refusal)
    return text


_met: list[bool] = []  # whether this process has been in a world


def is_world_open() -> bool:
    """Return whether the ranks have met: an error of one can reach the others."""
    return bool(_met)


def on_all_ranks(
    comm: str,
    action: Callable[["Communicator"], T],
    show: Callable[[T], None],
    code: Callable[[T], int],
    timeout: float = TIMEOUT,
) -> int:
    """Work on the world of `comm`, show the result on rank 0; the exit code.

    From the start on no rank waits longer than `timeout` seconds for one that does
    nothing; 0 = for ever.

    `code` judges what all ranks hold alike, so that none has to be told: rank 0 may
    have left already, its reader gone.
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
    """Run `action`; an error that only this rank knows ends them all."""
    try:
        return action()
    except HpcsgdError as error:
        if world.size > 1 and not error.on_all_ranks:
            # The others wait in a collective.
            print(f"hpcsgd: rank {world.rank}: error: {error}", file=sys.stderr)
            world.abort(error.exit_code)
        raise


RANK_0_FIRST = 2.0  # seconds in which rank 0 has ended if it makes the same mistake


class Parser(argparse.ArgumentParser):
    """A parser whose errors are raised, so that one rank can speak for all."""

    def error(self, message: str) -> NoReturn:
        """Name the command that explains itself."""
        raise ConfigError(f"{message}; see {self.prog} --help")


def make_parser(word: str = "") -> argparse.ArgumentParser:
    """Return the parser of all commands, or of the one that `word` names."""
    parser, commands = _without_commands()
    for name in [word] if word in COMMANDS else COMMANDS:
        module, _, function = PARSERS[name].partition(":")
        getattr(import_module(module), function)(commands)
    return parser


def make_menu() -> argparse.ArgumentParser:
    """Return a parser that knows what commands there are, and imports none of them.

    It answers `--help`, `--version` and a command that does not exist.
    """
    parser, commands = _without_commands()
    for name, purpose in COMMANDS.items():
        commands.add_parser(name, help=purpose)
    return parser


def _without_commands() -> tuple[argparse.ArgumentParser, Any]:
    """Return the parser of `hpcsgd` and what commands are added to."""
    parser = Parser(
        prog="hpcsgd",
        description="Communication-avoiding SGD for generalized linear models.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"hpcsgd {hpcsgd.__version__}"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    return parser, commands


def _is_said_by_rank_0(error: HpcsgdError) -> bool:
    """Whether rank 0 says it, because it makes the same mistake or hears of it.

    Before ranks have met none knows of the others: a flag or a file may be bad on this
    one alone. Then rank 0 is still there after some time and waits for this one.
    """
    is_bad_input = isinstance(error, ConfigError | DataError)
    if error.on_all_ranks or is_world_open() or not is_bad_input:
        return True
    time.sleep(RANK_0_FIRST)
    return not launch.is_rank_0_on_node()


def run(argv: Sequence[str]) -> int:
    """Parse, run, and turn what is wrong into one sentence and an exit code."""
    launch.restore_signal_handlers()
    try:
        with exit_when_interrupted():
            is_known = bool(argv) and argv[0] in COMMANDS
            parser = make_parser(argv[0]) if is_known else make_menu()
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
        # The reader of our output has left (a pager, head): not an error of ours.
        sys.stderr.close()
        return 0


# What a flag's text means where it is more than a number or a name.

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

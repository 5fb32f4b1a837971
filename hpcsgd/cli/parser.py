"""The commands' parsers, and what happens to their errors."""

import argparse
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import hpcsgd
from hpcsgd.cli import launch, logs
from hpcsgd.cli.commands import COMMANDS, PARSERS, WORK
from hpcsgd.cli.interrupts import leaving_when_interrupted
from hpcsgd.cli.ranks import has_met
from hpcsgd.errors import ConfigError, DataError, HpcsgdError

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
    if error.on_all_ranks or has_met() or not is_bad_input:
        return True
    time.sleep(RANK_0_FIRST)
    return not launch.sees_rank_0()


def run(argv: Sequence[str]) -> int:
    """Parse, run, and turn what is wrong into one sentence and an exit code."""
    launch.hear_again()
    try:
        with leaving_when_interrupted():
            is_known = bool(argv) and argv[0] in COMMANDS
            parser = make_parser(argv[0]) if is_known else make_menu()
            arguments = parser.parse_args(argv)
            for name in WORK.get(arguments.command, ()):
                import_module(name)
        logs.set_up(arguments)
        code: int = arguments.run(arguments, list(argv))
        return code
    except HpcsgdError as error:
        if launch.speaks():
            print(f"hpcsgd: error: {error}", file=sys.stderr)
        elif error.is_own or not _is_said_by_rank_0(error):
            who = f"rank {launch.launcher_rank()}"
            print(f"hpcsgd: {who}: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader of our output has left (a pager, head): not an error of ours.
        sys.stderr.close()
        return 0

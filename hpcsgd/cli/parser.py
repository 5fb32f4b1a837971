"""The commands' parsers, and what happens to their errors."""

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

import hpcsgd
from hpcsgd.cli import (
    compare,
    completion,
    data,
    evaluate,
    info,
    inspect,
    launch,
    logs,
    new,
    predict,
    train,
    verify,
)
from hpcsgd.errors import ConfigError, HpcsgdError

COMMANDS = (
    train,
    compare,
    evaluate,
    predict,
    inspect,
    verify,
    new,
    data,
    info,
    completion,
)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are raised, so that one rank can speak for all."""

    def error(self, message: str) -> NoReturn:
        """Name the command that explains itself."""
        raise ConfigError(f"{message}; see {self.prog} --help")


def make_parser() -> argparse.ArgumentParser:
    """`hpcsgd` with all its commands."""
    parser = Parser(
        prog="hpcsgd",
        description="Communication-avoiding SGD for generalized linear models.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"hpcsgd {hpcsgd.__version__}"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_parser(commands)
    return parser


def run(argv: Sequence[str]) -> int:
    """Parse, run, and turn what is wrong into one sentence and an exit code."""
    try:
        arguments = make_parser().parse_args(argv)
        logs.set_up(arguments)
        code: int = arguments.run(arguments, list(argv))
        return code
    except HpcsgdError as error:
        if launch.speaks():
            print(f"hpcsgd: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has left (a pager, head): not an error of ours.
        sys.stderr.close()
        return 0

"""The commands' parsers, and what happens to their errors."""

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import hpcsgd
from hpcsgd.cli import launch, logs
from hpcsgd.errors import ConfigError, HpcsgdError

# Modules of this package, loaded when they are asked for.
COMMANDS = (
    "train",
    "sweep",
    "tune",
    "compare",
    "report",
    "precision",
    "study",
    "evaluate",
    "predict",
    "inspect",
    "verify",
    "new",
    "data",
    "jobs",
    "info",
    "completion",
)


class Parser(argparse.ArgumentParser):
    """A parser whose errors are raised, so that one rank can speak for all."""

    def error(self, message: str) -> NoReturn:
        """Name the command that explains itself."""
        raise ConfigError(f"{message}; see {self.prog} --help")


def make_parser(word: str = "") -> argparse.ArgumentParser:
    """`hpcsgd` with all its commands, or with the one that the first word names."""
    parser = Parser(
        prog="hpcsgd",
        description="Communication-avoiding SGD for generalized linear models.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"hpcsgd {hpcsgd.__version__}"
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in [word] if word in COMMANDS else COMMANDS:
        import_module(f"hpcsgd.cli.{name}").add_parser(commands)
    return parser


def run(argv: Sequence[str]) -> int:
    """Parse, run, and turn what is wrong into one sentence and an exit code."""
    launch.hear_again()
    try:
        arguments = make_parser(*argv[:1]).parse_args(argv)
        logs.set_up(arguments)
        code: int = arguments.run(arguments, list(argv))
        return code
    except HpcsgdError as error:
        if launch.speaks():
            print(f"hpcsgd: error: {error}", file=sys.stderr)
        elif error.is_own:
            who = f"rank {launch.launcher_rank()}"
            print(f"hpcsgd: {who}: error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # The reader of our output has left (a pager, head): not an error of ours.
        sys.stderr.close()
        return 0

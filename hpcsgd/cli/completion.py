"""`hpcsgd completion`: a script that completes commands, flags, choices and files."""

import argparse
from typing import Any

from hpcsgd.cli.names import COMMANDS
from hpcsgd.errors import MissingPackage

SHELLS = ("bash", "zsh", "tcsh")
FOLDERS = ("DIR", "FOLDER")
FILES = ("FILE", "MODEL", "DATA", "PATH", "RUN", "SRC", "TEMPLATE", ".H5", ".TOML")


def add_parser(commands: Any) -> None:
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
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the script made from the parsers of all commands."""
    try:
        import shtab
    except ImportError as missing:
        raise MissingPackage(
            "completion needs shtab; install it with: pip install 'hpcsgd[completion]'"
        ) from missing
    from hpcsgd.cli.parser import make_parser

    parser = make_parser()
    _name_files(parser, shtab.FILE, shtab.DIRECTORY)
    print(shtab.complete(parser, arguments.shell))
    return 0


def _shell(text: str) -> str:
    """Return the name of a shell that has a script."""
    if text not in SHELLS:
        raise argparse.ArgumentTypeError(
            f"there is no completion for {text}; choose one of {', '.join(SHELLS)}"
        )
    return text


def _name_files(parser: argparse.ArgumentParser, file: Any, folder: Any) -> None:
    """Mark what takes a file or a folder, by what is shown for its value."""
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

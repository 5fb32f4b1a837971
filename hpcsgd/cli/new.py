"""`hpcsgd new`: a configuration file to start from."""

import argparse
from pathlib import Path
from typing import Any

from hpcsgd.cli.commands import COMMANDS
from hpcsgd.errors import ConfigError
from hpcsgd.files import write_text


def add_parser(commands: Any) -> None:
    """Add `new` to the commands."""
    parser = commands.add_parser(
        "new",
        help=COMMANDS["new"],
        description="Every section and key at its default, with what it does.",
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="run.toml", help="file to write")
    parser.add_argument(
        "--force", action="store_true", help="overwrite a file that is there"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Write the file, say how to go on."""
    from hpcsgd.cli.template import template

    path = Path(arguments.file)
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder; name a file")
    if path.exists() and not arguments.force:
        raise ConfigError(f"{path} exists; name another file, or add --force")
    try:
        write_text(path, template())
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}; choose a folder that can be"
            " written"
        ) from error
    print(f"{path}: now set [data] path, then: hpcsgd train {path}")
    return 0

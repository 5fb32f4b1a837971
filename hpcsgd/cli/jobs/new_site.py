"""`hpcsgd jobs new-site`: a file for a site of one's own."""

import argparse
from pathlib import Path
from typing import Any

from hpcsgd.errors import ConfigError
from hpcsgd.files import write_text
from hpcsgd.jobs.site_files import known_sites, new_site, own_folders


def add_parser(actions: Any) -> None:
    """Add `new-site`."""
    parser = actions.add_parser(
        "new-site", help="write a file for a site of one's own", allow_abbrev=False
    )
    parser.add_argument("name", nargs="?", metavar="NAME", help="of the new site")
    parser.add_argument(
        "--from",
        dest="source",
        default="generic-cpu",
        metavar="NAME",
        help="the site that is most like it; default: generic-cpu",
    )
    parser.add_argument(
        "--out", metavar="FILE.toml", help="default: where NAME will be found"
    )
    parser.add_argument("--list", action="store_true", help="show the known sites")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Write it, say where; or list what there is."""
    if arguments.list:
        for name, path in known_sites().items():
            print(f"{name:<18} {path}")
        return 0
    if not arguments.name:
        raise ConfigError("new-site needs a NAME for the site, or --list")
    text = new_site(arguments.name, arguments.source)
    path = Path(arguments.out or own_folders()[0] / f"{arguments.name}.toml")
    if path.exists():
        raise ConfigError(f"{path} exists; name another site, or remove it")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, text)
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}; name another file with --out"
        ) from error
    print(path)
    return 0

"""`hpcsgd data list`, `card` and `fetch`: the catalogue."""

import argparse
import json
from pathlib import Path
from typing import Any

from hpcsgd.cli import logs
from hpcsgd.cli.data.bar import Meter, make_meter
from hpcsgd.data.catalog import Card, get_card, load_catalogue


def add_parser(actions: Any) -> None:
    """Add the three of them."""
    listed = actions.add_parser(
        "list", help="data sets that studies use", allow_abbrev=False
    )
    listed.set_defaults(run=run_list)
    card = actions.add_parser(
        "card", help="what is known of one data set", allow_abbrev=False
    )
    card.set_defaults(run=run_card)
    fetch = actions.add_parser(
        "fetch", help="download one data set from its site", allow_abbrev=False
    )
    fetch.add_argument(
        "--out", default=".", metavar="DIR", help="where to; default: here"
    )
    logs.add_volume(fetch)
    fetch.set_defaults(run=run_fetch)
    for parser in (card, fetch):
        parser.add_argument("name", metavar="NAME", help="as hpcsgd data list has it")
    for parser in (listed, card, fetch):
        parser.add_argument(
            "--json", action="store_true", help="print one JSON document"
        )


def run_list(arguments: argparse.Namespace, argv: list[str]) -> int:
    """One line a data set."""
    cards = load_catalogue().values()
    if arguments.json:
        print(json.dumps([card.as_dict() for card in cards], indent=2))
        return 0
    print(f"{'name':<18} {'rows':>11} {'columns':>9}  {'task':<7} {'density':>8}  form")
    for card in cards:
        print(
            f"{card.name:<18} {card.rows:>11} {card.columns:>9}  {card.task:<7}"
            f" {card.density:>8.2g}  {card.form}"
        )
    return 0


def run_card(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Everything that is known of one."""
    card = get_card(arguments.name)
    print(json.dumps(card.as_dict(), indent=2) if arguments.json else text(card))
    return 0


def text(card: Card) -> str:
    """A card as a person reads it."""
    return "\n".join(f"{key:<10} {value}" for key, value in card.as_dict().items())


def run_fetch(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Download it, say where it is and what to do with it."""
    from hpcsgd.data.fetch import fetch, sha256

    card = get_card(arguments.name)
    meter: Meter = make_meter(arguments.quiet)
    begun = False

    def progress(there: int, whole: int) -> None:
        nonlocal begun
        if not begun:
            meter.begin("fetching", whole)
            begun = True
        meter.at(there)

    with meter:
        path = fetch(card, Path(arguments.out), progress)
    said = {"path": str(path), "bytes": path.stat().st_size, "sha256": sha256(path)}
    if arguments.json:
        print(json.dumps(said, indent=2))
    else:
        print(f"{path}: {said['bytes']} bytes, SHA-256 {said['sha256']}")
        print(f"next: {card.convert}")
    return 0

"""`hpcsgd completion`: a script that completes commands, flags, choices and files."""

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hpcsgd.cli.commands import COMMANDS

FOLDER = "/"  # among endings: a folder is wanted, or will do
# metavar -> endings of the files it stands for; others name theirs, or none
KNOWN: dict[str, tuple[str, ...]] = {
    "DIR": (FOLDER,),
    "MODEL": (FOLDER, ".h5"),
    "RUN|MODEL": (FOLDER, ".h5"),
}
DATA = ("DATA", "FILE.h5")  # what a reader opens


@dataclass(frozen=True)
class Value:
    """What may stand in one place: one of some words, or a file."""

    choices: tuple[str, ...] = ()
    endings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Flag:
    """An option; without a value it is a switch."""

    name: str
    help: str
    value: Value | None


@dataclass(frozen=True)
class Place:
    """What may follow `hpcsgd` and the commands in `path`."""

    path: tuple[str, ...]
    help: str
    flags: tuple[Flag, ...]
    positionals: tuple[Value, ...]
    commands: tuple[tuple[str, str], ...]  # name, help


def add_parser(commands: Any) -> None:
    """Add `completion` to the commands."""
    parser = commands.add_parser(
        "completion",
        help=COMMANDS["completion"],
        description='For example: eval "$(hpcsgd completion bash)"',
        allow_abbrev=False,
    )
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="your shell")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the script made from the parsers of all commands."""
    from hpcsgd.cli.parser import make_parser
    from hpcsgd.cli.shells import SHELLS

    print(SHELLS[arguments.shell](list(places(make_parser()))), end="")
    return 0


def places(
    parser: argparse.ArgumentParser, path: tuple[str, ...] = (), text: str = ""
) -> Iterator[Place]:
    """The place of a parser, then those of its commands."""
    actions = parser._actions  # argparse offers no other way to ask
    inner = [a for a in actions if isinstance(a, argparse._SubParsersAction)]
    helps = {c.dest: c.help or "" for a in inner for c in a._choices_actions}
    others = [a for a in actions if a not in inner]
    yield Place(
        path=path,
        help=text,
        flags=tuple(_flag(a, n) for a in others for n in _long(a)),
        positionals=tuple(_value(a) for a in others if not a.option_strings),
        commands=tuple(helps.items()),
    )
    for action in inner:
        for name, below in action.choices.items():
            yield from places(below, (*path, name), helps.get(name, ""))


def _long(action: argparse.Action) -> list[str]:
    return [name for name in action.option_strings if name.startswith("--")]


def _flag(action: argparse.Action, name: str) -> Flag:
    switch = action.nargs == 0
    return Flag(name, _plain(action.help or ""), None if switch else _value(action))


def _plain(text: str) -> str:
    """Help without what shells or argparse would take for their own."""
    return re.sub(r"[^\w ,.;=()/-]", "", text.replace("%%", "%"))


def _value(action: argparse.Action) -> Value:
    if action.choices:
        return Value(choices=tuple(str(choice) for choice in action.choices))
    metavar = str(action.metavar or "")
    if action.dest in ("data", "data.path") or metavar in DATA and action.dest != "out":
        from hpcsgd.data.readers import READERS

        return Value(endings=tuple(READERS))
    return Value(endings=KNOWN.get(metavar, tuple(re.findall(r"\.[a-z]\w*", metavar))))

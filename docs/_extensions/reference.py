"""Text of the pages of commands and settings, from the parsers and from RunConfig.

It takes the place of the line `<!-- generated: commands -->` or
`<!-- generated: settings -->` of a page.
"""

import argparse
import inspect
import re
from collections.abc import Iterator
from dataclasses import fields
from typing import Any, get_type_hints

from sphinx.application import Sphinx

from hpcsgd.cli.flags import FLAGS
from hpcsgd.cli.names import COMMANDS
from hpcsgd.cli.parser import make_parser
from hpcsgd.cli.template import declared_in, texts_of
from hpcsgd.config import RunConfig
from hpcsgd.files import toml_literal

FLAG_OF = {flag.setting: flag.name for flag in FLAGS if flag.is_setting}
HEAD = ("| argument | meaning | default | setting |", "|---|---|---|---|")
MANY = 10  # options that a command shares with another: it then refers to that one


def setup(app: Sphinx) -> dict[str, bool]:
    """Replace the marks when a page is read."""
    app.connect("source-read", insert)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def insert(app: Sphinx, name: str, source: list[str]) -> None:
    """Write the text of each mark in its place."""
    for mark, text in MARKS.items():
        line = f"<!-- generated: {mark} -->"
        if line in source[0]:
            source[0] = source[0].replace(line, text())


def settings() -> str:
    """Return a table for each section of a configuration."""
    kinds = get_type_hints(RunConfig)
    return "\n\n".join(section(f.name, kinds[f.name]) for f in fields(RunConfig))


def section(name: str, kind: type[Any]) -> str:
    """Return the heading, the purpose and the table of one section."""
    purpose = (inspect.getdoc(kind) or "").partition("\n\n")[0]
    lines = [f"## {name}", "", plain(purpose), ""]
    lines += ["| key | type | default | meaning | flag |", "|---|---|---|---|---|"]
    texts = texts_of(name, kind)
    for key, (_, settings) in declared_in(name, kind).items():
        value = getattr(settings(), key)
        cells = (
            f"`{key}`",
            plain(type_name(get_type_hints(settings)[key])),
            "" if value is None else code(toml_literal(value)),
            plain(texts[key]),
            code(FLAG_OF.get(f"{name}.{key}", "")),
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def type_name(hint: Any) -> str:
    """Return a type as the reader of a TOML file knows it."""
    text = hint.__name__ if isinstance(hint, type) else str(hint)
    text = text.replace(" | None", "").replace(" | ", " or ")
    return re.sub(r"\w+\.", "", text)


def commands() -> str:
    """Return a section for each command, with those of its subcommands."""
    (choices,) = subcommands(make_parser()).values()
    printed: dict[str, set[str]] = {}
    lines = (command(n, choices[n], 2, printed, COMMANDS[n]) for n in COMMANDS)
    return "\n\n".join("\n".join(part) for part in lines)


def subcommands(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Return the parsers below one: {destination: {name: parser}}."""
    return {
        action.dest: action.choices
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
    }


def purposes(parser: argparse.ArgumentParser) -> dict[str, str]:
    """Return what the help of a parser shows for each command below it."""
    return {
        choice.dest: choice.help or ""
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for choice in action._choices_actions
    }


def command(
    name: str, parser: Any, level: int, printed: dict[str, set[str]], purpose: str
) -> Iterator[str]:
    """Yield the lines of one command; `printed` is the rows of those before it."""
    yield from (f"{'#' * level} {name}", "", sentence(purpose), "")
    if parser.description and parser.description != purpose:
        yield from (plain(parser.description), "")
    below = subcommands(parser)
    for choices in below.values():
        for key, inner in choices.items():
            more = purposes(parser)[key]
            yield from command(f"{name} {key}", inner, level + 1, printed, more)
            yield ""
    if below:
        return
    yield from ("```text", usage(parser), "```", "")
    yield from tables(parser, *most_alike(parser, printed))
    if parser.epilog:
        yield from ("```text", parser.epilog.strip(), "```", "")
    printed[name] = option_rows(parser)


def option_rows(parser: argparse.ArgumentParser) -> set[str]:
    """Return the rows of all options of a command."""
    return {row for a in parser._actions if a.option_strings for row in rows_of(a)}


def most_alike(parser: Any, printed: dict[str, set[str]]) -> tuple[str, set[str]]:
    """Return an earlier command with the rows that this one has, too, if many."""
    own = option_rows(parser)
    name = max(printed, key=lambda n: len(printed[n] & own), default="")
    shared = printed.get(name, set()) & own
    return (name, shared) if len(shared) >= MANY else ("", set())


def usage(parser: argparse.ArgumentParser) -> str:
    """Return the line of a command with what it must be given."""
    words = [parser.prog]
    for action in parser._actions:
        if action.option_strings and action.required:
            words.append(f"{action.option_strings[-1]} {metavar(action)}")
    if any(a.option_strings and not a.required for a in parser._actions):
        words.append("[OPTIONS]")
    for action in parser._actions:
        if not action.option_strings:
            word = metavar(action)
            words.append(f"[{word}]" if action.nargs in ("?", "*") else word)
    return " ".join(words)


def tables(parser: Any, alike: str, shared: set[str]) -> Iterator[str]:
    """Yield a table for each group of arguments; `alike` has the `shared` rows."""
    usual, others = [], []
    for group in parser._action_groups:
        rows = [row for action in group._group_actions for row in rows_of(action)]
        rows = [row for row in rows if row not in shared]
        if group.title in ("positional arguments", "options"):
            usual += rows
        elif rows:
            others += ["", f"**{sentence(group.title)}**", "", *HEAD, *rows]
    if usual:
        yield from (*HEAD, *usual)
    yield from (*others, "")
    if shared:
        flags = [row.split("`")[1].split()[0].rstrip(",") for row in sorted(shared)]
        anchor, names = alike.replace(" ", "-"), ", ".join(map(code, flags))
        yield from (f"Further options, as in [{alike}](#{anchor}): {names}.", "")


def rows_of(action: argparse.Action) -> list[str]:
    """Return the row of an argument; none for the help itself and hidden ones."""
    if action.help == argparse.SUPPRESS or isinstance(action, argparse._HelpAction):
        return []
    setting = action.dest if action.dest in FLAG_OF else None
    words = (", ".join(action.option_strings), value(action))
    cells = (
        code(" ".join(filter(None, words))),
        plain(meaning(action)),
        code(default(action, setting)),
        link(setting),
    )
    return [f"| {' | '.join(cells)} |"]


def value(action: argparse.Action) -> str:
    """Return what stands for the value of an argument; empty for a switch."""
    return "" if action.nargs == 0 else metavar(action)


def metavar(action: argparse.Action) -> str:
    """Return the name of an argument's value."""
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    names = [flag.lstrip("-").upper() for flag in action.option_strings]
    return str(action.metavar or [action.dest, *names][-1])


def meaning(action: argparse.Action) -> str:
    """Return the help of an argument and the values that it takes."""
    text = (action.help or "") % {**vars(action), "prog": "hpcsgd"}
    choices = [str(choice) for choice in action.choices or ()]
    if all(choice in text for choice in choices):
        return text
    return "; ".join(filter(None, [text, "one of " + ", ".join(choices)]))


def default(action: argparse.Action, setting: str | None) -> str:
    """Return the default that holds where an argument is not given."""
    if action.nargs == 0 or "default" in (action.help or ""):
        return ""
    found = action.default
    if setting and found in (None, argparse.SUPPRESS):
        section_name, _, key = setting.partition(".")
        found = getattr(getattr(RunConfig(), section_name), key)
    if found in (None, "", [], (), argparse.SUPPRESS):
        return ""
    return found if isinstance(found, str) else toml_literal(found)


def link(setting: str | None) -> str:
    """Return a link to the section of a setting."""
    if not setting:
        return ""
    return f"[`{setting}`](settings.md#{setting.partition('.')[0]})"


def sentence(text: str) -> str:
    """Return a phrase of the help as a sentence."""
    text = plain(text)
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")


def code(text: str) -> str:
    """Return a value as code, for a cell of a table."""
    return f"`{text}`".replace("|", r"\|") if text else ""


def plain(text: str) -> str:
    """Return text of the help so that Markdown shows it as it is, flags as code."""
    text = re.sub(
        r"(?<![\w`-])(--[a-z][\w-]*)(?![\w`])", r"`\1`", " ".join(text.split())
    )
    parts = text.split("`")
    parts[::2] = [re.sub(r"([\\*_<>\[\]$|~])", r"\\\1", part) for part in parts[::2]]
    return "`".join(parts)


MARKS = {"commands": commands, "settings": settings}

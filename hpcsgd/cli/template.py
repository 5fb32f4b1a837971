"""A configuration file with every setting, written from their declarations."""

import inspect
from dataclasses import fields
from typing import Any, get_type_hints

from hpcsgd.agreements import AUTO
from hpcsgd.agreements import settings_of as settings_of_agreement
from hpcsgd.agreements.base import AgreementSettings
from hpcsgd.cli.parser import ONE_OF
from hpcsgd.config import METHODS, RunConfig, agreement_settings
from hpcsgd.files import toml_literal
from hpcsgd.settings import declarations

WIDTH = 88


def template() -> str:
    """Return a configuration file as text: every key at its default, with its help."""
    head = [
        "# Configuration of hpcsgd; run it with: hpcsgd train FILE",
        "# Every value is the default of SGD. Keys with a # in front are optional.",
    ]
    kinds = get_type_hints(RunConfig)
    sections = [_section(f.name, kinds[f.name]) for f in fields(RunConfig)]
    return "\n\n".join(["\n".join(head), *sections]) + "\n"


def settings_of(config: type[RunConfig]) -> dict[str, str]:
    """Return the help of every setting, by section.key."""
    kinds = get_type_hints(config)
    return {
        f"{section.name}.{key}": text
        for section in fields(config)
        for key, text in texts_of(section.name, kinds[section.name]).items()
    }


def declared_in(name: str, kind: type[Any]) -> dict[str, tuple[str, type[Any]]]:
    """Return key -> (owner, class that declares it) for each key of a section.

    [agreement] has the settings of all kinds of agreement: the owner is the first kind
    that has the key, or "" for a key that all kinds have. In other sections the owner
    is "".
    """
    if name != AgreementSettings.section:
        return dict.fromkeys(declarations(kind), ("", kind))
    common = declarations(settings_of_agreement(AUTO))
    return {
        key: ("" if key in common else owner, settings)
        for key, (owner, settings) in agreement_settings().items()
    }


def texts_of(name: str, kind: type[Any]) -> dict[str, str]:
    """Return key -> help for each key of the section `name`."""
    texts = {}
    for key, (owner, settings) in declared_in(name, kind).items():
        declared = declarations(settings)[key]
        # The methods are known one floor above the section of agreements.
        is_method = (name, key) == (AgreementSettings.section, "method")
        choices = tuple(METHODS) if is_method else declared.known
        text = explain(declared.help, choices)
        texts[key] = f"{owner}: {text}" if owner else text
    return texts


def explain(text: str, choices: tuple[Any, ...]) -> str:
    """Return the help `text`, followed by all choices unless it names all of them."""
    if all(str(choice) in text for choice in choices):
        return text
    return f"{text}{ONE_OF}{', '.join(map(str, choices))}"


def _section(name: str, kind: type[Any]) -> str:
    purpose = (inspect.getdoc(kind) or "").partition("\n\n")[0]
    lines = [*_remarks(purpose), f"[{name}]"]
    texts = texts_of(name, kind)
    for key, (_, settings) in declared_in(name, kind).items():
        lines += _key(key, getattr(settings(), key), texts[key])
    return "\n".join(lines)


def _key(key: str, value: Any, note: str) -> list[str]:
    """Return the lines of `key = value  # note`.

    The note is above the key if one line would be too long.
    """
    line = f'# {key} = ""' if value is None else f"{key} = {toml_literal(value)}"
    if not note:
        return [line]
    whole = f"{line}  # {note}"
    return [whole] if len(whole) <= WIDTH else [*_remarks(note), line]


def _remarks(text: str) -> list[str]:
    """Return `text` as comment lines of limited length, with its own line breaks."""
    lines = []
    for paragraph in text.splitlines():
        line = "#"
        for word in paragraph.split():
            if len(line) + 1 + len(word) > WIDTH:
                lines.append(line)
                line = "#"
            line += f" {word}"
        lines.append(line)
    return lines

"""A configuration file with all there is to set, written from the dataclasses."""

import ast
import inspect
import io
import tokenize
from dataclasses import fields
from typing import Any, get_type_hints

from hpcsgd.agreements.averaging import BUFFERS
from hpcsgd.agreements.codecs.base import DENSE, FEEDBACKS, NORMS
from hpcsgd.cli.flags import FLAGS
from hpcsgd.comm import COMMUNICATORS
from hpcsgd.config import RunConfig
from hpcsgd.files import toml_literal
from hpcsgd.formats import formats_of
from hpcsgd.glm.mirror_maps import KINDS
from hpcsgd.glm.penalties import PLACES
from hpcsgd.precision import FIELDS, ROUNDINGS, SCALES, Precision
from hpcsgd.products.base import OVERS, WAYS

WIDTH = 88
# settings that no flag has; those of flags know their choices themselves
CHOICES: dict[str, list[str]] = {
    "run.comm": ["auto", *COMMUNICATORS],
    "agreement.momentum": list(BUFFERS),
    "mirror.kind": list(KINDS),
    "codec.feedback": list(FEEDBACKS),
    "codec.dense": list(DENSE),
    "codec.norm": list(NORMS),
    "problem.l1_at": list(PLACES),
    "update.clip": list(WAYS),
    "update.clip_over": list(OVERS),
    "precision.scale": list(SCALES),
    "precision.rounding": list(ROUNDINGS),
    **{f"precision.{name}": formats_of(name) for name in FIELDS},
}


def template() -> str:
    """Every section with every key at its default, explained."""
    head = [
        "# Configuration of hpcsgd; run it with: hpcsgd train FILE",
        "# Every value is the default of SGD. Keys with a # in front are optional.",
    ]
    kinds = get_type_hints(RunConfig)
    sections = [_section(f.name, kinds[f.name]) for f in fields(RunConfig)]
    return "\n\n".join(["\n".join(head), *sections]) + "\n"


def settings_of(config: type[RunConfig]) -> dict[str, str]:
    """Return section.key -> the help of every setting."""
    kinds = get_type_hints(config)
    return {
        f"{section.name}.{key}": text
        for section in fields(config)
        for key, text in _texts(section.name, kinds[section.name]).items()
    }


def _texts(name: str, kind: type[Any]) -> dict[str, str]:
    """Return key -> help of one section."""
    notes = comments(kind)
    # The nine fields are explained where they live.
    notes = comments(Precision) | notes if name == "precision" else notes
    keys = (field.name for field in fields(kind))
    return {key: explain(f"{name}.{key}", notes.get(key, "")) for key in keys}


def _section(name: str, kind: type[Any]) -> str:
    values = kind()
    lines = [*_remarks(inspect.getdoc(kind) or ""), f"[{name}]"]
    for key, text in _texts(name, kind).items():
        lines += _key(key, getattr(values, key), text)
    return "\n".join(lines)


def _key(key: str, value: Any, note: str) -> list[str]:
    """`key = value  # note`, the note above where the line would be too long."""
    line = f'# {key} = ""' if value is None else f"{key} = {toml_literal(value)}"
    if not note:
        return [line]
    whole = f"{line}  # {note}"
    return [whole] if len(whole) <= WIDTH else [*_remarks(note), line]


def _remarks(text: str) -> list[str]:
    """`text` as comment lines that fit, its own line breaks kept."""
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


def explain(setting: str, comment: str) -> str:
    """Return the help of a setting: its comment or the help of its flag, and choices.

    Choices that the text names are not listed again.
    """
    flag = next((flag for flag in FLAGS if flag.setting == setting), None)
    said = comment or (flag.help if flag else "")
    choices = (flag.options if flag else {}).get("choices") or CHOICES.get(setting, [])
    if all(choice in said for choice in choices):
        return said
    return f"{said}; one of {', '.join(choices)}"


def comments(kind: type[Any]) -> dict[str, str]:
    """Return field -> the comment above or beside it, none where there is no source."""
    try:
        source = inspect.cleandoc("\n" + inspect.getsource(kind))
    except OSError:
        return {}
    notes, found = _notes(source), {}
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign):
            first = node.lineno
            while lines[first - 2].lstrip().startswith("#"):
                first -= 1
            numbers = range(first, (node.end_lineno or node.lineno) + 1)
            found[ast.unparse(node.target)] = [notes[n] for n in numbers if n in notes]
    return {name: " ".join(said) for name, said in found.items() if said}


def _notes(source: str) -> dict[int, str]:
    """Line -> its comment."""
    return {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }

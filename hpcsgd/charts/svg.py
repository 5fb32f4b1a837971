"""What SVG of matplotlib lacks: title, hover texts, names of its own, dark mode."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from xml.etree import ElementTree

from hpcsgd.charts.looks import DARK

FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
NAMESPACE = "http://www.w3.org/2000/svg"
COLOURS = re.compile("|".join(DARK))
REFERENCE = re.compile(r"(?<=#)[\w.-]+(?=\)|$)")


def clean(text: str) -> str:
    """Return a text without what XML cannot hold at all."""
    return "".join(c if c >= " " and c not in "\ufffe\uffff" else " " for c in text)


@dataclass(frozen=True)
class Hint:
    """What one drawn thing is, for those who read or point instead of looking."""

    kind: str  # class of its group
    text: str = ""  # shown where a pointer rests on it
    data: Mapping[str, str] = field(default_factory=dict)  # attributes data-...


def finish(
    drawn: bytes, name: str, title: str, caption: str, hints: Mapping[str, Hint]
) -> ElementTree.Element:
    """Return the picture with title and description, and with no name of others.

    Several pictures of one page must not share what they refer to by name, so every id
    that is referred to begins with `name`, and no other id stays.

    Parameters
    ----------
    drawn : an SVG file of matplotlib
    name, title, caption : of the chart
    hints : id of a group -> what it is
    """
    root = ElementTree.fromstring(drawn)
    _remove_what_names_others(root)
    used = set(_references(root))
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        _name(element, name, used, hints)
        if "style" in element.attrib:
            style = element.get("style", "").replace("'DejaVu Sans'", FONT)
            element.set("style", style)
    parts = ("title", title), ("desc", caption)
    for place, (tag, text) in enumerate(parts):
        root.insert(place, _text(tag, text, id=f"{name}-{tag}"))
    _, _, width, height = root.get("viewBox", "").split()
    root.attrib.pop("version", None)
    root.attrib |= {
        "xmlns": NAMESPACE,
        "width": width,
        "height": height,
        "role": "img",
        "aria-labelledby": f"{name}-title {name}-desc",
        "stroke-linejoin": "round",
    }
    return root


def themed(root: ElementTree.Element) -> ElementTree.Element:
    """Let the page of a picture choose the colours that differ in dark mode."""
    for element in root.iter():
        colours = [element.attrib.pop(key, None) for key in ("fill", "stroke")]
        pairs = zip(("fill", "stroke"), colours, strict=True)
        style = "; ".join(
            [f"{key}: {value}" for key, value in pairs if value]
            + [element.get("style", "")]
        ).rstrip("; ")
        if style:
            element.set("style", COLOURS.sub(_variable, style))
    return root


def dark_colours() -> str:
    """Return the declarations of CSS that `themed` pictures read in dark mode."""
    return " ".join(f"--c{light[1:]}: {dark};" for light, dark in DARK.items())


def _variable(found: re.Match[str]) -> str:
    return f"var(--c{found[0][1:]}, {found[0]})"


def _remove_what_names_others(root: ElementTree.Element) -> None:
    """Remove the address of matplotlib, and a style that would reach all of a page."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)


def _references(root: ElementTree.Element) -> Iterator[str]:
    for element in root.iter():
        for key, value in element.attrib.items():
            if "url(#" in value or key.endswith("href"):
                yield from REFERENCE.findall(value)


def _name(
    element: ElementTree.Element, name: str, used: set[str], hints: Mapping[str, Hint]
) -> None:
    own = element.attrib.pop("id", "")
    if own in used:
        element.set("id", f"{name}-{own}")
    for key, value in list(element.attrib.items()):
        if "url(#" in value or key.endswith("href"):
            del element.attrib[key]
            key = key.rpartition("}")[2]
            element.set(key, REFERENCE.sub(lambda found: f"{name}-{found[0]}", value))
    if own in hints:
        hint = hints[own]
        element.set("class", hint.kind)
        for key, value in hint.data.items():
            if value:
                element.set(f"data-{key}", clean(value))
        if hint.text:
            element.insert(0, _text("title", hint.text))


def _text(tag: str, text: str, **attributes: str) -> ElementTree.Element:
    element = ElementTree.Element(tag, attributes)
    element.text = clean(text)
    return element

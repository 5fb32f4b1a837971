"""SVG as text, with everything that comes from outside escaped."""

from collections.abc import Iterable
from xml.sax.saxutils import escape, quoteattr

FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
SIZE = 12.0  # of text
# Shares of an em in Helvetica; what is not here is as wide as a digit.
NARROW, WIDE, WIDTH = set("ijl|.,:;' !It()[]-/f"), set("mwMWOQGCD%@"), 0.556


def clean(text: str) -> str:
    """Without what XML cannot hold at all."""
    return "".join(c if c >= " " and c not in "\ufffe\uffff" else " " for c in text)


def element(name: str, *inside: str, **attributes: object) -> str:
    """<name attributes>inside</name>; `inside` is markup, attributes are text.

    An underscore in the name of an attribute stands for a hyphen: stroke_width.
    """
    said = "".join(
        f" {key.rstrip('_').replace('_', '-')}={quoteattr(clean(_value(value)))}"
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{said}>{''.join(inside)}</{name}>" if inside else f"<{name}{said}/>"


def text(
    x: float, y: float, said: str, anchor: str = "start", **attributes: object
) -> str:
    """One line of text, escaped."""
    place = {"x": x, "y": y, "text_anchor": anchor, **attributes}
    return element("text", escape(clean(said)), **place)


def titled(markup: str, said: str) -> str:
    """A group that shows `said` where a pointer rests on it."""
    return element("g", element("title", escape(clean(said))), markup)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, **attributes)


def polyline(points: Iterable[tuple[float, float]], **attributes: object) -> str:
    """A line through points."""
    said = " ".join(f"{_value(x)},{_value(y)}" for x, y in points)
    return element("polyline", points=said, fill="none", **attributes)


def width_of(said: str, size: float = SIZE) -> float:
    """About how wide a text will be."""
    wide = sum(0.3 if c in NARROW else 0.85 if c in WIDE else WIDTH for c in said)
    return wide * size


def shortened(said: str, most: float, size: float = SIZE) -> str:
    """As much of a text as fits, with an ellipsis where some does not."""
    if width_of(said, size) <= most:
        return said
    while said and width_of(said + "…", size) > most:
        said = said[:-1]
    return said.rstrip() + "…"


def document(
    width: float, height: float, name: str, title: str, caption: str, *inside: str
) -> str:
    """A whole picture that says what it shows to those who do not see it."""
    # Several pictures of one page must not share what they refer to by name.
    return element(
        "svg",
        element("title", escape(clean(title)), id=f"{name}-title"),
        element("desc", escape(clean(caption)), id=f"{name}-desc"),
        element("rect", width=width, height=height, fill="#ffffff"),
        *inside,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {_value(width)} {_value(height)}",
        width=width,
        height=height,
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
        font_family=FONT,
        font_size=SIZE,
        fill="#1a1a1a",
    )


def _value(value: object) -> str:
    """Numbers to a hundredth of a point."""
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return str(value)

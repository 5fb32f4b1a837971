"""How lines and parts are told apart: by colour, and without any.

Colours are those of Okabe and Ito, chosen for every kind of colour vision; dashes,
markers and hatches say the same in grey.
"""

from dataclasses import dataclass

from hpcsgd.charts.model import CROWDED, EMULATED
from hpcsgd.charts.svg import element

INK, FAINT, GRID = "#1a1a1a", "#5a5a5a", "#dcdcdc"


@dataclass(frozen=True)
class Look:
    """Of one line."""

    colour: str
    dash: str  # of SVG, in points; empty is solid
    marker: str


LOOKS = (
    Look("#0072b2", "", "circle"),
    Look("#d55e00", "8 4", "square"),
    Look("#007a5a", "2 3", "triangle"),
    Look("#a8487f", "10 3 2 3", "diamond"),
    Look("#9a6700", "5 2", "down"),
    Look("#1a1a1a", "12 3 2 3 2 3", "pentagon"),
    Look("#2f7fb8", "1 4", "hexagon"),
    Look("#6b6b6b", "14 4", "bow"),
)

SHAPES = {
    "circle": "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
    "square": "M-3.6,-3.6h7.2v7.2h-7.2z",
    "triangle": "M0,-4.8L4.5,3.4H-4.5z",
    "diamond": "M0,-5L4.4,0L0,5L-4.4,0z",
    "down": "M0,4.8L4.5,-3.4H-4.5z",
    "pentagon": "M0,-4.8L4.5,-1.5L2.8,3.8H-2.8L-4.5,-1.5z",
    "hexagon": "M-4.4,0L-2.2,-3.8H2.2L4.4,0L2.2,3.8H-2.2z",
    "bow": "M-4.4,-4L4.4,4V-4L-4.4,4z",
}


def look(number: int) -> Look:
    """The look of the line with that number."""
    return LOOKS[number % len(LOOKS)]


def marker(
    kind: str, colour: str, x: float, y: float, mark: str = "", size: float = 1.0
) -> str:
    """A point: filled as measured, hollow where ranks shared cores or were emulated."""
    shape = element(
        "path",
        class_="mark",
        d=SHAPES["circle" if mark == EMULATED else kind],
        transform=f"translate({x:.3f},{y:.3f}) scale({size:.2f})",
        fill="#ffffff" if mark else colour,
        stroke=colour,
        stroke_width=1.6,
        data_mark=mark or None,
    )
    if mark != EMULATED:
        return shape
    return shape + element("circle", cx=x, cy=y, r=1.4, fill=colour)


@dataclass(frozen=True)
class Fill:
    """Of one part of bars; the hatch is drawn over the colour."""

    colour: str
    hatch: str  # a path in a tile of 8 by 8, or nothing
    ink: str  # of text on it


FILLS = (
    Fill("#0072b2", "", "#ffffff"),
    Fill("#e69f00", "M-2,2l4,-4M0,8l8,-8M6,10l4,-4", "#1a1a1a"),
    Fill("#9ad0f0", "M2,2h1.6v1.6h-1.6zM6,6h1.6v1.6h-1.6z", "#1a1a1a"),
    Fill("#f2f2f2", "M-2,6l4,4M0,0l8,8M6,-2l4,4", "#1a1a1a"),
    Fill("#cc79a7", "M0,4h8", "#1a1a1a"),
)


def patterns(name: str, count: int) -> str:
    """The definitions that `fill` refers to."""
    made = []
    for number in range(count):
        fill = FILLS[number % len(FILLS)]
        tile = element("rect", width=8, height=8, fill=fill.colour)
        if fill.hatch:
            tile += element("path", d=fill.hatch, stroke=INK, stroke_width=0.9)
        said = {"width": 8, "height": 8, "patternUnits": "userSpaceOnUse"}
        made.append(element("pattern", tile, id=f"{name}-fill-{number}", **said))
    return element("defs", *made)


def heat_colour(share: float) -> tuple[str, str]:
    """(fill, ink) for 0 = smallest .. 1 = largest: light to dark, one hue."""
    low, high = (0xF4, 0xF8, 0xFC), (0x0B, 0x3C, 0x6F)
    mixed = [round(a + (b - a) * share) for a, b in zip(low, high, strict=True)]
    ink = "#ffffff" if _luminance(mixed) < 0.18 else "#000000"
    return "#" + "".join(f"{c:02x}" for c in mixed), ink


def _luminance(colour: list[int]) -> float:
    """How bright it is: 0 black, 1 white; white ink reads better below 0.18."""
    linear = [(c / 255) ** 2.2 for c in colour]
    weighed = zip((0.2126, 0.7152, 0.0722), linear, strict=True)
    return float(sum(a * b for a, b in weighed))


__all__ = ["CROWDED", "EMULATED", "FILLS", "Look", "heat_colour", "look", "marker"]

"""How lines and parts are told apart: by colour, and without any.

Colours are those of Okabe and Ito, chosen for every kind of colour vision; dashes,
markers and hatches distinguish the same in grey. A page in dark mode replaces the
colours that `DARK` lists.
"""

from dataclasses import dataclass

INK, FAINT, GRID, GROUND = "#1a1a1a", "#5a5a5a", "#dcdcdc", "#ffffff"
BLACK, PALE = "#000000", "#f4f8fc"  # on coloured areas: the same in both modes


@dataclass(frozen=True)
class Look:
    """Colour, dash and marker of one line."""

    colour: str
    dash: tuple[float, ...]  # lengths drawn and left out, in points; empty is solid
    marker: str  # of matplotlib


LOOKS = (
    Look("#0072b2", (), "o"),
    Look("#d55e00", (8, 4), "s"),
    Look("#007a5a", (2, 3), "^"),
    Look("#a8487f", (10, 3, 2, 3), "D"),
    Look("#9a6700", (5, 2), "v"),
    Look(INK, (12, 3, 2, 3, 2, 3), "p"),
    Look("#2f7fb8", (1, 4), "h"),
    Look("#6b6b6b", (14, 4), "X"),
)


@dataclass(frozen=True)
class Fill:
    """Colour and hatch of one part of bars, and the ink of text on it."""

    colour: str
    hatch: str  # of matplotlib
    ink: str


FILLS = (
    Fill("#0072b2", "", GROUND),
    Fill("#e69f00", "///", BLACK),
    Fill("#9ad0f0", "...", BLACK),
    Fill("#f2f2f2", "\\\\\\", BLACK),
    Fill("#cc79a7", "---", BLACK),
)

DARK = {
    GROUND: "#14171a",
    INK: "#e8e8e8",
    FAINT: "#a8adb2",
    GRID: "#353a40",
    "#0072b2": "#56b4e9",
    "#d55e00": "#ff8a4c",
    "#007a5a": "#3fc79a",
    "#a8487f": "#e08cc0",
    "#9a6700": "#dfae3a",
    "#2f7fb8": "#8cc8f0",
    "#6b6b6b": "#b4b4b4",
}


def look(number: int) -> Look:
    """Return the look of the line with that number."""
    return LOOKS[number % len(LOOKS)]


def heat_colour(share: float) -> tuple[str, str]:
    """Return (fill, ink) for 0 = smallest .. 1 = largest: light to dark, one hue."""
    low, high = (0xF4, 0xF8, 0xFC), (0x0B, 0x3C, 0x6F)
    mixed = [round(a + (b - a) * share) for a, b in zip(low, high, strict=True)]
    ink = PALE if _luminance(mixed) < 0.18 else BLACK
    return "#" + "".join(f"{c:02x}" for c in mixed), ink


def _luminance(colour: list[int]) -> float:
    """Return how bright it is: 0 black, 1 white; light ink reads better below 0.18."""
    linear = [(c / 255) ** 2.2 for c in colour]
    weighed = zip((0.2126, 0.7152, 0.0722), linear, strict=True)
    return float(sum(a * b for a, b in weighed))

"""SVG text for the pictures of the documentation: a canvas and axes.

Numbers are written with one decimal, nothing carries a date, and texts stay texts, so
that equal figures give equal bytes on every machine. Colours are those of Okabe and
Ito, which colour-blind readers tell apart; a style in the file has them lighter where
the reader prefers a dark scheme.
"""

from collections.abc import Iterable, Sequence
from html import escape
from math import log10

# Name -> lines and areas, texts, and both in the dark.
COLOURS = {
    "blue": ("#0072b2", "#0067a1", "#62b8ec"),
    "orange": ("#d55e00", "#ab4b00", "#ff9458"),
    "green": ("#009e73", "#00755a", "#38c79b"),
    "purple": ("#b5608f", "#96437a", "#e39ac4"),
    "gold": ("#c98a00", "#855d00", "#efbd4a"),
    "grey": ("#6e7781", "#57606a", "#a3adb7"),
}
INK = ("#1f2328", "#e6e9ed")
PAPER = ("#ffffff", "#15181c")
RULE = ("#d5dae0", "#3a4048")
MUTED = ("#57606a", "#a3adb7")


def _style() -> str:
    light = [
        "text{font:12px system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;"
        f"fill:{INK[0]}}}",
        ".small{font-size:11px}.head{font-size:13px;font-weight:600}",
        f".muted{{fill:{MUTED[0]}}}",
        f".paper{{fill:{PAPER[0]}}}.halo{{stroke:{PAPER[0]};stroke-width:3px;"
        "paint-order:stroke;stroke-linejoin:round}",
        f".rule{{stroke:{RULE[0]}}}.axis{{stroke:{MUTED[0]}}}",
        ".line{fill:none;stroke-width:2px;stroke-linejoin:round;stroke-linecap:round}",
        ".thick{stroke-width:5px;stroke-opacity:.35}.thin{stroke-width:1.25px}",
        ".dashed{stroke-dasharray:5 4}.pale{fill-opacity:.18}.mid{fill-opacity:.5}",
        f".hollow{{fill:{PAPER[0]};stroke-width:1.5px}}",
    ]
    dark = [
        f"text{{fill:{INK[1]}}}.muted{{fill:{MUTED[1]}}}.paper{{fill:{PAPER[1]}}}",
        f".halo{{stroke:{PAPER[1]}}}.rule{{stroke:{RULE[1]}}}",
        f".axis{{stroke:{MUTED[1]}}}.pale{{fill-opacity:.3}}"
        ".thick{stroke-opacity:.55}",
        f".hollow{{fill:{PAPER[1]}}}",
    ]
    for name, (line, text, bright) in COLOURS.items():
        light.append(f".s-{name}{{stroke:{line}}}.f-{name}{{fill:{line}}}")
        light.append(f"text.t-{name}{{fill:{text}}}")
        dark.append(f".s-{name}{{stroke:{bright}}}.f-{name}{{fill:{bright}}}")
        dark.append(f"text.t-{name}{{fill:{bright}}}")
    inner = "".join(dark)
    return "".join(light) + f"@media (prefers-color-scheme:dark){{{inner}}}"


def number(value: float) -> str:
    """Return a coordinate with one decimal, and none where it is zero."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


class Picture:
    """An SVG of so many pixels, which begins as a card in the colour of paper."""

    def __init__(self, width: int, height: int, title: str, description: str) -> None:
        self.width, self.height = width, height
        self.parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
            f' width="{width}" height="{height}" role="img"'
            ' aria-labelledby="title desc">',
            f'<title id="title">{escape(title)}</title>',
            f'<desc id="desc">{escape(description)}</desc>',
            f"<style>{_style()}</style>",
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4"'
            ' markerWidth="7" markerHeight="7" orient="auto-start-reverse">'
            '<path class="f-grey" d="M0 0L8 4L0 8z"/></marker></defs>',
            f'<rect class="paper" width="{width}" height="{height}" rx="6"/>',
        ]

    def text(
        self, x: float, y: float, words: str, kind: str = "", anchor: str = "start"
    ) -> None:
        """Write words; `anchor` is start, middle or end."""
        at = f'x="{number(x)}" y="{number(y)}"'
        place = "" if anchor == "start" else f' text-anchor="{anchor}"'
        style = f' class="{kind}"' if kind else ""
        self.parts.append(f"<text {at}{place}{style}>{escape(words)}</text>")

    def turned(self, x: float, y: float, words: str, kind: str = "") -> None:
        """Write words upwards, centred at a point."""
        at = f"translate({number(x)} {number(y)}) rotate(-90)"
        style = f' class="{kind}"' if kind else ""
        self.parts.append(
            f'<text transform="{at}" text-anchor="middle"{style}>{escape(words)}</text>'
        )

    def rect(
        self, x: float, y: float, width: float, height: float, kind: str, rx: float = 0
    ) -> None:
        """Draw a rectangle."""
        size = f'width="{number(width)}" height="{number(height)}"'
        corner = f' rx="{number(rx)}"' if rx else ""
        self.parts.append(
            f'<rect class="{kind}" x="{number(x)}" y="{number(y)}" {size}{corner}/>'
        )

    def line(
        self, points: Iterable[tuple[float, float]], kind: str, tips: str = ""
    ) -> None:
        """Draw a line through points; `tips` is "", "end" or "both"."""
        path = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        ends = ' marker-end="url(#tip)"' if tips else ""
        ends += ' marker-start="url(#tip)"' if tips == "both" else ""
        self.parts.append(f'<polyline class="line {kind}" points="{path}"{ends}/>')

    def dot(
        self, x: float, y: float, kind: str, radius: float = 4, of: str = ""
    ) -> None:
        """Draw a circle, which `of` names to whoever points at it."""
        at = f'cx="{number(x)}" cy="{number(y)}" r="{number(radius)}"'
        inner = f"><title>{escape(of)}</title></circle>" if of else "/>"
        self.parts.append(f'<circle class="{kind}" {at}{inner}')

    def svg(self) -> str:
        """Return the file's text."""
        return "\n".join([*self.parts, "</svg>"]) + "\n"


Ticks = Sequence[tuple[float, str]]


class Axes:
    """A rectangle of a picture with two scales, each linear or logarithmic."""

    def __init__(
        self,
        picture: Picture,
        box: tuple[float, float, float, float],  # left, top, width, height
        x: tuple[float, float],
        y: tuple[float, float],
        logarithmic: tuple[bool, bool] = (False, False),
    ) -> None:
        self.picture, self.box = picture, box
        self.ends, self.logarithmic = (x, y), logarithmic

    def _part(self, value: float, axis: int) -> float:
        low, high = self.ends[axis]
        if self.logarithmic[axis]:
            value, low, high = log10(value), log10(low), log10(high)
        return (value - low) / (high - low)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point of the data lies in the picture."""
        left, top, width, height = self.box
        return left + width * self._part(x, 0), top + height * (1 - self._part(y, 1))

    def frame(self, x: Ticks, y: Ticks, names: tuple[str, str], head: str = "") -> None:
        """Draw rules, ticks and the names of both axes."""
        left, top, width, height = self.box
        bottom, draw = top + height, self.picture
        for value, words in y:
            level = self.at(self.ends[0][0], value)[1]
            draw.line([(left, level), (left + width, level)], "rule thin")
            draw.text(left - 7, level + 4, words, "small muted", "end")
        draw.line([(left, bottom), (left + width, bottom)], "axis thin")
        for value, words in x:
            place = self.at(value, self.ends[1][0])[0]
            draw.line([(place, bottom), (place, bottom + 4)], "axis thin")
            draw.text(place, bottom + 17, words, "small muted", "middle")
        draw.text(left + width / 2, bottom + 35, names[0], "small", "middle")
        if names[1]:
            draw.turned(left - 46, top + height / 2, names[1], "small")
        if head:
            draw.text(left, top - 12, head, "head")

    def curve(self, x: Sequence[float], y: Sequence[float], kind: str) -> None:
        """Draw a line through points of the data."""
        self.picture.line([self.at(*p) for p in zip(x, y, strict=True)], kind)

    def dot(
        self, x: float, y: float, kind: str, radius: float = 4, of: str = ""
    ) -> None:
        """Draw a point of the data."""
        self.picture.dot(*self.at(x, y), kind, radius, of)

    def label(
        self,
        x: float,
        y: float,
        words: str,
        kind: str,
        shift: tuple[float, float] = (6, 4),
        anchor: str = "start",
    ) -> None:
        """Write words beside a point of the data."""
        place = self.at(x, y)
        self.picture.text(
            place[0] + shift[0], place[1] + shift[1], words, f"halo {kind}", anchor
        )


def power(exponent: int) -> str:
    """Return 10 to a power as text.

    >>> power(-3)
    '10⁻³'
    """
    raised = str(exponent).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"10{raised}"

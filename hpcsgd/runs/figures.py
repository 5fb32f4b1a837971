"""Tables, frames and pictures of results: the home of matplotlib and of pandas."""

import hashlib
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from itertools import cycle
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcsgd.errors import ConfigError, MissingPackage
from hpcsgd.files import replace_file

if TYPE_CHECKING:
    from xml.etree import ElementTree

# Okabe and Ito's colours, for every kind of colour vision.
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#007a5a",
    "#a8487f",
    "#9a6700",
    "#56b4e9",
    "#6b6b6b",
    "#e69f00",
)
DASHES = ("-", "--", ":", "-.")
STYLES = ("-o", "--s", ":^", "-.d", "-x", "--v", ":*")  # that differ in black and white
# Equal charts are equal bytes, on every machine; text stays text.
SETTINGS = {
    "svg.fonttype": "none",
    "svg.hashsalt": "hpcsgd",
    "font.family": ["DejaVu Sans"],  # the one that matplotlib brings
    "lines.scale_dashes": False,
    "path.simplify": False,
    "hatch.linewidth": 0.9,
}


def saved(figure: Any, path: str | Path, dpi: int = 110) -> Path:
    """Write the figure as a PNG file, and return its path.

    The file is complete or not written at all.
    """
    picture = BytesIO()
    figure.savefig(picture, dpi=dpi, format="png")
    try:
        replace_file(Path(path), picture.getbuffer())
    except OSError as error:
        raise ConfigError(
            f"cannot write the figure {path}: {error.strerror};"
            " choose a folder that exists and can be written"
        ) from error
    return Path(path)


def require() -> Any:
    """Return matplotlib; raise MissingPackage with a remedy if it is not installed."""
    try:
        import matplotlib
    except ImportError as missing:
        raise MissingPackage(
            "figures need matplotlib; install it with: pip install 'hpcsgd[plot]'"
        ) from missing
    return matplotlib


@contextmanager
def settings() -> Iterator[None]:
    """Draw and save figures in this context with the same style on every machine."""
    with require().rc_context(SETTINGS), warnings.catch_warnings():
        # A name may be in letters that this font lacks; viewers have other fonts.
        warnings.filterwarnings("ignore", message="Glyph")
        yield


def blank(width: float, height: float) -> Any:
    """Return an empty figure of `width` by `height` points."""
    require()
    from matplotlib.figure import Figure

    return Figure(figsize=(width / 72, height / 72), dpi=72)


def make_figure(rows: int, columns: int = 2) -> tuple[Any, Any]:
    """Return a figure, and its axes as an array of shape (rows, columns)."""
    figure = blank(72 * 4.5 * max(columns, 2), 72 * 3.4 * rows)
    figure.set_layout_engine("tight")
    return figure, figure.subplots(rows, columns, squeeze=False)


def new_axes(ax: Any = None) -> Any:
    """Return `ax`, or the axes of a new figure that a notebook shows."""
    if ax is not None:
        return ax
    require()
    from matplotlib import pyplot

    return pyplot.subplots(layout="constrained")[1]


# What SVG of matplotlib lacks: title, hover texts, names of its own, dark mode.

FONT = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
NAMESPACE = "http://www.w3.org/2000/svg"
REFERENCE = re.compile(r"(?<=#)[\w.-]+(?=\)|$)")


def clean(text: str) -> str:
    """Return `text` with spaces for control characters, U+FFFE and U+FFFF."""
    return "".join(c if c >= " " and c not in "\ufffe\uffff" else " " for c in text)


@dataclass(frozen=True)
class Hint:
    """The description of one drawn element, for screen readers and pointers."""

    kind: str  # class of its group
    text: str = ""  # shown where a pointer rests on it
    data: Mapping[str, str] = field(default_factory=dict)  # attributes data-...


def finish(
    drawn: bytes, name: str, title: str, caption: str, hints: Mapping[str, Hint]
) -> "ElementTree.Element":
    """Return a picture of matplotlib as an SVG element that can be put on a page.

    It gets a title, a description and hover texts. Several pictures on a page must not
    share names, so each id that is referred to gets the prefix `name`, and others are
    removed.

    Parameters
    ----------
    drawn : an SVG file of matplotlib
    name, title, caption : of the chart
    hints : id of a group -> what it is
    """
    from xml.etree import ElementTree

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


def _remove_what_names_others(root: "ElementTree.Element") -> None:
    """Remove the metadata and the style sheet of matplotlib.

    The style would apply to the whole page.
    """
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)


def _references(root: "ElementTree.Element") -> Iterator[str]:
    for element in root.iter():
        for key, value in element.attrib.items():
            if "url(#" in value or key.endswith("href"):
                yield from REFERENCE.findall(value)


def _name(
    element: "ElementTree.Element", name: str, used: set[str], hints: Mapping[str, Hint]
) -> None:
    identifier = element.attrib.pop("id", "")
    if identifier in used:
        element.set("id", f"{name}-{identifier}")
    for key, value in list(element.attrib.items()):
        if "url(#" in value or key.endswith("href"):
            del element.attrib[key]
            key = key.rpartition("}")[2]
            element.set(key, REFERENCE.sub(lambda found: f"{name}-{found[0]}", value))
    if identifier in hints:
        hint = hints[identifier]
        element.set("class", hint.kind)
        for key, value in hint.data.items():
            if value:
                element.set(f"data-{key}", clean(value))
        if hint.text:
            element.insert(0, _text("title", hint.text))


def _text(tag: str, text: str, **attributes: str) -> "ElementTree.Element":
    from xml.etree import ElementTree

    element = ElementTree.Element(tag, attributes)
    element.text = clean(text)
    return element


# What a notebook shows of an object: a table, and a small picture beside it.

SHOWN_ROWS = 12  # of a table; the frame has all of them
SMALL = (380.0, 190.0)  # points
TEXT = "#010203"  # stands for the colour of the page's own text, dark or light


def html(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    draw: Callable[[Any], Any],
    note: str = "",
) -> str:
    """Return an HTML table of `rows` and, with matplotlib, a picture.

    The HTML has no script and no address, and all texts are escaped.

    Parameters
    ----------
    title : str
        The line above the table.
    rows : sequence of mappings
        The rows, each with the same keys; the first `SHOWN_ROWS` of them are shown.
    draw : callable
        Draws on the axes that it is called with.
    note : str
        A sentence below the table.
    """
    parts = [f"<p><strong>{escape(clean(title))}</strong></p>", _table(rows)]
    left_out = len(rows) - SHOWN_ROWS
    if left_out > 0:
        parts.append(f"<p>{left_out} more rows; to_frame() has all of them.</p>")
    if note:
        parts.append(f"<p>{escape(clean(note))}</p>")
    with suppress(MissingPackage):
        parts.append(inline_svg(title, draw))
    return f"<div>{''.join(parts)}</div>"


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    names = list(rows[0]) if rows else []
    head = "".join(f"<th>{escape(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(row[name])}</td>' for name in names)}</tr>"
        for row in rows[:SHOWN_ROWS]
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: Any) -> str:
    if value is None or value != value:
        return "–"
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return escape(clean(text))


def inline_svg(title: str, draw: Callable[[Any], Any]) -> str:
    """Return a small picture as SVG text, which takes the text colour of its page."""
    file = BytesIO()
    with settings(), require().rc_context(_INLINE):
        figure = blank(*SMALL)
        figure.set_layout_engine("tight")
        draw(figure.subplots())
        figure.savefig(file, format="svg", metadata={"Date": None}, transparent=True)
    # Equal names on a page would mean what stands first.
    name = f"h{hashlib.sha256(file.getvalue()).hexdigest()[:12]}"
    root = finish(file.getvalue(), name, title, "drawn by its method plot()", {})
    from xml.etree import ElementTree

    text = ElementTree.tostring(root, encoding="unicode")
    return text.replace(TEXT, "currentColor")


_INLINE = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor"), TEXT),
    **dict.fromkeys(("xtick.color", "ytick.color", "axes.titlecolor"), TEXT),
    "legend.framealpha": 0.0,
    "font.size": 9.0,
    "axes.titlesize": 9.0,
}


def to_frame(rows: Sequence[Mapping[str, Any]], index: str | None = None) -> Any:
    """Return rows as a pandas.DataFrame, with the column `index` as its index.

    Raise MissingPackage with a remedy if pandas is not installed.
    """
    try:
        import pandas
    except ImportError as missing:
        raise MissingPackage(
            "data frames need pandas; install it with: pip install 'hpcsgd[pandas]'"
        ) from missing
    frame = pandas.DataFrame.from_records([dict(row) for row in rows])
    return frame.set_index(index) if index and len(frame) else frame


# Coefficients by their names: one row for each column of the data.

SHOWN_BARS = 20  # coefficients that a picture has room for


def coefficient_rows(
    weights: Any, names: Any, classes: Any = None
) -> list[dict[str, Any]]:
    """Return the weights (d,) or (d, K) as rows: a name and a value for each class."""
    columns = _column_names(names, len(weights))
    if weights.ndim == 1 or weights.shape[1] == 1:
        values = weights.reshape(-1).tolist()
        return [
            {"feature": name, "coefficient": value}
            for name, value in zip(columns, values, strict=True)
        ]
    class_labels = range(weights.shape[1]) if classes is None else classes
    labels = [f"{c:g}" if isinstance(c, float) else str(c) for c in class_labels]
    return [
        {"feature": name, **dict(zip(labels, values, strict=True))}
        for name, values in zip(columns, weights.tolist(), strict=True)
    ]


def _column_names(names: Any, count: int) -> list[str]:
    if names is None:
        return [f"x{k}" for k in range(count)]
    return [str(name) for name in names]


def plot_coefficients(rows: Sequence[Mapping[str, Any]], ax: Any = None) -> Any:
    """Draw the largest coefficients as bars, a group for each feature.

    Return the axes, which are `ax` if it is given. They show at most `SHOWN_BARS`
    features.
    """
    ax = new_axes(ax)
    labels = [name for name in rows[0] if name != "feature"]

    def size(row: Mapping[str, Any]) -> float:
        return max(abs(float(row[label])) for label in labels)

    shown = sorted(rows, key=size, reverse=True)[:SHOWN_BARS]
    height = 0.8 / len(labels)
    for number, label in enumerate(labels):
        places = [
            k + (number - (len(labels) - 1) / 2) * height for k in range(len(shown))
        ]
        values = [float(row[label]) for row in shown]
        colour = COLOURS[number % len(COLOURS)]
        ax.barh(places, values, height, label=label, color=colour)
    ax.set_yticks(range(len(shown)), [str(row["feature"]) for row in shown])
    ax.invert_yaxis()
    ax.axvline(0.0, linewidth=0.8, color="0.5")
    left_out = len(rows) - len(shown)
    more = f" (the largest {len(shown)} of {len(rows)})" if left_out else ""
    ax.set_xlabel(f"coefficient{more}")
    if len(labels) > 1:
        ax.legend(title="class", fontsize="small")
    return ax


def plot_intervals(rows: Sequence[Mapping[str, Any]], ax: Any = None) -> Any:
    """Draw the intervals of the coefficients with the largest statistics |z|.

    Return the axes, which are `ax` if it is given. They show at most `SHOWN_BARS`
    coefficients.
    """
    ax = new_axes(ax)
    shown = sorted(rows, key=lambda row: -abs(row["statistic"]))[:SHOWN_BARS]
    for place, row in enumerate(shown):
        ax.plot([row["lower"], row["upper"]], [place, place], "-", c=COLOURS[0])
        ax.plot([row["coefficient"]], [place], "o", c=COLOURS[0], markersize=4)
    ax.set_yticks(range(len(shown)), [str(row["feature"]) for row in shown])
    ax.invert_yaxis()
    ax.axvline(0.0, linewidth=0.8, color="0.5")
    ax.set_xlabel("coefficient and interval")
    return ax


# Loss curves over what they cost: epochs, seconds, words, messages.

History = Sequence[Mapping[str, Any]]
# key of a record -> what is written below the axis
COSTS = {
    "epoch": "passes over the rows",
    "seconds": "seconds of training",
    "words": "words sent by rank 0",
    "messages": "messages of rank 0",
}
WITHIN = 6  # curves whose names fit into the first panel
IN_COLUMN = 20  # names beside the last one
APART = 20.0  # how many times one curve may be longer before the axis is logarithmic
ABOVE = 1.1  # times the loss at the start: how much of what diverges is shown


def loss_curves(
    panels: Mapping[str, Mapping[str, History]],
    path: str | Path,
    over: Sequence[str] = ("epoch", "seconds"),
) -> Path:
    """Draw loss over what it cost, a row for each panel and a column for each cost.

    Return the path of the PNG file.

    Parameters
    ----------
    panels : panel title -> curve name -> history records
    path : where the PNG goes
    over : keys of COSTS
    """
    figure, axes = make_figure(len(panels), columns=len(over))
    for (title, curves), row in zip(panels.items(), axes, strict=True):
        for axis, cost in zip(row, over, strict=True):
            _draw(axis, curves, cost)
        # Names are text, also those that look like formulas.
        row[0].set_title(title, parse_math=False)
        row[0].set_ylabel("loss, all rows")
        _name_curves(row, len(curves))
    return saved(figure, path)


def plot_losses(
    curves: Mapping[str, History], over: str = "epoch", ax: Any = None
) -> Any:
    """Draw loss curves over one cost, a key of `COSTS`, and return the axes."""
    if over not in COSTS:
        raise ConfigError(f"over = {over!r} is unknown; known: {', '.join(COSTS)}")
    ax = new_axes(ax)
    _draw(ax, curves, over)
    ax.set_ylabel("loss, all rows")
    if len(curves) > 1:
        _name_curves([ax], len(curves))
    return ax


def _draw(axis: Any, curves: Mapping[str, History], cost: str) -> None:
    styles = zip(cycle(STYLES), cycle(COLOURS), curves.items(), strict=False)
    for style, colour, (name, records) in styles:
        points = [r for r in records if cost in r]
        # A finisher goes through the rows after the last epoch of steps.
        more = "passes" if cost == "epoch" else ""
        spent = [r[cost] + r.get(more, 0) for r in points]
        losses = [r["loss"] for r in points]
        axis.plot(spent, losses, style, c=colour, label=name, markersize=3, lw=1.2)
    axis.set_xlabel(COSTS[cost])
    _scale(axis, [r[-1].get(cost, 0.0) for r in curves.values() if r])
    starts = [r[0]["loss"] for r in curves.values() if r]
    ends = [record["loss"] for r in curves.values() for record in r]
    if starts and not max(ends) <= ABOVE * max(starts):
        axis.set_ylim(top=ABOVE * max(starts))


def _scale(axis: Any, ends: Sequence[float]) -> None:
    """Make an axis logarithmic if one curve is much shorter than another.

    It stays linear up to the end of the shortest curve.
    """
    spent = [end for end in ends if end > 0]
    if spent and max(spent) > APART * min(spent):
        axis.set_xscale("symlog", linthresh=min(spent))


def _name_curves(row: Sequence[Any], count: int) -> None:
    """Add a legend with the names of the curves.

    It is in the first panel or, if there are many, at the right of the last panel.
    """
    if count <= WITHIN:
        legend = row[0].legend()
    else:
        beside = {"loc": "upper left", "bbox_to_anchor": (1.02, 1.0)}
        columns = ceil(count / IN_COLUMN)
        legend = row[-1].legend(**beside, ncols=columns, fontsize="x-small")
    for text in legend.get_texts():
        text.set_parse_math(False)

"""Formulas as MathML, made at build time: the pages need no script for them."""

import re

from docutils import nodes
from latex2mathml.converter import convert
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number
from sphinx.writers.html5 import HTML5Translator

LOGGER = logging.getLogger(__name__)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the renderer of the HTML builder."""
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def inline(translator: HTML5Translator, node: nodes.math) -> None:
    """Write a formula inside a line."""
    translator.body.append(mathml(node, "inline"))
    raise nodes.SkipNode


def block(translator: HTML5Translator, node: nodes.math_block) -> None:
    """Write a formula on a line of its own, with its number where it has one."""
    translator.body.append(translator.starttag(node, "div", CLASS="math"))
    if node["number"]:
        number = get_node_equation_number(translator, node)
        translator.body.append(f'<span class="eqno">({number})</span>')
    translator.body.append(mathml(node, "block"))
    translator.body.append("</div>\n")
    raise nodes.SkipNode


def mathml(node: nodes.Element, display: str) -> str:
    """Return the formula of a node; what stays as text is a warning."""
    try:
        text, reason = convert(prepared(node.astext()), display=display), ""
    except Exception as error:
        text, reason = "", repr(error)
    # A bar without \left or \right is as high as a letter.
    text = re.sub(
        r"<mo>(&#x0(?:2016|007C|2225);|\|)</mo>", r'<mo stretchy="false">\1</mo>', text
    )
    unknown = re.search(r"(\\\w*|<mi>&</mi>)", text)
    if unknown:
        reason = f"{unknown[1]} is unknown"
    if reason:
        LOGGER.warning("no MathML of %r: %s", node.astext(), reason, location=node)
    return text


def prepared(text: str) -> str:
    """Return a formula in the words of latex2mathml: lines are rows of `align*`."""
    text = re.sub(r"\\(begin|end)\{(aligned|gathered|split)\}", r"\\\1{align*}", text)
    text = text.replace(r"\operatorname*", r"\operatorname")
    if r"\\" in text and r"\begin" not in text:
        text = rf"\begin{{align*}}{text}\end{{align*}}"
    return text

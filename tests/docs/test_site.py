"""The built site: its tree, its links, and nothing that comes from outside."""

import re
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from hpcsgd.cli.flags import FLAGS
from hpcsgd.cli.names import CODECS, COMMANDS, METHODS
from hpcsgd.cli.template import settings_of
from hpcsgd.config import RunConfig
from tests.helpers.blocks import ROOT
from tests.helpers.limits import HANG

OUTSIDE = re.compile(r"^\s*(?:\w+:)?//", re.I)
# What a browser fetches by itself; `href` of a link is for the reader.
FETCHED = {"src", "srcset", "poster", "data", "background", "xlink:href"}
HINTS = {"canonical", "next", "prev", "index", "search", "author", "license", "help"}
IN_STYLE = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:\w+:)?//[^"')\s]+)""", re.I)
IN_SCRIPT = re.compile(
    r"""(?:fetch|import|importScripts|open|Worker|src|href)\s*[(=]\s*["'`]"""
    r"((?:https?:)?//[^\"'`]+)"
)


class Page(HTMLParser):
    """Anchors, links and fetched addresses of an HTML page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.fetched = set(), [], []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = {name: value or "" for name, value in attributes}
        self.ids |= {values[name] for name in ("id", "name") if name in values}
        self._inside = tag
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        if tag == "link" and not set(values.get("rel", "").split()) & HINTS:
            self.fetched.append(values.get("href", ""))
        if tag in ("use", "image") and "href" in values:
            self.fetched.append(values["href"])
        self.fetched += [values[name] for name in FETCHED & set(values)]
        self.fetched += IN_STYLE.findall(values.get("style", ""))

    def handle_data(self, data):
        if self._inside == "style":
            self.fetched += IN_STYLE.findall(data)
        if self._inside == "script":
            self.fetched += IN_SCRIPT.findall(data)


def outside(page):
    """Return what a page fetches from another machine."""
    return [address for address in page.fetched if OUTSIDE.match(address)]


@cache
def pages(folder):
    """Return the parsed pages of a site by their paths."""
    found = set(folder.rglob("*.html")) - set(folder.glob("_static/**/*"))
    return {path: Page(path.read_text()) for path in sorted(found)}


def broken(folder):
    """Return each link inside a site whose file or anchor does not exist."""
    found = []
    for path, page in pages(folder).items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            name = unquote(parts.path)
            target = (path.parent / name).resolve() if name else path
            if target.is_dir():
                target /= "index.html"
            anchor = unquote(parts.fragment)
            is_page = target.suffix == ".html"
            if not target.exists() or (
                anchor and is_page and anchor not in pages(folder)[target].ids
            ):
                found.append(f"{path.relative_to(folder)}: {link}")
    return found


def test_internal_links_and_anchors_exist(site):
    assert len(pages(site)) > 10
    offenders = broken(site)
    assert not offenders, "\n".join(offenders)


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<a href="b.html#here">1</a> <a href="b.html#gone">2</a> <a href="#top">3</a>'
        '<a href="c.html">4</a> <a href="https://example.org/x#y">5</a>'
    )
    (tmp_path / "b.html").write_text('<p id="here">text</p>')
    offenders = [line.split(": ")[1] for line in broken(tmp_path)]
    assert offenders == ["b.html#gone", "#top", "c.html"]


def test_nothing_comes_from_outside(site):
    offenders = [
        f"{path.relative_to(site)}: {address}"
        for path, page in pages(site).items()
        for address in outside(page)
    ]
    for pattern, suffix in ((IN_STYLE, "*.css"), (IN_SCRIPT, "*.js")):
        for path in sorted(site.rglob(suffix)):
            for address in pattern.findall(path.read_text(errors="replace")):
                offenders.append(f"{path.relative_to(site)}: {address}")
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://cdn.example.org/x.js"></script>',
        '<img src="//example.org/x.png">',
        '<link rel="stylesheet" href="https://example.org/x.css">',
        '<link rel="preconnect" href="https://fonts.example.org">',
        "<style>@import 'https://example.org/x.css';</style>",
        '<p style="background: url(https://example.org/x.png)">text</p>',
        "<script>fetch('https://example.org/objects.inv')</script>",
        '<iframe src="http://example.org"></iframe>',
        '<object data="https://example.org/x.svg"></object>',
    ],
)
def test_what_comes_from_outside_is_found(text):
    assert outside(Page(text))
    assert not outside(Page('<a href="https://example.org">a paper</a>'))


def test_every_page_is_in_the_tree(site):
    """From the start page a reader reaches each by links of the pages' own text."""
    docs = ROOT / "docs"
    written = {
        path.relative_to(docs).with_suffix(".html")
        for path in docs.rglob("*")
        if path.suffix in (".md", ".ipynb")
        and "_build" not in path.parts
        and path.parent.name != "gallery"
    }
    built = {path.relative_to(site) for path in pages(site)}
    assert written <= built, sorted(map(str, written - built))
    reached, new = set(), {site / "index.html"}
    while new:
        reached |= new
        linked = {
            (path.parent / unquote(urlsplit(link).path)).resolve()
            for path in new
            for link in pages(site)[path].links
            if urlsplit(link).path and not urlsplit(link).scheme
        }
        new = (linked & set(pages(site))) - reached
    lost = {path.relative_to(site) for path in set(pages(site)) - reached}
    assert not lost - {Path("search.html"), Path("genindex.html")}, sorted(lost)


def text_of(path):
    """Return the text of a page."""
    return re.sub(r"<[^>]+>", "", path.read_text())


def test_every_setting_is_on_its_page(site):
    page, text = site / "reference" / "settings.html", {}
    for part in re.split(r'<section id="', page.read_text())[1:]:
        text[part.partition('"')[0]] = re.findall(r'<span class="pre">([\w.]+)', part)
    for name in settings_of(RunConfig):
        section, key = name.split(".")
        assert key in text.get(section, ()), name
    assert set(METHODS) | set(CODECS) <= set(re.split(r"[\s,;]+", text_of(page)))


def test_every_command_and_flag_is_on_its_page(site):
    page = site / "reference" / "commands.html"
    assert set(COMMANDS) <= pages(site)[page].ids
    words = set(re.split(r"[\s,]+", text_of(page)))
    assert {flag.name for flag in FLAGS} <= words


def test_formulas_are_mathml(site):
    assert any("<math" in path.read_text() for path in pages(site))
    script = re.compile(r"<script[^>]*mathjax", re.I)
    assert not [path for path in pages(site) if script.search(path.read_text())]


@pytest.mark.parametrize(
    "text, is_good",
    [
        (r"$$\begin{aligned} a &= b \\ c &= \lVert d \rVert \end{aligned}$$", True),
        (r"$w_{j+1} = \operatorname*{min}_i x_i$", True),
        (r"$\nosuchcommand{a}$", False),
        (r"$a^b^c$", False),
    ],
)
def test_a_formula_that_is_not_understood_is_an_error(tmp_path, text, is_good):
    pytest.importorskip("sphinx", reason="make test-docs has what builds the site")
    extensions = ROOT / "docs" / "_extensions"
    (tmp_path / "conf.py").write_text(
        f"import sys\nsys.path.insert(0, {str(extensions)!r})\n"
        "extensions = ['myst_parser', 'mathml']\nhtml_math_renderer = 'mathml'\n"
        "myst_enable_extensions = ['dollarmath']\n"
    )
    (tmp_path / "index.md").write_text(f"# Title\n\n{text}\n")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", tmp_path, tmp_path / "html"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert (done.returncode == 0) == is_good, done.stderr
    assert is_good or "no MathML of" in done.stderr


def test_the_gallery_has_pictures(site):
    scripts = (ROOT / "examples" / "gallery").glob("plot_*.py")
    for script in scripts:
        page = pages(site)[site / "gallery" / f"{script.stem}.html"]
        assert any("_images/sphx_glr_" in address for address in page.fetched), script


def test_notebooks_have_been_run(site):
    for source in (ROOT / "examples" / "notebooks").glob("*.ipynb"):
        text = (site / "notebooks" / f"{source.stem}.html").read_text()
        assert "cell_output" in text, source

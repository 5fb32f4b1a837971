"""Pages in a real browser: narrow and wide, light and dark."""

import re

import pytest

from tests.helpers.browser import SETUP, Browser, served

pytestmark = [
    pytest.mark.cases("all"),
    pytest.mark.skipif(not SETUP.program(), reason="no chromium here"),
]

PAGES = {
    "start": ("index.html", "hpcsgd fits generalized linear models"),
    "gallery": ("gallery/plot_first_fit.html", "A first fit"),
    "formulas": ("learn/s-steps.html", ""),
    "settings": ("reference/settings.html", "passes of each replica over its rows"),
    "api": ("reference/api/estimators.html", "LogisticRegression"),
}
WIDE = """[...document.querySelectorAll('body *')].filter(
    e => e.getBoundingClientRect().right > innerWidth + 1 && e.offsetParent
).slice(0, 8).map(e => e.outerHTML.slice(0, 160))"""
BRIGHTNESS = """(() => {
    const colour = getComputedStyle(document.body).backgroundColor;
    const parts = colour.match(/[0-9.]+/g).map(Number);
    return (parts[0] + parts[1] + parts[2]) / 3;
})()"""


@pytest.fixture(scope="module")
def address(site):
    with served(site) as address:
        yield address


@pytest.fixture(scope="module")
def browser(address):
    with Browser(SETUP.program()) as browser:
        yield browser


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_readable(browser, address, site, name, width, scheme):
    page, words = PAGES[name]
    browser.open(f"{address}/{page}", width, scheme)
    browser.picture(site.parent / "screens" / f"{name}-{width}-{scheme}.png")
    assert browser.errors() == []
    assert all(url.startswith((address, "data:")) for url in browser.requests())
    text = browser.evaluate("document.querySelector('main').innerText")
    assert words in re.sub(r"\s+", " ", text) and len(text) > 100
    assert browser.evaluate("innerWidth") == width
    wide = browser.evaluate("document.documentElement.scrollWidth")
    assert wide <= width, browser.evaluate(WIDE)
    is_dark = browser.evaluate(BRIGHTNESS) < 128
    assert is_dark == (scheme == "dark")


BROKEN = """<!doctype html><title>twin</title><body><main>text</main>
<div style="width: 900px">wide</div><img src="none.png">
<script>console.error("first"); no_such_name()</script>"""


def test_a_broken_page_is_seen(browser, tmp_path):
    """The twin of what is tested above: an overflow and three errors."""
    (tmp_path / "index.html").write_text(BROKEN)
    with served(tmp_path) as address:
        browser.open(f"{address}/index.html", 400, "light")
        errors = "".join(browser.errors())
    assert browser.evaluate("document.documentElement.scrollWidth") > 400
    assert all(word in errors for word in ("first", "no_such_name", "none.png"))

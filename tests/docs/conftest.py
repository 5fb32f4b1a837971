"""The site, built once; and a last line where its browser is missing."""

import importlib.util
import subprocess
import sys

import pytest

from tests.helpers.blocks import ROOT
from tests.helpers.limits import HANG

HTML = ROOT / "docs" / "_build" / "html"


def load_setup():
    """Return .ci/browser.py, which knows the browser and how to install it."""
    spec = importlib.util.spec_from_file_location(
        "ci_browser", ROOT / ".ci" / "browser.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


BROWSER = load_setup()


def pytest_configure(config):
    """All tests of the site belong to one worker, which builds it."""
    config.addinivalue_line("markers", "xdist_group(name): tests of one worker")


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """The very last line, where nobody overlooks it."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or BROWSER.program() or hasattr(config, "workerinput"):
        return
    skipped = reporter.stats.get("skipped", [])
    count = sum("test_browser.py" in report.nodeid for report in skipped)
    if count:
        reason = f"no chromium here; on Debian: {BROWSER.APT_LINE}"
        print(f"browser: {count} tests NOT RUN: {reason}", flush=True)


@pytest.fixture(scope="session")
def site():
    """Return the folder of the built site; a warning of the build is an error."""
    pytest.importorskip("sphinx", reason="make test-docs has what builds the site")
    command = [sys.executable, ROOT / "docs" / "build.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr + done.stdout
    return HTML

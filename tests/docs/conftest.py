"""The site, built once; and a last line where its browser is missing."""

import subprocess
import sys

import pytest

from tests.helpers.blocks import ROOT
from tests.helpers.browser import SETUP
from tests.helpers.limits import HANG


@pytest.hookimpl(trylast=True)
def pytest_unconfigure(config):
    """The very last line, where nobody overlooks it."""
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None or SETUP.program() or hasattr(config, "workerinput"):
        return
    skipped = reporter.stats.get("skipped", [])
    count = sum("test_browser.py" in report.nodeid for report in skipped)
    if count:
        reason = f"no chromium here; on Debian: {SETUP.APT_LINE}"
        print(f"browser: {count} tests NOT RUN: {reason}", flush=True)


@pytest.fixture(scope="session")
def site():
    """Return the folder of the built site; a warning of the build is an error."""
    pytest.importorskip("sphinx", reason="make test-docs has what builds the site")
    command = [sys.executable, ROOT / "docs" / "build.py"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr + done.stdout
    return ROOT / "docs" / "_build" / "html"

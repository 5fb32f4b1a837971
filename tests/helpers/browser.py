"""A headless Chromium, driven through a pipe by its DevTools protocol."""

import base64
import functools
import http.server
import importlib.util
import json
import os
import select
import signal
import subprocess
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.helpers.limits import HANG

FLAGS = (
    *("--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"),
    *("--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update"),
)


def load_setup():
    """Return .ci/browser.py, which finds the browser and knows how to install it."""
    path = Path(__file__).parents[2] / ".ci" / "browser.py"
    spec = importlib.util.spec_from_file_location("ci_browser", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SETUP = load_setup()


class Browser:
    """One Chromium with one page, which the end of `with` ends."""

    def __init__(self, program: str):
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self.to = os.pipe()
        self.back, to_write = os.pipe()
        # The protocol is on descriptors 3 and 4.
        shell = f'exec "$0" "$@" 3<&{to_read} 4>&{to_write}'
        words = [program, *FLAGS, f"--user-data-dir={self.folder.name}", "about:blank"]
        self.child = subprocess.Popen(
            ["bash", "-c", shell, *words],
            pass_fds=(to_read, to_write),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": self.folder.name},
            start_new_session=True,
        )
        os.close(to_read)
        os.close(to_write)
        self.number, self.rest, self.events = 0, b"", []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    session = None

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_) -> None:
        with suppress(AssertionError, OSError):
            self.session = None
            self.call("Browser.close")
        with suppress(subprocess.TimeoutExpired):
            self.child.wait(10)
        with suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()
        os.close(self.to)
        os.close(self.back)
        self.folder.cleanup()

    def call(self, method: str, **parameters):
        """Send a command and return its result; events are kept."""
        self.number += 1
        message = {"id": self.number, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        answer = self.wait(lambda one: one.get("id") == self.number)
        assert "error" not in answer, (method, answer)
        return answer["result"]

    def wait(self, is_it):
        """Return the next message that is the awaited one."""
        end = time.monotonic() + HANG
        while True:
            while b"\0" not in self.rest:
                left = max(0.0, end - time.monotonic())
                assert select.select([self.back], [], [], left)[0], "no answer"
                part = os.read(self.back, 1 << 16)
                assert part, "the browser has ended"
                self.rest += part
            text, _, self.rest = self.rest.partition(b"\0")
            message = json.loads(text)
            self.events.append(message)
            if is_it(message):
                return message

    def open(self, url: str, width: int, scheme: str) -> None:
        """Load a page at a width in pixels, in a light or dark scheme."""
        screen = {"width": width, "height": 900, "deviceScaleFactor": 1}
        self.call("Emulation.setDeviceMetricsOverride", mobile=False, **screen)
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.call("Emulation.setEmulatedMedia", features=[feature])
        self.call("Page.navigate", url="about:blank")
        self.events.clear()
        self.call("Page.navigate", url=url)
        if not any(event.get("method") == LOADED for event in self.events):
            self.wait(lambda event: event.get("method") == LOADED)
        # A theme changes colours slowly, and a hidden page paints late.
        self.evaluate("new Promise(done => setTimeout(done, 500))")
        self.evaluate("new Promise(done => requestAnimationFrame(done))")

    def evaluate(self, code: str):
        """Return the value of an expression in the page."""
        how = {"returnByValue": True, "awaitPromise": True}
        answer = self.call("Runtime.evaluate", expression=code, **how)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def errors(self) -> list[str]:
        """Return what the console of the page shows as errors, and exceptions."""
        found = []
        for event in self.events:
            name, values = event.get("method"), event.get("params", {})
            if name == "Runtime.exceptionThrown":
                found.append(json.dumps(values["exceptionDetails"]))
            if name == "Runtime.consoleAPICalled" and values["type"] == "error":
                found.append(json.dumps(values["args"]))
            if name == "Log.entryAdded" and values["entry"]["level"] == "error":
                found.append(json.dumps(values["entry"]))
        return found

    def requests(self) -> list[str]:
        """Return every address that the page has asked for."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def picture(self, path: Path) -> None:
        """Write what is on the screen as PNG."""
        path.parent.mkdir(parents=True, exist_ok=True)
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))


LOADED = "Page.loadEventFired"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files and writes no log."""

    def log_message(self, *_) -> None:
        """Write nothing."""


@contextmanager
def served(folder: Path):
    """Yield the address at which a folder is served on this machine."""
    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()

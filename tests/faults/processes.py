"""What the tests of endings need to know about processes."""

import time

from tests.helpers import launcher
from tests.helpers.limits import HANG


def is_alive(pid):
    fields = launcher.stat_fields(pid)
    return bool(fields) and fields[0] not in "ZX"


def wait_until(condition, limit):
    """True as soon as it holds; False where it did not within `limit` seconds."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.05)
    return bool(condition())


def all_gone(pids, limit=HANG):
    return wait_until(lambda: not any(map(is_alive, pids)), limit)


def written_pids(folder, ranks):
    """The numbers that `ranks` ranks wrote into pid0, pid1, ..."""
    paths = [folder / f"pid{rank}" for rank in range(ranks)]
    assert wait_until(lambda: all(p.exists() and p.read_text() for p in paths), HANG)
    return [int(path.read_text()) for path in paths]

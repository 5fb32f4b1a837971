"""Memory that is freed stays with the process, where it was asked to."""

import subprocess
import sys

import pytest

from tests.helpers.limits import HANG

CODE = """
import sys
import numpy as np
from hpcsgd.data.convert.transform import retain_freed_memory
kept = retain_freed_memory(64 * 2**20) if sys.argv[1] == "keep" else None
def faults():
    import resource
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def work():
    for _ in range(50):
        blocks = [np.ones(2**20, np.uint8) for _ in range(8)]
work()
before = faults()
work()
print(kept, faults() - before)
"""


def counted(how):
    done = subprocess.run(
        [sys.executable, "-c", CODE, how], capture_output=True, text=True, timeout=HANG
    )
    kept, faults = done.stdout.split()
    return kept, int(faults)


def test_blocks_that_come_and_go_cost_no_page_faults():
    kept, faults = counted("keep")
    if kept != "True":
        pytest.skip("this C library has no mallopt")
    assert faults < 2000, "50 times 8 MiB are 100000 pages"

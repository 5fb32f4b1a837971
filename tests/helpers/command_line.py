"""How tests run the command, and what they read of its output."""

import json
import os
import resource
import signal
import subprocess
import sys

from hpcsgd.data.hdf5 import Hdf5Reader

LAUNCH_VARIABLES = ("PMI_", "PMIX_", "OMPI_", "MPI_", "HPCSGD_", "HYDI_")


def environment():
    """That of a command which no launcher has started."""
    return {k: v for k, v in os.environ.items() if not k.startswith(LAUNCH_VARIABLES)}


def only_json(process):
    """The one document on standard output."""
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout)


def refuse(process, code, *words):
    """Exactly one line, the right code, every word in it."""
    lines = process.stderr.strip().splitlines()
    assert process.returncode == code, process.stderr
    assert len(lines) == 1, process.stderr
    assert process.stdout == ""
    for word in words:
        assert word in lines[0], lines[0]


def values(path):
    reader = Hdf5Reader(path)
    rows = slice(0, reader.rows)
    read = reader.read(rows, slice(0, reader.cols)), reader.targets(rows)
    reader.close()
    return read


def start(arguments, folder, limit=None):
    """The command, on its way; `limit` bytes are the most a file of it may have."""

    def confine():
        # Whatever runs the tests in the background has Ctrl-C ignored, and so have we.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return subprocess.Popen(
        [sys.executable, "-m", "hpcsgd", "data", *map(str, arguments)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=confine,
    )

"""Processes of the command in a few milliseconds: forks of one that has its imports.

Each is a process as `python -m hpcsgd` would be: its own folder, arguments, output,
exit code. What a fork does not show is that the command starts at all, and what its
environment does before the first line; whoever changes the environment gets an
interpreter of its own.

    python -m tests.cli.forge QUESTIONS ANSWERS   (two file descriptors)
"""

import atexit
import gc
import json
import os
import select
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

from tests.helpers.limits import HANG

# Nothing that a command reads: scikit-learn sets KMP_ where a test imports it first.
OUTSIDE = ("PYTEST_CURRENT_TEST", "COLUMNS", "LINES", "KMP_")


class Forge:
    """One parent of many processes."""

    def __init__(self, environment):
        self.environment = dict(environment)
        (theirs, self.ask), (self.hear, own) = os.pipe(), os.pipe()
        command = [sys.executable, "-m", __name__, str(theirs), str(own)]
        self.parent = subprocess.Popen(
            command,
            cwd=Path(__file__).parents[2],
            env=environment,
            pass_fds=(theirs, own),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        os.close(theirs)
        os.close(own)

    def makes(self, environment):
        """Whether a process of this environment may be a fork."""
        return _read(environment) == _read(self.environment)

    def run(self, arguments, folder, out, errors, timeout):
        """The exit code of `hpcsgd ARGUMENTS` in a folder, with two files to write."""
        asked = {"arguments": arguments, "folder": str(folder)}
        asked |= {"out": str(out), "errors": str(errors)}
        os.write(self.ask, (json.dumps(asked) + "\n").encode())
        process = self._answer(60)
        try:
            return self._answer(timeout)
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            self._answer(60)
            command = ["hpcsgd", *arguments]
            raise subprocess.TimeoutExpired(command, timeout) from None

    def _answer(self, seconds):
        if not select.select([self.hear], [], [], seconds)[0]:
            raise TimeoutError
        line = b""
        while not line.endswith(b"\n"):
            part = os.read(self.hear, 1)
            assert part, "the parent of the commands has ended"
            line += part
        return int(line)

    def close(self):
        """The parent ends with its questions."""
        os.close(self.ask)
        os.close(self.hear)
        self.parent.wait(HANG)


def _read(environment):
    return {k: v for k, v in environment.items() if not k.startswith(OUTSIDE)}


def serve(questions, answers):
    """Fork for every line; the number of the process, and then its exit code."""
    with os.fdopen(questions) as lines:
        for line in lines:
            process = os.fork()
            if not process:
                os.close(answers)
                return json.loads(line)
            os.write(answers, f"{process}\n".encode())
            code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
            os.write(answers, f"{code}\n".encode())
    return None


def become(asked):
    """What the interpreter would be for `python -m hpcsgd` there."""
    import hpcsgd.__main__ as command

    os.chdir(asked["folder"])
    for number, name in ((1, "out"), (2, "errors")):
        file = os.open(asked[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(file, number)
        os.close(file)
    sys.path[0] = asked["folder"]
    sys.argv = [command.__file__, *asked["arguments"]]


def prepare():
    """What nearly every command imports; not an MPI, which must start after a fork."""
    import h5py
    import numpy
    import rich
    import scipy.special

    import hpcsgd.api
    import hpcsgd.cli.parser
    import hpcsgd.cli.train

    used = (h5py, numpy, rich, scipy.special, hpcsgd.cli.train, hpcsgd.api)
    assert all(used) and "mpi4py.MPI" not in sys.modules
    gc.freeze()  # forks share these pages as long as nobody counts there


def main(questions, answers):
    """Asked until the questions end; a fork ends as its command does."""
    prepare()
    with suppress(KeyboardInterrupt):
        asked = serve(questions, answers)
    if asked is None:
        return 0
    become(asked)
    from hpcsgd.cli import main as command

    code = command()
    leave(code)
    return code


def leave(code):
    """As an interpreter ends, without taking down what the parent has imported."""
    threading._shutdown()  # waits for threads
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))

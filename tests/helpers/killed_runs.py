"""Runs in processes of their own, which tests kill."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.faults.processes import all_gone, is_alive, written_pids
from tests.helpers import launcher

ROOT = Path(__file__).parents[2]
LIMIT = 600.0  # seconds in which every fault has to have ended
CONFIG = """
[problem]
family = "logistic"
intercept = true
l2 = 1e-4
[data]
path = "{data}"
[schedule]
batch = 8
steps = {steps}
epochs = {epochs}
[products]
kind = "{product}"
[update]
kind = "momentum"
[rate]
value = 0.05
[checkpoint]
every = {every}
[run]
out = "{out}"
resume = "{resume}"
evaluate_every = {evaluate_every}
timeout = {timeout}
{more}
"""


@dataclass
class Ended:
    """How a launch ended."""

    code: int | None
    output: str

    @property
    def result(self):
        """The JSON document that rank 0 printed, and nothing else may follow."""
        assert self.code in (0, 75, 130), self.output
        begin = re.search(r"^\{$", self.output, re.MULTILINE).start()
        return json.JSONDecoder().raw_decode(self.output[begin:])[0]


class Case:
    """One run folder and what happens to it."""

    def __init__(self, folder, data, ranks=2):
        self.folder, self.data, self.ranks = folder, data, ranks
        self.out = folder / "run"
        self.epochs, self.evaluate_every = 3, 1
        self.every, self.timeout, self.product = 5, 20.0, "gram"
        self.steps, self.more = 4, ""

    def config(self, resume="auto"):
        path = self.folder / "run.toml"
        text = CONFIG.format(
            data=self.data,
            out=self.out,
            resume=resume,
            epochs=self.epochs,
            evaluate_every=self.evaluate_every,
            every=self.every,
            timeout=self.timeout,
            product=self.product,
            steps=self.steps,
            more=self.more,
        )
        path.write_text(text)
        return path

    def command(self, *flags, ranks=None):
        program = [sys.executable, "-m", "tests.faults.training", *map(str, flags)]
        ranks = str(ranks or self.ranks)
        return [*launcher.mpiexec(), "-n", ranks, *program, str(self.config())]

    def run(self, *flags, ranks=None, limit=LIMIT):
        """The program to its end, in time, and nobody of it is left."""
        command = self.command(*flags, ranks=ranks)
        code, output = launcher.run(command, limit, ROOT, environment())
        assert code is not None, f"still there after {limit} s:\n{output}"
        pids = self.folder / "pids"
        if pids.exists():
            found = [int(path.read_text()) for path in pids.iterdir()]
            assert all_gone(found), [pid for pid in found if is_alive(pid)]
        return Ended(code, output)

    def start(self, *flags):
        """The program, begun; the test is to end it."""
        for path in (self.folder / "pids").glob("*"):
            path.unlink()
        self.log = open(self.folder / "output", "w+")  # noqa: SIM115
        return subprocess.Popen(
            self.command(*flags),
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def pids(self):
        return written_pids(self.folder / "pids", self.ranks)

    def said(self):
        return (self.folder / "output").read_text()


def environment():
    return {
        **launcher.launch_environment(),
        "PYTHONPATH": str(ROOT),
        "OPENBLAS_NUM_THREADS": "1",
    }

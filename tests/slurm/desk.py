"""Where jobs are sent from: data, a configuration, and `hpcsgd` as a user types it."""

import json
import re
import sys
import time

from hpcsgd.data.synthetic import write_synthetic

LONGEST = 600.0  # seconds that a job may take: its wait for nodes and all its starts
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "DEADLINE"}
SITE = "generic-cpu"
RUN = """
[problem]
family = "logistic"
[data]
path = "{data}"
[schedule]
batch = 32
steps = 1
epochs = 5
[products]
kind = "direct"
[rate]
value = 0.05
[checkpoint]
every = 10
"""
EXCHANGES = 190


class Desk:
    """Sends jobs to a cluster."""

    def __init__(self, cluster, folder):
        self.cluster, self.folder = cluster, folder
        self.closed = False
        self.data = folder / "susy.h5"
        write_synthetic(self.data, "susy", 1200, 18, 3)
        self.run = folder / "run.toml"
        self.run.write_text(RUN.format(data=self.data))
        self.text = folder / "text.csv"
        rows = [f"{int(i % 7 > 3)},{i % 7 - 3},{i % 5 - 2}\n" for i in range(400)]
        self.text.write_text("".join(rows))

    def hpcsgd(self, *words, code=0, **variables):
        """What a command of ours prints, here and not in a job."""
        command = [sys.executable, "-m", "hpcsgd", *words]
        return self.cluster.call(*command, code=code, cwd=self.folder, **variables)

    def submit(self, template, name, *words, flags=(), site=SITE, **variables):
        """`hpcsgd jobs submit`, and the job that it made."""
        out = self.folder / name
        place = ["--site", site, "--out", out, *flags]
        submit = ("jobs", "submit", template, *place, "--", *words)
        said = self.hpcsgd(*submit, **variables)
        assert re.fullmatch(r"\d+\n", said), said
        return Sent(self, said.strip(), out)


class Sent:
    """A job that was submitted, or the array of them."""

    def __init__(self, desk, job, out):
        self.desk, self.job, self.out = desk, job, out
        self.late = time.monotonic() + LONGEST
        self.lost = ""  # a node, where a test lets one go off

    def show(self):
        """What Slurm knows of it; of an array, one record an element."""
        said = self.desk.cluster.call("scontrol", "show", "job", "-o", self.job)
        records = [dict(FIELD.findall(line)) for line in said.splitlines()]
        return sorted(records, key=lambda record: record.get("ArrayTaskId", ""))

    def wait(self, *states):
        """Until it is over (or in one of `states`); the record of each element."""
        wanted = set(states) or OVER
        while True:
            records = self.show()
            if all(record["JobState"] in wanted for record in records):
                return records
            assert time.monotonic() < self.late, f"too late:\n{records}\n{self.log()}"
            time.sleep(0.3)

    def ends(self, state):
        """Wait for the end, which has to be `state`; the first element's record."""
        records = self.wait()
        assert {r["JobState"] for r in records} == {state}, f"{records}\n{self.log()}"
        return records[0]

    def until(self, condition, what):
        """Wait until `condition()` holds of a job that runs."""
        while not condition():
            soon = time.monotonic() < self.late and not self.desk.closed
            assert soon, f"never {what}:\n{self.log()}"
            time.sleep(0.1)

    def log(self):
        """All that its script and its ranks said."""
        texts = [p.read_text() for p in sorted((self.out / "log").glob("*"))]
        return "\n".join(texts)

    def script(self):
        """The script that was sent."""
        return (self.out / "job.sbatch").read_text()

    def status(self, code=0):
        """`hpcsgd jobs status`, as a document."""
        said = self.desk.hpcsgd("jobs", "status", self.out, "--json", code=code)
        return json.loads(said)

    def notes(self):
        """What the script wrote down of itself."""
        path = self.out / "state" / f"{self.job}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()]

    def checkpoints(self):
        """Names of the checkpoints of its run."""
        return sorted(p.name for p in (self.out / "run/checkpoints").glob("*.h5"))

    def result(self, run="run"):
        """What its run says of itself at the end."""
        return json.loads((self.out / run / "result.json").read_text())


FIELD = re.compile(r"(\w+)=(\S*)")

"""Starts that a signal meets within two seconds: python -m tests.faults.starts.

One rank, all ranks or the launcher get it, under `--ranks` and under plain mpiexec. A
start has to end in time, in one report, with nobody left; what killed ranks leave in
shared memory has to be gone after the next start. One line is printed for each.
"""

import argparse
import itertools
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.run import machine
from hpcsgd.cli.models import describe
from hpcsgd.data.synthetic import write_synthetic
from hpcsgd.errors import DataError
from tests.faults.processes import is_alive, wait_until
from tests.helpers import launcher

ROOT = Path(__file__).parents[2]
SIGNALS = ("INT", "TERM", "USR1", "USR2", "HUP", "STOP", "KILL")
TARGETS = ("one rank", "all ranks", "launcher")
LAUNCHERS = ("--ranks", "mpiexec")
WITHIN = 2.0  # seconds from the start in which the signal comes
TIMEOUT = 5.0  # --timeout of the runs
MARGIN = 10.0  # seconds after it in which a start has to have ended
RANKS = 3
# About two seconds of exchanges, so that a signal meets a run that goes on.
FLAGS = [
    "--batch",
    "8",
    "--steps",
    "4",
    "--epochs",
    "3",
    "--checkpoint-every",
    "5",
    "--network",
    "alpha=0.01,bandwidth=1e9",
]
OURS = "hpcsgd: "
THEIRS = (
    "YOUR APPLICATION TERMINATED"  # what mpiexec says of a rank that a signal killed
)
FRAME_OF_OURS = re.compile(r'File "[^"]*/hpcsgd/[^"]*\.py"')
SAYING = (75, 130)  # exit codes that are a report: start it again, interrupted


@dataclass
class Start:
    """One start and what came of it."""

    number: int
    launched: str
    blow: str
    target: str
    moment: float
    met: str = "-"  # what the signal met: imports, MPI or training
    segments: int = 0  # of shared memory that its ranks were seen to map
    code: int | None = None
    seconds: float = 0.0  # from the signal to the end of the last process
    reports: list[str] = field(default_factory=list)
    folder: str = "-"
    faults: list[str] = field(default_factory=list)

    def line(self):
        good = "good" if not self.faults else "BAD: " + "; ".join(self.faults)
        return (
            f"start {self.number}: {self.blow} to {self.target} of {self.launched}"
            f" at {self.moment:.2f} s amid {self.met}: code {self.code},"
            f" {self.seconds:.1f} s, folder {self.folder}, {good}"
        )


def plan(count, draw):
    """All pairs of signal, target and launcher in a random order, again and again."""
    rows = []
    while len(rows) < count:
        every = list(itertools.product(LAUNCHERS, SIGNALS, TARGETS))
        draw.shuffle(every)
        rows += every
    return [
        Start(number, *row, draw.uniform(0.0, WITHIN))
        for number, row in enumerate(rows[:count])
    ]


def kills(count, draw):
    """Starts in which ranks or their launcher are killed and cannot clean up.

    Their moments reach into the training, where shared memory is mapped.
    """
    rows = [
        (draw.choice(LAUNCHERS), "KILL", draw.choice(TARGETS)) for _ in range(count)
    ]
    return [
        Start(number, *row, draw.uniform(0.0, 2.0 * WITHIN))
        for number, row in enumerate(rows)
    ]


def campaign(starts, folder, draw, say=print):
    """Run every start; returns them, and segments left after the start that follows."""
    data = folder / "d.h5"
    write_synthetic(data, "susy", 600, 18, 3)
    used = {start.launched for start in starts}
    usual = max(undisturbed(data, folder, how) for how in used)
    made = set()
    for start in starts:
        made |= one(start, data, folder, draw, usual)
        say(start.line())
    undisturbed(data, folder, starts[-1].launched)
    return sorted(path for path in made if Path(path).exists())


def command(how, data, out):
    program = [sys.executable, "-m", "hpcsgd", "train", "--data", str(data), *FLAGS]
    program += ["--timeout", str(TIMEOUT), "--out", str(out), "--progress", "0"]
    if how == "--ranks":
        return [*program, "--ranks", str(RANKS)]
    return [*launcher.mpiexec(), "-n", str(RANKS), *program]


def undisturbed(data, folder, how):
    """How long a run takes that no signal meets, in seconds."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=folder) as out:
        words = command(how, data, Path(out) / "run")
        code, output = launcher.run(words, 120, ROOT, launcher.launch_environment())
    assert code == 0, output
    return time.monotonic() - began


def one(start, data, folder, draw, usual):
    """Begin it, hit it, wait for its end and judge that; the segments that it made."""
    out = folder / f"run-{start.number}"
    with open(folder / f"output-{start.number}", "w+", errors="replace") as output:
        process = subprocess.Popen(
            command(start.launched, data, out),
            cwd=ROOT,
            env=launcher.launch_environment(),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=heed_signals,
        )
        family = Watched(process)
        try:
            hit(start, process, family, draw, out)
            finish(start, process, family, usual)
        finally:
            family.look()
            for pid in family.alive():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        judge(start, output.read(), out)
    start.segments = len(family.segments)
    if is_mute(start):
        go_on(start, data, out)
    return family.segments


def heed_signals():
    """In the child: what nohup, or a shell's `&`, ignores would not be a blow."""
    for name in set(SIGNALS) - {"STOP", "KILL"}:
        signal.signal(signal.Signals[f"SIG{name}"], signal.SIG_DFL)


class Watched:
    """All processes that a start has had, and the segments that they have mapped."""

    def __init__(self, process):
        self.root = process.pid
        self.seen = {process.pid: launcher.start_time(process.pid)}
        self.segments = set()

    def look(self):
        """Find those that are new: what is begun later may lose its parent."""
        for pid in list(self.seen):
            self.seen = launcher.descendants(pid) | self.seen
        for pid in self.alive():
            with suppress(OSError):
                maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
                self.segments |= {s.split()[-1] for s in maps if "/mpich_" in s}

    def alive(self):
        return [
            pid
            for pid, began in self.seen.items()
            if is_alive(pid) and launcher.start_time(pid) == began
        ]

    def ranks(self):
        """Those that run the command under an MPI launcher, without their helpers."""
        return [pid for pid in self.alive() if pid != self.root and is_rank(pid)]


def is_rank(pid):
    with suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        return words[1:3] == [b"-m", b"hpcsgd"] and b"\0PMI_RANK=" in environment
    return False


def hit(start, process, family, draw, out):
    """Send the signal at its moment, or as soon as its target is there."""
    until, needed = time.monotonic() + start.moment, 0
    if start.target != "launcher":
        needed = RANKS if start.target == "all ranks" else 1

    def is_time():
        family.look()
        is_there = len(family.ranks()) >= needed
        ended = process.poll() is not None
        return ended or (time.monotonic() >= until and is_there)

    assert wait_until(is_time, 60)
    targets = family.ranks() if needed else [process.pid]
    if start.target == "one rank":
        targets = [draw.choice(targets)] if targets else []
    start.met = phase(process, family, out)
    for pid in targets:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.Signals[f"SIG{start.blow}"])


def phase(process, family, out):
    """How far a start has come."""
    if process.poll() is not None:
        return "its end"
    if list(out.glob("checkpoints/*.h5")):
        return "training, saved"
    if out.exists():
        return "training"
    return "MPI" if family.segments else "imports"


def finish(start, process, family, usual):
    """Wait for the end; a suspended job is continued, a stopped launcher ended."""
    began, limit = time.monotonic(), usual + TIMEOUT + MARGIN
    if start.blow == "STOP" and start.target == "all ranks":
        # Nothing of it runs that could end it: this is how jobs are suspended.
        waited_for(process, family, TIMEOUT + 3.0)
        for pid in family.ranks():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        began = time.monotonic()
    if start.blow == "STOP" and start.target == "launcher":
        wait_until(lambda: looked(family) and not others(process, family), limit)
        if left := others(process, family):
            start.faults.append(f"{len(left)} processes outlive the stopped launcher")
        process.kill()
    elif not waited_for(process, family, limit):
        start.faults.append(f"still there after {limit:.0f} s")
    start.seconds = time.monotonic() - began
    start.code = process.poll()


def waited_for(process, family, limit):
    def is_over():
        family.look()
        return process.poll() is not None and not family.alive()

    return wait_until(is_over, limit)


def looked(family):
    family.look()
    return True


def others(process, family):
    """Those that compute: what is left below a stopped launcher may wait for it."""
    return [pid for pid in family.ranks() if pid != process.pid]


def judge(start, output, out):
    """One report of ours, of mpiexec or by the exit code; no traceback."""
    lines = output.splitlines()
    start.reports = [s for s in lines if s.startswith(OURS) and is_report(s)]
    start.folder = state_of(out)
    # Until the first line of the package an interrupt is that of the interpreter.
    in_boot = "KeyboardInterrupt" in output and not FRAME_OF_OURS.search(output)
    if "Traceback" in output and not in_boot:
        start.faults.append("a traceback")
    if len(start.reports) > 1:
        start.faults.append(f"{len(start.reports)} reports")
    by_blow = is_mute(start)
    ended = start.code == 0 or start.code in SAYING or THEIRS in output or in_boot
    died = start.code is not None and start.code < 0
    if start.target == "launcher" and (start.launched == "mpiexec" or died):
        ended = True  # whoever started it sees how it ended
    if not start.reports and not ended and not by_blow:
        start.faults.append("no report")
    if by_blow and "under way" in start.folder:
        start.faults.append("the folder says that the run goes on")
    if start.faults:
        start.faults.append("output: " + " | ".join(lines))


def is_report(line):
    """A sentence on an ending, no notice of what a run does."""
    return any(
        word in line for word in ("error:", "job ends", "interrupted", "preempted")
    )


def is_mute(start):
    """Whether nobody is left who could report: the folder has to say what became."""
    return start.target == "launcher" and start.blow in ("KILL", "STOP")


def go_on(start, data, out):
    """Start the same command again; it goes on, or begins where nothing was saved."""
    words = [*command(start.launched, data, out), "--resume", "auto"]
    code, output = launcher.run(words, 120, ROOT, launcher.launch_environment())
    if code != 0 or state_of(out) != "result: completed":
        start.faults.append(f"the next start ended with {code}: {output}")


def state_of(out):
    """What `hpcsgd inspect` says of the folder: a result, or how far the run came."""
    try:
        facts = describe(out)
    except DataError:
        return "none"
    return str(facts.get("run") or f"result: {facts['status']}")


def summary(starts, left):
    """What a campaign comes to, for a document."""
    return {
        "starts": len(starts),
        "signals": dict(Counter(start.blow for start in starts)),
        "targets": dict(Counter(start.target for start in starts)),
        "launchers": dict(Counter(start.launched for start in starts)),
        "met": dict(Counter(start.met for start in starts)),
        "codes": dict(Counter(str(start.code) for start in starts)),
        "folders": dict(
            Counter(re.sub(" on .*| from .*", "", s.folder) for s in starts)
        ),
        "bad": [asdict(start) for start in starts if start.faults],
        "longest_seconds": max(start.seconds for start in starts),
        "starts_that_mapped_segments": sum(start.segments > 0 for start in starts),
        "segments_made": sum(start.segments for start in starts),
        "segments_left": left,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--starts", type=int, default=60)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write the counts to this file, too")
    options = parser.parse_args()
    figures = both(options.starts, options.kills, options.seed)
    print(json.dumps(figures, indent=2))
    if options.json:
        document = {"machine": machine(), "figures": figures}
        options.json.write_text(json.dumps(document, indent=2) + "\n")
    return 0 if is_good(figures) else 1


def both(count, killed, seed):
    """The figures of `count` starts, and of `killed` that are killed."""
    figures, draw = {}, random.Random(seed)
    for name, starts in (("starts", plan(count, draw)), ("kills", kills(killed, draw))):
        with tempfile.TemporaryDirectory(prefix="starts-") as folder:
            left = campaign(starts, Path(folder), draw, lambda s: print(s, flush=True))
        figures[name] = summary(starts, left)
    return figures


def is_good(figures):
    return not any(part["bad"] or part["segments_left"] for part in figures.values())


if __name__ == "__main__":
    sys.exit(main())

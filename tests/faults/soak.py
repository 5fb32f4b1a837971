"""Training that is killed and resumed again and again: python -m tests.faults.soak.

For two thirds of the time runs on 2, 3 and 4 ranks are hit by random kills and signals
and started again until they are done; each has to end with the very weights of an
undisturbed run. For the last third one run goes on undisturbed, saved all the time,
and the memory of its ranks has to stay what it was. Then 60 starts are met by a signal
and 20 are killed (`tests.faults.starts`). All goes to benchmarks/results/soak.json.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.run import machine
from hpcsgd.data.synthetic import write_synthetic
from hpcsgd.runs.checkpoint import CheckpointStore, read_checkpoint
from tests.faults import starts
from tests.faults.processes import all_gone, is_alive, wait_until
from tests.helpers import launcher
from tests.helpers.killed_runs import Case

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "soak.json"
BLOWS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)
SLOW = 0.03  # seconds an exchange: 114 of them take some seconds
MOST_GROWTH = 0.01  # of the memory of any rank


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    draw, until = random.Random(options.seed), 40.0 * options.minutes
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        folder = Path(folder)
        data = folder / "susy.h5"
        write_synthetic(data, "susy", 1200, 18, 3)
        known = launcher.segments()
        kills = storm(folder, data, draw, until)
        launcher.sweep(known)
        memory = calm(folder, data, 20.0 * options.minutes)
    begun = starts.both(60, 20, options.seed)
    document = {
        "machine": machine(),
        "figures": {
            "minutes": options.minutes,
            "storm": kills,
            "calm": memory,
            "starts": begun,
        },
    }
    RESULTS.write_text(json.dumps(document, indent=2) + "\n")
    good = not kills["wrong"] and memory["growth"] < MOST_GROWTH
    good = good and starts.is_good(begun)
    print(json.dumps(document["figures"], indent=2), "good" if good else "NOT GOOD")
    return 0 if good else 1


def storm(folder, data, draw, seconds):
    """Runs under blows until the time is up; what they suffered and how they ended."""
    wanted = {ranks: undisturbed(folder, data, ranks) for ranks in (2, 3, 4)}
    counts = {"runs": 0, "blows": {}, "resumes": 0, "wrong": 0}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        ranks = draw.choice(list(wanted))
        case = Case(folder / f"run-{counts['runs']}", data, ranks)
        case.folder.mkdir()
        result = until_done(case, draw, counts)
        counts["runs"] += 1
        counts["resumes"] += result["resumes"]
        counts["wrong"] += result["weights_sha256"] != wanted[ranks]
        say = f"{counts['runs']} runs, {sum(counts['blows'].values())} blows"
        print(f"soak: {say}, {counts['wrong']} wrong", file=sys.stderr, flush=True)
    return counts


def undisturbed(folder, data, ranks):
    case = Case(folder / f"undisturbed-{ranks}", data, ranks)
    case.folder.mkdir()
    return case.run(limit=120).result["weights_sha256"]


def until_done(case, draw, counts):
    """Start it, hit it, start it again: after some blows it is left in peace."""
    for _ in range(draw.randrange(1, 5)):
        process = case.start("--slow", SLOW)
        hit(case, process, draw, counts)
        for path in CheckpointStore(case.out, 2).paths():
            read_checkpoint(path)
    ended = case.run(limit=120)
    assert ended.code == 0, ended.output
    return ended.result


def hit(case, process, draw, counts):
    """One blow at a random moment, to one rank or (signals) to all."""
    blow, victim = draw.choice(BLOWS), draw.randrange(case.ranks)
    moment = time.monotonic() + draw.uniform(0.0, 8.0)
    pids = case.pids()
    wait_until(lambda: process.poll() is not None or time.monotonic() > moment, 10)
    if process.poll() is None:
        everybody = blow != signal.SIGKILL and draw.random() < 0.5
        for pid in pids if everybody else [pids[victim]]:
            try:
                os.kill(pid, blow)
            except ProcessLookupError:
                continue  # it was quicker
        counts["blows"][blow.name] = counts["blows"].get(blow.name, 0) + 1
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        autopsy(case, process, pids, blow)
        os.killpg(process.pid, signal.SIGKILL)
        raise
    assert all_gone(pids), case.said()


def autopsy(case, process, pids, blow):
    """Where everybody is who should have ended: stacks go to the run's own output."""
    alive = [pid for pid in pids if is_alive(pid)]
    for pid in alive:
        os.kill(pid, signal.SIGUSR1)
    time.sleep(2.0)
    below = launcher.descendants(process.pid)
    states = {pid: (launcher.stat_fields(pid) or "-")[0] for pid in [*below, *pids]}
    print(f"soak: {blow.name} to {pids}: {states}\n{case.said()}", file=sys.stderr)


def calm(folder, data, seconds):
    """One long run on 2 ranks with a checkpoint every 5 exchanges; its memory."""
    case = Case(folder / "calm", data, 2)
    case.folder.mkdir()
    # Few looks at the loss: its history is meant to grow.
    case.epochs, case.evaluate_every = 10**6, 10**5
    process = case.start("--slow", 0.002)
    pids, end = case.pids(), time.monotonic() + seconds
    # The first sixth is warm-up: libraries, allocators, the first epochs.
    time.sleep(seconds / 6)
    first, last = resident(pids), []
    while time.monotonic() < end:
        time.sleep(min(5.0, seconds / 6))
        last.append(resident(pids))
    exchanges = CheckpointStore(case.out, 2).newest()[1].exchanges
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
    assert process.wait(60) == 75, case.said()
    growth = max(
        final / begin - 1 for begin, final in zip(first, last[-1], strict=True)
    )
    return {
        "exchanges": exchanges,
        "checkpoints": exchanges // 5,
        "resident_bytes_first": first,
        "resident_bytes_last": last[-1],
        "resident_bytes_between": last[:: max(len(last) // 20, 1)],
        "growth": growth,
    }


def resident(pids):
    """Bytes in memory of each process."""
    sizes = []
    for pid in pids:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        size = next(line for line in lines if line.startswith("VmRSS:"))
        sizes.append(int(size.split()[1]) * 1024)
    return sizes


if __name__ == "__main__":
    sys.exit(main())

"""One mpiexec of the test suite: launched, watched, read, and ended if need be."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from hpcsgd.comm import launchers

SIZE = "HPCSGD_TEST_RANKS"  # how many ranks a launched process must find
REPORTS = "HPCSGD_TEST_REPORTS"  # the folder where each rank writes its account
START = 600.0  # seconds until the first test begins: n interpreters on few cores
GRACE = 5.0  # seconds between asking a launch to end and making it
TAIL = 4000  # characters of output shown for a launch that broke
NOISE = ("/_pytest/", "/pluggy/", "/pytest/__main__.py", "<frozen runpy>")
LAUNCH_VARIABLES = ("PMI_", "PMIX_", "OMPI_COMM_WORLD_", "MPI_LOCAL", "HPCSGD_EXPECT")


@dataclass(frozen=True)
class Verdict:
    """What all ranks together say of one test."""

    outcome: str  # passed, skipped or failed
    text: str = ""


class Launch:
    """One mpiexec over some tests, run to its end or to its time limit."""

    def __init__(self, items):
        self.items, self.size = items, items[0].size
        self.limit = max(item.timeout for item in items)
        with tempfile.TemporaryDirectory(prefix="ranks-") as folder:
            self.folder = Path(folder)
            self.code, self.silence = self._run()
            self.said = [self._read(rank) for rank in range(self.size)]
            self.output = (self.folder / "output").read_text(errors="replace")
        self.started = any(self.said)

    def verdict(self, node):
        """What all ranks say of a test, or None where one did not finish it."""
        said = [rank.get(node, ("", "")) for rank in self.said]
        outcomes = [outcome for outcome, _ in said]
        if "failed" in outcomes:
            texts = [text for outcome, text in said if outcome == "failed"]
            return Verdict("failed", "\n".join(texts))
        if not set(outcomes) <= {"passed", "skipped"}:
            return None
        if len(set(outcomes)) > 1:
            return Verdict("failed", f"np={self.size}: ranks disagree: {outcomes}")
        return Verdict(outcomes[0], said[0][1])

    def story(self, node):
        """How a launch ended in which `node` has no better account of itself."""
        how = f"mpiexec ended with code {self.code}"
        if self.silence:
            how = f"no news within {self.silence:.0f} s (a deadlock?), killed"
        done = ("passed", "skipped")
        late = [r for r, s in enumerate(self.said) if s.get(node, ("",))[0] not in done]
        lines = self.output.splitlines(True)
        shown = "".join(s for s in lines if not any(name in s for name in NOISE))
        return f"np={self.size}: {how}; unfinished on ranks {late}\n{shown[-TAIL:]}"

    def _run(self):
        """(exit code, seconds of silence after which it was killed or 0)."""
        # A file, not a pipe: whoever survives could hold a pipe open for ever.
        with open(self.folder / "output", "wb") as output:
            process = subprocess.Popen(
                self._command(),
                cwd=self.items[0].config.rootpath,
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                silence = self._watch(process)
            finally:
                end(process)
        return process.returncode, silence

    def _command(self):
        config = self.items[0].config
        command = [*mpiexec(), "-n", str(self.size), sys.executable, "-m", "pytest"]
        command += ["--with-mpi", "-q", "--tb=short", "-m", ""]
        command += ["-p", "no:cacheprovider", "-p", "no:xdist"]
        # A rank that hangs says where, shortly before its time is up.
        command += ["-o", f"faulthandler_timeout={0.8 * self.limit}"]
        command += [f"--rootdir={config.rootpath}"]
        if config.inipath:
            command += ["-c", str(config.inipath)]
        return command + [item.node for item in self.items]

    def _environment(self):
        own = {SIZE: str(self.size), REPORTS: str(self.folder)}
        return {**launch_environment(), **own, "HPCSGD_QUIET_BUDGET": "1"}

    def _watch(self, process):
        """Wait for the end; every line that a rank writes starts the limit anew."""
        heard, since, limit = 0, time.monotonic(), START
        while process.poll() is None:
            size = sum(f.stat().st_size for f in self.folder.glob("*.jsonl"))
            if size != heard:
                heard, since, limit = size, time.monotonic(), self.limit
            if time.monotonic() - since > limit:
                return limit
            time.sleep(0.02)
        return 0.0

    def _read(self, rank):
        """nodeid -> (outcome, text) as this rank wrote it."""
        path = self.folder / f"{rank}.jsonl"
        if not path.exists():
            return {}
        # A line that a dying rank did not end is no line.
        lines = [s for s in path.read_text().splitlines(True) if s.endswith("\n")]
        return {node: (outcome, text) for node, outcome, text in map(json.loads, lines)}


@cache
def mpiexec():
    """The launcher as a list of words, or None; HPCSGD_TEST_MPIEXEC overrides."""
    words = shlex.split(os.environ.get("HPCSGD_TEST_MPIEXEC", ""))
    if words:
        return words
    # The one beside this Python belongs to the MPI that mpi4py finds here.
    beside = shutil.which("mpiexec", path=str(Path(sys.executable).parent))
    path = beside or shutil.which("mpiexec")
    if path is None:
        return None
    shown = subprocess.run([path, "--version"], capture_output=True, text=True).stdout
    is_open_mpi = any(name in shown for name in ("Open MPI", "OpenRTE", "PRTE", "prte"))
    return [path, "--oversubscribe", "--bind-to", "none"] if is_open_mpi else [path]


def launch_environment():
    """Ours without traces of a launcher around us; Open MPI is told to allow root."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCH_VARIABLES)}
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return {**kept, **root}


def run(command, limit, cwd, environment):
    """(exit code, or None where it was killed; output) of any command of ranks."""
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(limit)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            end(process)
        output.seek(0)
        return code, output.read()


def end(process):
    """End a launch and all it started, and nothing else.

    Launchers put ranks into sessions of their own, so the group alone is not enough.
    """
    if process.poll() is not None:
        return
    family = descendants(process.pid)
    os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(GRACE)
    for pid, began in family.items():
        if start_time(pid) == began:  # still that process, not a later one
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def descendants(pid):
    """pid -> start time of everything below `pid`; empty where there is no /proc."""
    children = defaultdict(list)
    for path in Path("/proc").glob("[0-9]*"):
        fields = stat_fields(path.name)
        if fields:
            children[int(fields[1])].append(int(path.name))
    found, todo = {}, [pid]
    while todo:
        below = children[todo.pop()]
        found |= {child: start_time(child) for child in below}
        todo += below
    return found


def start_time(pid):
    """When a process began, in ticks; None once it is gone."""
    fields = stat_fields(pid)
    return fields[19] if fields else None


def stat_fields(pid):
    """/proc/PID/stat from the state on; the name before it may hold anything."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return []


SEGMENTS = Path("/dev/shm")


def segments():
    """Memory segments that MPICH has made on this machine."""
    return set(SEGMENTS.glob("mpich_shm_*")) if SEGMENTS.is_dir() else set()


def sweep(known):
    """Remove what killed ranks left in memory since `known` was taken.

    A rank that is killed cannot unlink its segment, 3 MB each. Ranks of other tests
    start meanwhile: a segment is listed before processes are asked who uses it, and
    one that is open or mapped by then is left alone.
    """
    candidates = segments() - known
    used = launchers.segments_in_use() if candidates else set()
    for path in candidates:
        if str(path) not in used:
            path.unlink(missing_ok=True)

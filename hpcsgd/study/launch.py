"""One run in a process of its own, so that its end, however bad, is its own."""

import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hpcsgd.comm.launched import THREAD_SETTINGS, end_with_parent
from hpcsgd.errors import DataError
from hpcsgd.files import CREATE, open_entry, read_entry_text
from hpcsgd.json_text import parse_json

GRACE = 10.0  # seconds for a run to end when it is told to
TAIL = 4000  # characters of a log that are searched for its last sentence
SAID = "error: "


@dataclass(frozen=True)
class Ended:
    """How a run ended."""

    code: int
    report: dict[str, Any] | None  # its JSON document
    error: str  # one sentence, or nothing
    seconds: float
    cpu_seconds: float
    timed_out: bool = False


def launch(config: Path, ranks: int, log: Path, limit: float) -> Ended:
    """Train what the file says on so many ranks; `limit` is in seconds, 0 = none."""
    began, used = time.monotonic(), _cpu_seconds()
    with tempfile.TemporaryFile() as said, _emptied(log) as heard:
        process = subprocess.Popen(
            command(config, ranks),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=heard,
            env=environment(),
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        timed_out = _wait(process, limit)
        said.seek(0)
        report = read_report(said.read())
    late = (
        f"it took longer than the {limit:g} s of --point-timeout" if timed_out else ""
    )
    return Ended(
        code=process.returncode,
        report=None if timed_out else report,
        error=late or last_sentence(log, process.returncode),
        seconds=time.monotonic() - began,
        cpu_seconds=_cpu_seconds() - used,
        timed_out=timed_out,
    )


def _emptied(log: Path) -> IO[bytes]:
    """The log of a run, to be written anew."""
    try:
        return open(open_entry(log, CREATE), "wb")
    except OSError as error:
        raise DataError(
            f"{log} cannot be written ({error.strerror}); remove that entry, then go on"
            " with --resume"
        ) from error


def command(config: Path, ranks: int) -> list[str]:
    """What is started; one rank needs no launcher."""
    words = [sys.executable, "-m", "hpcsgd", "train", str(config), "--json", "--quiet"]
    return words if ranks == 1 else [*words, "--ranks", str(ranks)]


def environment() -> dict[str, str]:
    """One BLAS thread a rank, unless the user said otherwise, as on many ranks.

    A rank that is alone would else have those of all cores: no baseline of others, and
    not one of many that are emulated.
    """
    return {**dict.fromkeys(THREAD_SETTINGS, "1"), **os.environ}


def _wait(process: "subprocess.Popen[bytes]", limit: float) -> bool:
    """True where it had to be ended; nobody of it is left in any case."""
    try:
        process.wait(limit or None)
    except subprocess.TimeoutExpired:
        end(process)
        return True
    except BaseException:
        end(process)
        raise
    return False


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ask for an orderly end, then press Ctrl-C twice, then kill its own group.

    The second Ctrl-C is what makes the command kill its ranks, which a launcher put
    into sessions of their own.
    """
    for numbers in ((signal.SIGTERM,), (signal.SIGINT, signal.SIGINT)):
        for number in numbers:
            with suppress(ProcessLookupError):
                os.kill(process.pid, number)
            time.sleep(0.2)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE)
            return
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def read_report(text: bytes) -> dict[str, Any] | None:
    """The document on standard output, if there is a whole one."""
    try:
        report = parse_json(text)
    except ValueError:
        return None
    return report if isinstance(report, dict) else None


def last_sentence(log: Path, code: int) -> str:
    """What it said about its end; nothing after a good one."""
    if code == 0:
        return ""
    text = read_entry_text(log, "replace")[-TAIL:]
    said = [line.partition(SAID)[2] for line in text.splitlines() if SAID in line]
    return said[-1] if said else f"it ended with exit code {code}; see {log.name}"


def _cpu_seconds() -> float:
    """Of all children that have ended, and of theirs."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime

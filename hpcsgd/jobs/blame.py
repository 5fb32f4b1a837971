"""Which rank made a job fail, from what its log says."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from hpcsgd.files import open_entry, own_folder

MOST = 4 * 2**20  # bytes of a log that are read, from its end
BEGINS = re.compile(r"(?m)^hpcsgd: job \S+: begins .*$")


@dataclass(frozen=True)
class Blame:
    """A rank, where one is named, and the sentence that names it."""

    rank: int | None
    text: str


# A rank that dies comes first: others then fail, of a broken connection, and say more.
# Once Slurm ends the step everybody is killed, which says nothing.
DEATH = re.compile(
    r"^(?P<text>srun: error: \S+: task (?P<rank>\d+): (?!Exited with|Terminated).*)$",
    re.MULTILINE,
)
ENDING = re.compile(r"(?m)^(srun: Job step aborted|slurmstepd\S*: error: \*\*\* STEP)")
# What says it best comes first; `rank` and `text` are groups.
SIGNS = tuple(
    re.compile(pattern, re.MULTILINE)
    for pattern in (
        r"^hpcsgd: rank (?P<rank>\d+): error: (?P<text>.*)$",
        r"^hpcsgd: rank (?P<rank>\d+) of \d+ failed:\n(?P<text>(?:.*\n)*?\S*(?:Error|"
        r"Exception|Interrupt|Lost|Exit)\b.*)$",
        r"^hpcsgd: (?P<text>rank \d+ of \d+ has waited .*?\brank (?P<rank>\d+)"
        r" (?:is not there|does not answer).*)$",
        r"^hpcsgd: (?P<text>.*the memory of rank (?P<rank>\d+) holds a value.*)$",
        r"^(?P<text>.*application called MPI_Abort\(.*\) - process (?P<rank>\d+).*)$",
        r"^(?P<text>Abort\(\d+\) on node (?P<rank>\d+) .*)$",
        r"^hpcsgd: error: (?P<text>.*)$",
        r"^(?P<text>srun: error: \S+: task (?P<rank>\d+): .*)$",
        r"^hpcsgd: (?P<text>diverged: .*)$",
        r"^(?P<text>srun: error: .*)$",
        r"^(?P<text>slurmstepd: error: .*)$",
    )
)
ENDED_WELL = "Exited with exit code 75"  # saved, to go on later


def blame(log: Path) -> Blame | None:
    """Whom the log of a failed job names, of its last start."""
    text = last_start(log)
    death = DEATH.search(ENDING.split(text, maxsplit=1)[0])
    if death:
        return _as_blame(death)
    for sign in SIGNS:
        for found in sign.finditer(text):
            if ENDED_WELL not in found[0]:
                return _as_blame(found)
    return None


def last_start(log: Path) -> str:
    """What a log says of the last start of its job."""
    try:
        own_folder(log.parents[1], log.parent.name)
        with open(open_entry(log), "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - MOST))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    starts = list(BEGINS.finditer(text))
    return text[starts[-1].end() :] if starts else text


def _as_blame(found: "re.Match[str]") -> Blame:
    """The last line alone of what is a traceback."""
    rank = found.groupdict().get("rank")
    text = found["text"].rstrip().rsplit("\n", 1)[-1]
    return Blame(int(rank) if rank is not None else None, text.strip())

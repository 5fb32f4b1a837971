"""What a program asks of file systems, counted by strace."""

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

CALLS = (
    *("open", "openat", "stat", "lstat", "newfstatat", "statx", "readlink"),
    *("readlinkat", "access", "faccessat", "faccessat2", "getdents64"),
)
# For strace: children, too; the paths of open files; other processors lack some calls.
STRACE = ("strace", "-f", "-y", "-e", f"trace=?{',?'.join(CALLS)}")
LINE = re.compile(r"^(?:\d+\s+)?(\w+)\((.*)$")
PATH = re.compile(r'^(?:AT_FDCWD(?:<[^>]*>)?, )?"([^"]+)"')
OPEN = re.compile(r"^\d+<([^>]*)>")


@dataclass(frozen=True)
class FileCall:
    """One call: its name, and the path that it names, or that of its open file."""

    name: str
    path: str


def file_calls(text):
    """Every call in what strace wrote, failures included."""
    for line in text.splitlines():
        found = LINE.match(line)
        if found and found[1] in CALLS:
            path = PATH.match(found[2]) or OPEN.match(found[2])
            yield FileCall(found[1], path[1] if path else "")


def is_below(path, folders):
    """Whether a path is one of the folders, or in one."""
    return any(Path(path).is_relative_to(folder) for folder in folders)


def count_below(text, folders):
    """How many calls name a path in one of the folders."""
    return sum(is_below(call.path, folders) for call in file_calls(text))


def counted(text):
    """Calls outside of /proc and /sys, by name."""
    kernel = ("/proc", "/sys")
    return Counter(c.name for c in file_calls(text) if not is_below(c.path, kernel))

"""What the system leaves of memory, and which ranks have to share it.

The machine, control groups and Slurm limit all ranks of a node that they hold,
together; `ulimit -v` limits each process by itself.
"""

import os
import resource
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path("/")
NO_LIMIT = 2**60  # what control groups say where there is none, and more
MIB = 2**20
AT_ONCE = 2**16  # bytes of a file
# Where there is no telling: the one group of a container.
UNKNOWN = "0::/\n0:memory:/"
# Limits, what is used, and the part of that which the kernel drops when asked to.
GROUP_FILES = (
    (("memory.max", "memory.high"), "memory.current", "inactive_file"),
    (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True)
class Limit:
    """Bytes that all processes of a node that name the same `holder` may still take."""

    holder: str
    free: int
    where: str  # for a sentence: "1 GiB are free" and this
    held: int = 0  # of this process, not yet taken off `free`
    raise_it: str = ""  # how to get more
    shared: bool = True  # by all ranks of a node and the files the system keeps
    whole: bool = False  # `free` is for whole processes, and what they hold counts


@dataclass(frozen=True)
class Claim:
    """What one rank needs beside what its process holds, and the limits it is under."""

    node: str
    process: int
    need: int
    limits: Sequence[Limit]
    holds: int = 0  # of the process, whatever the rank needs


@dataclass(frozen=True)
class Budget:
    """What is left under one limit, and what the ranks that share it need."""

    limit: Limit
    free: int
    needs: Sequence[int]

    @property
    def lacks(self) -> int:
        """Bytes that are missing; negative where some would be left."""
        return sum(self.needs) - self.free


def tightest(own: Claim, claims: Sequence[Claim], share: float = 1.0) -> Budget:
    """Of the limits of one rank the one that lacks most, or leaves least.

    Of what ranks share with the files that the system keeps, they may have `share`.
    """
    near = [claim for claim in claims if claim.node == own.node]
    budgets = [_budget(limit, near, share) for limit in own.limits]
    return max(budgets, key=lambda budget: budget.lacks)


def _budget(limit: Limit, claims: Sequence[Claim], share: float) -> Budget:
    sharers = [
        (c, own) for c in claims for own in c.limits if own.holder == limit.holder
    ]
    held = {claim.process: own.held for claim, own in sharers}
    # Ranks may be threads of one process: what that holds counts once, for the first.
    holds = {claim.process: claim.holds for claim, own in sharers if own.whole}
    free = max(min(own.free for _, own in sharers) - sum(held.values()), 0)
    return Budget(
        limit=limit,
        free=int(free * share) if limit.shared else free,
        needs=[claim.need + holds.pop(claim.process, 0) for claim, _ in sharers],
    )


def system_limits(
    root: Path = ROOT, environ: Mapping[str, str] = os.environ
) -> list[Limit]:
    """All that hold for this process, with what is left now."""
    return [
        *_of_machine(root),
        *_of_groups(root),
        *_of_slurm(root, environ),
        *_of_process(root),
    ]


def resident_bytes(root: Path = ROOT) -> int:
    """Return what this process holds in memory now; where it is unknown, its peak."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return _pages(root, 1) or peak * (1 if sys.platform == "darwin" else 1024)


def _of_machine(root: Path) -> Iterator[Limit]:
    free = _field(root / "proc/meminfo", "MemAvailable:")
    if free is not None:
        yield Limit("machine", free * 1024, "on this machine")
        return
    size = NO_LIMIT
    with suppress(OSError, ValueError, AttributeError):
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    yield Limit("machine", size, "on this machine")


def _of_groups(root: Path) -> Iterator[Limit]:
    """A group is bound by its own limit and by those of all groups around it."""
    for folder, name in _groups(root):
        free = _left_in(folder)
        if free is not None:
            yield Limit(f"group {folder}", free, f"in control group {name}")


def _groups(root: Path) -> Iterator[tuple[Path, str]]:
    """Folder and name of every control group that this process is in."""
    mount = root / "sys/fs/cgroup"
    for line in (_text(root / "proc/self/cgroup") or UNKNOWN).splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if not controllers:
            yield from _upwards(mount, path)
            yield from _upwards(mount / "unified", path)  # beside version 1
        elif "memory" in controllers.split(","):
            yield from _upwards(mount / "memory", path)


def _upwards(mount: Path, path: str) -> Iterator[tuple[Path, str]]:
    """From a group to the root of its tree.

    In a container the path may be that of the host, and what is mounted the
    container's own group: then that is all there is to see.
    """
    parts = PurePosixPath(path).parts[1:]
    folder = mount.joinpath(*parts)
    if ".." in parts or not folder.is_dir():
        folder, parts = mount, ()
    for depth in range(len(parts), -1, -1):
        yield mount.joinpath(*parts[:depth]), "/" + "/".join(parts[:depth])


def _left_in(folder: Path) -> int | None:
    """What a control group leaves, counting files it keeps only as long as it can."""
    for names, used, droppable in GROUP_FILES:
        said = [_number(folder / name) for name in names]
        limit = min((n for n in said if n is not None), default=NO_LIMIT)
        if limit < NO_LIMIT:
            taken = _number(folder / used) or 0
            cached = _field(folder / "memory.stat", droppable) or 0
            return min(max(limit - taken + cached, 0), limit)
    return None


def _of_slurm(root: Path, environ: Mapping[str, str]) -> Iterator[Limit]:
    """What the job asked for, which Slurm may watch without a control group."""
    per_node = _megabytes(environ, "SLURM_MEM_PER_NODE")
    per_cpu = _megabytes(environ, "SLURM_MEM_PER_CPU")
    cpus = _count(environ, "SLURM_CPUS_ON_NODE")
    for size, name, flag in (
        (per_node, "SLURM_MEM_PER_NODE", "--mem"),
        (per_cpu * cpus, "SLURM_MEM_PER_CPU x SLURM_CPUS_ON_NODE", "--mem-per-cpu"),
    ):
        if size:
            yield Limit(
                holder=f"{name} of job {environ.get('SLURM_JOB_ID', '')}",
                free=size,
                where=f"under {name}",
                held=_pages(root, 1),
                raise_it=f"ask Slurm for more ({flag})",
            )


def _of_process(root: Path) -> Iterator[Limit]:
    """`ulimit -v` counts what is mapped, used or not, but no files that are read."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft != resource.RLIM_INFINITY:
        yield Limit(
            holder=f"process {os.getpid()}",
            free=max(soft - _pages(root, 0), 0),
            where="under ulimit -v",
            raise_it="raise ulimit -v",
            shared=False,
        )


def _pages(root: Path, field: int) -> int:
    """Bytes of this process: mapped (0) or resident (1)."""
    with suppress(IndexError, ValueError):
        pages = int(_text(root / "proc/self/statm").split()[field])
        return pages * os.sysconf("SC_PAGE_SIZE")
    return 0


def _megabytes(environ: Mapping[str, str], name: str) -> int:
    """Slurm's megabytes in bytes; 0 where it says nothing, or that all may be taken."""
    return _count(environ, name) * MIB


def _count(environ: Mapping[str, str], name: str) -> int:
    said = environ.get(name, "")
    return int(said) if said.isdecimal() else 0


def _text(path: Path) -> str:
    """Read without ceremony: every run asks for some twenty files of the system."""
    with suppress(OSError, ValueError):
        number, parts = os.open(path, os.O_RDONLY), [b""]
        try:
            while part := os.read(number, AT_ONCE):
                parts.append(part)
        finally:
            os.close(number)
        return b"".join(parts).decode()
    return ""


def _number(path: Path) -> int | None:
    """None where there is no file, or "max" in it."""
    with suppress(ValueError):
        return int(_text(path))
    return None


def _field(path: Path, name: str) -> int | None:
    """The number behind `name` in a file of names and numbers."""
    for line in _text(path).splitlines():
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdecimal():
            return int(words[1])
    return None

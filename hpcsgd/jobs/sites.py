"""Sites: nodes, limits and launchers of clusters."""

import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpcsgd import files
from hpcsgd.errors import ConfigError, did_you_mean, reject_unknown
from hpcsgd.files import parse_toml
from hpcsgd.jobs.resources import (
    VARIABLE,
    Resources,
    check_known,
    check_line,
    check_name,
    counted,
    mebibytes_of,
    quote,
    seconds_of,
)

# The files of sites: those of the user, of the cluster and of the package.

SITE_VARIABLE = "HPCSGD_SITES"  # a folder of the user, or of a group
CENTRAL_VARIABLE = "HPCSGD_CENTRAL_SITES"  # a folder of the cluster's staff


def own_folders() -> list[Path]:
    """Return the folders of the user's sites; new sites are written into the first."""
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    named = os.environ.get(SITE_VARIABLE)
    home = Path(config) / "hpcsgd" / "sites"
    return [Path(named), home] if named else [home]


def site_files() -> Iterator[Path]:
    """Yield the files of all sites: of the user, of the cluster, of the package."""
    named = os.environ.get(CENTRAL_VARIABLE)
    central = [Path(named)] if named else []
    for folder in [*own_folders(), *central, files.asset_path("slurm/sites")]:
        yield from sorted(folder.glob("*.toml"))


def known_sites() -> dict[str, Path]:
    """Return name -> file; a site of the user hides one of the cluster or package."""
    sites: dict[str, Path] = {}
    for path in site_files():
        sites.setdefault(path.stem, path)
    return sites


def find_site(name: str) -> Path:
    """Return the file of the site `name`, which may be the path of the file."""
    if name.endswith(".toml") or os.sep in name:
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"the site file {name} does not exist; check the path")
        return path
    sites = known_sites()
    if name not in sites:
        raise ConfigError(
            f"site {name!r} unknown{did_you_mean(name, sites)}; known:"
            f" {', '.join(sorted(sites))}; make a new one"
            " with: hpcsgd jobs new-site NAME"
        )
    return sites[name]


def new_site(name: str, source: str, path: str = "") -> str:
    """Return the text of a new site's file, a copy of `source` with a comment.

    `path` is the path of the file, if the name does not suffice to find it.
    """
    check_name(name, "the name of a site")
    text = find_site(source).read_text(encoding="utf-8")
    called = quote(path or name)
    begin = (
        f"# {name}: begun from {source}. Change what differs, look at a script with\n"
        f"#     hpcsgd jobs render train --site {called} --out jobs/a -- run.toml\n"
        "# and prove it with\n"
        f"#     hpcsgd jobs submit smoke --site {called} --tasks 4 --out jobs/smoke\n\n"
    )
    return begin + text


# The description of a site: its nodes, limits, launcher and environment.

LAUNCHERS = ("srun", "task", "mpiexec")
GPUS = ("cuda", "rocm", "none")
# Options of sbatch for the GPUs of each node; none where nodes come with all of them.
GPU_OPTIONS = ("gpus-per-node", "gres", "none")
LOCAL = re.compile(r"/[A-Za-z0-9/_.-]+")
EXPORTS = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(,[A-Za-z_][A-Za-z0-9_]*)*")


def check_export(value: str) -> str:
    """Return a value of sbatch --export; raise ConfigError for one it would refuse."""
    if not EXPORTS.fullmatch(value):
        raise ConfigError(
            f"--export {value!r} must be NONE, ALL, or names of variables separated by"
            " commas; set values of variables by [[env]] of the site file"
        )
    return value


@dataclass(frozen=True)
class NodeResources:
    """The resources of one node; 0 or "" if they are unknown."""

    cpus: int = 0  # as Slurm counts them: hardware threads, mostly
    gpus: int = 0
    memory: str = ""
    gpu: str = "none"  # cuda, rocm or none
    threads_per_core: int = 1  # of those that `cpus`, and --cpus of a job, count
    local: str = "/tmp"  # folder on a disk, or in the memory, of each node


@dataclass(frozen=True)
class PartitionLimits:
    """The limits of jobs in a partition; 0 or "" is no limit.

    Attributes
    ----------
    nodes : most nodes of a job
    walltime : longest time of a job
    by_nodes : most nodes -> longest time of jobs up to that size, in ascending order
    """

    nodes: int = 0
    walltime: str = ""
    by_nodes: Mapping[int, str] = field(default_factory=dict)

    def longest(self, nodes: int) -> str:
        """Return the time limit of a job of `nodes` nodes; "" without one."""
        for most, walltime in self.by_nodes.items():
            if nodes <= most:
                return walltime
        return self.walltime


@dataclass(frozen=True)
class Limits:
    """The limits of jobs; 0 or "" is no limit."""

    nodes: int = 0
    walltime: str = ""
    qos: Mapping[str, str] = field(default_factory=dict)  # its own time limits
    partition: Mapping[str, PartitionLimits] = field(default_factory=dict)

    def longest(self, resources: Resources) -> tuple[str, str]:
        """Return the time limit of a job, and the words "of WHAT " that impose it.

        They are those of its qos, or else of its partition, or else of the site.
        Without a limit, the result is ("", "").
        """
        if resources.qos in self.qos:
            return self.qos[resources.qos], f"of qos {resources.qos} "
        limits = self.partition.get(resources.partition)
        if limits is None:
            return self.walltime, ""
        size = counted(resources.nodes, "node") if limits.by_nodes else ""
        of = f"of partition {resources.partition} {f'on {size} ' if size else ''}"
        return limits.longest(resources.nodes), of

    def most_nodes(self, partition: str) -> int:
        """Return the most nodes of a job in `partition`; 0 without a limit."""
        limits = self.partition.get(partition)
        return (limits.nodes if limits else 0) or self.nodes


@dataclass(frozen=True)
class Launcher:
    """The way in which a site starts ranks.

    The kind srun: Slurm starts them, through the PMI `mpi`. task: one task of Slurm
    starts them with --ranks, on one node. mpiexec: as `task`, without Slurm.
    """

    kind: str = "srun"
    # The value of srun --mpi; "" takes the site's default, "none" starts single ranks.
    mpi: str = ""
    requeue: bool = True  # jobs may be started again under their number
    signal_seconds: int = 120  # between the signal and the end
    export: str = ""  # of sbatch --export: NONE, ALL, or names; "" omits the option
    gpu_option: str = "gpus-per-node"  # of sbatch, one of GPU_OPTIONS
    python: str = ""  # interpreter of the ranks, in a container perhaps


@dataclass(frozen=True)
class Reason:
    """One line of a script, the reason for it, and where the reason is from."""

    value: str
    why: str
    name: str = ""  # of a variable
    source: str = ""  # address of a page
    first: bool = False  # of a shell line: before the modules, and not after variables

    def __post_init__(self) -> None:
        for value in (self.value, self.why, self.source):
            check_line(value, "a line of a site")
        if self.name and not VARIABLE.fullmatch(self.name):
            raise ConfigError(
                f"[[env]] name = {self.name!r} must be the name of a variable of a"
                " shell: letters, digits and _"
            )

    @property
    def comment(self) -> str:
        """Return the reason, with its source in brackets if it has one."""
        return f"{self.why} ({self.source})" if self.source else self.why


# Options of sbatch that a job sets itself, or that would change what submit expects.
SET_BY_JOBS = (
    *("job-name", "nodes", "ntasks", "ntasks-per-node", "cpus-per-task", "array"),
    *("gpus-per-node", "mem", "time", "account", "partition", "qos", "constraint"),
    *("signal", "requeue", "no-requeue", "open-mode", "output", "dependency"),
    *("kill-on-invalid-dep", "export", "exclusive", "chdir", "wrap", "wait"),
    *("parsable", "test-only", "help", "usage", "version"),
)


# sbatch splits a line at spaces outside quotes, and reads nothing behind a #.
SBATCH_OPTION = re.compile(r"--([a-z][a-z-]*)(=(\"[^\"#\\]*\"|[^\s\"'#\\]*))?")


def check_sbatch(value: str) -> str:
    """Return an option of sbatch if a site may set it; else raise ConfigError."""
    match = SBATCH_OPTION.fullmatch(value)
    if not match:
        raise ConfigError(
            f"[[sbatch]] value = {value!r} must be one long option of sbatch without #,"
            ' with spaces in double quotes only, for example --comment="a b"'
        )
    if match[1] in SET_BY_JOBS:
        raise ConfigError(
            f"[[sbatch]] value = {value!r} would repeat an option that jobs set"
            " themselves; use a flag of the job, [defaults] or [launcher]"
        )
    return value


def wrapper_words(value: str) -> list[str]:
    """Return the words of a wrapper; raise ConfigError for quotes without an end."""
    try:
        return shlex.split(value)
    except ValueError as error:
        raise ConfigError(
            f"[[wrapper]] value = {value!r} is not a command line: {error}; close its"
            " quotes"
        ) from error


@dataclass(frozen=True)
class ScriptLines:
    """Lines of a site that its job scripts have beside those of hpcsgd.

    Attributes
    ----------
    sbatch : options of sbatch
    modules : modules to load
    commands : [[shell]] lines, which the script runs as they are
    wrapper : words before the interpreter, as those of a container
    """

    sbatch: tuple[Reason, ...] = ()
    modules: tuple[Reason, ...] = ()
    commands: tuple[Reason, ...] = ()
    wrapper: tuple[Reason, ...] = ()

    def __post_init__(self) -> None:
        for row in self.sbatch:
            check_sbatch(row.value)
        for row in self.wrapper:
            wrapper_words(row.value)


@dataclass(frozen=True)
class Site:
    """One site, as its file describes it."""

    name: str
    summary: str = ""
    node: NodeResources = field(default_factory=NodeResources)
    limits: Limits = field(default_factory=Limits)
    launcher: Launcher = field(default_factory=Launcher)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    flags: tuple[Reason, ...] = ()  # of srun
    env: tuple[Reason, ...] = ()
    lines: ScriptLines = field(default_factory=ScriptLines)

    def __post_init__(self) -> None:
        check_name(self.name, "the name of a site")
        check_line(self.summary, f"the summary of site {self.name}")

    @property
    def has_slurm(self) -> bool:
        """Return whether the site has Slurm; a workstation has not."""
        return self.launcher.kind != "mpiexec"

    @property
    def starts_one_rank(self) -> bool:
        """Return whether Slurm starts ranks without a PMI: MPI cannot connect them."""
        return self.launcher.kind == "srun" and self.launcher.mpi == "none"

    @property
    def may_requeue(self) -> bool:
        """Return whether Slurm may requeue a job, under the same number."""
        return self.has_slurm and self.launcher.requeue


def load_site(name: str) -> Site:
    """Read the description of a cluster.

    Parameters
    ----------
    name : str
        The name of a site (`hpcsgd jobs new-site --list`), or the path of a file that
        ends in .toml.

    Returns
    -------
    Site
        Nodes, limits, launcher, modules and environment.

    Raises
    ------
    ConfigError
        If there is no such site, or if its file has an error.

    Examples
    --------
    >>> from hpcsgd.jobs.sites import load_site
    >>> load_site("generic-cpu").launcher.kind
    'srun'
    """
    path = find_site(name)
    try:
        tables = parse_toml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(
            f"cannot read the site {path}: {error.strerror}; check its permissions"
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}; mend that line") from error
    try:
        return parse_site(path, tables)
    except ConfigError as error:
        raise ConfigError(f"site {path}: {error}") from error


def with_options(
    site: Site, sbatch: Sequence[str], export: str | None, wrapper: str | None
) -> Site:
    """Return `site` with options of a command line.

    Parameters
    ----------
    site : Site
    sbatch : more options of sbatch, as "--reservation=night"
    export : value of sbatch --export; None keeps that of the site
    wrapper : words before the interpreter, in place of the site's; None keeps those
    """
    rows = tuple(Reason(value, "of the command line") for value in sbatch)
    lines = replace(site.lines, sbatch=(*site.lines.sbatch, *rows))
    if wrapper is not None:
        words = (Reason(wrapper, "of the command line"),) if wrapper else ()
        lines = replace(lines, wrapper=words)
    changed = replace(site, lines=lines)
    if export is not None:
        launcher = replace(site.launcher, export=check_export(export))
        changed = replace(changed, launcher=launcher)
    return changed


def with_mpi(site: Site, kind: str) -> Site:
    """Return `site` with the PMI `kind` for srun; raise ConfigError without srun."""
    if site.launcher.kind != "srun":
        raise ConfigError(
            f"--mpi is an option of srun, and site {site.name} starts ranks without"
            " srun; leave --mpi out"
        )
    check_name(kind, "--mpi")
    return replace(site, launcher=replace(site.launcher, mpi=kind))


def parse_site(path: Path, tables: Mapping[str, Any]) -> Site:
    """Return the site that the tables of its file describe, after checks of them."""
    rows = _table("the file", tables, TOP)
    return Site(
        name=check_name(path.stem, "its name"),
        summary=rows.get("summary", ""),
        node=_node(rows.get("node", {})),
        limits=_limits(rows.get("limits", {})),
        launcher=_launcher(rows.get("launcher", {})),
        defaults=_defaults(rows.get("defaults", {})),
        flags=_reasons("flag", rows, ("value", "why")),
        env=_reasons("env", rows, ("name", "value", "why")),
        lines=ScriptLines(
            sbatch=_reasons("sbatch", rows, ("value", "why")),
            modules=_reasons("module", rows, ("value", "why")),
            commands=_reasons("shell", rows, ("value", "why"), {"first": bool}),
            wrapper=_reasons("wrapper", rows, ("value", "why")),
        ),
    )


TOP = {
    "summary": str,
    "node": dict,
    "limits": dict,
    "launcher": dict,
    "defaults": dict,
    "flag": list,
    "module": list,
    "env": list,
    "sbatch": list,
    "shell": list,
    "wrapper": list,
}


def _table(
    name: str, table: Mapping[str, Any], kinds: Mapping[str, type]
) -> dict[str, Any]:
    """Return `table` if its keys and the types of its values are those of `kinds`."""
    reject_unknown(name, table, kinds)
    for key, value in table.items():
        if type(value) is not kinds[key]:
            raise ConfigError(
                f"{name} {key} = {value!r} must be of type {kinds[key].__name__}"
            )
    return dict(table)


def _node(table: Mapping[str, Any]) -> NodeResources:
    kinds: dict[str, type] = {"cpus": int, "gpus": int, "memory": str, "gpu": str}
    kinds |= {"threads_per_core": int, "local": str}
    node = NodeResources(**_table("[node]", table, kinds))
    if node.threads_per_core < 1:
        raise ConfigError(
            f"[node] threads_per_core = {node.threads_per_core} must be at least 1"
        )
    if not LOCAL.fullmatch(node.local):
        raise ConfigError(
            f"[node] local = {node.local!r} must be the absolute path of a folder that"
            " every node has on its own disk, of letters, digits and /_.-"
        )
    if node.gpu not in GPUS:
        raise ConfigError(f"[node] gpu = {node.gpu!r} must be one of {', '.join(GPUS)}")
    if node.memory:
        mebibytes_of(node.memory)
    _check_at_least_0("[node]", {"cpus": node.cpus, "gpus": node.gpus})
    return node


def _limits(table: Mapping[str, Any]) -> Limits:
    kinds = {"nodes": int, "walltime": str, "qos": dict, "partition": dict}
    rows = _table("[limits]", table, kinds)
    partitions = {
        name: _partition_limits(f"[limits.partition.{name}]", row)
        for name, row in rows.get("partition", {}).items()
    }
    limits = Limits(**{**rows, "partition": partitions})
    _check_times("[limits]", (limits.walltime, *limits.qos.values()))
    _check_at_least_0("[limits]", {"nodes": limits.nodes})
    return limits


def _partition_limits(name: str, table: Any) -> PartitionLimits:
    if not isinstance(table, dict):
        raise ConfigError(f"{name} = {table!r}: write it as a table {name}")
    kinds = {"nodes": int, "walltime": str, "by_nodes": dict}
    rows = _table(name, table, kinds)
    steps = rows.get("by_nodes", {})
    if not all(re.fullmatch(r"[1-9]\d*", most, re.ASCII) for most in steps):
        raise ConfigError(
            f"{name} by_nodes = {steps} must have numbers of nodes and their longest"
            ' times, for example { 64 = "02:00:00" }'
        )
    by_nodes = {int(most): steps[most] for most in sorted(steps, key=int)}
    limits = PartitionLimits(**{**rows, "by_nodes": by_nodes})
    _check_times(name, (limits.walltime, *by_nodes.values()))
    _check_at_least_0(name, {"nodes": limits.nodes})
    return limits


def _check_times(name: str, times: Iterable[Any]) -> None:
    for text in times:
        if not isinstance(text, str):
            raise ConfigError(
                f"{name} has {text!r} for a time; write a time in quotes, for example"
                ' "02:00:00"'
            )
        if text:
            seconds_of(text)


def _launcher(table: Mapping[str, Any]) -> Launcher:
    kinds: dict[str, type] = {"kind": str, "mpi": str, "requeue": bool}
    kinds |= {"signal_seconds": int, "export": str, "gpu_option": str, "python": str}
    launcher = Launcher(**_table("[launcher]", table, kinds))
    if launcher.kind not in LAUNCHERS:
        raise ConfigError(
            f"[launcher] kind = {launcher.kind!r} must be one of {', '.join(LAUNCHERS)}"
        )
    if launcher.mpi:
        check_name(launcher.mpi, "[launcher] mpi")
    if launcher.export:
        check_export(launcher.export)
    if launcher.gpu_option not in GPU_OPTIONS:
        raise ConfigError(
            f"[launcher] gpu_option = {launcher.gpu_option!r} must be one of"
            f" {', '.join(GPU_OPTIONS)}"
        )
    check_line(launcher.python, "[launcher] python")
    seconds = {"signal_seconds": launcher.signal_seconds}
    _check_at_least_0("[launcher]", seconds)
    return launcher


def _defaults(table: Mapping[str, Any]) -> dict[str, Any]:
    check_known(table, "[defaults]")
    return dict(table)


def _reasons(
    key: str,
    rows: Mapping[str, Any],
    names: tuple[str, ...],
    more: Mapping[str, type] | None = None,
) -> tuple[Reason, ...]:
    """Return the tables [[key]] of a site's file, which must have the keys `names`.

    They may have the keys `more`, which maps them to their types, and `source`.
    """
    kinds: dict[str, type] = {**dict.fromkeys(names, str), "source": str}
    kinds |= more or {}
    return tuple(_reason(key, row, names, kinds) for row in rows.get(key, []))


def _reason(
    key: str, row: Any, names: tuple[str, ...], kinds: Mapping[str, type]
) -> Reason:
    if not isinstance(row, dict):
        raise ConfigError(f"{key} = {row!r}: write it as a table [[{key}]]")
    table = _table(f"[[{key}]]", row, kinds)
    missing = [name for name in names if not table.get(name, "").strip()]
    # The value of a variable may be empty; a word of srun or a module may not.
    if missing and (missing != ["value"] or key != "env" or "value" not in table):
        raise ConfigError(
            f"[[{key}]] {row} has no text for {missing}; give {list(names)} in every"
            f" [[{key}]]"
        )
    return Reason(**table)


def _check_at_least_0(name: str, numbers: Mapping[str, int]) -> None:
    for key, value in numbers.items():
        if value < 0:
            raise ConfigError(f"{name} {key} = {value} must be at least 0")

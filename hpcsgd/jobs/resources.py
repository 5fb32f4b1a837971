"""What a job asks for: typed, checked where it is born, nothing unknown accepted."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from hpcsgd.errors import ConfigError
from hpcsgd.jobs.syntax import mebibytes_of, seconds_of
from hpcsgd.jobs.words import check_constraint, check_name, check_names

MOST = {"nodes": 100_000, "tasks": 10_000_000, "gpus": 64, "cpus": 4096}
LEAST = {"nodes": 1, "tasks": 1, "gpus": 0, "cpus": 1}


@dataclass(frozen=True)
class Resources:
    """What a job asks for.

    Attributes
    ----------
    nodes : nodes of the job
    tasks : all ranks of the job
    gpus : GPUs of each node
    cpus : cores of each task, as Slurm counts them
    memory : of each node, as in 64G; empty takes what the site gives
    walltime : a time limit in any of Slurm's forms
    account, partition, qos, constraint : names that the site has; empty leaves them out

    Examples
    --------
    >>> Resources.parse({"tasks": 4, "walltime": "02:00:00"}).seconds
    7200
    """

    nodes: int = 1
    tasks: int = 1
    gpus: int = 0
    cpus: int = 1
    memory: str = ""
    walltime: str = "00:30:00"
    account: str = ""
    partition: str = ""
    qos: str = ""
    constraint: str = ""

    def __post_init__(self) -> None:
        for name, least in LEAST.items():
            _check_count(name, getattr(self, name), least)
        for name in ("memory", "walltime", "account", "partition", "qos", "constraint"):
            if not isinstance(getattr(self, name), str):
                raise ConfigError(f"{name} = {getattr(self, name)!r} must be text")
        if self.tasks < self.nodes:
            raise ConfigError(
                f"{self.tasks} tasks leave some of {self.nodes} nodes without one; ask"
                " for fewer nodes, or more tasks"
            )
        seconds_of(self.walltime)
        if self.memory:
            mebibytes_of(self.memory)
        self._check_names()

    def _check_names(self) -> None:
        for name in ("account", "qos"):
            if getattr(self, name):
                check_name(getattr(self, name), name)
        if self.partition:
            check_names(self.partition, "partition")
        if self.constraint:
            check_constraint(self.constraint, "constraint")

    @classmethod
    def parse(cls, table: Mapping[str, Any]) -> "Resources":
        """Check `table` (name -> value) against the fields."""
        check_known(table)
        return cls(**table)

    @property
    def seconds(self) -> int:
        """The time limit."""
        return seconds_of(self.walltime)

    @property
    def mebibytes(self) -> float:
        """Memory of each node; 0 where none was asked for."""
        return mebibytes_of(self.memory) if self.memory else 0

    @property
    def tasks_per_node(self) -> int:
        """Of the fullest node."""
        return -(-self.tasks // self.nodes)

    def device_of(self, run: Mapping[str, Any]) -> str:
        """Return where a run computes, of which `run` is the table [run].

        What the table leaves open is cuda where GPUs are asked for: they are not held
        for nothing.
        """
        return str(run.get("device") or ("cuda" if self.gpus else "cpu"))

    def with_(self, **changes: Any) -> "Resources":
        """The same but for some fields."""
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Field -> value."""
        return dict(vars(self))


KNOWN = tuple(field.name for field in fields(Resources))


def check_known(table: Mapping[str, Any], place: str = "resources") -> None:
    """Reject what no field is called, and show what they are called."""
    unknown = sorted(set(table) - set(KNOWN))
    if unknown:
        raise ConfigError(f"{place} unknown: {unknown}; known: {sorted(KNOWN)}")


def _check_count(name: str, value: Any, least: int) -> None:
    if type(value) is not int or not least <= value <= MOST[name]:
        raise ConfigError(
            f"{name} = {value!r} must be a whole number from {least} to {MOST[name]}"
        )

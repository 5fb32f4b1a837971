"""One point on ranks that somebody else has started: what a job of a study runs."""

import json
import logging
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcsgd.api import train
from hpcsgd.callbacks import Callback
from hpcsgd.comm.base import Communicator
from hpcsgd.config import RunConfig, read_toml
from hpcsgd.errors import ConfigError, DataError, HpcsgdError
from hpcsgd.files import check_entry, own_folder, write_text
from hpcsgd.result import Result, finite
from hpcsgd.retired import without_retired
from hpcsgd.study import machine

log = logging.getLogger(__name__)
ENDS = "ends"  # NAME.json in it: how a point ended, until it is a line
JOB = "SLURM_JOB_ID"


def read_config(folder: Path, name: str) -> RunConfig:
    """What the study wrote for this point."""
    path = folder / "points" / f"{name}.toml"
    try:
        own_folder(folder, "points")
        check_entry(path)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} does not exist; name the folder of a study"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}); submit the study again with"
            " --resume, which writes it"
        ) from error
    return RunConfig.parse(without_retired(read_toml(path)))


def train_point(
    folder: Path,
    name: str,
    world: Communicator,
    limit: float = 0.0,
    callbacks: list[Callback] | None = None,
) -> Result:
    """Train it on all ranks of `world`; rank 0 writes how it ended.

    `limit` : seconds it may take, 0 = for ever
    """
    config = read_config(folder, name)
    met = _machine(world, config.run.threads)
    end = End(folder / ENDS / f"{name}.json", world.rank == 0, met)
    with _limited(limit, world, end):
        try:
            result = train(config, world=world, callbacks=callbacks)
        except HpcsgdError as error:
            end.write(error=str(error))
            raise
    used = world.exchange_objects(_cpu_seconds())
    end.write(report=result.as_dict(), cpu_seconds=sum(used))
    return result


class End:
    """The file in which rank 0 leaves how a point ended."""

    def __init__(self, path: Path, speaks: bool, met: dict[str, Any]) -> None:
        self.path, self.speaks, self.met = path, speaks, met

    def write(self, **said: Any) -> None:
        """Once, whole or not at all."""
        if self.speaks:
            text = json.dumps(finite({**said, "machine": self.met}), allow_nan=False)
            try:
                own_folder(self.path.parents[1], self.path.parent.name, make=True)
                write_text(self.path, text + "\n")
            except OSError as error:
                raise DataError(
                    f"{self.path} cannot be written ({error.strerror}); make room, or"
                    " remove that entry"
                ) from error


@contextmanager
def _limited(limit: float, world: Communicator, end: End) -> Iterator[None]:
    """End the ranks after `limit` seconds, whatever they wait for.

    Rank 0 alone looks at the clock: another one might end it before it has written.
    """

    def late() -> None:
        said = f"it took longer than the {limit:g} s of --point-timeout"
        try:
            end.write(status="timeout", error=said)
        except DataError as error:
            log.error("%s", error)
        finally:
            world.abort(1)

    timer = threading.Timer(limit, late)
    timer.daemon = True
    if limit and end.speaks:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _machine(world: Communicator, threads: int) -> dict[str, Any]:
    """What all ranks together met."""
    own = machine.facts()
    held = world.exchange_objects((own["host"], machine.own_cores()))
    job = os.environ.get(JOB)
    return {
        **own,
        "nodes": len({host for host, _ in held}),
        "cores": len(
            {core for host, cores in held if host == own["host"] for core in cores}
        ),
        "oversubscribed": crowded(held, threads),
        **({"job": job} if job else {}),
    }


def crowded(held: list[tuple[str, list[int]]], threads: int) -> bool:
    """Whether a node has more threads of ranks than cores that they may use."""
    for host in {host for host, _ in held}:
        mine = [cores for other, cores in held if other == host]
        if len(mine) * threads > len({core for cores in mine for core in cores}):
            return True
    return False


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime

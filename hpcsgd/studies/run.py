"""Run the points of a study, one after the other, each in a process of its own."""

from __future__ import annotations

import json
import logging
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from hpcsgd.api import run_training
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import parse_grid
from hpcsgd.comm.launchers import THREAD_SETTINGS, end_with_parent
from hpcsgd.config import RunConfig, read_toml
from hpcsgd.errors import (
    ConfigError,
    DataError,
    HpcsgdError,
    reject_unknown,
)
from hpcsgd.files import (
    CREATE,
    check_entry,
    finite,
    open_entry,
    own_folder,
    parse_object,
    read_entry_text,
    write_text,
)
from hpcsgd.runs.progress import NotebookLine, in_notebook
from hpcsgd.runs.result import Result
from hpcsgd.settings import without_retired
from hpcsgd.solvers.callbacks import Callback
from hpcsgd.studies import folder as folder_module
from hpcsgd.studies.account import Account, account
from hpcsgd.studies.folder import DONE, StudyFolder, first_rows, line, rows_in
from hpcsgd.studies.plan import (
    Grid,
    Steps,
    StudyAxes,
    StudyPlan,
    StudyPoint,
    batches_of_step,
    check_plan,
)

# Each run is a process of its own, so that a crash ends one run and not the study.

GRACE = 10.0  # seconds that a run has to end after a signal
TAIL = 4000  # characters at the end of a log that are searched for its last error
ERROR = "error: "  # what an error message in a log begins with


@dataclass(frozen=True)
class RunEnd:
    """Exit code, report, error message and times of a run that has ended."""

    code: int
    report: dict[str, Any] | None  # the JSON document that the run printed
    error: str  # one sentence; empty after a good end
    seconds: float
    cpu_seconds: float
    timed_out: bool = False


def launch(config: Path, ranks: int, log: Path, limit: float) -> RunEnd:
    """Train the configuration of a file on `ranks` ranks, and wait for the end.

    A run that takes longer than `limit` seconds is ended; 0 sets no limit.
    """
    began = time.monotonic()
    cpu_before = _cpu_seconds()
    with tempfile.TemporaryFile() as output, _open_log(log) as errors:
        process = subprocess.Popen(
            command(config, ranks),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            env=environment(),
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
        timed_out = _wait(process, limit)
        output.seek(0)
        report = parse_object(output.read())
    late = _timeout_message(limit) if timed_out else ""
    return RunEnd(
        code=process.returncode,
        report=None if timed_out else report,
        error=late or last_sentence(log, process.returncode),
        seconds=time.monotonic() - began,
        cpu_seconds=_cpu_seconds() - cpu_before,
        timed_out=timed_out,
    )


def _timeout_message(limit: float) -> str:
    return f"it took longer than the {limit:g} s of --point-timeout"


def _open_log(log: Path) -> IO[bytes]:
    """Empty the log of a run, and return it, open for writing."""
    try:
        return open(open_entry(log, CREATE), "wb")
    except OSError as error:
        raise DataError(
            f"{log} cannot be written ({error.strerror}); remove that file or link,"
            " then go on with --resume"
        ) from error


def command(config: Path, ranks: int) -> list[str]:
    """Return the command line of a run; one rank needs no launcher."""
    words = [sys.executable, "-m", "hpcsgd", "train", str(config), "--json", "--quiet"]
    return words if ranks == 1 else [*words, "--ranks", str(ranks)]


def environment() -> dict[str, str]:
    """Return the environment of a run: one BLAS thread a rank unless the user set it.

    A rank that runs alone would otherwise use a thread for each core. Its time would
    then be no baseline for many ranks, and no time of an emulated rank.
    """
    return {**dict.fromkeys(THREAD_SETTINGS, "1"), **os.environ}


def _wait(process: subprocess.Popen[bytes], limit: float) -> bool:
    """Wait for a run, and return whether it took too long and was ended.

    No process of the run is left when this returns or raises.
    """
    try:
        process.wait(limit or None)
    except subprocess.TimeoutExpired:
        end(process)
        return True
    except BaseException:
        end(process)
        raise
    return False


def end(process: subprocess.Popen[bytes]) -> None:
    """End a run by SIGTERM, then SIGINT twice, then SIGKILL to its process group.

    A second SIGINT makes the command kill its ranks, which the launcher has started in
    sessions of their own.
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


def last_sentence(log: Path, code: int) -> str:
    """Return the last error message in the log of a run; "" for exit code 0.

    Without a message, the sentence names the exit code and the log.
    """
    if code == 0:
        return ""
    text = read_entry_text(log, "replace")[-TAIL:]
    messages = [line.partition(ERROR)[2] for line in text.splitlines() if ERROR in line]
    if messages:
        return messages[-1]
    return f"it ended with exit code {code}; see {log.name}"


def _cpu_seconds() -> float:
    """Return the processor time of all descendants that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


# A study runs every point of its plan in turn. A point that fails does not end it.

log = logging.getLogger(__name__)
TIMEOUT = 3600.0  # seconds of one run


def run(
    plan: StudyPlan,
    out: str | Path,
    *,
    resume: bool = False,
    timeout: float = TIMEOUT,
) -> Account:
    """Run the points of a plan that have no result in its folder yet.

    Parameters
    ----------
    plan : StudyPlan
        The points and their repeats.
    out : path-like
        The folder of the study.
    resume : bool, default=False
        Whether to continue the study in the folder.
    timeout : float, default=3600.0
        Seconds of one run; 0 for no limit.

    Returns
    -------
    Account
        Medians, speed-ups and efficiencies, one row for each setting.
    """
    check_plan(plan)
    if plan.on != "local":
        raise ConfigError(
            f"this study has on = {plan.on} and cannot run on this machine; submit it"
            f" with hpcsgd study {plan.kind} --on {plan.on}, or set on = local"
        )
    folder = StudyFolder(out)
    folder.open(plan, resume)
    try:
        _run_all(plan, folder, timeout)
        return account(plan, folder.lines(), str(folder.path))
    finally:
        folder.close()


def waiting(
    plan: StudyPlan, lines: Mapping[str, Mapping[str, Any]]
) -> list[StudyPoint]:
    """Return the runs of a plan that have no line with a status of `DONE`."""
    done = {key for key, line in lines.items() if line["status"] in DONE}
    return [point for point in plan.runs() if point.key not in done]


def _run_all(plan: StudyPlan, folder: StudyFolder, timeout: float) -> None:
    todo = waiting(plan, folder.lines())
    most = max((point.launched for point in todo), default=0)
    cores = folder_module.cores()
    if most > cores:
        log.warning(
            "up to %d ranks share %d cores, so that their times mean little; use"
            " --emulate-members %d to measure one rank alone as a member of so many",
            most,
            cores,
            most,
        )
    notebook = NotebookLine() if in_notebook() else None
    began = time.monotonic()
    left = ""
    for number, point in enumerate(todo, 1):
        title = f"{number} of {len(todo)}: {point.key}"
        if notebook:
            notebook.show((number - 1) / len(todo), f"{title}{left}")
        outcome = run_point(point, folder, timeout)
        each = (time.monotonic() - began) / number
        left = _left(each * (len(todo) - number))
        log.info("%s %s%s", title, outcome, left)
    if notebook and todo:
        notebook.show(1.0, f"{title} {outcome}")


def _left(seconds: float) -> str:
    """Return a text on the time that the remaining runs take; "" below a minute."""
    return f"; about {seconds / 60:.0f} min left" if seconds >= 60 else ""


def run_point(point: StudyPoint, folder: StudyFolder, timeout: float) -> str:
    """Train a point, append its line to the study, and return its result in words."""
    machine = folder_module.facts()
    data = data_of(point, folder)
    config = folder.configure(point, data)
    end = launch(config, point.launched, folder.log_of(point), timeout)
    record = line(
        point,
        source_of(point),
        end.report,
        error=end.error,
        status="timeout" if end.timed_out else "failed",
        machine=machine,
        cpu_seconds=end.cpu_seconds,
    )
    folder.append(record)
    return _outcome(record, end)


def source_of(point: StudyPoint) -> str:
    """Return the path of the study's data file."""
    path = str(point.plan.base.get("data", {}).get("path", ""))
    if not path:
        raise ConfigError(
            "no data: add --data FILE.h5, or [data] path in the configuration file"
        )
    return path


def data_of(point: StudyPoint, folder: StudyFolder) -> str:
    """Return the absolute path of the file that this point trains on."""
    source = Path(source_of(point)).absolute()
    if not point.rows:
        return str(source)
    return str(first_rows(source, folder.path.absolute() / "data", point.rows))


def _outcome(record: Mapping[str, Any], end: RunEnd) -> str:
    if record["status"] == "finished":
        loss = "" if record["loss"] is None else f", loss {record['loss']:.6f}"
        return f"took {record['seconds']:.3f} s{loss}"
    return f"{record['status']} after {end.seconds:.1f} s: {record['error']}"


# A job of a study runs one point on the ranks that its launcher has started.

# The folder of NAME.json, the end of a point, until `collect` makes it a line.
ENDS = "ends"
JOB = "SLURM_JOB_ID"


def read_config(folder: Path, name: str) -> RunConfig:
    """Read the configuration that the study has written for a point."""
    path = folder / "points" / f"{name}.toml"
    try:
        own_folder(folder, "points")
        check_entry(path)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{path} does not exist; name the folder of a study and one of its runs"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read ({error.strerror}); submit the study again with"
            " --resume, which writes the file again"
        ) from error
    return RunConfig.parse(without_retired(read_toml(path)))


def train_point(
    folder: Path,
    name: str,
    world: Communicator,
    limit: float = 0.0,
    callbacks: list[Callback] | None = None,
) -> Result:
    """Train a point on all ranks of `world`; rank 0 writes how it ended. Collective.

    A run that takes longer than `limit` seconds is ended; 0 sets no limit.
    """
    config = read_config(folder, name)
    machine = _machine(world, config.run.threads)
    end = PointEndFile(folder / ENDS / f"{name}.json", world.rank == 0, machine)
    with _limited(limit, world, end):
        try:
            result = run_training(config, world=world, callbacks=callbacks)
        except HpcsgdError as error:
            end.write(error=str(error))
            raise
    cpu_seconds = world.exchange_objects(_rank_cpu_seconds())
    end.write(report=result.as_dict(), cpu_seconds=sum(cpu_seconds))
    return result


class PointEndFile:
    """The file in which rank 0 records how a point ended."""

    def __init__(self, path: Path, is_rank_0: bool, machine: dict[str, Any]) -> None:
        self.path = path
        self.is_rank_0 = is_rank_0
        self.machine = machine

    def write(self, **end: Any) -> None:
        """Write the whole file or nothing; ranks other than 0 write nothing."""
        if self.is_rank_0:
            text = json.dumps(finite({**end, "machine": self.machine}), allow_nan=False)
            try:
                own_folder(self.path.parents[1], self.path.parent.name, make=True)
                write_text(self.path, text + "\n")
            except OSError as error:
                raise DataError(
                    f"{self.path} cannot be written ({error.strerror}); free disk"
                    " space, or remove the file or link that is in the way"
                ) from error


@contextmanager
def _limited(limit: float, world: Communicator, end: PointEndFile) -> Iterator[None]:
    """End the ranks after `limit` seconds, whatever they wait for.

    Rank 0 alone has a timer: another rank could end rank 0 before it has written.
    """

    def late() -> None:
        try:
            end.write(status="timeout", error=_timeout_message(limit))
        except DataError as error:
            log.error("%s", error)
        finally:
            world.abort(1)

    timer = threading.Timer(limit, late)
    timer.daemon = True
    if limit and end.is_rank_0:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _machine(world: Communicator, threads: int) -> dict[str, Any]:
    """Return the facts of this rank's machine, nodes and cores. Collective.

    "nodes" counts the hosts of all ranks, "cores" those that ranks on this host may
    use, and "oversubscribed" is true if any host has more threads than cores.
    """
    facts = folder_module.facts()
    cores_of_ranks = world.exchange_objects((facts["host"], folder_module.own_cores()))
    on_host = [cores for host, cores in cores_of_ranks if host == facts["host"]]
    job = os.environ.get(JOB)
    return {
        **facts,
        "nodes": len({host for host, _ in cores_of_ranks}),
        "cores": len({core for cores in on_host for core in cores}),
        "oversubscribed": crowded(cores_of_ranks, threads),
        **({"job": job} if job else {}),
    }


def crowded(cores_of_ranks: list[tuple[str, list[int]]], threads: int) -> bool:
    """Return whether the ranks of some node have more threads than cores.

    `cores_of_ranks` has the host and the usable cores of every rank.
    """
    for host in {host for host, _ in cores_of_ranks}:
        on_host = [cores for other, cores in cores_of_ranks if other == host]
        if len(on_host) * threads > len({core for cores in on_host for core in cores}):
            return True
    return False


def _rank_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


# A plan comes from a TOML file, from flags or from Python.

# A study repeats a run that has not ended, so checkpoints would only cost time.
NO_CHECKPOINTS = {"every": 0, "seconds": 0.0}


def make_plan(
    kind: str, asked: Mapping[str, Any], base: Mapping[str, Mapping[str, Any]]
) -> StudyPlan:
    """Return the plan of a study.

    `asked` has keys of [study], `base` has the tables of `train`. If `asked` lacks
    steps, batch, precision or seeds, the list has one value: that of `base`, or the
    default of `train`. Other missing keys have the defaults of `StudyPlan`.
    """
    reject_unknown("[study]", asked, KEYS)
    named = asked.get("kind", kind)
    if named != kind:
        raise ConfigError(
            f"[study] kind = {named!r} is refused by hpcsgd study {kind}; leave kind"
            f" out, or use hpcsgd study {named}"
        )
    config = RunConfig.parse(base)
    tables = _shared(base)
    path = tables.get("data", {}).get("path", "")
    if not path:
        raise ConfigError(
            "no data: add --data FILE.h5, or [data] path in the configuration file"
        )
    tables["data"]["path"] = str(Path(path).absolute())
    values = {k: KEYS[k](k, v) for k, v in asked.items() if v is not None}
    values.pop("kind", None)
    if "emulate_members" in values:
        values["emulated"] = values.pop("emulate_members")
    axes = _axes_of(config)
    named_axes = {k: values.pop(k) for k in vars(axes) if k in values}
    plan = StudyPlan(
        kind=kind,
        axes=replace(axes, **named_axes),
        base=tables,
        rows=rows_in(path),
        **{"ranks": (), **values},
    )
    check_plan(plan)
    return plan


def _axes_of(config: RunConfig) -> StudyAxes:
    """Return axes whose steps, batch, recipe and seed are those of a configuration."""
    return StudyAxes(
        steps=(config.schedule.steps or "auto",),
        batch=(config.schedule.batch * batches_of_step(config),),
        precision=(config.precision.recipe,),
        seeds=(config.sampling.seed,),
    )


def _shared(base: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return `base` without the settings that differ from point to point.

    Checkpoints are off unless `base` has a table [checkpoint].
    """
    tables = {section: dict(table) for section, table in base.items()}
    for section, key in SET_BY_POINTS:
        tables.get(section, {}).pop(key, None)
    tables.pop("grid", None)
    tables.setdefault("checkpoint", dict(NO_CHECKPOINTS))
    return {section: table for section, table in tables.items() if table}


SET_BY_POINTS = (
    ("schedule", "steps"),
    ("schedule", "batch"),
    ("precision", "recipe"),
    ("sampling", "seed"),
    ("run", "out"),
    ("run", "resume"),
    ("run", "emulate_members"),
)


def _words(key: str, value: Any) -> list[Any]:
    """Return the items of "1,2,4" or of a list; one value is a list of itself."""
    if isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    if isinstance(value, Sequence):
        return list(value)
    return [value]


def numbers(key: str, value: Any) -> tuple[int, ...]:
    """Return the value of a key as whole numbers."""
    return tuple(_number(key, item) for item in _words(key, value))


def _number(key: str, item: Any) -> int:
    if isinstance(item, str) and item.isdigit():
        return int(item)
    if isinstance(item, int) and not isinstance(item, bool):
        return item
    flag = key.replace("_", "-")
    raise ConfigError(f"--{flag}: {item!r} is no whole number; write for example 4")


def steps(key: str, value: Any) -> tuple[Steps, ...]:
    """Return the value of a key as whole numbers or "auto"."""
    return tuple(s if s == "auto" else _number(key, s) for s in _words(key, value))


def names(key: str, value: Any) -> tuple[str, ...]:
    """Return the value of a key as words."""
    return tuple(str(item) for item in _words(key, value))


def grids(key: str, value: Any) -> tuple[Grid, ...]:
    """Return the value of a key, "RxC,..." or pairs, as pairs (replicas, members)."""
    return tuple(
        parse_grid(item) if isinstance(item, str) else (int(item[0]), int(item[1]))
        for item in _words(key, value)
    )


def _one(key: str, value: Any) -> int:
    return _number(key, value)


def _flag(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"[study] {key} = {value!r} must be true or false")
    return value


def _word(key: str, value: Any) -> str:
    return str(value)


# Each key of [study] with the function that reads its value.
KEYS: dict[str, Callable[[str, Any], Any]] = {
    "kind": _word,
    "ranks": numbers,
    "methods": names,
    "steps": steps,
    "batch": numbers,
    "grids": grids,
    "precision": names,
    "repeats": _one,
    "seeds": numbers,
    "emulate_members": numbers,
    "batch_grows": _flag,
    "on": _word,
}


# Each of these functions runs a whole study in one call.

Config = Mapping[str, Mapping[str, Any]]


def study(
    plan: StudyPlan, out: str | Path, *, resume: bool = False, timeout: float = TIMEOUT
) -> Account:
    """Run the points of a plan that have no result yet, each in a process of its own.

    Parameters
    ----------
    plan : StudyPlan
        What to run.
    out : path-like
        The folder of the study.
    resume : bool, default=False
        Whether to continue the study in the folder.
    timeout : float, default=3600.0
        Seconds of one run; 0 for no limit.

    Returns
    -------
    Account
        Medians, speed-ups and efficiencies, one row for each setting.
    """
    return run(plan, out, resume=resume, timeout=timeout)


def strong(
    data: str | Path,
    ranks: Sequence[int],
    out: str | Path,
    config: Config | None = None,
    **lists: Any,
) -> Account:
    """Run a strong scaling study: the same rows on every number of ranks.

    All settings of `lists` run on every number of ranks.

    Each run is a process of its own. One that fails does not end the study.

    Parameters
    ----------
    data : path-like
        An HDF5 file.
    ranks : sequence of int
        Numbers of ranks to run on.
    out : path-like
        The folder of the study.
    config : mapping, optional
        Settings of `train` that all runs share: {"section": {"key": value}}.
    **lists : optional
        What is varied: `methods`, `steps`, `batch`, `grids`, `precision`, `seeds`,
        `emulate_members`, `repeats`; and `resume` (continue a study) and `timeout`
        (seconds of one run).

    Returns
    -------
    Account
        Medians, speed-ups and efficiencies, one row a setting.

    Examples
    --------
    >>> import tempfile
    >>> from hpcsgd.data.synthetic import write_synthetic
    >>> from hpcsgd.studies import strong
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_synthetic(f"{folder}/rows.h5", "susy", rows=256)
    ...     found = strong(f"{folder}/rows.h5", [1], f"{folder}/study", methods=["sgd"])
    >>> [(row.method, row.ranks) for row in found.rows]
    [('sgd', 1)]
    """
    return _run_kind("strong", data, ranks, out, config, lists)


def weak(
    data: str | Path,
    ranks: Sequence[int],
    out: str | Path,
    config: Config | None = None,
    **lists: Any,
) -> Account:
    """Run a weak scaling study: the rows grow with the ranks.

    A run on p of at most P ranks trains on the first p / P of the rows. With
    `batch_grows` in `lists`, the batch grows as well.

    Each run is a process of its own. One that fails does not end the study.

    Parameters
    ----------
    data : path-like
        An HDF5 file.
    ranks : sequence of int
        Numbers of ranks to run on.
    out : path-like
        The folder of the study.
    config : mapping, optional
        Settings of `train` that all runs share: {"section": {"key": value}}.
    **lists : optional
        What is varied: `methods`, `steps`, `batch`, `grids`, `precision`, `seeds`,
        `emulate_members`, `repeats`; and `resume` (continue a study) and `timeout`
        (seconds of one run).

    Returns
    -------
    Account
        Medians, speed-ups and efficiencies, one row a setting.

    Examples
    --------
    >>> import tempfile
    >>> from hpcsgd.data.synthetic import write_synthetic
    >>> from hpcsgd.studies import weak
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_synthetic(f"{folder}/rows.h5", "susy", rows=256)
    ...     found = weak(f"{folder}/rows.h5", [1], f"{folder}/study", methods=["sgd"])
    >>> [(row.method, row.ranks) for row in found.rows]
    [('sgd', 1)]
    """
    return _run_kind("weak", data, ranks, out, config, lists)


def sweep(
    data: str | Path,
    ranks: Sequence[int],
    out: str | Path,
    config: Config | None = None,
    **lists: Any,
) -> Account:
    """Run all combinations of settings, on every number of ranks.

    The method hybrid runs on every grid of the ranks, or on the `grids` in `lists`.

    Each run is a process of its own. One that fails does not end the study.

    Parameters
    ----------
    data : path-like
        An HDF5 file.
    ranks : sequence of int
        Numbers of ranks to run on.
    out : path-like
        The folder of the study.
    config : mapping, optional
        Settings of `train` that all runs share: {"section": {"key": value}}.
    **lists : optional
        What is varied: `methods`, `steps`, `batch`, `grids`, `precision`, `seeds`,
        `emulate_members`, `repeats`; and `resume` (continue a study) and `timeout`
        (seconds of one run).

    Returns
    -------
    Account
        Medians, speed-ups and efficiencies, one row a setting.

    Examples
    --------
    >>> import tempfile
    >>> from hpcsgd.data.synthetic import write_synthetic
    >>> from hpcsgd.studies import sweep
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_synthetic(f"{folder}/rows.h5", "susy", rows=256)
    ...     found = sweep(f"{folder}/rows.h5", [1], f"{folder}/study", methods=["sgd"])
    >>> [(row.method, row.ranks) for row in found.rows]
    [('sgd', 1)]
    """
    return _run_kind("sweep", data, ranks, out, config, lists)


def _run_kind(
    kind: str,
    data: str | Path,
    ranks: Sequence[int],
    out: str | Path,
    config: Config | None,
    lists: dict[str, Any],
) -> Account:
    options = {name: lists.pop(name) for name in ("resume", "timeout") if name in lists}
    base = {section: dict(table) for section, table in (config or {}).items()}
    base.setdefault("data", {})["path"] = str(data)
    plan = make_plan(kind, {"ranks": list(ranks), **lists}, base)
    return study(plan, out, **options)

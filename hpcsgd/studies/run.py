"""Points of a study, run one after the other in processes."""

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
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hpcsgd.api import run_training
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import parse_grid
from hpcsgd.comm.launchers import THREAD_SETTINGS, end_with_parent
from hpcsgd.config import RunConfig, read_toml, without_retired
from hpcsgd.errors import (
    ConfigError,
    DataError,
    HpcsgdError,
    did_you_mean,
)
from hpcsgd.files import (
    CREATE,
    check_entry,
    open_entry,
    own_folder,
    parse_json,
    read_entry_text,
    write_text,
)
from hpcsgd.runs.progress import NotebookLine, in_notebook
from hpcsgd.runs.result import Result, finite
from hpcsgd.solvers.callbacks import Callback
from hpcsgd.studies import folder
from hpcsgd.studies import folder as folder_module
from hpcsgd.studies.account import Account, account
from hpcsgd.studies.folder import DONE, StudyFolder, first_rows, line, rows_in
from hpcsgd.studies.plan import Grid, Steps, StudyPlan, StudyPoint, check_plan

# One run in a process of its own, so that its end, however bad, is its own.

GRACE = 10.0  # seconds for a run to end when it is told to
TAIL = 4000  # characters of a log that are searched for its last sentence
SAID = "error: "


@dataclass(frozen=True)
class RunEnd:
    """How a run ended."""

    code: int
    report: dict[str, Any] | None  # its JSON document
    error: str  # one sentence, or nothing
    seconds: float
    cpu_seconds: float
    timed_out: bool = False


def launch(config: Path, ranks: int, log: Path, limit: float) -> RunEnd:
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
    return RunEnd(
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


def _wait(process: subprocess.Popen[bytes], limit: float) -> bool:
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


def end(process: subprocess.Popen[bytes]) -> None:
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


# Every point of a plan, one after the other; none takes the others down.

log = logging.getLogger(__name__)
TIMEOUT = 3600.0  # seconds of one run


def run(
    plan: StudyPlan,
    out: str | Path,
    *,
    resume: bool = False,
    timeout: float = TIMEOUT,
) -> Account:
    """Run what a plan has and its folder lacks.

    Parameters
    ----------
    plan : what to run
    out : the folder of the study
    resume : go on with the study that is there
    timeout : seconds that one run may take, 0 = for ever

    Returns
    -------
    Account
    """
    check_plan(plan)
    if plan.on != "local":
        raise ConfigError(
            f"this study is for {plan.on}; submit it with hpcsgd study {plan.kind} --on"
            f" {plan.on}, or ask for on = local"
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
    """Runs that have no good line yet."""
    done = {key for key, found in lines.items() if found["status"] in DONE}
    return [point for point in plan.runs() if point.key not in done]


def _run_all(plan: StudyPlan, folder: StudyFolder, timeout: float) -> None:
    todo = waiting(plan, folder.lines())
    crowd = max((p.launched for p in todo), default=0)
    if crowd > folder_module.cores():
        log.warning(
            "up to %d ranks share %d cores: those times mean little; --emulate-members"
            " %d times one rank as one of them",
            *(crowd, folder_module.cores(), crowd),
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
    """Return the time that the rest takes, or nothing for less than a minute."""
    return f"; about {seconds / 60:.0f} min left" if seconds >= 60 else ""


def run_point(point: StudyPoint, folder: StudyFolder, timeout: float) -> str:
    """Train it, write its line; what became of it."""
    met = folder_module.facts()
    data = data_of(point, folder)
    config = folder.configure(point, data)
    ended = launch(config, point.launched, folder.log_of(point), timeout)
    found = line(
        point,
        source_of(point),
        ended.report,
        error=ended.error,
        status="timeout" if ended.timed_out else "failed",
        machine=met,
        cpu_seconds=ended.cpu_seconds,
    )
    folder.append(found)
    return _said(found, ended)


def source_of(point: StudyPoint) -> str:
    """The data file of the study."""
    path = str(point.base.get("data", {}).get("path", ""))
    if not path:
        raise ConfigError("no data: add --data FILE.h5, or [data] path in the file")
    return path


def data_of(point: StudyPoint, folder: StudyFolder) -> str:
    """The file that this point trains on, by its absolute name."""
    source = Path(source_of(point)).absolute()
    if not point.rows:
        return str(source)
    return str(first_rows(source, folder.path.absolute() / "data", point.rows))


def _said(found: Mapping[str, Any], ended: RunEnd) -> str:
    if found["status"] == "finished":
        loss = "" if found["loss"] is None else f", loss {found['loss']:.6f}"
        return f"took {found['seconds']:.3f} s{loss}"
    return f"{found['status']} after {ended.seconds:.1f} s: {found['error']}"


# One point on ranks that somebody else has started: what a job of a study runs.

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
    end = PointEndFile(folder / ENDS / f"{name}.json", world.rank == 0, met)
    with _limited(limit, world, end):
        try:
            result = run_training(config, world=world, callbacks=callbacks)
        except HpcsgdError as error:
            end.write(error=str(error))
            raise
    used = world.exchange_objects(_own_cpu_seconds())
    end.write(report=result.as_dict(), cpu_seconds=sum(used))
    return result


class PointEndFile:
    """The file in which rank 0 leaves how a point ended."""

    def __init__(self, path: Path, speaks: bool, met: dict[str, Any]) -> None:
        self.path, self.is_rank_0, self.met = path, speaks, met

    def write(self, **said: Any) -> None:
        """Once, whole or not at all."""
        if self.is_rank_0:
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
def _limited(limit: float, world: Communicator, end: PointEndFile) -> Iterator[None]:
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
    if limit and end.is_rank_0:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _machine(world: Communicator, threads: int) -> dict[str, Any]:
    """What all ranks together met."""
    own = folder.facts()
    held = world.exchange_objects((own["host"], folder.own_cores()))
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


def _own_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# From what a user wrote, in a file, in flags or in Python, to a plan.

# Nothing of a study is resumed in the middle of a run: checkpoints would cost alone.
NO_CHECKPOINTS = {"every": 0, "seconds": 0.0}


def make_plan(
    kind: str, asked: Mapping[str, Any], base: Mapping[str, Mapping[str, Any]]
) -> StudyPlan:
    """The plan of `asked`, the keys of [study], over `base`, the tables of `train`.

    What is not asked for is what `base` or `train` has: one batch, one number of steps.
    """
    unknown = sorted(set(asked) - set(KEYS))
    if unknown:
        hint = did_you_mean(str(unknown[0]), KEYS)
        raise ConfigError(f"[study] unknown: {unknown}{hint}; known: {sorted(KEYS)}")
    named = asked.get("kind", kind)
    if named != kind:
        raise ConfigError(f"[study] kind = {named!r}: use hpcsgd study {named}")
    config, tables = RunConfig.parse(base), _shared(base)
    path = tables.get("data", {}).get("path", "")
    if not path:
        raise ConfigError("no data: add --data FILE.h5, or [data] path in the file")
    tables["data"]["path"] = str(Path(path).absolute())
    given = {k: KEYS[k](k, v) for k, v in asked.items() if v is not None}
    given.pop("kind", None)
    plan = StudyPlan(
        kind=kind,
        base=tables,
        rows=rows_in(path),
        **{**_of_base(config), "ranks": (), **_renamed(given)},
    )
    check_plan(plan)
    return plan


def _of_base(config: RunConfig) -> dict[str, Any]:
    """What is one value in `train` and a list here."""
    return {
        "steps": (config.schedule.steps or "auto",),
        "batch": (config.schedule.batch * config.grid.replicas,),
        "precision": (config.precision.recipe,),
        "seeds": (config.sampling.seed,),
    }


def _renamed(given: dict[str, Any]) -> dict[str, Any]:
    if "emulate_members" in given:
        given["emulated"] = given.pop("emulate_members")
    return given


def _shared(base: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """`base` without what every point has for itself."""
    tables = {section: dict(table) for section, table in base.items()}
    for section, key in OWN:
        tables.get(section, {}).pop(key, None)
    tables.pop("grid", None)
    tables.setdefault("checkpoint", dict(NO_CHECKPOINTS))
    return {section: table for section, table in tables.items() if table}


OWN = (
    ("schedule", "steps"),
    ("schedule", "batch"),
    ("precision", "recipe"),
    ("sampling", "seed"),
    ("run", "out"),
    ("run", "resume"),
    ("run", "emulate_members"),
)


def _words(key: str, value: Any) -> list[Any]:
    """The items of "1,2,4", of a list, or of one value."""
    if isinstance(value, str):
        return [word.strip() for word in value.split(",") if word.strip()]
    if isinstance(value, Sequence):
        return list(value)
    return [value]


def numbers(key: str, value: Any) -> tuple[int, ...]:
    """Whole numbers."""
    return tuple(_number(key, item) for item in _words(key, value))


def _number(key: str, item: Any) -> int:
    if isinstance(item, str) and item.isdigit():
        return int(item)
    if isinstance(item, int) and not isinstance(item, bool):
        return item
    flag = key.replace("_", "-")
    raise ConfigError(f"--{flag}: {item!r} is no whole number; write for example 1,2,4")


def steps(key: str, value: Any) -> tuple[Steps, ...]:
    """Whole numbers, or auto."""
    found = _words(key, value)
    return tuple(s if s == "auto" else _number(key, s) for s in found)


def names(key: str, value: Any) -> tuple[str, ...]:
    """Plain words."""
    return tuple(str(item) for item in _words(key, value))


def grids(key: str, value: Any) -> tuple[Grid, ...]:
    """RxC each, or pairs."""
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


# the keys of [study] -> how each is understood
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


# Studies from Python: one call each.

Config = Mapping[str, Mapping[str, Any]]


def study(
    plan: StudyPlan, out: str | Path, *, resume: bool = False, timeout: float = TIMEOUT
) -> Account:
    """Run every point of a plan in a process of its own.

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
    return _ask("strong", data, ranks, out, config, lists)


def weak(
    data: str | Path,
    ranks: Sequence[int],
    out: str | Path,
    config: Config | None = None,
    **lists: Any,
) -> Account:
    """Run a weak scaling study: the rows grow with the ranks.

    A run on one rank takes a part of the rows. `batch_grows` in `lists` lets the batch
    grow as well.

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
    return _ask("weak", data, ranks, out, config, lists)


def sweep(
    data: str | Path,
    ranks: Sequence[int],
    out: str | Path,
    config: Config | None = None,
    **lists: Any,
) -> Account:
    """Run all combinations of settings, on every number of ranks.

    Hybrid methods run on every grid.

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
    return _ask("sweep", data, ranks, out, config, lists)


def _ask(
    kind: str,
    data: str | Path,
    ranks: Sequence[int],
    out: str | Path,
    config: Config | None,
    lists: dict[str, Any],
) -> Account:
    how = {name: lists.pop(name) for name in ("resume", "timeout") if name in lists}
    base = {section: dict(table) for section, table in (config or {}).items()}
    base.setdefault("data", {})["path"] = str(data)
    plan = make_plan(kind, {"ranks": list(ranks), **lists}, base)
    return study(plan, out, **how)

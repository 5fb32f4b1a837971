"""Resuming from a checkpoint: which one, and whether it belongs to this run."""

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from os.path import realpath
from pathlib import Path
from stat import S_ISDIR
from typing import Any

import numpy as np

from hpcsgd.agreements import settings_of
from hpcsgd.agreements.gradient import OF_CODECS
from hpcsgd.backends.task import MEMORY, SHARED, Snapshot
from hpcsgd.comm.communicator import Communicator
from hpcsgd.config import RunConfig, RunSection, is_read
from hpcsgd.errors import ConfigError, DataError, did_you_mean_file
from hpcsgd.files import unreadable
from hpcsgd.runs.assembled_run import AssembledRun
from hpcsgd.runs.checkpoint import (
    FOLDER,
    PRECISION_AUTO,
    REQUESTED,
    CheckpointStore,
    read_checkpoint,
)
from hpcsgd.runs.fall_back import RAISED
from hpcsgd.runs.settle import EarlierChoice

log = logging.getLogger(__name__)
Tables = Mapping[str, Mapping[str, Any]]
# Sections that decide the iterates: other values are another run.
FIXED = (
    *("problem", "schedule", "update", "rate", "sampling", "sweep", "precision"),
    *("agreement", "codec", "mirror", "accordion", "average", "privacy"),
)

WHERE = ("tile", "store", "sync", "direct")
# Settings of agreements that change no step of kinds which take the same ones.
SAME_STEPS = ("method", "kind", "stage", "bucket")


def resume(
    config: RunConfig, live: AssembledRun, known: Snapshot | None = None
) -> bool:
    """Restore a run from its checkpoint, if there is one. Collective.

    Return on rank 0 whether the checkpoint is in the run folder of this run, and not in
    that of another; other ranks return False. Rank 0 reads the checkpoint, all ranks
    check it, and no rank starts before all have agreed. After a failure or a fall-back,
    all ranks have the checkpoint in memory and pass it as `known`, the same on each;
    then all return True.
    """
    world = live.grid.world
    checkpoint = known
    path = None
    if known is None:
        candidate = world.together(
            lambda: _find(config.run) if world.rank == 0 else None
        )
        path, snapshot = candidate or (None, None)
        checkpoint = _share(world, snapshot)
    if checkpoint is None:
        return False
    world.together(lambda: _check(config, live, checkpoint))
    world.together(lambda: _check_place(config, live, path))
    live.restore(checkpoint)
    if world.rank == 0:
        _say(checkpoint, live)
    return known is not None or _is_own(config.run, path)


@dataclass(frozen=True)
class CheckpointedRun:
    """The settings and choices of a run that its checkpoint records.

    Attributes
    ----------
    config : mapping of mappings
        The settings that ran.
    requested : mapping of mappings
        The settings before the first fall-back.
    has_fallen_back : bool
        Whether these two differ by fall-backs.
    choice : EarlierChoice
        The product and the steps that ran.
    precision_auto : mapping or None
        How the recipe was chosen; None where it was named.
    """

    config: Tables
    requested: Tables
    has_fallen_back: bool
    choice: EarlierChoice
    precision_auto: Mapping[str, Any] | None

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> "CheckpointedRun":
        """Return what `document`, the document of a checkpoint, records about its run.

        Raises
        ------
        DataError
            If it lacks what every run writes.
        """
        try:
            config = document["config"]
            product = document["product"]
            steps = config["schedule"]["steps"]
        except (KeyError, TypeError) as error:
            raise DataError(
                f"a checkpoint does not name its product or its steps ({error}); resume"
                " from an older one"
            ) from error
        return cls(
            config=config,
            requested=document.get(REQUESTED) or config,
            has_fallen_back=bool(document.get(REQUESTED)),
            choice=EarlierChoice(
                product=product,
                steps=steps,
                look_ahead=document.get("look_ahead", False),
                members=document.get("members", 0),
            ),
            precision_auto=document.get(PRECISION_AUTO),
        )


def fallback_values(
    now: Mapping[str, Mapping[str, Any]], recorded: CheckpointedRun
) -> dict[str, Any]:
    """Return section.key -> the value to which a recorded run fell back.

    A value is taken over only if both runs request the same value of that setting; a
    setting that requests another value keeps it. `now` are the settings of this run.
    """
    if not recorded.has_fallen_back:
        return {}
    then = recorded.requested
    fell = recorded.config
    names = ("schedule.steps", *(f"precision.{key}" for key in ("recipe", *RAISED)))
    values = {}
    for name in names:
        section, key = name.split(".")
        is_same = now[section].get(key) == then[section].get(key)
        if is_same and key in fell.get(section, {}):
            values[name] = fell[section][key]
    return values


def find_recorded_run(run: RunSection, world: Communicator) -> CheckpointedRun | None:
    """Return what a checkpoint records about the run to resume; None if there is none.

    Collective, if `run.resume` requests a checkpoint. Rank 0 reads the newest complete
    one of a folder, or the file that `run.resume` names. A checkpoint that cannot be
    read is passed over without a message; `resume` reports it.
    """
    if run.resume == "no":
        return None
    return world.of_root(lambda: _recorded_run(run))


def _recorded_run(run: RunSection) -> CheckpointedRun | None:
    """Return what the checkpoint to resume from records about its run.

    It is the newest complete one of a folder, or the file that `run.resume` names.
    Return None if there is none that can be read.
    """
    path = _run_folder(run) if run.resume == "auto" else Path(run.resume)
    is_folder = run.resume == "auto" or _is_folder(path)
    with suppress(OSError):
        paths = (
            CheckpointStore(path, 1).paths() if is_folder else [Path(realpath(path))]
        )
        for file in paths:
            with suppress(DataError):
                return CheckpointedRun.of(read_checkpoint(file).document)
    return None


def _run_folder(run: RunSection) -> Path:
    if not run.out:
        raise ConfigError("--resume auto needs the run folder; add --out DIR")
    return Path(run.out)


def _find(run: RunSection) -> tuple[Path, Snapshot] | None:
    """Return path and contents of the checkpoint to resume from; None if there is none.

    It is the file that `run.resume` names, or the newest complete one of the folder
    that it names; for "auto", of the run folder. A folder that it names must have one.
    """
    if run.resume == "no":
        return None
    if run.resume == "auto":
        return CheckpointStore(_run_folder(run), 1).newest(tidies=True)
    path = Path(run.resume)
    if not _is_folder(path):
        return path, read_checkpoint(Path(realpath(path)))
    # The folder of another run is read, not written.
    newest = CheckpointStore(path, 1).newest(tidies=_is_same(path, run.out))
    if newest is None:
        raise ConfigError(
            f"--resume {path} holds no checkpoints; name a run folder that does"
        )
    return newest


def _is_folder(path: Path) -> bool:
    try:
        return S_ISDIR(path.stat().st_mode)
    except FileNotFoundError as error:
        raise ConfigError(
            f"--resume {path} does not exist{did_you_mean_file(path)}; name a"
            " checkpoint, a run folder, or auto"
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def _is_own(run: RunSection, path: Path | None) -> bool:
    """Return whether the checkpoint at `path` is in the run folder of `run`."""
    if path is None or not run.out:
        return False
    return _is_same(path.resolve().parent, Path(run.out) / FOLDER)


def _is_same(folder: Path, other: Path | str | None) -> bool:
    try:
        return other is not None and folder.samefile(other)
    except OSError:
        return False


def _share(world: Communicator, found: Snapshot | None) -> Snapshot | None:
    """Return on every rank the checkpoint that rank 0 has found, or None. Collective.

    Rank 0 sends it, so that the file is read once, and not by every rank.
    """
    outline = None
    if found is not None:
        shapes = {name: (a.shape, a.dtype.str) for name, a in found.arrays.items()}
        outline = (found.document, shapes)
    outline = world.share_object(outline)
    if outline is None:
        return None
    document, shapes = outline
    arrays = {}
    for name, (shape, dtype) in shapes.items():
        array = found.arrays[name] if found is not None else np.empty(shape, dtype)
        arrays[name] = world.broadcast(np.ascontiguousarray(array), 0)
    return Snapshot(document, arrays)


def _check(config: RunConfig, live: AssembledRun, checkpoint: Snapshot) -> None:
    """Raise an error if the checkpoint belongs to another run than this one."""
    document = checkpoint.document
    fingerprint = live.loaded.facts.fingerprint
    if document["fingerprint"] != fingerprint:
        raise DataError(
            f"the data is not what this run was started on (now"
            f" {fingerprint}, then {document['fingerprint']}); bring the file"
            " back, or start anew with --resume no"
        )
    now = config.tables()
    usual = RunConfig().tables()
    for section in FIXED:  # older ones lack newer settings
        then = usual[section] | document["config"].get(section, {})
        _check_section(section, then, now[section], config)
    replicas = live.grid.replicas.size
    if config.privacy.is_on and document["replicas"] != replicas:
        raise ConfigError(
            "[privacy] counts the rows of each step, and the checkpoint was made by"
            f" {document['replicas']} replicas, while this run has {replicas}; use that"
            " many, or start anew with --resume no"
        )
    _check_arrays(live, checkpoint)


def _check_place(config: RunConfig, live: AssembledRun, path: Path | None) -> None:
    """Refuse to resume a run whose states are on disk in the folder of another run.

    The states would be changed there.
    """
    if path is None or config.agreement.states_folder or _is_own(config.run, path):
        return
    if config.agreement.on_disk:
        run = path.resolve().parent.parent
        raise ConfigError(
            f"the weights and states of this run are on disk in {run}, and resuming"
            f" changes them there; use --out {run} --resume auto, or name their folder"
            " with agreement.store"
        )


def are_alike(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Return whether two sections [agreement] lead to the same steps.

    They do if both take steps along summed gradients without a codec.
    """
    return all(
        settings_of(section["kind"]).steps_of_gradient
        and section["codec"] == "identity"
        for section in (one, other)
    )


def _check_section(
    section: str, then: Mapping[str, Any], now: Mapping[str, Any], config: RunConfig
) -> None:
    for key in sorted({*then, *now}, key=lambda key: (key != "kind", key)):
        if (section, key) == ("schedule", "epochs") and config.rate.kind != "cosine":
            continue  # a run may be made longer
        if section == "agreement" and key in SAME_STEPS and are_alike(then, now):
            continue
        if section == "agreement" and key in WHERE:
            continue  # where states lie, and in what pieces, decides nothing
        if not is_read(f"{section}.{key}", config):
            continue  # earlier versions let such values pass
        if then.get(key) != now.get(key):
            raise ConfigError(
                f"[{section}] {key} = {now.get(key)!r} and the checkpoint was made with"
                f" {then.get(key)!r}; use that value, or start anew with --resume no"
            )


def _check_arrays(live: AssembledRun, checkpoint: Snapshot) -> None:
    """Refuse a checkpoint without the arrays of this run, or with other shapes."""
    then = checkpoint.document["config"].get("grid", {}).get("replicas", 0)
    for name, shape in _wanted(live, checkpoint).items():
        array = checkpoint.arrays.get(name)
        if array is None and then == 1 and name.startswith(MEMORY + OF_CODECS):
            continue  # one replica encodes nothing, and owes nothing
        if array is None or array.shape[-len(shape) :] != shape:
            raise DataError(
                f"the checkpoint holds no {name} of shape {shape}, so that it belongs"
                " to another run; start anew with --resume no"
            )


def _wanted(live: AssembledRun, checkpoint: Snapshot) -> dict[str, tuple[int, ...]]:
    """Return the shapes that arrays of the checkpoint must have, by name.

    They are without the axis of replicas. If weights and states are on disk, no array
    is required.
    """
    if live.config.agreement.on_disk:
        return {}
    columns = live.task.shard.total_columns
    state = live.state
    agreement = live.agreement
    shapes: dict[str, tuple[int, ...]] = {"weights": (columns, agreement.width(state))}
    for name, width in agreement.widths(state).items():
        shapes[MEMORY + name] = (columns, width)
    for name, array in state.shared.items():
        shapes[SHARED + name] = array.shape
    if state.intercept is not None:
        shapes["intercept"] = state.intercept.shape
        if "good_weights" in checkpoint.arrays:
            shapes["good_intercept"] = state.intercept.shape
    return shapes


def _say(checkpoint: Snapshot, live: AssembledRun) -> None:
    document = checkpoint.document
    replicas = live.grid.replicas.size
    log.info("resumed: going on after exchange %d", checkpoint.exchanges)
    if document["replicas"] != replicas:
        log.warning(
            "the checkpoint was made by %d replicas and this run has %d: it goes on"
            " from their mean weights, with other batches than before",
            document["replicas"],
            replicas,
        )

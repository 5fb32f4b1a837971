"""What a run takes of its weights, and with which objective."""

from hpcsgd.agreement import Agreement, Infinity, Sharded
from hpcsgd.assembly.engine_parts import Parts
from hpcsgd.assembly.proximal import penalty_of
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.evaluation import Evaluation
from hpcsgd.from_disk.objective import TiledObjective
from hpcsgd.objective import Objective
from hpcsgd.sliced_objective import SlicedObjective
from hpcsgd.stopping import MEASURES


def evaluation_of(parts: Parts, agreement: Agreement) -> Evaluation:
    """By tiles or slices where no rank holds all of its weights."""
    loaded, task = parts.loaded, parts.task
    known = (
        parts.grid,
        task.family,
        loaded.judged,
        penalty_of(parts.config.problem, loaded.shard.total_columns).of(
            loaded.shard.columns
        ),
        loaded.read_exact,
        task.models,
    )
    on_disk = isinstance(agreement, Infinity)
    objective = (
        TiledObjective(*known, loaded.read_some) if on_disk else Objective(*known)
    )
    own = loaded.shard.columns if parts.columns.whole else slice(None)
    if isinstance(agreement, Sharded) and agreement.stage == 3:
        objective = SlicedObjective(**vars(objective), tiles=agreement.tiles)
    takes = _measure(parts.config, several=task.models is not None)
    return Evaluation(
        objective,
        agreement,
        task.columns,
        own,
        takes,
        has_intercept=parts.config.problem.intercept,
    )


def _measure(config: RunConfig, several: bool) -> str:
    """What every evaluation takes: what was asked for, and what the goal needs."""
    asked, goal = config.run.evaluate, config.stop.on
    if goal == "validation" and not config.sampling.hold_out:
        raise ConfigError(
            "[stop] on = 'validation' goes by rows that are held out, and there are"
            " none; set sampling.hold_out, 0.1 is usual"
        )
    if goal == "validation" and config.polish.kind != "none":
        raise ConfigError(
            "[stop] on = 'validation' ends before the optimum, to which [polish] would"
            " go on; set polish.kind = 'none'"
        )
    if goal != "none" and not config.run.evaluate_every:
        raise ConfigError(
            f"[stop] on = {goal!r} is looked for at evaluations, and there are none"
            " before the end; set run.evaluate_every, 1 is usual"
        )
    if goal in ("validation", "loss") and several:
        raise ConfigError(
            f"[stop] on = {goal!r} would end all models where one is best; set"
            " stop.on = 'none' for a sweep, which judges each by its held loss"
        )
    takes = max(asked, goal if goal in MEASURES else "loss", key=MEASURES.index)
    each = config.run.evaluate_every == config.update.snapshot == 1
    if config.update.kind == "svrg" and each and takes == "loss":
        takes = "gradient"  # its snapshot has to take it there anyway
    if several and takes != "loss":
        raise ConfigError(
            f"the {takes} of several models is not taken; set stop.on = 'none' and"
            " run.evaluate = 'loss' for a sweep"
        )
    return takes

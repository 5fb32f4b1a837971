"""What a coordinate form does not do, each in a sentence that names what does."""

from collections.abc import Iterator

from hpcsgd.config import RunConfig
from hpcsgd.coordinate.settings import COORDINATE
from hpcsgd.errors import ConfigError
from hpcsgd.precision import AUTO

OF = {"primal": "gaussian", "dual": "squared-hinge"}  # form -> its only family
ASK = f"--update {COORDINATE}"
KINDS = ("auto", "gram", "cached")
MODES = ("shuffle-once", "reshuffle")


def form_of(config: RunConfig, ranks: int) -> str:
    """The form of a configuration that has one, on so many ranks; else why not."""
    for sentence in _refusals(config, ranks):
        raise ConfigError(sentence)
    return best_form(config)


def fits(config: RunConfig) -> bool:
    """Whether there is a form for this problem at all."""
    return not any(_of_problem(config))


def best_form(config: RunConfig) -> str:
    """The one that is asked for, or that needs the least for the problem."""
    problem, asked = config.problem, config.coordinate.form
    if asked != "auto":
        return asked
    if problem.family == OF["primal"]:
        return "primal"
    is_dual = problem.is_smooth and problem.l2 > 0.0 and not problem.intercept
    return "dual" if problem.family == OF["dual"] and is_dual else "newton"


def quickest_form(family: str, l1: float, ranks: int) -> str:
    """Return the form that takes the least time to the optimum; "auto": the usual one.

    Least squares with l1 on one process have no message that a Gram would save: newton
    looks at the columns of a working set alone.
    """
    return "newton" if ranks == 1 and l1 and family == OF["primal"] else "auto"


def _refusals(config: RunConfig, ranks: int) -> Iterator[str]:
    yield from _of_problem(config)
    yield from _of_method(config)
    yield from _of_run(config)
    yield from _of_grid(config, ranks)


def _of_problem(config: RunConfig) -> Iterator[str]:
    problem, form = config.problem, best_form(config)
    if form in OF and problem.family != OF[form]:
        yield (
            f"the {form} form is for {OF[form]}, not {problem.family}; use --set"
            " coordinate.form=newton, or leave it out"
        )
    if form != "dual":
        return
    instead = "leave coordinate.form out, or set it to newton"
    if problem.l2 == 0.0:
        yield f"the dual form needs a ridge; set --l2, or {instead}"
    if not problem.is_smooth:
        yield f"the dual form knows no l1 and no bounds; {instead}"
    if problem.intercept:
        yield (
            "the dual form has no intercept: unpenalised, it would tie all dual"
            f" variables together; {instead}"
        )


def _of_method(config: RunConfig) -> Iterator[str]:
    precision, sampling = config.precision, config.sampling
    formats = set(vars(precision.resolve()).values())
    if precision.recipe == AUTO or formats not in ({"fp32"}, {"fp64"}):
        yield f"{ASK} computes in fp32 or fp64; use --precision fp32 or fp64"
    if sampling.mode not in MODES:
        yield (
            f"{ASK} takes every item once an epoch, and --sampling {sampling.mode} does"
            f" not; use {' or '.join(MODES)}"
        )
    if config.products.kind not in KINDS:
        yield (
            f"{ASK} sums a Gram, and --products {config.products.kind} has none; use"
            f" {', '.join(KINDS)}"
        )
    if config.products.kind == "cached" and sampling.mode != "shuffle-once":
        yield (
            "--products cached needs groups that come again; use --sampling"
            " shuffle-once, or --products gram"
        )
    if not config.schedule.steps:
        yield f"{ASK} has no model of its times; choose --steps"
    if sampling.hold_out:
        yield f"{ASK} trains on all rows; use sampling.hold_out = 0"
    if config.stop.on != "none" or config.polish.kind != "none":
        yield f"{ASK} goes to its own optimum; use coordinate.tol alone"
    if config.update.clip != "none":
        yield f"{ASK} has no rate, and so nothing to clip; use update.clip = 'none'"
    if config.average.kind != "none":
        yield f"{ASK} has no noise to average away; use average.kind = 'none'"
    if config.products.look_ahead == "on":
        yield f"{ASK} sums no Gram ahead; use products.look_ahead = 'off'"


def _of_run(config: RunConfig) -> Iterator[str]:
    run = config.run
    if run.device != "cpu":
        yield f"{ASK} runs on the CPU; use --device cpu"
    if run.resume != "no":
        yield f"{ASK} writes no checkpoints, so there is nothing to --resume"
    if config.checkpoint.every:
        yield f"{ASK} writes no checkpoints; use checkpoint.every = 0"
    if run.emulate_members:
        yield f"{ASK} cannot be one of --emulate-members; start as many ranks"
    if run.on_failure != "stop":
        yield f"{ASK} cannot go on without a rank; use --on-failure stop"


def _of_grid(config: RunConfig, ranks: int) -> Iterator[str]:
    grid = config.grid
    if (grid.replicas, grid.members) in ((1, 0), grid_of(config, ranks)):
        return
    replicas, members = grid_of(config, ranks)
    held = "rows" if replicas > 1 else "columns"
    yield (
        f"{ASK} of {config.problem.family} has ranks that hold {held}; use --grid"
        f" {replicas}x{members}, or leave it out"
    )


def grid_of(config: RunConfig, ranks: int) -> tuple[int, int]:
    """Replicas × members: ranks hold rows, or for the dual form columns."""
    return (1, ranks) if best_form(config) == "dual" else (ranks, 1)

"""What a coordinate form does not do, each in a sentence that names what does."""

from collections.abc import Iterator

from hpcsgd.config import RunConfig
from hpcsgd.coordinate.settings import COORDINATE
from hpcsgd.errors import ConfigError
from hpcsgd.precision import AUTO

FORMS = {"gaussian": "primal", "squared-hinge": "dual"}
ASK = f"--update {COORDINATE}"
KINDS = ("auto", "gram", "cached")
MODES = ("shuffle-once", "reshuffle")


def form_of(config: RunConfig, ranks: int) -> str:
    """The form of a configuration that has one, on so many ranks; else why not."""
    for sentence in _refusals(config, ranks):
        raise ConfigError(sentence)
    return FORMS[config.problem.family]


def fits(config: RunConfig) -> bool:
    """Whether there is a form for this problem at all."""
    return not any(_of_problem(config))


def _refusals(config: RunConfig, ranks: int) -> Iterator[str]:
    yield from _of_problem(config)
    yield from _of_method(config)
    yield from _of_run(config)
    yield from _of_grid(config, ranks)


def _of_problem(config: RunConfig) -> Iterator[str]:
    problem = config.problem
    family, form = problem.family, FORMS.get(problem.family)
    if form is None:
        yield (
            f"{ASK} is for {' and '.join(FORMS)}, not {family}; use --update sgd with"
            " --steps 1 for l1 and bounds"
        )
    if form != "dual":
        return
    if problem.l2 == 0.0:
        yield f"{ASK} of {family} goes by the dual, which needs a ridge; set --l2"
    if not problem.is_smooth:
        yield (
            f"{ASK} of {family} goes by the dual, which knows no l1 and no bounds; use"
            " --update sgd --steps 1"
        )
    if problem.intercept:
        yield (
            f"{ASK} of {family} has no intercept: unpenalised, it would tie all dual"
            " variables together; leave --intercept out, add a column of ones (which is"
            " then penalised), or use --update sgd"
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
    if config.update.clip != "none":
        yield f"{ASK} has no rate, and so nothing to clip; use update.clip = 'none'"


def _of_run(config: RunConfig) -> Iterator[str]:
    run = config.run
    if run.device != "cpu":
        yield f"{ASK} runs on the CPU; use --device cpu"
    if run.resume != "no":
        yield f"{ASK} writes no checkpoints, so there is nothing to --resume"
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
    """Replicas × members: ranks of the primal hold rows, those of the dual columns."""
    is_primal = FORMS[config.problem.family] == "primal"
    return (ranks, 1) if is_primal else (1, ranks)

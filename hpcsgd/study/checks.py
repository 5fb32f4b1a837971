"""What of a plan cannot be run, or would compare unequal things."""

from collections.abc import Sequence
from math import lcm
from typing import Any

from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.families import get_family
from hpcsgd.study.methods import PLACED, Grid, Method, get_method
from hpcsgd.study.plan import KINDS, PLACES, Plan
from hpcsgd.study.points import Point
from hpcsgd.study.settings import check_shared


def check(plan: Plan) -> None:
    """Refuse what cannot be run, or would compare unequal things."""
    if plan.kind not in KINDS or plan.on not in PLACES:
        raise ConfigError(
            f"a study is one of {', '.join(KINDS)} on {' or '.join(PLACES)},"
            f" not {plan.kind!r} on {plan.on!r}"
        )
    _check_numbers(plan)
    for name in plan.methods:
        get_method(name)
    _check_lists(plan)
    _check_grids(plan)
    _check_weak(plan)
    _check_batch(plan)
    check_shared(plan.base, [_check_point(point) for point in plan.settings()])


def _check_numbers(plan: Plan) -> None:
    for flag, values, least in (
        ("--ranks", plan.ranks, 1),
        ("--emulate-members", plan.emulated, 2),
        ("--batch", plan.batch, 1),
        ("--repeats", (plan.repeats,), 1),
        ("--seeds", plan.seeds, 0),
    ):
        bad = [value for value in values if value < least]
        if bad:
            raise ConfigError(f"{flag} {bad[0]}: must be at least {least}")


def _check_lists(plan: Plan) -> None:
    lists: dict[str, Sequence[Any]] = {
        "--methods": plan.methods,
        "--steps": plan.steps,
        "--batch": plan.batch,
        "--precision": plan.precision,
        "--seeds": plan.seeds,
        "--ranks": plan.all_ranks,
    }
    for flag, values in lists.items():
        if not values:
            raise ConfigError(f"{flag} names nothing; give at least one value")
    once = {"--emulate-members": plan.emulated, "--grids": plan.grids}
    for flag, values in {**lists, "--ranks": plan.ranks, **once}.items():
        twice = [value for value in values if values.count(value) > 1]
        if twice:
            raise ConfigError(f"{flag} has {twice[0]} twice; give each value once")
    both = sorted({*plan.ranks} & {*plan.emulated})
    if both:
        raise ConfigError(
            f"{both[0]} ranks are in --ranks and in --emulate-members, and a point is"
            " either run or emulated; leave it out of one of them"
        )


def _check_grids(plan: Plan) -> None:
    if plan.grids and not set(plan.methods) & set(PLACED):
        raise ConfigError(
            "--grids places hybrid alone, which is not among --methods;"
            " add it, or leave --grids out"
        )
    for r, c in plan.grids:
        if r * c not in plan.all_ranks:
            raise ConfigError(
                f"--grids {r}x{c} needs {r * c} ranks; add {r * c} to --ranks"
            )
    for name in plan.methods:
        if not any(plan.grids_of(name, ranks) for ranks in plan.all_ranks):
            raise ConfigError(
                f"--methods {name} has no R x C grid with both above 1 on any of the"
                " ranks; add 4 to --ranks, name --grids, or leave it out"
            )


def _check_weak(plan: Plan) -> None:
    least = min(plan.all_ranks)
    if plan.batch_grows and plan.kind != "weak":
        raise ConfigError(
            f"--batch-grows is of weak studies alone; leave it out of {plan.kind}"
        )
    odd = [p for p in plan.all_ranks if plan.batch_grows and p % least]
    if odd:
        raise ConfigError(
            f"--batch-grows on {odd[0]} ranks: no multiple of {least}, the fewest;"
            " choose ranks that are, or leave --batch-grows out"
        )
    most = max(plan.all_ranks)
    if plan.kind == "weak" and plan.rows * least < most:
        raise ConfigError(
            f"{plan.rows} rows cannot grow from {least} to {most} ranks; name larger"
            " --data"
        )


def _check_batch(plan: Plan) -> None:
    """All methods see as many rows in a step, so replicas must share them evenly."""
    for point in plan.settings():
        replicas = point.grid[0]
        if point.batch % replicas:
            share = _share(plan)
            larger = -(-point.batch // share) * share
            raise ConfigError(
                f"{point.method} on {point.ranks} ranks: {replicas} replicas cannot"
                f" share a global batch of {point.batch} evenly; use --batch {larger},"
                " or other ranks"
            )


def _share(plan: Plan) -> int:
    """What a batch must be a multiple of, for all replicas of the plan."""
    return lcm(*(point.grid[0] for point in plan.settings()))


def _check_point(point: Point) -> RunConfig:
    try:
        config = RunConfig.parse(point.tables())
        get_family(config.problem.family)
        config.precision.resolve()
    except ConfigError as error:
        raise ConfigError(f"{point.setting}: {error}") from error
    check_steps(point.method, get_method(point.method), point.grid, config)
    return config


def check_steps(name: str, method: Method, grid: Grid, config: RunConfig) -> None:
    """Refuse s left open where it changes what is learnt, and products that sum each.

    s is 0 in a configuration that leaves it open.
    """
    if not config.schedule.steps and grid[0] > 1:
        raise ConfigError(
            f"{name} on {grid[0]} replicas: --steps auto would change what is learnt;"
            " name the steps"
        )
    if method.product and config.products.kind == "direct":
        raise ConfigError(
            f"{name} takes s steps a sum, which --products direct does not; leave"
            " --products out, or name gram or cached"
        )

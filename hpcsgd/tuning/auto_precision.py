"""`--precision auto`: the cheapest recipe within the tolerance, by pilot runs."""

import logging
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from hpcsgd.backends.base import emulated
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.network_model import Network, parse_network
from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.config import RunConfig
from hpcsgd.data.readers import RowReader
from hpcsgd.precision import AUTO, RECIPES, PrecisionConfig
from hpcsgd.products.cost import Machine
from hpcsgd.runs.checkpoint import PRECISION_AUTO
from hpcsgd.runs.machine import Sum, tree_of_network
from hpcsgd.runs.resume import CheckpointedRun
from hpcsgd.runs.settle import RESUMED
from hpcsgd.tuning.pilots import (
    SamplePath,
    cost_of,
    draw_sample_of,
    loss_gaps,
    on_first_rank,
    planned_exchanges,
)

log = logging.getLogger(__name__)
WIDEST = "fp64"
# Recipes by their usual seconds, the cheapest first. A reproducible run chooses by this
# order, as measured seconds differ from run to run. The tuner's order is another one.
ORDER = ("c", "d", "fp32", "fp8", "fp16", "bf16", "fp64")


@dataclass(frozen=True)
class RecipeChoice:
    """A recipe, its predicted gap, and the figures of all compared recipes."""

    recipe: str
    predicted_gap: float
    considered: dict[str, dict[str, float]]  # recipe -> seconds an exchange, gap

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as a dict, for the report."""
        return dict(vars(self))


def resolve_precision(
    config: RunConfig,
    world: Communicator,
    reader: Callable[[Communicator], RowReader],
    recorded: CheckpointedRun | None = None,
) -> tuple[RunConfig, dict[str, Any]]:
    """Return the configuration with a recipe in the place of `auto`, and what to
    report.

    Rank 0 runs the pilots, and all ranks use its choice. A resumed run uses the choice
    in the checkpoint, `recorded`.
    """
    if config.precision.recipe != AUTO:
        return config, {}

    def choose() -> tuple[PrecisionConfig, dict[str, Any]]:
        if recorded is not None:
            how = recorded.precision_auto
            known = {} if how is None else {PRECISION_AUTO: how}
            return PrecisionConfig(**recorded.requested["precision"]), known
        ranks = config.run.emulate_members or world.size
        found = choose_recipe(config, ranks, reader(SerialCommunicator()))
        chosen = replace(config.precision, recipe=found.recipe)
        return chosen, {PRECISION_AUTO: found.as_dict()}

    # Each rank needs a copy, to which the run adds facts.
    precision, said = deepcopy(on_first_rank(world, choose))
    if said:
        found = said[PRECISION_AUTO]
        log.info(
            "precision: %s, whose loss is expected within %.2g %% of fp64's",
            *(found["recipe"], 100 * found["predicted_gap"]),
            extra={"on_all_ranks": True},
        )
    return replace(config, precision=precision), said


def recipe_reason(notes: Mapping[str, Any]) -> str:
    """Return why `resolve_precision` chose a recipe, from what it reports."""
    if PRECISION_AUTO not in notes:
        return RESUMED
    gap = 100 * notes[PRECISION_AUTO]["predicted_gap"]
    return f"cheapest in pilots, {gap:.2g} % from the loss of fp64"


def choose_recipe(config: RunConfig, ranks: int, reader: RowReader) -> RecipeChoice:
    """Return the cheapest recipe that is not emulated and is within the tolerance."""
    members = config.grid.members or max(ranks // config.grid.replicas, 1)
    try:
        sample = draw_sample_of(config, reader)
    finally:
        reader.close()
    planned = planned_exchanges(config, reader.rows)
    asked = affordable(config.precision)
    gaps = loss_gaps(config, sample, asked, members, planned)
    (exchange,) = SamplePath(config, sample, min(members, reader.cols)).exchanges(1, 1)
    sums = [_sum_of(config, members)]
    costs = {
        name: cost_of(exchange, one.resolve(), sums, seconds=True).total
        for name, one in asked.items()
    }
    if config.run.reproducible:  # measured seconds differ from run to run
        costs = {name: float(ORDER.index(name)) for name in asked}
    good = [n for n in asked if gaps[n].predicted <= config.precision.tolerance]
    best = min(good, key=lambda name: costs[name], default=WIDEST)
    return RecipeChoice(
        recipe=best,
        predicted_gap=gaps[best].predicted,
        considered={
            name: {"seconds": costs[name], "predicted_gap": gaps[name].predicted}
            for name in asked
        },
    )


def affordable(asked: PrecisionConfig) -> dict[str, PrecisionConfig]:
    """Return name -> recipe with what is set by hand, of those that are not emulated;
    fp64 always.
    """
    recipes = {name: replace(asked, recipe=name) for name in RECIPES}
    return {
        name: recipe
        for name, recipe in recipes.items()
        if name == WIDEST or not emulated(recipe.resolve())
    }


def _sum_of(config: RunConfig, members: int) -> Sum:
    """Return the sum over the emulated network, or else one with usual constants."""
    usual = Machine()
    network = Network(usual.latency, 1 / usual.per_byte)
    if config.run.network:
        network = parse_network(config.run.network)
    return tree_of_network(network, members)

"""What all ranks of a run must have been told alike: it decides what is sent."""

from hpcsgd.agreement.plan_check import check_plan, check_same
from hpcsgd.assembly.engine_parts import Live
from hpcsgd.comm.base import Communicator
from hpcsgd.config import RunConfig

OWN = (
    "data.path",
    "run.out",
    "run.memory",
    "agreement.store",
)  # where a rank reads and writes


def check_settings(config: RunConfig, world: Communicator) -> None:
    """Refuse ranks that were given different settings; two words, before all else."""
    check_same(world, settings_of(config))


def check_live(live: Live) -> None:
    """Refuse replicas whose agreements were planned unlike; before the first."""
    check_plan(live.grid, live.engine.agreement.plan_in_words(live.state))


def settings_of(config: RunConfig) -> dict[str, str]:
    """The settings that decide what is sent, by name."""
    said = {
        f"{section}.{key}": repr(value)
        for section, table in config.tables().items()
        for key, value in table.items()
    }
    # Whoever has a folder takes part in what is written there.
    kept = "no folder" if config.run.out is None else "a folder"
    return {n: v for n, v in said.items() if n not in OWN} | {"run.out": kept}

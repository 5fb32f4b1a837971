"""Whether what a run will hold fits: held against every limit of every node."""

import os
import socket

from hpcsgd.agreement.kinds import is_on_disk
from hpcsgd.comm.grid import Grid
from hpcsgd.config import RunConfig
from hpcsgd.data.readers import RowReader, is_sparse
from hpcsgd.errors import ConfigError
from hpcsgd.limits import Budget, Claim, Limit, system_limits, tightest
from hpcsgd.memory.need import Need, predict, streamed
from hpcsgd.precision import Precision

GIB = 2**30


def check_memory(
    grid: Grid, reader: RowReader, config: RunConfig, precision: Precision, states: int
) -> bool:
    """True where blocks have to be streamed because they do not fit on some node.

    Where they cannot be, or not even a window of them fits, the run is refused; the
    same answer on every rank.
    """
    schedule, sampling = config.schedule, config.sampling
    need = grid.world.together(lambda: predict(grid, reader, config, precision, states))
    on_gpu = config.run.device == "cuda"
    on_disk = is_on_disk(config.agreement.kind)
    by_blocks = sampling.mode == "blocks" and not (on_gpu or on_disk)
    may_stream = (by_blocks or on_gpu or on_disk) and not is_sparse(reader)
    # What is streamed leaves room for the file in the system's own memory.
    share = 0.5 if may_stream and by_blocks else 1.0
    budget = _tightest(grid, need, config, share)
    if not grid.world.max_flag(int(budget.lacks > 0)):
        return False
    if may_stream:
        need = streamed(need, grid, reader, config, precision)
        budget = _tightest(grid, need, config, share)

    def refuse() -> None:
        if budget.lacks > 0:
            raise ConfigError(_sentence(need, budget, config))
        m, held = schedule.batch * schedule.most_steps, sampling.block * sampling.window
        if m > held and by_blocks:
            raise ConfigError(
                f"an exchange of {m} rows needs a window of as many, and sampling.block"
                f" x sampling.window is {held}; use a larger window or fewer --steps"
            )

    grid.world.together(refuse)
    return True


def _tightest(grid: Grid, need: Need, config: RunConfig, share: float) -> Budget:
    """The limit that this rank meets first, with what it and its like need."""
    limits = system_limits()
    if config.run.memory:
        by_hand = int(config.run.memory * GIB)
        limits, share = [Limit("run", by_hand, "under run.memory", whole=True)], 1.0
    own = Claim(
        node=socket.gethostname(),
        process=os.getpid(),
        need=need.claim,
        limits=limits,
        holds=need.process,
    )
    return tightest(own, grid.world.exchange_objects(own), share)


def _sentence(need: Need, budget: Budget, config: RunConfig) -> str:
    count, limit = len(budget.needs), budget.limit
    parts = _parts(need, limit)
    largest = sorted(parts.items(), key=lambda item: -item[1])[:3]
    shown = ", ".join(f"{name} {_gib(size)}" for name, size in largest)
    who = f"{count} ranks of this node need" if count > 1 else "this rank needs"
    more = f"{limit.raise_it}, or " if limit.raise_it else ""
    return (
        f"out of memory before anything was allocated: {who} {_gib(sum(budget.needs))}"
        f" and {_gib(budget.free)} are free {limit.where} (one rank: {shown});"
        f" {more}{_remedy(parts, config, limit.shared)}"
    )


def _parts(need: Need, limit: Limit) -> dict[str, int]:
    """The parts that count under a limit: most leave what the process holds out."""
    return {
        name: size
        for name, size in need.counted.items()
        if limit.whole or name != "process"
    }


def _remedy(parts: dict[str, int], config: RunConfig, shared: bool) -> str:
    """The knob that turns the largest part."""
    largest = max(parts, key=lambda name: parts[name])
    steps = config.schedule.most_steps
    apart = " on more nodes" if shared else ""  # from others under the same limit
    return {
        "process": "put fewer ranks on a node, or set a larger run.memory",
        "matrix": (
            "use a smaller sampling.window"
            if config.sampling.mode == "blocks"
            else f"use more ranks{apart}, halve it with --precision c, or"
            " stream it with --sampling blocks"
        ),
        "columns": f"use more replicas{apart} (--grid)",
        "exchange": f"use a smaller --steps than {steps}, or a smaller --batch",
        "kept": "use --products gram, or gather for narrow data, which keep nothing",
        "weights": f"use more members{apart} (--grid)",
        "losses": f"use more members{apart} (--grid)",
        "finisher": f"use more ranks{apart}, or set polish.kind = 'none'",
        "reading": "put fewer ranks on a node" if shared else "use more ranks",
    }[largest]


def _gib(size: int) -> str:
    return f"{size / GIB:.3g} GiB"

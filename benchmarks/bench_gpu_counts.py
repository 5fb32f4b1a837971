"""What kernels ask of a GPU at the sizes of the targets, counted on a processor.

Nothing here is a time that was measured: instructions, bytes and waits are counted from
the PTX that NVRTC makes for sm_90, and divided by rates that others have published.

python -m benchmarks.run bench_gpu_counts
"""

from functools import cache
from typing import Any

from benchmarks.gpu import counted
from benchmarks.gpu.counted import Asked
from benchmarks.gpu.predicted import (
    FROM_MEMORY,
    GPUS,
    LAUNCH_US,
    NODE_US,
    Gpu,
    chain_us,
    limits,
    row,
    waits_us,
)
from benchmarks.gpu.resident import residents
from benchmarks.gpu.sizes import Sizes
from hpcsgd.backends.cuda.kernels import STAGES
from tests.helpers.kernels.ptx.chain import Latencies

SIZES, KEPT = Sizes(), Latencies()
BATCH, STEPS, COLS = SIZES.exchange
SHARE, RATE = 0.85, 790e12  # what bandwidth is aimed at; cuBLAS in bf16 on an H200
# Of one row's residual: a load of shared memory, four products, shuffles, two special
# functions and what stands between them.
STEP = KEPT.shared + 4 * KEPT.arithmetic + 3 * (KEPT.shuffle + KEPT.arithmetic) + 80
JOIN = 4  # waits for L2 of blocks that add parts: a fence, a ticket, the parts, a fence


def measure() -> list[dict[str, Any]]:
    """Rows of kernels, for every GPU; then what they come to."""
    found: list[dict[str, Any]] = []
    for gpu in GPUS:
        found += [*bandwidth(gpu), *grams(gpu), *steps(gpu), exchange(gpu)]
    return [*found, *residents()]


margin = cache(counted.margin)
update = cache(counted.update)
gram = cache(counted.gram)
recurrence = cache(counted.recurrence)
direct = cache(counted.direct_step)


def bandwidth(gpu: Gpu) -> list[dict[str, Any]]:
    """Margins and update of many rows and of long ones, beside a copy."""
    found = []
    for name, shape in (("tall", SIZES.tall), ("wide", SIZES.wide)):
        for kernel, make in (("margin", margin), ("update", update)):
            made = row(f"{kernel} {name}", make(*shape), gpu, target_share=SHARE)
            others = [us for limit, us in made["us"].items() if limit != "memory"]
            # What the next limit takes of that time: the rest is there to hide it.
            made["next_limit"] = round(max(others) / made["us"]["memory"], 3)
            found.append(made)
    return found


def grams(gpu: Gpu) -> list[dict[str, Any]]:
    """Tiles and margins in one launch."""
    found = []
    for name, shape in (("gram small", SIZES.small), ("gram large", SIZES.large)):
        given, splits, stages = gram(*shape, BATCH, gpu.processors)
        waits = gram_waits(gpu, splits, stages)
        made = row(name, given, gpu, waits=waits, splits=splits)
        rate = given.flops / made["predicted_us"] * 1e6
        found.append({**made, "share_of_bf16": round(float(rate / RATE), 3)})
    return found


def gram_waits(gpu: Gpu, splits: int, stages: int) -> float:
    """Of one block: its tile, its rows, stages that are not under way, parts."""
    rounds = -(-stages // (STAGES - 1))
    return waits_us(gpu, 2 + JOIN * (splits > 1), rounds, 3 * KEPT.barrier)


def steps(gpu: Gpu) -> list[dict[str, Any]]:
    """The recurrence of an exchange, by one block and by a cluster; one plain step."""
    floor = 1e6 * STEPS * (STEP + KEPT.barrier) / gpu.clock
    made = [
        row(
            *(name, recurrence((BATCH,) * count, cluster), gpu),
            **{"resident": True, "floor": floor * count / STEPS},
        )
        for name, count, cluster in (
            ("recurrence", STEPS, 1),
            ("recurrence, cluster", STEPS, 8),
            ("recurrence, 1024 rows", 32, 1),
            ("recurrence, cluster, 1024 rows", 32, 8),
        )
    ]
    waits = plain_us(gpu)
    return [*made, row("plain step, FP32", direct(BATCH, COLS), gpu, waits=waits)]


def plain_us(gpu: Gpu) -> float:
    """A step of direct_steps.

    Rows (fetched ahead), sums of a block, all blocks meeting, everyone's sums, a
    residual, and the update from shared memory.
    """
    own = 2 * 3 * (KEPT.shuffle + KEPT.arithmetic) + 80 + 6 * KEPT.barrier
    return waits_us(gpu, 2 + 3 + 1, 0, own + 32 * KEPT.arithmetic + 2 * KEPT.shared)


def graph_us(gpu: Gpu) -> float:
    """A step of a graph of STEPS plain steps: sample, margin, one residual, update."""
    first, own = KEPT.barrier, 5 * (KEPT.shuffle + KEPT.arithmetic)
    adding = 32 * KEPT.arithmetic + KEPT.shared + 3 * KEPT.barrier
    kernels = (
        waits_us(gpu, 1, 2, first),
        waits_us(gpu, 2, 1, own),
        begin_us(gpu) + chain_us(recurrence((BATCH,), 1), gpu),
        waits_us(gpu, 2, 0, adding),
    )
    return LAUNCH_US / STEPS + len(kernels) * NODE_US + sum(kernels)


def exchange(gpu: Gpu) -> dict[str, Any]:
    """512 rows on one member, as one graph; of one rank NCCL has nothing to sum."""
    rows = BATCH * STEPS
    given, splits, stages = gram(rows, COLS, BATCH, gpu.processors)
    updated = update(rows, COLS)
    own = 32 * KEPT.arithmetic + KEPT.shared + 3 * KEPT.barrier
    parts = {
        "launch": LAUNCH_US,
        "sample": waits_us(gpu, 1, 2, KEPT.barrier),
        "gram": both(given, gpu, gram_waits(gpu, splits, stages)),
        "recurrence": begin_us(gpu) + chain_us(recurrence((BATCH,) * STEPS, 1), gpu),
        "update": both(updated, gpu, waits_us(gpu, 2 + JOIN, 0, own), True),
        "between kernels": 3 * NODE_US,
    }
    total = sum(parts.values())
    plain = STEPS * max(plain_us(gpu), *limits(direct(BATCH, COLS), gpu).values())
    return {
        "kernel": "exchange",
        "gpu": gpu.name,
        "us": {name: round(float(value), 2) for name, value in parts.items()},
        "predicted_us": round(float(total), 2),
        "plain_steps_us": round(float(plain), 2),
        "over_plain_steps": round(float(plain / total), 2),
        "over_graph_steps": round(float(STEPS * graph_us(gpu) / total), 2),
        **{
            f"with {1e6 * latency:g} us a sum": round(
                float((plain + STEPS * 1e6 * latency) / (total + 1e6 * latency)), 2
            )
            for latency, _ in SIZES.latencies
        },
    }


def both(given: Asked, gpu: Gpu, waits: float, resident: bool = False) -> float:
    """What binds, but for the first load: nothing comes before it."""
    first = 1e6 * FROM_MEMORY / gpu.clock
    found = limits(given, gpu, resident=resident)
    return max(waits, first + max(found.values()))


def begin_us(gpu: Gpu) -> float:
    """Margins of rows, before the first step."""
    return waits_us(gpu, 1)

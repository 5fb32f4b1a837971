"""What `auto` becomes on a GPU: the model of docs/cost.md, with figures of its own.

They are assumed, in the size of an H100's, and measured nowhere: good enough to tell
products apart that differ by a factor.
"""

from dataclasses import replace

from hpcsgd.assembly.gpu import BY_HOST
from hpcsgd.backends.device_walk import ONE_BLOCK
from hpcsgd.comm.base import Communicator
from hpcsgd.config import RunConfig
from hpcsgd.cost import Job, Machine
from hpcsgd.products import GATHERS
from hpcsgd.products.choose import Choice, candidates

ASSUMED = Machine(
    latency=20e-6,
    per_byte=2e-11,
    gram=1e13,  # in fp32; of 16- and 8-bit rows `ON_CORES`
    read=2e12,
    again=4e12,
    plain=1.5e12,
    inner=2.5e10,  # one processor reads tiles
    link=1e-11,
    exchange=20e-6,
    step=40e-6,
    alone=5e-6,
    turn=1.5e-6,
)
ON_CORES = 5e13  # multiply-adds a second of tensor cores on tiles of 64 rows
STAGED = {"latency": 40e-6, "per_byte": 1e-10}  # sums by way of the host
EACH = 15e-6  # seconds of a plain step that is a launch of its own
NARROW = 2e-6  # of one that a single block takes, which waits for no other
BUDGET = 8 * 2**30  # bytes that a GPU may keep from the first epoch on
OF_ONE = ("direct", "gram", "cached")  # what one member has to choose from


def choose_on_gpu(
    config: RunConfig, job: Job, members: Communicator, sparse: bool = False
) -> Choice:
    """The product and the steps that are left open; sparse rows are not gathered."""
    kind, steps = config.products.kind, config.schedule.steps
    machine = assumed(job, members)
    found = candidates(kind, steps, job, machine, OF_ONE, BUDGET)
    if sparse and kind == "auto":
        found = (one for one in found if one.product not in GATHERS)
    return min(found, key=lambda choice: choice.seconds)


def assumed(job: Job, members: Communicator) -> Machine:
    """One GPU, and what lies between it and those of others."""
    machine = ASSUMED
    if job.matrix < 4:  # bytes of a value
        machine = replace(machine, gram=ON_CORES)
    if job.scores * job.states > 1:
        machine = replace(machine, alone=EACH)
    elif job.batch * job.columns * job.matrix <= ONE_BLOCK:
        machine = replace(machine, alone=NARROW)
    if getattr(members, "kind", "") == BY_HOST:
        machine = replace(machine, **STAGED)
    return machine

"""The cost model as it stands after a fit: seconds of a step of any setting."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hpcsgd.cost import Job, Machine, seconds
from hpcsgd.products import KEEPS
from hpcsgd.tuner.fit import Timed, fit_machine
from hpcsgd.tuner.stage import FIRST, Burst, Setting

FOR_EVER = 10**12  # epochs, of which the first is nothing


@dataclass(frozen=True)
class Model:
    """One machine for each kind of exchange, all of them near the one measured."""

    job: Job  # of the run that is planned, whatever its batch
    start: Machine
    machines: Mapping[str, Machine] = field(default_factory=dict)

    def step(self, setting: Setting) -> float:
        """Seconds of a step, on average over the run."""
        if setting.product not in KEEPS or not self.job.comes_again:
            return self.exchange(setting) / setting.steps
        first = 1.0 / self.job.epochs
        once = self.exchange(setting, later=False)
        later = self.exchange(setting, later=True)
        return (first * once + (1.0 - first) * later) / setting.steps

    def exchange(self, setting: Setting, later: bool = False) -> float:
        """Seconds of one exchange."""
        timed = question(setting, later, self.job)
        machine = self.machines.get(kind_of(setting, later), self.start)
        return seconds(timed.product, timed.steps, timed.job, machine) * setting.steps

    def fitted(self, bursts: Sequence[Burst]) -> "Model":
        """The same after a look at what really took how long."""
        kinds: dict[str, list[Timed]] = {}
        for burst in bursts:
            timed = question(burst.setting, burst.later, self.job)
            kind = kind_of(burst.setting, burst.later)
            kinds.setdefault(kind, []).append(replace(timed, seconds=burst.seconds))
        every = [t for times in kinds.values() for t in times]
        near = fit_machine(every, self.start)
        machines = {kind: fit_machine(times, near) for kind, times in kinds.items()}
        return Model(self.job, near, machines)


def kind_of(setting: Setting, later: bool) -> str:
    """What has constants of its own."""
    if setting.product not in KEEPS:
        return setting.kind
    return f"{setting.kind} {'later' if later else 'first'}"


def question(setting: Setting, later: bool, job: Job) -> Timed:
    """What the cost model is to be asked about such an exchange."""
    job = replace(job, batch=setting.batch, apart=job.apart or setting.look_ahead)
    if setting.product not in KEEPS:
        return Timed(setting.product, setting.steps, job, 0.0)
    if not later:
        return Timed(FIRST[setting.product], setting.steps, job, 0.0)
    again = replace(job, epochs=FOR_EVER, comes_again=True)
    return Timed(setting.product, setting.steps, again, 0.0)

"""Steps, backend, buckets, sender, shapers: what gradient agreements are made of."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from hpcsgd.agreement.buckets import Buffer
from hpcsgd.agreement.debts import Owes
from hpcsgd.agreement.replica_check import ReplicaCheck
from hpcsgd.agreement.senders import Sender
from hpcsgd.agreement.shaping import Shaper
from hpcsgd.agreement.steps import Steps
from hpcsgd.backends.base import Backend
from hpcsgd.backends.loss_scale import LossScale
from hpcsgd.codecs import AccordionConfig
from hpcsgd.products.base import State

Made = TypeVar("Made", bound=Buffer)


class Opener(Protocol):
    """Makes the sender of a run, once the shape of its weights is known."""

    def __call__(self, state: State, buffer: Buffer) -> Sender:
        """What it keeps between exchanges goes into the state."""


@dataclass(frozen=True)
class Means:
    """What a gradient agreement works with."""

    steps: Steps
    backend: Backend
    columns: int  # K
    held: slice  # of all columns, those of this member
    buckets: Callable[[int, int], int]  # columns held, bytes of a word -> tiles
    opener: Opener
    check: ReplicaCheck
    settings: Any  # the section [agreement]
    rows: tuple[int, ...] = ()  # of every replica
    accordion: AccordionConfig = AccordionConfig()
    batches: tuple[int, ...] = ()  # of the largest replica, in exchanges of an epoch
    shapers: tuple[Shaper, ...] = ()
    total: int = 0  # columns of the data
    more: Any = None  # what one kind of agreement alone needs
    place: Any = None  # of states that are on disk
    loss_scale: LossScale | None = None  # of residuals; all replicas have the same
    buffer: type[Buffer] = Buffer  # or what makes one of a device
    unit: int = 1  # columns that tiles of slices begin at multiples of
    owes: Owes = lambda kept, rate: None

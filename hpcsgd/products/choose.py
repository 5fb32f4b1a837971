"""Which product, and how many steps: the fewest seconds that fit in memory."""

from collections.abc import Iterator
from dataclasses import dataclass

from hpcsgd import cost
from hpcsgd.cost import Job, Machine
from hpcsgd.errors import ConfigError
from hpcsgd.products import KEEPS
from hpcsgd.schedule import MOST_ROWS

CACHE_BUDGET = 512 * 2**20  # bytes that each member may keep from the first epoch on
GRAM_KERNELS = ("auto", "own", "cublas", "wgmma")
WORTH_HIDING = 20e-6  # seconds of latency above which a second message pays
# Steps that are tried: between two of them lie a few per cent.
STEPS = (1, 2, 3, 4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)


@dataclass(frozen=True)
class ProductsConfig:
    """How members get through s steps."""

    kind: str = "auto"  # direct, gram, gather, gather-once, cached, or auto
    look_ahead: str = "auto"  # on: the next Gram travels while this group iterates
    machine: str = ""  # a file of what this machine can do; written where it is missing
    gram_kernel: str = "auto"  # on a GPU: own, cublas, or the faster; wgmma

    def __post_init__(self) -> None:
        if self.look_ahead not in ("on", "off", "auto"):
            raise ConfigError(
                f"[products] look_ahead = {self.look_ahead!r}; known: on, off, auto"
            )
        if self.gram_kernel not in GRAM_KERNELS:
            raise ConfigError(
                f"[products] gram_kernel = {self.gram_kernel!r}; known:"
                f" {', '.join(GRAM_KERNELS)}"
            )


@dataclass(frozen=True)
class Choice:
    """What is fastest by the model, and how long a step of it takes."""

    product: str
    steps: int
    seconds: float


def choose(kind: str, steps: int, job: Job, machine: Machine) -> Choice:
    """The fastest of what is left open: kind "auto", steps 0."""
    return min(candidates(kind, steps, job, machine), key=lambda c: c.seconds)


def candidates(
    kind: str,
    steps: int,
    job: Job,
    machine: Machine,
    of_one: tuple[str, ...] = ("direct",),
    budget: int = 0,
) -> Iterator[Choice]:
    """Every product and number of steps that may be used, with its seconds.

    `of_one`: what one member has to choose from; `budget`: bytes that may be kept,
    `CACHE_BUDGET` of them where nothing is said.
    """
    budget = budget or CACHE_BUDGET
    for product in _products(kind, job, of_one):
        for s in [steps] if steps else _steps(product, job):
            if kind != "auto" or cost.kept_bytes(product, s, job) <= budget:
                yield Choice(product, s, cost.seconds(product, s, job, machine))


def _products(kind: str, job: Job, of_one: tuple[str, ...]) -> list[str]:
    if kind != "auto":
        return [kind]
    several = ("direct", "gram", "gather", *KEEPS)
    known = list(of_one if job.members == 1 else several)
    return known if job.comes_again else [k for k in known if k not in KEEPS]


def _steps(product: str, job: Job) -> list[int]:
    """No more rows than an epoch has, nor than `MOST_ROWS`; one at least."""
    most = max(min(job.rows, MOST_ROWS) // job.batch, 1)
    return [s for s in STEPS if s <= most]


def uses_look_ahead(config: ProductsConfig, kind: str, latency: float) -> bool:
    """Look ahead where it is asked for, or where all is left to us and it pays.

    An explicit product keeps its one collective per exchange unless told otherwise.
    """
    if config.look_ahead == "on" and kind != "gram":
        raise ConfigError(
            f"[products] look_ahead = 'on' needs kind = 'gram', not {kind!r}:"
            " nothing else has a Gram to send early; say one or the other"
        )
    free = config.kind == "auto" and config.look_ahead == "auto"
    return kind == "gram" and (
        config.look_ahead == "on" or (free and latency >= WORTH_HIDING)
    )

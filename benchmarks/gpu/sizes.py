"""How large everything is, and how long it is measured."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Case:
    """Rows of a shape that runs are timed on; a multiple of an exchange."""

    shape: str
    family: str
    rate: float
    rows: int


CASES = (
    Case("epsilon", "logistic", 8.0, 20480),
    Case("susy", "logistic", 1.0, 131072),
    Case("higgs", "logistic", 1.0, 131072),
    Case("synth", "logistic", 0.05, 20480),
    Case("poisson-synth", "poisson", 0.2, 20480),
)


@dataclass(frozen=True)
class Sizes:
    """Of a GPU with some 50 MB of cache; a test has smaller ones."""

    turns: int = 11  # of everybody
    least: float = 0.01  # seconds of one turn of one way
    copy_bytes: int = 2**30
    square: int = 8192  # of the product that the rate of bf16 is taken from
    height: int = 65536  # rows of the matrix that exchanges are drawn from
    batch: int = 32
    small: tuple[int, int] = (512, 2000)  # rows, columns of an exchange
    large: tuple[int, int] = (2048, 8000)
    tall: tuple[int, int] = (65536, 2000)  # what margins and update read at once
    wide: tuple[int, int] = (4096, 65536)
    rotate_bytes: int = 256 * 2**20  # between two reads of the same rows
    most_sets: int = 64
    exchange: tuple[int, int, int] = (32, 16, 2000)  # batch, steps, columns
    epochs: int = 10
    sgd_turns: int = 5
    cases: tuple[Case, ...] = field(default=CASES)
    latencies: tuple[tuple[float, float], ...] = ((12e-6, 5.1), (30e-6, 6.8))

"""What is asked of a conversion: which rows, changed how, stored as what."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcsgd.data.like import Like
from hpcsgd.errors import ConfigError

Array = NDArray[Any]
SHARE = 8  # of the memory that one block takes: it is read, widened, scaled, written
LEAST_MEMORY = 16 * 2**20  # of one rank
LAYOUTS = ("auto", "sparse", "dense")
DENSE_PAYS = 0.05  # density from which rows of text train faster as dense ones


@dataclass(frozen=True)
class Recipe:
    """What happens to the rows on their way."""

    element: str = "fp32"  # how X is stored
    standardize: bool = False
    unit_rows: bool = False
    test_fraction: float = 0.0  # rows that go to a file of their own
    seed: int = 0  # of the choice of those rows
    rows: int | None = None  # the first so many alone; None: all
    layout: str = "auto"  # sparse or dense rows
    labels: tuple[tuple[float, float], ...] = ()  # (as it is, as it shall be)
    memory: int = 512 * 2**20
    like: Like | None = None  # a file whose columns and scales these rows shall have

    def __post_init__(self) -> None:
        if not 0 <= self.test_fraction < 1:
            raise ConfigError(
                f"--test-fraction {self.test_fraction} must be at least 0 and below 1"
            )
        if self.rows is not None and self.rows < 1:
            raise ConfigError(f"--rows {self.rows} must be at least 1")
        if self.seed < 0:
            raise ConfigError(f"--seed {self.seed} must be at least 0; 0 will do")
        if self.memory < LEAST_MEMORY:
            raise ConfigError(
                f"--memory {self.memory / 2**20:g} MiB is too little; 16 is the least"
            )
        if self.layout not in LAYOUTS:
            raise ConfigError(f"--layout {self.layout}: known: {', '.join(LAYOUTS)}")
        if self.like is not None:
            self._check_like(self.like)

    def _check_like(self, like: Like) -> None:
        """Refuse what would prepare rows otherwise than those of the file."""
        if self.standardize or self.unit_rows:
            flag = "--standardize" if self.standardize else "--unit-rows"
            raise ConfigError(
                f"--like takes scales and lengths of rows from {like.path}; leave"
                f" {flag} out"
            )
        if self.layout == "sparse" and like.is_centred:
            raise ConfigError(
                f"--layout sparse keeps zeros, and the columns of {like.path} are"
                " centred; leave --layout out"
            )

    @property
    def block(self) -> int:
        """Bytes of one block of rows."""
        return self.memory // SHARE

    @property
    def chooses(self) -> bool:
        """True where not all rows end up in one file."""
        return self.rows is not None or bool(self.test_fraction)

    def wanted(self, first: int, count: int) -> int:
        """How many of `count` rows from `first` on are converted."""
        return count if self.rows is None else min(max(self.rows - first, 0), count)

    def drawn(self, first: int, count: int) -> Array:
        """Which rows of a block are test rows."""
        if not self.test_fraction:
            return np.zeros(count, dtype=bool)
        from hpcsgd.data.transform import is_test  # loads SciPy

        numbers = np.arange(first, first + count)
        return is_test(numbers, self.test_fraction, self.seed)

    def trained_on(self, X: Any, first: int) -> Any:
        """The rows of a block that scales are made of."""
        if not self.chooses:
            return X
        wanted = self.wanted(first, X.shape[0])
        return X[:wanted][~self.drawn(first, wanted)]

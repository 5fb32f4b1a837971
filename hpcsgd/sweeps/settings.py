"""The section `[sweep]`, and the models that it asks for."""

from dataclasses import dataclass
from itertools import product

from hpcsgd.data.folds import Split
from hpcsgd.data.sampling import SamplingConfig
from hpcsgd.errors import ConfigError
from hpcsgd.models import Model, Models

MOST_MODELS = 4096  # of one run


@dataclass(frozen=True)
class SweepConfig:
    """What differs between models that are trained together; nothing: one model."""

    l2: tuple[float, ...] = ()  # ridge penalties; none: that of [problem]
    rate: tuple[float, ...] = ()  # first rates; none: that of [rate]
    folds: int = 0  # a model more for each, without its rows; 0 = no cross-validation
    fold_seed: int = 0

    def __post_init__(self) -> None:
        for name in ("l2", "rate"):
            _check_list(name, getattr(self, name))
        if self.folds < 0 or self.folds == 1:
            raise ConfigError(
                f"[sweep] folds = {self.folds} must be 0 or at least 2; 5 is usual"
            )
        if self.fold_seed < 0:
            raise ConfigError(
                f"[sweep] fold_seed = {self.fold_seed} must be at least 0; 0 will do"
            )
        if self.count > MOST_MODELS:
            raise ConfigError(
                f"[sweep] asks for {self.count} models at once; split the lists so that"
                f" each run has at most {MOST_MODELS}"
            )

    @property
    def count(self) -> int:
        """How many models that is."""
        each = self.folds + 1 if self.folds else 1
        return max(len(self.l2), 1) * max(len(self.rate), 1) * each

    @property
    def is_many(self) -> bool:
        """False where nothing differs."""
        return self.count > 1 or bool(self.l2 or self.rate)

    def models(self, l2: float, rate: float, scores: int = 1) -> Models:
        """Every penalty, for each every rate, for each every fold, then all rows.

        `l2` and `rate` are those of a run without a list.
        """
        folds = (*range(self.folds), None)
        each = tuple(
            Model(*one)
            for one in product(self.l2 or (l2,), self.rate or (rate,), folds)
        )
        last = self.folds  # the column of weights that has all rows
        weights = tuple(last if m.fold is None else m.fold for m in each)
        return Models(each, scores, weights)


def _check_list(name: str, values: tuple[float, ...]) -> None:
    least = "at least 0" if name == "l2" else "above 0"
    for value in values:
        good = value >= 0.0 if name == "l2" else value > 0.0
        if not (good and value < float("inf")):
            raise ConfigError(
                f"[sweep] {name} has {value!r}; every value must be finite and {least}"
            )
    if len(set(values)) < len(values):
        raise ConfigError(f"[sweep] {name} names a value twice; name each once")


def split_of(sweep: SweepConfig, sampling: SamplingConfig) -> Split:
    """Which rows are trained on."""
    return Split(sweep.folds, sweep.fold_seed, sampling.hold_out, sampling.seed)

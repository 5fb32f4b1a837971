"""How far a fit has come: passes, records, and a warning where it did not arrive."""

import warnings
from typing import Any

from sklearn.exceptions import ConvergenceWarning

from hpcsgd.result import Result


def passes_of(result: Result) -> int:
    """Passes over the data: epochs of steps, then those of the finisher; at least 1."""
    last = result.history[-1] if result.history else {}
    return max(int(last.get("epoch", 0)) + int(last.get("passes", 0)), 1)


def history_of(result: Result, number: int | None) -> list[dict[str, Any]]:
    """Its records; those of one class against all others say which."""
    more = {} if number is None else {"class": number}
    return [{**more, **record} for record in result.history]


def warn_unless_converged(estimator: Any, rank: int) -> None:
    """Say what to change, as scikit-learn's warning, on rank 0."""
    results = estimator.result_
    results = results if isinstance(results, list) else [results]
    said = dict.fromkeys(one.advice for one in results if one.advice)
    if said and rank == 0:
        sentence = f"{type(estimator).__name__}: {'; '.join(said)}"
        # Named as `fit` has it; the parameter is scikit-learn's.
        sentence = sentence.replace("raise epochs", "raise max_iter")
        warnings.warn(sentence, ConvergenceWarning, stacklevel=5)

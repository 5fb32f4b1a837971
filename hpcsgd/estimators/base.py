"""What all estimators share: their parameters, and the way to `hpcsgd.fit` and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.metadata_routing import UNUSED
from sklearn.utils.validation import check_is_fitted

from hpcsgd.estimators.given import Given, Place
from hpcsgd.estimators.saved import save
from hpcsgd.fitting.fit import run_fit
from hpcsgd.fitting.wanted import Wanted
from hpcsgd.result import Result

Array = NDArray[Any]
# These are not metadata that scikit-learn hands on: they say where a fit takes place.
PLACES = {"comm": UNUSED, "layout": UNUSED, "grid": UNUSED}


@dataclass(frozen=True)
class Solution:
    """Coefficients as the engine has them, and the run that found them."""

    weights: Array  # (d, K) float64
    intercept: Array  # (K,) float64; zeros without one
    result: Result


class LinearEstimator(BaseEstimator):  # type: ignore[misc]
    """Parameters that every estimator has, and what is done with them.

    Parameters
    ----------
    alpha : strength of the penalty alpha·(l1_ratio‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²); larger
        = smaller coefficients; the intercept is never penalised
    l1_ratio : share of l1 in the penalty, 0 to 1; larger = more coefficients at zero
    fit_intercept : whether there is an intercept
    bounds : (low, high) of every coefficient, each a number or one for each column
    max_iter : epochs of SGD at most; None = what suits the solver
    tol : the fit ends when the norm of the gradient is so small a part of what it was
        at zero; smaller = more passes
    batch : rows of a step of SGD, or coordinates of a block; None = 32, or 1
    steps : steps of SGD for each message between ranks, or "auto"
    rate : learning rate; "auto": from the data; "race": the best of eight around it
    solver : "auto", "sgd", "svrg" or "coordinate", as in `hpcsgd.fit`
    average : "auto", "tail" or "none": whether the last iterates are averaged
    polish : "auto", True or False: whether L-BFGS takes the point of SGD to `tol`
    hold_out : share of the rows that are held out to stop early; 0 = none
    patience : evaluations without a better loss on held-out rows before the end
    precision : recipe of number formats; None: fp64 for rows of float64, else fp32
    device : "cpu" or "cuda"
    warm_start : whether a fit begins where the last one ended
    random_state : seed of the order of rows
    callbacks : list of `hpcsgd.Callback`
    verbose : 1 = one line at every pass
    config : {"section": {"key": value}}, any setting of a run file, over all of these
    """

    __metadata_request__fit = PLACES
    __metadata_request__partial_fit = PLACES

    def __init__(
        self,
        *,
        alpha: float = 1e-4,
        l1_ratio: float = 0.0,
        fit_intercept: bool = True,
        bounds: Any = None,
        max_iter: int | None = None,
        tol: float = 1e-9,
        batch: int | None = None,
        steps: int | str = "auto",
        rate: float | str = "auto",
        solver: str = "auto",
        average: str = "auto",
        polish: bool | str = "auto",
        hold_out: float = 0.0,
        patience: int = 5,
        precision: str | None = None,
        device: str = "cpu",
        warm_start: bool = False,
        random_state: Any = 0,
        callbacks: Any = None,
        verbose: int = 0,
        config: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.fit_intercept = fit_intercept
        self.bounds = bounds
        self.max_iter = max_iter
        self.tol = tol
        self.batch = batch
        self.steps = steps
        self.rate = rate
        self.solver = solver
        self.average = average
        self.polish = polish
        self.hold_out = hold_out
        self.patience = patience
        self.precision = precision
        self.device = device
        self.warm_start = warm_start
        self.random_state = random_state
        self.callbacks = callbacks
        self.verbose = verbose
        self.config = config

    def save(self, path: str | PathLike[str]) -> None:
        """Write the fitted estimator as one HDF5 file for `hpcsgd.load`.

        It loads without MPI, without a GPU and whatever the version of scikit-learn;
        where there is none it loads as a predictor. Callbacks stay behind.
        """
        check_is_fitted(self)
        save(self, path)

    def _settings(self) -> dict[str, Any]:
        """The arguments of `hpcsgd.fit` that parameters say."""
        return {
            "alpha": self.alpha,
            "l1_ratio": self.l1_ratio,
            "fit_intercept": self.fit_intercept,
            "bounds": self.bounds,
            "epochs": self.max_iter,
            "tol": self.tol,
            "batch": self.batch,
            "steps": self.steps,
            "rate": self.rate,
            "solver": self.solver,
            "average": self.average,
            "polish": self.polish,
            "hold_out": self.hold_out,
            "patience": self.patience,
            "precision": self.precision,
            "device": self.device,
            "callbacks": self.callbacks,
            "verbose": self.verbose,
            "config": self.config,
        }

    def _solve(
        self,
        given: Given,
        family: str,
        place: Place,
        start: Any = None,
        **changed: Any,
    ) -> Solution:
        """The coefficients of one run; `changed` are other arguments of `fit`."""
        settings = {**self._settings(), "seed": self._seed(place), **changed}
        callbacks = settings.pop("callbacks")
        how = {"update": "sgd", "momentum": 0.9, "family": family, **settings}
        wanted = Wanted(layout=place.layout, grid=place.grid, **how)
        sides = {"y": given.y, "sample_weight": given.weights, "offset": given.offset}
        run = (wanted, given.X, sides, given.labels, start, place.world, callbacks)
        result = run_fit(*run)
        weights = np.asarray(result.weights, dtype=np.float64)
        weights = weights.reshape(len(weights), -1)
        intercept = np.zeros(weights.shape[1])
        if result.intercept is not None:
            intercept[:] = result.intercept
        return Solution(weights, intercept, result)

    def _seed(self, place: Place) -> int:
        """One seed for all ranks, whatever each of them was given."""
        seed = self.random_state
        if not isinstance(seed, int | np.integer):
            seed = check_random_state(seed).randint(2**31)
        return int(place.world.exchange_objects(seed)[0])

"""Fit a path of penalties in one call."""

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import ArrayLike

from hpcsgd.agreement.plan_check import check_same
from hpcsgd.backends.blas import one_thread
from hpcsgd.comm.base import Communicator
from hpcsgd.coordinate.settings import COORDINATE
from hpcsgd.data.frames import to_matrix
from hpcsgd.errors import ConfigError
from hpcsgd.fitting.fit import ranks_of, timeout_in
from hpcsgd.paths.alphas import Alphas
from hpcsgd.paths.outcome import Path
from hpcsgd.paths.ways import Way

SOLVERS = ("auto", COORDINATE, "sgd")


@one_thread()
def path(
    X: Any,
    y: ArrayLike | None = None,
    *,
    family: str = "gaussian",
    alphas: Sequence[float] | None = None,
    n_alphas: int = 50,
    eps: float = 1e-3,
    l1_ratio: float = 1.0,
    sample_weight: ArrayLike | None = None,
    offset: ArrayLike | None = None,
    fit_intercept: bool = True,
    bounds: Any = None,
    tol: float = 1e-6,
    epochs: int | None = None,
    batch: int | None = None,
    steps: int | str | None = None,
    seed: int = 0,
    precision: str = "fp64",
    solver: str = "auto",
    warm_start: bool = True,
    comm: Communicator | Any = None,
    layout: str = "replicated",
    config: Mapping[str, Mapping[str, Any]] | None = None,
) -> Path:
    """Fit a path of penalties, from the largest alpha to the smallest.

    F(w) = (1/Σc) Σ c_i ℓ(a_i·w + β + o_i, y_i)
    + alpha (l1_ratio ‖w‖₁ + (1 − l1_ratio)/2 ‖w‖²). All families go by coordinate
    forms, on data that are opened once, least squares on several ranks with one Gram
    for all alphas.

    Parameters
    ----------
    X : array, frame or sparse matrix, (n, d), the rows; or the path of an HDF5 file
    y : (n,), targets, where X is no path
    family : str, the loss
    alphas : sequence of float, the penalties, in any order; else `n_alphas` of them on
        a logarithmic scale, from the least that makes all weights 0 (for l1_ratio below
        0.001: that of 0.001) down to `eps` times it
    n_alphas, eps : int and float, as said
    l1_ratio : float, the part of alpha that is l1
    sample_weight : (n,), c_i >= 0
    offset : (n,), o_i, added to every score
    fit_intercept : bool, learn β, which is never penalised
    bounds : pair of a lowest and a highest weight, each a number, (d,) or None
    tol : float, of the gap relative to F of the null model (coordinate forms), or what
        `fit` makes of it
    epochs : int, passes for each alpha at most; 1000 for coordinate forms
    batch, steps : int, coordinates of a block and blocks of a message, 1 and 16; or
        what `fit` makes of them
    seed, precision : of the order; recipe
    solver : "auto", "coordinate" or "sgd"
    warm_start : bool, begin each model where the one before it ended
    comm : communicator of mpi4py, or of this package; None: this process alone
    layout : "replicated", "rows", "columns" or "hdf5", what each rank passes
    config : mapping of sections, lies over all of this

    Returns
    -------
    Path
        The same on all ranks.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.random.default_rng(0).normal(size=(100, 4))
    >>> found = path(X, X @ [2.0, 0.0, 0.0, -1.0], n_alphas=5)
    >>> found.coefs.shape, int(np.count_nonzero(found.coefs[0]))
    ((5, 4), 0)
    """
    if solver not in SOLVERS:
        raise ConfigError(f"solver = {solver!r}; known: {', '.join(SOLVERS)}")
    sides = {"y": y, "sample_weight": sample_weight, "offset": offset}
    asked = {"epochs": epochs, "batch": batch, "steps": steps}
    given = {name: value for name, value in asked.items() if value is not None}
    shared = {
        "family": family,
        "fit_intercept": fit_intercept,
        "bounds": bounds,
        "tol": tol,
        "seed": seed,
        "precision": precision,
    }
    grid = Alphas(alphas, n_alphas, eps, l1_ratio)
    with ranks_of(comm, timeout_in(config)) as world:
        matrix = world.together(lambda: to_matrix(X))
        said = {**shared, "solver": solver, "layout": layout, **asked}
        said |= {"alphas": grid, "config": config, "warm_start": warm_start}
        check_same(world, {name: repr(value) for name, value in said.items()})
        way = Way(world, X, matrix, sides, layout, shared, given, config, warm_start)
        world.together(grid.check)
        by_forms = world.together(lambda: way.has_form(grid, solver))
        results = way.by_coordinates(grid) if by_forms else way.by_fits(grid)
    return Path(grid.chosen, results)

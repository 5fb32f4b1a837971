"""Statistical inference for a fitted model: covariances, tests, likelihoods."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from hpcsgd.backends.blas_threads import one_thread
from hpcsgd.backends.numpy_rows import exact_scores
from hpcsgd.comm.communicator import Communicator
from hpcsgd.comm.grid import Grid, close_on_agreed_error
from hpcsgd.data.preparation import Preparation
from hpcsgd.data.readers import RowReader, is_sparse, prepare
from hpcsgd.data.shard import Shard
from hpcsgd.data.stream import Unheld
from hpcsgd.data.targets import Targets, encode_known
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.formats import Array
from hpcsgd.glm.families import Family, LikelihoodFamily, least_losses, likelihood_of
from hpcsgd.glm.penalties import Penalty
from hpcsgd.runs.figures import html, plot_intervals, to_frame
from hpcsgd.runs.load import (
    checked_weights,
    column_parts,
    finite_column,
    replica_rows,
)
from hpcsgd.solvers.full_passes import (
    ENDLESS,
    NO_MINIMUM,
    AllRows,
    VariableScaling,
    WeightedMoments,
    exact_bends,
    is_separated,
    level,
    make_scaling,
    open_rows,
)
from hpcsgd.solvers.lbfgs import Landscape
from hpcsgd.solvers.newton import Hessian, dense
from hpcsgd.solvers.objective import Objective

# The covariance of the coefficients θ = (β, w) of a fit without a penalty.
#
# With weights c, residuals r = ∂ℓ/∂t, curvatures h = ∂r/∂t and ã = (1, a),
#
#     H = Σ c h ã ãᵀ       M = Σ c r² ã ãᵀ  or  Σ_g s_g s_gᵀ,  s_g = Σ_{i in g} c r ã
#
#     information   φ H⁻¹             the observed information of the likelihood
#     sandwich      H⁻¹ M H⁻¹         HC0 (White 1980)
#     clustered     the same with the scores of clusters, times
#                   G/(G − 1) · (n − 1)/(n − P)  (Liang and Zeger 1986)
#
# H, M and the gradient are sums of one pass over the rows, in one message. The rows are
# scaled as for Newton's method, so that columns far from zero keep their digits. A
# weight c counts as c equal rows: n is Σc.

COVARIANCES = ("information", "sandwich", "clustered")
MOST_VARIABLES = 2048  # of which a covariance is computed
MOST_CLUSTER_WORDS = 2**25  # of the scores of all clusters, which one message sums
DEPENDENT = 1e-10  # share of a column that is left of others: fewer lose all digits
NEAR = 1e-4  # Newton decrement of a fit that is at its optimum
DOUBT, FAR = 1e-4, 0.1  # of Newton's step: of a standard score, and of a score
EXACT = 1e-24  # dispersion by the mean square of scores: no error but rounding
DIGITS = 5  # of a number in a table
WIDTH = 80  # columns of a table
EQUAL_COPIES = (
    "give clusters one label for each row of the data, or on each rank one for each of"
    " its rows"
)


# What is requested, and of which model.


@dataclass(frozen=True)
class InferenceRequest:
    """The covariance that is requested, and how it is reported."""

    covariance: str = "information"
    clusters: Any = None
    dispersion: str | float | None = None
    level: float = 0.95

    def check(self) -> None:
        """Raise ConfigError for a request that cannot be met."""
        if self.covariance not in COVARIANCES:
            raise ConfigError(
                f"covariance = {self.covariance!r} is unknown; known:"
                f" {', '.join(COVARIANCES)}"
            )
        if (self.covariance == "clustered") != (self.clusters is not None):
            raise ConfigError(
                "covariance='clustered' and clusters belong together; give both, or"
                " neither"
            )
        if not 0.0 < self.level < 1.0:
            raise ConfigError(
                f"level = {self.level!r} must lie between 0 and 1; 0.95 is usual"
            )
        named = self.dispersion in (None, "pearson", "deviance")
        if named or isinstance(self.dispersion, str):
            is_good = named
        else:
            is_good = 0.0 < float(self.dispersion or 0.0) < float("inf")
        if not is_good:
            raise ConfigError(
                f"dispersion = {self.dispersion!r} must be 'pearson', 'deviance', a"
                " number above 0, or None"
            )


@dataclass(frozen=True)
class InferenceModel:
    """A fitted model: its family and coefficients, and a description of its rows."""

    family: Family
    weights: Array  # (d, K)
    intercept: Array | None  # (K,)
    targets: Targets
    names: list[str] | None
    preparation: Preparation | None
    grid: tuple[int, int]  # of the fit; other ranks take one of their own

    @property
    def scores(self) -> int:
        """Return K, the scores of a row."""
        return int(self.weights.shape[1])

    @property
    def variables(self) -> int:
        """Return the number of weights and intercepts, of all K scores."""
        return int((len(self.weights) + (self.intercept is not None)) * self.scores)

    def parameter_names(self) -> tuple[str, ...]:
        """Return the names of the parameters, class by class, an intercept first.

        Of several classes the first, to which the others are contrasts, has none.
        """
        names = self.names or [f"x{k}" for k in range(len(self.weights))]
        names = [*(["intercept"] if self.intercept is not None else []), *names]
        if self.scores == 1:
            return tuple(names)
        labels = [f"{label:g}" for label in self.targets.labels[1:]]
        return tuple(f"{label}: {name}" for label in labels for name in names)

    def parameters(self) -> Array:
        """Return the parameters in the order of their names.

        Of K > 1 classes they are differences to the weights of the first class.
        """
        parts = [] if self.intercept is None else [self.intercept[None, :]]
        whole = np.vstack([*parts, self.weights])
        if self.scores > 1:
            whole = whole[:, 1:] - whole[:, :1]
        parameters: Array = whole.T.reshape(-1)
        return parameters


# The result: numbers as arrays, and a table of them.


@dataclass(frozen=True)
class FitStatistics:
    """Statistics of a fit as a whole.

    Attributes
    ----------
    observations : float
        n, the sum of the sample weights.
    dispersion : float
        φ, by which the inverse information is multiplied.
    pearson : float or None
        Pearson's χ² = Σ c (y − μ)²/V(μ); None without a likelihood, or for several
        classes.
    deviance : float or None
        D = 2 Σ c (ℓ − min ℓ); None without a likelihood.
    null_deviance : float or None
        D of the best model of an intercept alone, with the offsets of the fit; None
        without a likelihood, or if no best intercept was found.
    log_likelihood : float or None
        Σ c log f(y), of gaussian at its largest, where φ = D/n; None without a
        likelihood, as if a dispersion is requested for a family whose φ is 1.
    decrement : float
        gᵀ H⁻¹ g / φ at the coefficients, where Σ c r² / Σ c h stands for φ without a
        likelihood: no coefficient is further from its optimum than the square root of
        it, in standard errors.
    clusters : int or None
        G, the number of clusters; None for another covariance.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcsgd
    >>> X = np.arange(8.0)[:, None]
    >>> y = X[:, 0] + [0, 1, 0, 1, 0, 1, 0, 1]
    >>> hpcsgd.fit(X, "gaussian", y, alpha=0.0).summary().statistics.observations
    8.0
    """

    observations: float
    dispersion: float
    pearson: float | None
    deviance: float | None
    null_deviance: float | None
    log_likelihood: float | None
    decrement: float
    clusters: int | None


@dataclass(frozen=True, repr=False, eq=False)
class FitSummary:
    """Standard errors, tests and intervals of the coefficients of a fit.

    `str()` is a table of at most 80 columns, and a notebook shows one, too.

    Attributes
    ----------
    names : tuple of str
        Names of the P parameters, "intercept" first.
    coefficients : ndarray of shape (P,)
        Estimates. Of several classes they are contrasts to the first class.
    covariance : ndarray of shape (P, P)
        Covariance of the estimates.
    statistics : FitStatistics
        Log-likelihood, deviances, dispersion and the number of rows.
    family : str
        The family of the fit.
    kind : {"information", "sandwich", "clustered"}
        Which covariance it is.
    level : float
        Probability of the intervals.

    See Also
    --------
    hpcsgd.Result.summary : Compute it for a fit.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcsgd
    >>> X = np.arange(8.0)[:, None]
    >>> y = X[:, 0] + [0, 1, 0, 1, 0, 1, 0, 1]
    >>> summary = hpcsgd.fit(X, "gaussian", y, alpha=0.0).summary()
    >>> summary.standard_errors.round(4).tolist()
    [0.3637, 0.0869]
    """

    names: tuple[str, ...]
    coefficients: Array
    covariance: Array
    statistics: FitStatistics
    family: str
    kind: str
    level: float

    @property
    def standard_errors(self) -> Array:
        """Square roots of the variances, (P,)."""
        errors: Array = np.sqrt(np.diagonal(self.covariance))
        return errors

    @property
    def statistic(self) -> Array:
        """z = coefficient / standard error, (P,)."""
        return self.coefficients / self.standard_errors

    @property
    def p_values(self) -> Array:
        """Two-sided p-values of z by the normal distribution, (P,)."""
        tails: Array = 2.0 * ndtr(-np.abs(self.statistic))
        return tails

    @property
    def lower(self) -> Array:
        """Lower ends of the intervals, (P,)."""
        return self.coefficients - self._reach

    @property
    def upper(self) -> Array:
        """Upper ends of the intervals, (P,)."""
        return self.coefficients + self._reach

    @property
    def _reach(self) -> Array:
        return float(ndtri(0.5 + self.level / 2.0)) * self.standard_errors

    @property
    def aic(self) -> float | None:
        """−2 log L + 2 P; None without a likelihood. P counts no dispersion."""
        likelihood = self.statistics.log_likelihood
        return None if likelihood is None else -2.0 * likelihood + 2.0 * len(self.names)

    @property
    def bic(self) -> float | None:
        """−2 log L + P log n with n = Σc; None without a likelihood."""
        likelihood = self.statistics.log_likelihood
        if likelihood is None:
            return None
        size = float(np.log(self.statistics.observations))
        return -2.0 * likelihood + len(self.names) * size

    def to_frame(self) -> Any:
        """Return a row for each parameter as a pandas.DataFrame.

        Raises
        ------
        MissingPackage
            If pandas is not installed.
        """
        return to_frame(self._rows(), index="feature")

    def __repr__(self) -> str:
        """Return the table, at most 80 columns wide."""
        columns = self._columns()
        widths = [max(map(len, [head, *cells])) for head, cells in columns.items()]
        most = max(WIDTH - sum(width + 2 for width in widths), 9)
        names = [
            name if len(name) <= most else f"{name[: most - 1]}…" for name in self.names
        ]
        first = max(map(len, names))
        lines = [*self._head(), "", _line("", first, columns, widths)]
        for number, name in enumerate(names):
            cells = [column[number] for column in columns.values()]
            lines.append(_line(name, first, cells, widths))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return HTML: a table and, with matplotlib, a picture of the intervals."""
        title = f"{self.family}: {self.kind}"
        rows = self._rows()
        note = "; ".join(self._head()[1:])
        return html(title, rows, lambda ax: plot_intervals(rows, ax), note)

    def _head(self) -> list[str]:
        """Return the lines above the table."""
        of = self.statistics
        words = {"information": "observed information", "sandwich": "sandwich (HC0)"}
        kind = words.get(self.kind, f"clustered, {of.clusters} clusters")
        facts = [
            ("log-likelihood", of.log_likelihood),
            ("AIC", self.aic),
            ("BIC", self.bic),
            ("deviance", of.deviance),
            ("null deviance", of.null_deviance),
        ]
        texts = [f"{name} {value:.7g}" for name, value in facts if value is not None]
        lines = [
            f"{self.family}, {of.observations:.10g} observations,"
            f" {len(self.names)} parameters",
            f"covariance: {kind}; dispersion {of.dispersion:.6g}",
        ]
        return lines + [", ".join(part) for part in (texts[:3], texts[3:]) if part]

    def _columns(self) -> dict[str, list[str]]:
        """Return the cells of the table, by column."""
        tail = (1.0 - self.level) / 2.0
        numbers = {
            "coefficient": self.coefficients,
            "std. error": self.standard_errors,
            "z": self.statistic,
            "P>|z|": self.p_values,
            f"{tail:.4g}": self.lower,
            f"{1.0 - tail:.4g}": self.upper,
        }
        cells = {name: [_digits(x) for x in each] for name, each in numbers.items()}
        cells["z"] = [
            f"{x:.2f}" if abs(x) < 1e5 else f"{x:.2g}" for x in self.statistic
        ]
        cells["P>|z|"] = [f"{x:.3f}" if x >= 0.001 else "<0.001" for x in self.p_values]
        return cells

    def _rows(self) -> list[dict[str, Any]]:
        columns = {
            "coefficient": self.coefficients,
            "standard_error": self.standard_errors,
            "statistic": self.statistic,
            "p_value": self.p_values,
            "lower": self.lower,
            "upper": self.upper,
        }
        return [
            {"feature": name, **{key: float(each[k]) for key, each in columns.items()}}
            for k, name in enumerate(self.names)
        ]

    def in_units(self, unit: float) -> FitSummary:
        """Return the summary of coefficients that are `unit` times as large.

        Parameters
        ----------
        unit : float
            The factor.

        Returns
        -------
        FitSummary
        """
        coefficients = unit * self.coefficients
        return replace(
            self, coefficients=coefficients, covariance=unit**2 * self.covariance
        )


def _digits(value: float) -> str:
    return f"{value:.{DIGITS}g}"


def _line(name: str, first: int, cells: Any, widths: list[int]) -> str:
    ends = [f"  {cell:>{width}}" for cell, width in zip(cells, widths, strict=True)]
    return f"{name:<{first}}{''.join(ends)}".rstrip()


# The sums over all rows: one pass, one message.


@dataclass(frozen=True)
class RowSums:
    """Sums over the rows of all ranks, in the scaled variables of `Hessian`."""

    information: Array  # H / n, (P, P)
    middle: Array | None  # M / n, (P, P)
    gradient: Array  # Σ c r ã / n, (P,)
    observations: float  # n = Σc
    deviance: float  # D / n
    pearson: float  # χ² / n
    squares: float  # Σ c r² / n
    bends: float  # Σ c h / n
    sizes: float  # Σ c t² / n


SCALARS = 6  # numbers of `RowSums`


class RowPass:
    """The pass over the rows of this rank at the coefficients of a model."""

    def __init__(self, model: InferenceModel, rows: AllRows, codes: Array | None):
        self.model = model
        self.rows = rows
        self.codes = codes  # the cluster of each local row
        self.landscape = Landscape(rows, 0.0, model.intercept is not None)
        scaling = first_scaling(self.landscape)
        self.hessian = Hessian(self.landscape, scaling, scales_rows=True)
        self.weights = np.ascontiguousarray(
            model.weights[rows.objective.shard.columns], dtype=np.float64
        )
        self.local_scores = np.empty((rows.height, model.scores))

    def sums(self, request: InferenceRequest, groups: int) -> RowSums:
        """Return the sums over all rows, and keep the scores. Collective.

        One message of P² + P + 6 words, of 2 P² + P + 6 for the sandwich, and of
        P² + G P + P + 6 for G = `groups` clusters; members exchange scores and rows
        before.
        """
        P = self.hessian.variables
        family = self.rows.objective.family
        extra = {"information": 0, "sandwich": P, "clustered": groups}
        height = extra[request.covariance]
        words = np.zeros((P + height + 1) * P + SCALARS)
        whole = words[: P * P].reshape(P, P)
        middle = words[P * P : (P + height) * P].reshape(height, P)
        gradient = words[(P + height) * P : (P + height + 1) * P]
        scalars = words[-SCALARS:]
        for rows, stored in self.rows.read_blocks():
            scores = self._scores(stored, rows)
            block, own_rows = self.hessian.own_rows(stored)
            if not len(block):
                continue
            t = scores[own_rows]
            y = self.rows.targets[rows][own_rows]
            c = self.rows.share[rows][own_rows]
            r = family.residual(t, y)
            h = exact_bends(family, t, y)
            self.hessian.add(whole, block, c[:, :, None] * h)
            gradient += self._scores_of(block, c * r).sum(axis=0)
            if request.covariance == "sandwich":
                outer = r[:, :, None] * r[:, None, :]
                self.hessian.add(middle, block, c[:, :, None] * outer)
            elif self.codes is not None:
                codes = self.codes[rows][own_rows]
                middle += sums_by_code(codes, self._scores_of(block, c * r), height)
            scalars += self._scalars(t, y, c, r, h)
        if self.landscape.is_member_0:
            scalars[0] = self._total()
        self.landscape.world.sum(words, "evaluate")
        if request.covariance == "clustered":
            middle = scalars[0] * (middle.T @ middle)
        return RowSums(
            information=whole,
            middle=middle if height else None,
            gradient=gradient,
            observations=float(scalars[0]),
            deviance=float(scalars[1]),
            pearson=float(scalars[2]),
            squares=float(scalars[3]),
            bends=float(scalars[4]),
            sizes=float(scalars[5]),
        )

    def _scores(self, stored: Any, rows: slice) -> Array:
        """Return the scores t of `rows`, and store them. Collective over members."""
        scores = exact_scores(stored, self.weights)
        self.rows.grid.members.sum(scores, "evaluate")
        if self.model.intercept is not None:
            scores += self.model.intercept
        offsets = self.rows.objective.shard.offsets
        if offsets is not None:
            scores += offsets[rows]
        self.local_scores[rows] = scores
        return scores

    def _scores_of(self, block: Array, r: Array) -> Array:
        """Return r ã of every row, (m, P)."""
        K = self.model.scores
        products = np.empty((len(block), self.hessian.variables))
        for k in range(K):
            products[:, k::K] = r[:, k, None] * self.hessian.scaled(block, k)
        return products

    def _scalars(self, t: Array, y: Array, c: Array, r: Array, h: Array) -> Array:
        family = self.rows.objective.family
        likelihood = likelihood_of(family)
        deviance = pearson = 0.0
        if likelihood is not None:
            deviance = 2.0 * float((c * _excess(likelihood, t, y)).sum())
        if likelihood is not None and t.shape[1] == 1:
            mean = family.mean(t)
            pearson = float((c * (y - mean) ** 2 / likelihood.variance(mean)).sum())
        bend = np.trace(h, axis1=1, axis2=2)[:, None]
        others = [(c * part).sum() for part in (r**2, bend, t**2)]
        return np.array([0.0, deviance, pearson, *others])

    def _total(self) -> float:
        """Return Σc of the rows of this replica."""
        weights = self.rows.objective.shard.weights
        return float(self.rows.height if weights is None else weights.sum())

    def farthest(self, step: Array) -> float:
        """Return the largest size of the change of any row's score by `step`.

        `step` is in scaled variables. Collective: one more pass over the rows.
        """
        largest = 0.0
        K = self.model.scores
        for _, stored in self.rows.read_blocks():
            block, _ = self.hessian.own_rows(stored)
            for k in range(K if len(block) else 0):
                change = self.hessian.scaled(block, k) @ step[k::K]
                largest = max(largest, float(np.abs(change).max()))
        return self.landscape.world.max_number(largest, "evaluate")

    def likelihood(
        self, family: LikelihoodFamily, dispersion: float, total: float
    ) -> tuple[float, float | None]:
        """Return (Σ c log f, null deviance). Collective; no pass over the rows.

        The null deviance is None if no best intercept was found. `total` is Σc.
        """
        rows = self.rows
        null = np.zeros_like(self.local_scores)
        if rows.objective.shard.offsets is not None:
            null += rows.objective.shard.offsets
        best = level(rows, null)
        words = np.zeros(2)
        if self.landscape.is_member_0:
            density = family.log_density(self.local_scores, rows.targets, dispersion)
            excess = _excess(family, null + best.shift, rows.targets)
            words[:] = (rows.share * density).sum(), 2.0 * (rows.share * excess).sum()
        self.landscape.world.sum(words, "evaluate")
        self.landscape.world.broadcast(words, 0, "evaluate")
        words *= total
        return float(words[0]), float(words[1]) if best.is_found else None


def sums_by_code(codes: Array, values: Array, count: int) -> Array:
    """Return the sums of the rows of `values` with each code, (count, P)."""
    from scipy.sparse import csr_array

    ends = np.arange(len(codes) + 1)
    members = csr_array((np.ones(len(codes)), codes, ends), (len(codes), count))
    sums: Array = members.T @ values
    return sums


def _excess(family: Family, t: Array, y: Array) -> Array:
    """Return ℓ(t, y) − min ℓ(·, y)."""
    excess: Array = family.loss(t, y) - least_losses(family, y)
    return excess


def first_scaling(land: Landscape) -> VariableScaling:
    """Return centers and sizes of the columns, by the first rows of each replica.

    They decide the digits that sums lose, and no result. Collective: one message over
    replicas of 2 d_c + 1 words.
    """
    rows = land.rows
    width = rows.width
    first = rows.blocks[0] if rows.blocks else slice(0, 0)
    block = dense(rows.objective.read(first)).astype(np.float64, copy=False)
    words = np.concatenate([block.sum(axis=0), np.square(block).sum(axis=0), [0.0]])
    words[-1] = len(block)
    rows.grid.replicas.sum(words, "evaluate")
    scores = rows.columns
    moments = WeightedMoments(
        np.repeat(words[:width, None], scores, axis=1),
        np.repeat(words[width:-1, None], scores, axis=1),
        np.full(scores, words[-1]),
    )
    return make_scaling(moments, 0.0, land.has_intercept)


# From the sums to covariances: one rank solves, and all ranks get its numbers.


@dataclass(frozen=True)
class InferenceSolution:
    """The covariance and the figures of a fit, as rank 0 has computed them."""

    covariance: Array  # of the parameters, in their order
    step: Array  # Newton's, in the scaled variables
    dispersion: float
    decrement: float
    weakest: str  # the parameter that Newton's step moves most


class InferenceSystem:
    """The equations of one fit, in the scaled variables, which rank 0 solves."""

    def __init__(
        self, model: InferenceModel, hessian: Hessian, request: InferenceRequest
    ) -> None:
        self.model = model
        self.hessian = hessian
        self.request = request
        self.names = model.parameter_names()
        # Intercept first, class by class; of several classes without the first.
        K = model.scores
        size = hessian.variables // model.scores
        has_intercept = model.intercept is not None
        columns = np.r_[[size - 1] * has_intercept, : size - has_intercept]
        first = 0 if K == 1 else 1
        self.order = np.concatenate(
            [columns.astype(np.intp) * K + k for k in range(first, K)]
        )

    def solve(self, sums: RowSums, groups: int) -> InferenceSolution:
        """Return the covariance, Newton's step and the figures that go with them.

        Raise DataError if they cannot be computed: sums that are not finite, a singular
        information matrix, too few rows, or a dispersion that cannot be estimated.

        `groups` is the number of clusters.
        """
        H = sums.information[np.ix_(self.order, self.order)]
        g = sums.gradient[self.order]
        if not (np.isfinite(H).all() and np.isfinite(g).all()):
            raise DataError(
                "the information matrix is not finite: X or the scores of the model"
                " overflow; scale the columns and fit again"
            )
        inverse = self._inverse(H, sums)
        parameters = len(self.names)
        n = sums.observations
        if n <= parameters:
            raise DataError(
                f"{n:g} observations are too few for the standard errors of"
                f" {parameters} parameters; give more rows, or fewer columns"
            )
        dispersion = self._dispersion(sums)
        step = np.zeros(self.hessian.variables)
        step[self.order] = -inverse @ g
        scale = dispersion
        if likelihood_of(self.model.family) is None:
            scale = sums.squares / max(sums.bends, np.finfo(float).tiny)
        decrement = float(g @ inverse @ g) * n / scale
        if self.request.covariance == "information":
            scaled = (dispersion / n) * inverse
        else:
            assert sums.middle is not None
            middle = sums.middle[np.ix_(self.order, self.order)]
            scaled = inverse @ middle @ inverse / n
            if self.request.covariance == "clustered":
                scaled *= groups / (groups - 1) * (n - 1) / (n - parameters)
        change = self._change()
        sizes = np.abs(step[self.order])
        return InferenceSolution(
            change @ scaled @ change.T,
            step,
            dispersion,
            decrement,
            self.names[int(sizes.argmax())],
        )

    def _inverse(self, H: Array, sums: RowSums) -> Array:
        """Return the inverse of the information matrix `H`.

        Raise DataError if it is singular, with the name of the first column that is
        constant or a linear combination of columns before it.
        """
        from scipy.linalg.lapack import dpotrf, dpotri  # 10 MB that a fit may not need

        diagonal = np.diagonal(H)
        rounding = self.hessian.rounding(sums.information)[self.order]
        is_empty = ~(diagonal > rounding)
        units = 1.0 / np.sqrt(np.where(is_empty, 1.0, diagonal))
        factor, failed = dpotrf(units[:, None] * H * units, lower=1)
        pivots = np.square(np.diagonal(factor))
        bad = is_empty | (pivots < DEPENDENT)
        if failed:
            bad[failed - 1 :] = True
        if bad.any():
            name = self.names[int(np.argmax(bad))]
            is_endless = self.model.family.name in ENDLESS
            raise DataError(
                f"the information matrix is singular: the column {name!r} is constant,"
                " or a linear combination of the columns before it"
                + (", or separates the classes without an error" * is_endless)
                + "; drop this column and fit again"
            )
        half = np.tril(dpotri(factor, lower=1)[0])
        whole: Array = half + np.tril(half, -1).T
        return units[:, None] * whole * units

    def _dispersion(self, sums: RowSums) -> float:
        likelihood = likelihood_of(self.model.family)
        if likelihood is None:
            return 1.0
        dispersion = self.request.dispersion
        freedom = sums.observations - len(self.names)
        if dispersion is None:
            dispersion = 1.0 if likelihood.dispersion_rule == "one" else "pearson"
        if dispersion not in ("pearson", "deviance"):
            return float(dispersion)
        total = sums.pearson if dispersion == "pearson" else sums.deviance
        estimate = total * sums.observations / freedom
        if not estimate > EXACT * sums.sizes:
            raise DataError(
                "the dispersion cannot be estimated, because the model fits every row"
                " up to rounding; use rows that it does not fit exactly, or give a"
                " number as dispersion"
            )
        return estimate

    def _change(self) -> Array:
        """Return the matrix from scaled variables to parameters, (P, P)."""
        model = self.model
        scaling = self.hessian.scaling
        size = len(self.order) // max(model.scores - 1, 1)
        whole = np.zeros((len(self.order), len(self.order)))
        first = 0 if model.scores == 1 else 1
        for place, k in enumerate(range(first, model.scores)):
            part = slice(place * size, (place + 1) * size)
            inner = np.diag(
                np.r_[np.ones(size - len(scaling.roots)), 1.0 / scaling.roots[:, k]]
            )
            if model.intercept is not None:
                inner[0, 0] = 1.0 / scaling.level[k]
                inner[0, 1:] = -scaling.centers[:, k] / scaling.roots[:, k]
            whole[part, part] = inner
        return whole


# A summary on the ranks of a fit.


@one_thread()
def summarize(
    model: InferenceModel,
    request: InferenceRequest,
    open_reader: Callable[[Communicator], RowReader],
    ranks: AbstractContextManager[Communicator],
) -> FitSummary:
    """Return the summary of a model on the rows that `open_reader` opens. Collective.

    `ranks` opens the ranks, and closes those that were opened for this call.
    """
    with ranks as world:
        world.together(lambda: _check(model, request))
        reader = world.together(lambda: open_reader(world))
        grid = _grid(model, reader, world)
        with close_on_agreed_error(grid.close):
            summary = _on_grid(model, request, reader, grid)
        grid.close()
        return summary


def _on_grid(
    model: InferenceModel, request: InferenceRequest, reader: RowReader, grid: Grid
) -> FitSummary:
    # 1. the rows and clusters of this rank
    world = grid.world
    rows = _open_rows(model, reader, grid)
    codes, groups = cluster_codes(world, request.clusters, reader.rows)
    if groups * model.variables > MOST_CLUSTER_WORDS:
        raise ConfigError(
            f"{groups} clusters and {model.variables} parameters need sums of more than"
            f" {MOST_CLUSTER_WORDS} words, the limit of covariance='clustered'; give"
            " fewer clusters, or use covariance='sandwich'",
            on_all_ranks=True,
        )
    if codes is not None:
        codes = codes[rows.objective.shard.rows]
    # 2. one pass over the rows  # 3. rank 0 solves  # 4. likelihoods, of the scores
    row_pass = RowPass(model, rows, codes)
    with np.errstate(all="ignore"):
        sums = row_pass.sums(request, groups)
        family = model.family
        if family.name in ENDLESS and is_separated(rows, row_pass.local_scores):
            raise DataError(
                f"{NO_MINIMUM}, and leave out the standard errors, which a penalised"
                " fit does not have",
                on_all_ranks=True,
            )
        system = InferenceSystem(model, row_pass.hessian, request)
        solution = world.of_root(lambda: system.solve(sums, groups))
        _check_optimum(row_pass, solution)
        likelihood = likelihood_of(family)
        density: float | None = None
        null: float | None = None
        deviance: float | None = None
        if likelihood is not None:
            n = sums.observations
            deviance = sums.deviance * n
            dispersion = solution.dispersion
            if likelihood.dispersion_rule == "profile":
                dispersion = sums.deviance
            density, null = row_pass.likelihood(likelihood, dispersion, n)
            # Counts of any other dispersion than 1 have no likelihood (quasi-Poisson).
            is_quasi = likelihood.dispersion_rule == "one" and request.dispersion
            if is_quasi or np.isnan(density):
                density = None
    has_pearson = likelihood is not None and model.scores == 1
    statistics = FitStatistics(
        observations=sums.observations,
        dispersion=solution.dispersion,
        pearson=sums.pearson * sums.observations if has_pearson else None,
        deviance=deviance,
        null_deviance=null,
        log_likelihood=density,
        decrement=solution.decrement,
        clusters=groups or None,
    )
    return FitSummary(
        names=system.names,
        coefficients=model.parameters(),
        covariance=solution.covariance,
        statistics=statistics,
        family=family.name,
        kind=request.covariance,
        level=request.level,
    )


def _check(model: InferenceModel, request: InferenceRequest) -> None:
    """Raise ConfigError for a request that cannot be met for this model."""
    request.check()
    if model.variables > MOST_VARIABLES:
        raise ConfigError(
            f"standard errors are computed for at most {MOST_VARIABLES} parameters, and"
            f" the model has {model.variables}; fit fewer columns"
        )
    likelihood = likelihood_of(model.family)
    if likelihood is None and request.covariance == "information":
        raise ConfigError(
            f"the family {model.family.name!r} has no likelihood, and so no information"
            " matrix; use covariance='sandwich'"
        )
    if request.dispersion is not None and (likelihood is None or model.scores > 1):
        raise ConfigError(
            f"the family {model.family.name!r} has no dispersion; leave the argument"
            " dispersion out"
        )


def _check_optimum(row_pass: RowPass, solution: InferenceSolution) -> None:
    """Raise DataError on all ranks for coefficients that are not an optimum.

    Where a column tells rows of classes apart, Newton's step changes their scores by
    about 1 for ever, however small the decrement. One more pass shows it.
    """
    if not solution.decrement <= NEAR:
        raise DataError(
            "the fit is not at its optimum, which standard errors need: a coefficient"
            f" is up to {np.sqrt(solution.decrement):.2g} standard errors away, and at"
            f" most {np.sqrt(NEAR):g} is allowed; fit with a smaller tol, as tol=1e-9",
            on_all_ranks=True,
        )
    family = row_pass.rows.objective.family.name
    is_doubtful = family in ENDLESS and np.abs(solution.step).max() > DOUBT
    if is_doubtful and row_pass.farthest(solution.step) > FAR:
        raise DataError(
            f"coefficients grow without end, that of {solution.weakest!r} the fastest,"
            " because the columns separate some rows of the classes without an error;"
            " drop a column, or give a penalty and leave the standard errors out",
            on_all_ranks=True,
        )


# The rows of the fit as this rank reads them.


def _grid(model: InferenceModel, reader: RowReader, world: Communicator) -> Grid:
    """Return a grid of these ranks for the rows of `reader`. Collective.

    If the reader decides the parts of columns, there is a member for each part. If not,
    it is the grid of the fit if that has as many ranks, else one replica on each rank.
    """
    parts: tuple[slice, ...] | None = getattr(reader, "parts", None)
    replicas, members = model.grid
    if parts is not None:
        replicas = world.size // len(parts)
        members = len(parts)
    elif replicas * members != world.size:
        replicas = world.size
        members = 1
    return Grid(world, replicas, members)


def _open_rows(model: InferenceModel, reader: RowReader, grid: Grid) -> AllRows:
    """Return the rows of this rank, which are read when they are used. Collective."""
    world = grid.world

    def open_shard() -> tuple[Shard, Callable[[slice], Any]]:
        prepared, _ = prepare(reader, model.preparation)
        if prepared.cols != len(model.weights):
            raise DataError(
                f"the rows have {prepared.cols} columns and the model has"
                f" {len(model.weights)}; give the rows of the fit"
            )
        rows = replica_rows(grid, prepared)
        parts = column_parts(grid, prepared, "equal")
        columns = parts[grid.member]
        targets = finite_column(prepared.targets(rows), rows, "y")
        weights = checked_weights(prepared, rows)
        offsets = finite_column(prepared.offset(rows), rows, "offset")
        take = prepared.read_csr if is_sparse(prepared) else prepared.read

        def read(part: slice) -> Any:
            whole = slice(rows.start + part.start, rows.start + part.stop)
            return take(whole, columns)

        def fill(part: slice, out: Array) -> None:
            out[...] = dense(read(part))

        shape = rows.stop - rows.start, columns.stop - columns.start
        shard = Shard(
            matrix=Unheld(fill, shape, np.float64),
            targets=encode_known(targets, model.targets, rows.start),
            weights=None if weights is None else weights.reshape(-1, 1),
            offsets=None if offsets is None else offsets.reshape(-1, 1),
            rows=rows,
            columns=columns,
            parts=parts,
            total_rows=prepared.rows,
        )
        return shard, read

    shard, read = world.together(open_shard)
    objective = Objective(
        grid, model.family, shard, Penalty(), read, columns=model.scores
    )
    return open_rows(objective)


def cluster_codes(
    world: Communicator, clusters: ArrayLike | None, rows: int
) -> tuple[Array | None, int]:
    """Return the cluster of each row of the data as a number, and how many there are.

    Without `clusters` they are None and 0.

    Each rank passes the labels of all rows, or each the labels of its own rows, which
    follow in the order of ranks. Collective.
    """
    if clusters is None:
        return None, 0

    def labels() -> Array:
        column = np.asarray(clusters)
        if column.ndim != 1:
            raise DataError(f"clusters has shape {column.shape}; {EQUAL_COPIES}")
        return column

    values = world.together(labels)
    lengths = world.exchange_objects(len(values))
    if any(length != rows for length in lengths):
        if sum(lengths) != rows:
            raise DataError(
                f"clusters has {sum(lengths)} labels for {rows} rows; {EQUAL_COPIES}",
                on_all_ranks=True,
            )
        values = np.concatenate(world.exchange_objects(values))
    names, codes = np.unique(values, return_inverse=True)
    if len(names) < 2:
        raise DataError(
            "clusters has one label only; give at least two clusters",
            on_all_ranks=True,
        )
    return codes.reshape(-1), len(names)

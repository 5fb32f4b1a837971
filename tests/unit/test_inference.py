"""Standard errors, tests and likelihoods of fits: against statsmodels and by hand."""

import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_array

import hpcsgd
from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.hdf5 import StoreLayout
from hpcsgd.data.store import StoreWriter
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.glm import Family, register
from tests.helpers.inference import PROBLEMS

GOLDEN = Path(__file__).parents[1] / "golden" / "statsmodels.json"
RECORDED = json.loads(GOLDEN.read_text())["cases"]
L = np.longdouble


def fitted(problem, X=None, **more):
    """The fit of a problem, without a penalty and close to its optimum."""
    rows = problem.X if X is None else X
    options = {"alpha": 0.0, "tol": 1e-10} | problem.sides | more
    return hpcsgd.fit(rows, problem.family, problem.y, **options)


def clusters_for(problem, covariance):
    return problem.clusters if covariance == "clustered" else None


def name_of(case):
    by = case["dispersion_by"] or "usual"
    return f"{case['data']}-{case['covariance']}-{by}"


@pytest.mark.cases("all")
@pytest.mark.parametrize("case", RECORDED, ids=name_of)
def test_figures_are_those_of_statsmodels(case):
    problem = PROBLEMS[case["data"]]()
    assert problem.digest == pytest.approx(case["digest"], rel=1e-14)
    summary = fitted(problem).summary(
        covariance=case["covariance"],
        clusters=clusters_for(problem, case["covariance"]),
        dispersion=case["dispersion_by"],
    )
    for name, recorded in case["figures"].items():
        source = summary if hasattr(summary, name) else summary.statistics
        figure = getattr(source, name)
        if recorded is None:
            assert figure is None, name
            continue
        least = 1e-20 if name == "p_values" else 0.0  # smaller ones are all 0
        np.testing.assert_allclose(figure, recorded, 1e-6, least, err_msg=name)


# An oracle in longdouble, of the information and of the sandwich.


def inverse(matrix):
    """The inverse by Gauss and Jordan, in longdouble."""
    size = len(matrix)
    both = np.hstack([matrix.astype(L), np.eye(size, dtype=L)])
    for k in range(size):
        pivot = k + int(np.abs(both[k:, k]).argmax())
        both[[k, pivot]] = both[[pivot, k]]
        both[k] /= both[k, k]
        for row in range(size):
            if row != k:
                both[row] -= both[row, k] * both[k]
    return both[:, size:]


def gamma_sums(X, y, c, coefficients):
    """H and M of gamma by the textbook, in longdouble."""
    A = np.hstack([np.ones((len(X), 1)), X]).astype(L)
    ratio = y.astype(L) * np.exp(-(A @ coefficients.astype(L)))
    H = (A * (c * ratio)[:, None]).T @ A
    M = (A * (c * (1 - ratio) ** 2)[:, None]).T @ A
    return H, M


def small_gamma():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(61, 3)) + [0.0, 100.0, 0.0]
    y = rng.gamma(3.0, np.exp(0.4 * X[:, 0]) / 3.0)
    return X, y, rng.integers(1, 4, size=61).astype(float)


@pytest.mark.parametrize("covariance", ["information", "sandwich"])
def test_covariances_are_those_of_longdouble(covariance):
    X, y, c = small_gamma()
    result = hpcsgd.fit(X, "gamma", y, sample_weight=c, alpha=0.0, tol=1e-12)
    summary = result.summary(covariance=covariance)
    H, M = gamma_sums(X, y, c, summary.coefficients)
    bread = inverse(H)
    expected = summary.statistics.dispersion * bread
    if covariance == "sandwich":
        expected = bread @ M @ bread
    np.testing.assert_allclose(summary.covariance, expected.astype(float), rtol=1e-8)


def test_weights_count_as_equal_rows():
    X, y, c = small_gamma()
    whole = hpcsgd.fit(X, "gamma", y, sample_weight=c, alpha=0.0, tol=1e-12)
    times = c.astype(int)
    X, y = np.repeat(X, times, axis=0), np.repeat(y, times)
    repeated = hpcsgd.fit(X, "gamma", y, alpha=0.0, tol=1e-12)
    for kind in ("information", "sandwich"):
        one, other = (fit.summary(covariance=kind) for fit in (whole, repeated))
        np.testing.assert_allclose(one.covariance, other.covariance, rtol=1e-7)
        assert one.bic == pytest.approx(other.bic, rel=1e-9)


def test_huber_has_the_sandwich():
    """H = Σ ã ãᵀ of rows within delta, M = Σ r² ã ãᵀ with r cut at delta."""
    rng = np.random.default_rng(30)
    X = rng.normal(size=(80, 2))
    y = X[:, 0] + rng.standard_t(2, size=80)
    result = hpcsgd.fit(X, "huber", y, alpha=0.0, tol=1e-12)
    summary = result.summary(covariance="sandwich")
    error = X @ result.weights + result.intercept - y
    assert np.abs(np.abs(error) - 1.0).min() > 3e-3, "rows beside a kink have no h"
    A = np.hstack([np.ones((80, 1)), X])
    bread = inverse(A[np.abs(error) < 1.0].T @ A[np.abs(error) < 1.0])
    middle = (A * np.clip(error, -1, 1)[:, None] ** 2).T @ A
    expected = (bread @ middle @ bread).astype(float)
    np.testing.assert_allclose(summary.covariance, expected, rtol=1e-6)
    assert summary.aic is None
    assert summary.statistics.deviance is None


class Doubled(Family):
    """Least squares times two, with nothing that a summary needs."""

    name, targets, curvature = "doubled", "real", 2.0

    def loss(self, t, y):
        return (t - y) ** 2

    def residual(self, t, y, out=None):
        return np.multiply(np.subtract(t, y, out=out), 2, out=out)

    def mean(self, t):
        return t


class Halved(Doubled):
    """Least squares with a likelihood of variance 1."""

    name, curvature, dispersion_rule = "halved", 1.0, "one"

    def loss(self, t, y):
        return (t - y) ** 2 / 2

    def residual(self, t, y, out=None):
        return np.subtract(t, y, out=out)

    def variance(self, mean):
        return np.ones_like(mean)

    def log_density(self, t, y, dispersion):
        return -((t - y) ** 2) / 2 - np.log(2 * np.pi) / 2


@pytest.fixture
def registered():
    for kind in (Doubled, Halved):
        register(kind.name, kind)
    yield
    for kind in (Doubled, Halved):
        del hpcsgd.FAMILIES[kind.name]


def test_a_family_of_ones_own_needs_its_methods_alone(registered):
    problem = PROBLEMS["diabetes"]()
    X, y = problem.X, problem.y
    gaussian = fitted(problem)
    doubled, halved = (hpcsgd.fit(X, f, y, alpha=0.0) for f in ("doubled", "halved"))
    with pytest.raises(ConfigError, match="no likelihood"):
        doubled.summary()
    np.testing.assert_allclose(
        doubled.summary(covariance="sandwich").covariance,
        gaussian.summary(covariance="sandwich").covariance,
        rtol=1e-7,
    )
    A = np.hstack([np.ones((len(y), 1)), X])
    summary = halved.summary()
    np.testing.assert_allclose(
        summary.covariance, inverse(A.T @ A).astype(float), rtol=1e-7, atol=1e-10
    )
    error = y - A @ summary.coefficients
    density = -(error @ error) / 2 - len(y) * np.log(2 * np.pi) / 2
    assert summary.statistics.log_likelihood == pytest.approx(density, rel=1e-10)


# Ranks: the same numbers, and the messages that are documented.


GRIDS = [(2, 1), (3, 1), (1, 3), (2, 2)]


@pytest.mark.cases("all")
@pytest.mark.parametrize("covariance", ["information", "sandwich", "clustered"])
@pytest.mark.parametrize("grid", GRIDS, ids="{0[0]}x{0[1]}".format)
def test_ranks_have_the_numbers_of_one_process(grid, covariance):
    problem = PROBLEMS["rates"]()
    clusters = clusters_for(problem, covariance)
    alone = fitted(problem).summary(covariance=covariance, clusters=clusters)

    def on_rank(world):
        result = fitted(problem, comm=world, grid=grid)
        return result.summary(covariance=covariance, clusters=clusters)

    summaries = run_ranks(grid[0] * grid[1], on_rank)
    for summary in summaries:
        assert summary.covariance.tobytes() == summaries[0].covariance.tobytes()
        assert summary.statistics == summaries[0].statistics
        np.testing.assert_allclose(summary.covariance, alone.covariance, rtol=1e-9)
        assert summary.statistics.log_likelihood == pytest.approx(
            alone.statistics.log_likelihood, rel=1e-12
        )
        assert summary.statistics.null_deviance == pytest.approx(
            alone.statistics.null_deviance, rel=1e-9
        )


@pytest.mark.cases("all")
@pytest.mark.parametrize("grid", [(3, 1), (1, 3), (2, 2)], ids="{0[0]}x{0[1]}".format)
def test_classes_of_sparse_rows_on_ranks(grid):
    rng = np.random.default_rng(6)
    X = rng.normal(size=(211, 4)) * (rng.uniform(size=(211, 4)) < 0.4)
    y = np.argmax(X[:, :3] + rng.gumbel(size=(211, 3)), axis=1)
    options = {"alpha": 0.0, "tol": 1e-11}
    alone = hpcsgd.fit(X, "softmax", y, **options).summary(covariance="sandwich")

    def on_rank(world):
        there = {"comm": world, "grid": grid}
        result = hpcsgd.fit(csr_array(X), "softmax", y, **options, **there)
        return result.summary(covariance="sandwich")

    for summary in run_ranks(grid[0] * grid[1], on_rank):
        np.testing.assert_allclose(summary.covariance, alone.covariance, rtol=1e-6)


def words_of_summary(world, ranks, **request):
    """Calls and words of "evaluate" in a summary, and the trials of the null model."""
    problem = PROBLEMS["rates"]()
    result = fitted(problem, comm=world, grid=(ranks, 1))
    before = world.ledger.as_dict()["evaluate"]
    result.summary(**request)
    after = world.ledger.as_dict()["evaluate"]
    return {name: after[name] - before[name] for name in ("calls", "words")}


@pytest.mark.parametrize("ranks", [2, 3])
def test_each_matrix_is_one_sum_over_the_ranks(ranks):
    """P² words for H, as many for M, and G P for the scores of G clusters."""
    P = 4
    clusters = PROBLEMS["rates"]().clusters
    groups = len(np.unique(clusters))
    plain = run_ranks(ranks, lambda world: words_of_summary(world, ranks))[0]
    robust = run_ranks(
        ranks, lambda world: words_of_summary(world, ranks, covariance="sandwich")
    )[0]
    clustered = run_ranks(
        ranks,
        lambda world: words_of_summary(
            world, ranks, covariance="clustered", clusters=clusters
        ),
    )[0]
    assert robust["calls"] == clustered["calls"] == plain["calls"]
    assert robust["words"] - plain["words"] == P * P
    assert clustered["words"] - plain["words"] == groups * P
    # Σc; the scaling of 3 columns; H, gradient and six sums; trials of the null model,
    # of four words each; likelihood and null deviance, which rank 0 broadcasts.
    fixed = 1 + (2 * 3 + 1) + (P * P + P + 6) + 2 + 2
    trials = plain["calls"] - 5
    assert trials > 0
    assert plain["words"] == fixed + 4 * trials


def test_clusters_of_own_rows_are_those_of_all():
    problem = PROBLEMS["rates"]()
    whole = fitted(problem).summary(covariance="clustered", clusters=problem.clusters)

    def on_rank(world):
        own = slice(0, 100) if world.rank == 0 else slice(100, None)
        result = hpcsgd.fit(
            problem.X[own],
            "poisson",
            problem.y[own],
            offset=problem.sides["offset"][own],
            alpha=0.0,
            tol=1e-10,
            comm=world,
            layout="rows",
        )
        labels = problem.clusters[own].astype(str)
        return result.summary(covariance="clustered", clusters=labels)

    for summary in run_ranks(2, on_rank):
        np.testing.assert_allclose(summary.covariance, whole.covariance, rtol=1e-8)


def test_an_error_of_the_matrix_is_raised_on_all_ranks():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    X = np.hstack([X, X[:, :1] - X[:, 1:]])
    y = X[:, 0] + rng.normal(size=60)

    def on_rank(world):
        result = hpcsgd.fit(X, "gaussian", y, alpha=0.0, comm=world)
        with pytest.raises(DataError, match="'x2'") as caught:
            result.summary()
        return caught.value.on_all_ranks

    assert run_ranks(2, on_rank) == [True, True]


# Where the rows come from.


@pytest.mark.parametrize("covariance", ["information", "sandwich"])
def test_sparse_rows_are_those_of_a_dense_matrix(covariance):
    problem = PROBLEMS["rates"]()
    X = np.where(np.abs(problem.X) > 0.5, problem.X, 0.0)
    dense, sparse = fitted(problem, X), fitted(problem, csr_array(X))
    one, other = (fit.summary(covariance=covariance) for fit in (dense, sparse))
    np.testing.assert_allclose(one.covariance, other.covariance, rtol=1e-9)


def test_a_file_has_the_numbers_of_its_arrays(tmp_path):
    problem = PROBLEMS["repeated"]()
    path = tmp_path / "train.h5"
    weights = problem.sides["sample_weight"]
    columns = ("y", "sample_weight")
    with StoreWriter(path, StoreLayout(4, element="fp64"), columns=columns) as writer:
        writer.append(problem.X, problem.y, weights, None)
    result = hpcsgd.fit(str(path), "logistic", alpha=0.0, tol=1e-10)
    expected = fitted(problem).summary()
    loaded = hpcsgd.load_result(result.save(tmp_path / "run"))
    for summary in (result.summary(), loaded.summary()):
        np.testing.assert_allclose(summary.covariance, expected.covariance, rtol=1e-9)


def test_train_keeps_its_rows_for_a_summary():
    problem = PROBLEMS["rates"]()
    settings = {"problem": {"family": "poisson", "l2": 0.0}}
    result = hpcsgd.train(settings, X=problem.X, y=problem.y, **problem.sides)
    expected = fitted(problem).summary()
    found = result.summary()
    np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-5)


def test_rows_are_neither_saved_nor_pickled(tmp_path):
    problem = PROBLEMS["rates"]()
    result = fitted(problem)
    loaded = hpcsgd.load_result(result.save(tmp_path))
    for other in (pickle.loads(pickle.dumps(result)), loaded):
        with pytest.raises(DataError, match="give X and y to summary"):
            other.summary()
        summary = other.summary(X=problem.X, y=problem.y, **problem.sides)
        expected = result.summary().covariance
        assert summary.covariance.tobytes() == expected.tobytes()


# What is refused, each in a sentence with the remedy.

RNG = np.random.default_rng(3)
X, NOISE = RNG.normal(size=(120, 2)), RNG.normal(size=120)
COUNTS = RNG.poisson(np.exp(0.3 * X[:, 0]))
ONES = np.ones((120, 1))
RARE = ((COUNTS == 0) & (np.arange(120) < 30)).astype(float)[:, None]


def fit(X, family, y, **more):
    return hpcsgd.fit(X, family, y, **{"alpha": 0.0, **more})


REFUSED = {
    "a default penalty": (lambda: hpcsgd.fit(X, "gaussian", NOISE), {}, "alpha=0"),
    "l1": (
        lambda: hpcsgd.fit(X, "gaussian", NOISE, alpha=0.1, l1_ratio=1.0),
        {},
        "penalised",
    ),
    "bounds": (lambda: fit(X, "gaussian", NOISE, bounds=(0, None)), {}, "bounds"),
    "no optimum": (
        lambda: fit(X, "poisson", COUNTS, epochs=1, polish=False),
        {},
        "not at its optimum",
    ),
    "equal columns": (lambda: fit(X[:, [0, 1, 0]], "poisson", COUNTS), {}, "'x2'"),
    "a constant column": (
        lambda: fit(np.hstack([ONES, X]), "poisson", COUNTS),
        {},
        "'x0'",
    ),
    "classes that are apart": (
        lambda: fit(X, "logistic", X[:, 0] > 0),
        {},
        "no minimum",
    ),
    "a column of one class": (
        lambda: fit(np.hstack([X, RARE]), "logistic", COUNTS > 0, tol=1e-9),
        {},
        "'x2'",
    ),
    "a column of one class, early": (
        lambda: fit(np.hstack([X, RARE]), "logistic", COUNTS > 0, max_passes=12),
        {},
        "'x2' the fastest",
    ),
    "no error": (lambda: fit(X, "gaussian", X[:, 0]), {}, "up to rounding"),
    "few rows": (lambda: fit(X[:3], "gaussian", NOISE[:3]), {}, "observations"),
    "no likelihood": (lambda: fit(X, "huber", NOISE), {}, "covariance='sandwich'"),
    "no clusters": (
        lambda: fit(X, "gaussian", NOISE),
        {"covariance": "clustered"},
        "belong together",
    ),
    "one cluster": (
        lambda: fit(X, "gaussian", NOISE),
        {"covariance": "clustered", "clusters": np.zeros(120)},
        "one label only",
    ),
    "few clusters": (
        lambda: fit(X, "gaussian", NOISE),
        {"covariance": "clustered", "clusters": np.arange(7)},
        "7 labels for 120 rows",
    ),
    "an unknown covariance": (
        lambda: fit(X, "gaussian", NOISE),
        {"covariance": "HC3"},
        "known: information, sandwich, clustered",
    ),
    "a level": (lambda: fit(X, "gaussian", NOISE), {"level": 95}, "0.95 is usual"),
    "a dispersion": (
        lambda: fit(X, "gaussian", NOISE),
        {"dispersion": -1.0},
        "a number above 0",
    ),
    "other rows": (
        lambda: fit(X, "gaussian", NOISE),
        {"X": X[:, :1], "y": NOISE},
        "1 columns and the model has 2",
    ),
    "y alone": (lambda: fit(X, "gaussian", NOISE), {"y": NOISE}, "given without X"),
}


@pytest.mark.cases("all")
@pytest.mark.filterwarnings("ignore::hpcsgd.ConvergenceWarning")
@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_inference_is_refused_in_a_sentence(name):
    make, request_of, sentence = REFUSED[name]
    result = make()
    with pytest.raises((ConfigError, DataError), match=sentence) as caught:
        result.summary(**request_of)
    assert "\n" not in str(caught.value)


# How it looks.


def test_the_table_is_at_most_80_columns_wide():
    rng = np.random.default_rng(1)
    frame_names = ["a name that is much longer than any table has room for", "b"]
    X = rng.normal(size=(90, 2)) * [1e-7, 1e9]
    result = hpcsgd.fit(X, "gaussian", rng.normal(size=90), alpha=0.0)
    result.report["feature_names"] = frame_names
    summary = result.summary(level=0.9)
    lines = str(summary).splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[-3].startswith("intercept")
    assert "0.05" in lines[-4]
    assert "0.95" in lines[-4]
    assert summary.names == ("intercept", *frame_names)


def test_intervals_have_their_level():
    problem = PROBLEMS["diabetes"]()
    summary = fitted(problem).summary(level=0.6826894921370859)
    reach = summary.upper - summary.coefficients
    np.testing.assert_allclose(reach, summary.standard_errors, rtol=1e-9)
    np.testing.assert_allclose(summary.lower + reach, summary.coefficients, rtol=1e-12)


def test_a_frame_has_a_row_for_each_parameter():
    pytest.importorskip("pandas")
    summary = fitted(PROBLEMS["diabetes"]()).summary()
    frame = summary.to_frame()
    assert list(frame.index) == list(summary.names)
    np.testing.assert_array_equal(frame["p_value"], summary.p_values)
    assert "<table>" in summary._repr_html_()

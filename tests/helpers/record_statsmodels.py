"""Record the figures of statsmodels that tests of summaries compare with.

The tests need no statsmodels: they read tests/golden/statsmodels.json. This script
writes it, in an environment of its own that has statsmodels and scikit-learn:

    python -m tests.helpers.record_statsmodels
"""

import json
import warnings
from pathlib import Path

import numpy as np
import statsmodels
import statsmodels.api as sm
from scipy.stats import norm

from tests.helpers.inference import CASES, PROBLEMS

GOLDEN = Path(__file__).parents[1] / "golden" / "statsmodels.json"
FAMILIES = {
    "gaussian": lambda: sm.families.Gaussian(),
    "logistic": lambda: sm.families.Binomial(),
    "probit": lambda: sm.families.Binomial(link=sm.families.links.Probit()),
    "poisson": lambda: sm.families.Poisson(),
    "gamma": lambda: sm.families.Gamma(link=sm.families.links.Log()),
}
SCALES = {None: None, "pearson": "X2", "deviance": "dev"}


def glm(problem, covariance, dispersion):
    """The figures of a generalized linear model, by the observed information."""
    X, y = sm.add_constant(problem.X, has_constant="add"), problem.y
    weights = problem.sides.get("sample_weight")
    if weights is not None:  # its robust covariance divides by weights
        counts = weights > 0
        X, y, weights = X[counts], y[counts], weights[counts]
    model = sm.GLM(
        y,
        X,
        family=FAMILIES[problem.family](),
        offset=problem.sides.get("offset"),
        freq_weights=weights,
    )
    options = {"tol": 1e-14, "maxiter": 200, "scale": SCALES[dispersion]}
    fit = model.fit(**options)
    if covariance == "information":
        information = -model.hessian(fit.params, scale=fit.scale, observed=True)
        covariances = np.linalg.inv(information)
    elif covariance == "sandwich":
        covariances = model.fit(cov_type="HC0", **options).cov_params()
    else:
        groups = {"groups": problem.clusters}
        kind = {"cov_type": "cluster", "cov_kwds": groups}
        covariances = model.fit(**kind, **options).cov_params()
    n = len(y) if weights is None else weights.sum()
    found = figures(fit.params, covariances, fit.llf, n)
    if dispersion == "pearson":  # its "likelihood" of quasi-Poisson is none
        found |= dict.fromkeys(("log_likelihood", "aic", "bic"))
    return found | {
        "deviance": fit.deviance,
        "null_deviance": fit.null_deviance,
        "pearson": fit.pearson_chi2,
        "dispersion": fit.scale,
    }


def multinomial(problem, covariance):
    """The figures of contrasts of classes to the first one."""
    X = sm.add_constant(problem.X)
    kind = {} if covariance == "information" else {"cov_type": "HC0"}
    fit = sm.MNLogit(problem.y, X).fit(
        method="newton", tol=1e-14, maxiter=200, disp=False, **kind
    )
    return figures(fit.params.T.reshape(-1), fit.cov_params(), fit.llf, len(problem.y))


def figures(coefficients, covariance, likelihood, n):
    """What every model has, of its coefficients and their covariance."""
    errors = np.sqrt(np.diagonal(covariance))
    z = coefficients / errors
    count = len(coefficients)
    return {
        "coefficients": coefficients.tolist(),
        "standard_errors": errors.tolist(),
        "statistic": z.tolist(),
        "p_values": (2 * norm.sf(np.abs(z))).tolist(),
        "log_likelihood": likelihood,
        "aic": -2 * likelihood + 2 * count,
        "bic": -2 * likelihood + count * np.log(n),
        "observations": float(n),
    }


def main():
    """Write the figures of all cases."""
    warnings.simplefilter("ignore")
    cases = []
    for name, covariance, dispersion in CASES:
        problem = PROBLEMS[name]()
        if problem.family == "softmax":
            found = multinomial(problem, covariance)
        else:
            found = glm(problem, covariance, dispersion)
        cases.append(
            {
                "data": name,
                "covariance": covariance,
                "dispersion_by": dispersion,
                "digest": problem.digest,
                "figures": found,
            }
        )
    document = {"statsmodels": statsmodels.__version__, "cases": cases}
    GOLDEN.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()

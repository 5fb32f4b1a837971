"""Write tests/golden/statsmodels_families.json: fits of statsmodels, without a penalty.

It needs statsmodels, which no test does:

    python -m venv .venv-statsmodels
    .venv-statsmodels/bin/pip install statsmodels
    .venv-statsmodels/bin/python tests/helpers/record_families.py
"""

import json
from pathlib import Path

import numpy as np
import statsmodels
import statsmodels.api as sm

ROWS = 80


def rounded(values: np.ndarray) -> list[float]:
    """Return numbers that JSON keeps exactly."""
    return [round(float(value), 6) for value in np.ravel(values)]


def fitted(
    family: sm.families.Family,
    X: np.ndarray,
    y: np.ndarray,
    trials: np.ndarray | None = None,
) -> dict[str, object]:
    """Return the targets and what statsmodels finds for them."""
    known = {} if trials is None else {"var_weights": trials}
    model = sm.GLM(y, sm.add_constant(X), family=family, **known)
    fit = model.fit(tol=1e-14, maxiter=200)
    information = -model.hessian(fit.params, scale=fit.scale, observed=True)
    errors = np.sqrt(np.diag(np.linalg.inv(information)))
    sides = {} if trials is None else {"trials": trials.tolist()}
    return {
        "y": y.tolist(),
        **sides,
        "intercept": float(fit.params[0]),
        "coef": fit.params[1:].tolist(),
        "standard_errors": errors.tolist(),
        "dispersion": float(fit.scale),
        "deviance": float(fit.deviance),
        "null_deviance": float(fit.null_deviance),
        "variance_at_0.2": float(family.variance(np.array([0.2]))[0]),
    }


def main() -> None:
    """Draw targets of each family and write the figures of their fits."""
    rng = np.random.default_rng(7)
    X = np.array(rounded(rng.normal(size=(ROWS, 3)))).reshape(ROWS, 3)
    score = X @ [0.5, -0.4, 0.2] + 0.3
    mean = np.exp(score)
    cases: dict[str, object] = {}
    for alpha in (0.3, 2.0):
        counts = rng.poisson(mean * rng.gamma(1 / alpha, alpha, size=ROWS))
        family = sm.families.NegativeBinomial(alpha=alpha)
        cases[f"negative-binomial {alpha}"] = fitted(family, X, counts.astype(float))
    trials = rng.integers(1, 12, size=ROWS).astype(float)
    successes = rng.binomial(trials.astype(int), 1 / (1 + np.exp(-score)))
    binomial = fitted(sm.families.Binomial(), X, successes / trials, trials)
    cases["binomial"] = binomial
    for power in (1.2, 1.7):
        numbers = rng.poisson(mean)
        amounts = [rng.gamma(2.0, 0.5, size=number).sum() for number in numbers]
        link = sm.families.links.Log()
        family = sm.families.Tweedie(var_power=power, link=link)
        y = np.array(rounded(np.array(amounts)))
        cases[f"tweedie {power}"] = fitted(family, X, y)
    document = {"statsmodels": statsmodels.__version__, "X": X.tolist(), **cases}
    place = Path(__file__).parents[1] / "golden" / "statsmodels_families.json"
    place.write_text(json.dumps(document) + "\n")


if __name__ == "__main__":
    main()

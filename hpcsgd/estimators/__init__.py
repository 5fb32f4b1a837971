"""scikit-learn estimators.

This file imports no scikit-learn, so that a saved model loads without it.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from hpcsgd.errors import MissingPackage

_NAMES = {
    "GLM": "hpcsgd.estimators.glm",
    "GLM_CV": "hpcsgd.estimators.glm_cv",
    "GammaRegressor": "hpcsgd.estimators.regressors",
    "HuberRegressor": "hpcsgd.estimators.regressors",
    "LinearRegression": "hpcsgd.estimators.regressors",
    "LinearSVC": "hpcsgd.estimators.classifiers",
    "LogisticRegression": "hpcsgd.estimators.classifiers",
    "NegativeBinomialRegressor": "hpcsgd.estimators.regressors",
    "PoissonRegressor": "hpcsgd.estimators.regressors",
    "Ridge": "hpcsgd.estimators.regressors",
    "TweedieRegressor": "hpcsgd.estimators.regressors",
}

__all__ = sorted(_NAMES)


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if not has_sklearn():
        raise MissingPackage(
            f"{name} needs scikit-learn; install it with: pip install 'hpcsgd[sklearn]'"
        )
    return getattr(import_module(_NAMES[name]), name)


def __dir__() -> list[str]:
    return __all__


def has_sklearn() -> bool:
    """Return whether scikit-learn can be imported."""
    try:
        return find_spec("sklearn") is not None
    except ImportError:  # an import hook refuses it
        return False

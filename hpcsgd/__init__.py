"""Communication-avoiding SGD for generalized linear models, counted to the word.

Names are loaded when they are first used, so that importing the package costs nothing
and needs nothing; training in memory needs NumPy and SciPy only.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_NAMES = {
    "train": "hpcsgd.api",
    "fit": "hpcsgd.fitting",
    "path": "hpcsgd.paths.api",
    "Path": "hpcsgd.paths.outcome",
    "tick_tock": "hpcsgd.alternate",
    "sweep": "hpcsgd.sweeps.api",
    "Sweep": "hpcsgd.sweeps.outcome",
    "load_sweep": "hpcsgd.sweeps.outcome",
    "race": "hpcsgd.sweeps.race",
    "evaluate": "hpcsgd.assessment",
    "predict": "hpcsgd.prediction",
    "predict_blocks": "hpcsgd.prediction",
    "RunConfig": "hpcsgd.config",
    "Result": "hpcsgd.result",
    "Status": "hpcsgd.result",
    "load_result": "hpcsgd.result",
    "load": "hpcsgd.estimators.saved",
    "Callback": "hpcsgd.callbacks.base",
    "FAMILIES": "hpcsgd.families",
    "PRODUCTS": "hpcsgd.products",
    "RECIPES": "hpcsgd.precision",
    "UPDATES": "hpcsgd.updates",
    "ConvergenceWarning": "hpcsgd.errors",
    "ConfigError": "hpcsgd.errors",
    "DataError": "hpcsgd.errors",
    "HpcsgdError": "hpcsgd.errors",
}

_ESTIMATORS = (
    "GLM",
    "GLM_CV",
    "GammaRegressor",
    "HuberRegressor",
    "LinearRegression",
    "LinearSVC",
    "LogisticRegression",
    "PoissonRegressor",
    "Ridge",
)

# The estimators need scikit-learn, which `from hpcsgd import *` shall not.
__all__ = ["__version__", *_NAMES]


def __getattr__(name: str) -> Any:
    if name in _ESTIMATORS:
        return getattr(import_module("hpcsgd.estimators"), name)
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_ESTIMATORS])


class _Package(ModuleType):
    """This package: a file imported later does not hide the function of its name.

    `import hpcsgd.load`, by whatever part of a run, would put the module where users
    find the function `hpcsgd.load`.
    """

    def __setattr__(self, name: str, value: Any) -> None:
        if not (isinstance(value, ModuleType) and name in _NAMES):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package

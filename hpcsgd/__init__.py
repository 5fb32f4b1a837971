"""Communication-avoiding SGD for generalized linear models, with exact traffic counts.

Names are loaded when they are first used, so that `import hpcsgd` is fast and needs no
other package. Training on arrays in memory needs NumPy and SciPy only.
"""

import _signal
import sys


def _is_command() -> bool:
    """Return whether this process was started by `hpcsgd` or `python -m hpcsgd`."""
    program = sys.argv[0] if "argv" in vars(sys) and sys.argv else ""
    if program == "-m":  # the name of the module follows when the package is loaded
        return bool({"hpcsgd", "-mhpcsgd"} & set(sys.orig_argv))
    return program.rpartition("/")[2] == "hpcsgd"


def _end_by_interrupts() -> bool:
    """Let SIGINT end a command until `main` handles it; return whether this was set.

    Python's own handler would print a traceback if the user interrupts the imports. The
    handler is not changed, and False is returned, in a program that imports the
    package, outside the main thread, and where another handler is installed.
    """
    usual = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
    try:
        if usual and _is_command():
            _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
            return True
    except ValueError:
        pass  # not the main thread, which alone sets handlers
    return False


# Before any other import, which an interrupt could meet.
ENDED_BY_INTERRUPTS = _end_by_interrupts()

from importlib import import_module  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

if TYPE_CHECKING:  # what editors and type checkers see of `_NAMES` and `_ESTIMATORS`
    from hpcsgd.api import tick_tock as tick_tock
    from hpcsgd.api import train as train
    from hpcsgd.config import RunConfig as RunConfig
    from hpcsgd.errors import ConfigError as ConfigError
    from hpcsgd.errors import ConvergenceWarning as ConvergenceWarning
    from hpcsgd.errors import DataError as DataError
    from hpcsgd.errors import HpcsgdError as HpcsgdError
    from hpcsgd.estimators.classifiers import LinearSVC as LinearSVC
    from hpcsgd.estimators.classifiers import LogisticRegression as LogisticRegression
    from hpcsgd.estimators.fit import fit as fit
    from hpcsgd.estimators.glm import GLM as GLM
    from hpcsgd.estimators.glm_cv import GLM_CV as GLM_CV
    from hpcsgd.estimators.path import Path as Path
    from hpcsgd.estimators.path import path as path
    from hpcsgd.estimators.regressors import GammaRegressor as GammaRegressor
    from hpcsgd.estimators.regressors import HuberRegressor as HuberRegressor
    from hpcsgd.estimators.regressors import LinearRegression as LinearRegression
    from hpcsgd.estimators.regressors import (
        NegativeBinomialRegressor as NegativeBinomialRegressor,
    )
    from hpcsgd.estimators.regressors import PoissonRegressor as PoissonRegressor
    from hpcsgd.estimators.regressors import Ridge as Ridge
    from hpcsgd.estimators.regressors import TweedieRegressor as TweedieRegressor
    from hpcsgd.estimators.saved import load as load
    from hpcsgd.estimators.sweep import Sweep as Sweep
    from hpcsgd.estimators.sweep import load_sweep as load_sweep
    from hpcsgd.estimators.sweep import race as race
    from hpcsgd.estimators.sweep import sweep as sweep
    from hpcsgd.glm import FAMILIES as FAMILIES
    from hpcsgd.glm import UPDATES as UPDATES
    from hpcsgd.precision import RECIPES as RECIPES
    from hpcsgd.products import PRODUCTS as PRODUCTS
    from hpcsgd.runs.inference import FitSummary as FitSummary
    from hpcsgd.runs.predict import evaluate as evaluate
    from hpcsgd.runs.predict import predict as predict
    from hpcsgd.runs.predict import predict_blocks as predict_blocks
    from hpcsgd.runs.result import Result as Result
    from hpcsgd.runs.result import Status as Status
    from hpcsgd.runs.result import load_result as load_result
    from hpcsgd.solvers.callbacks import Callback as Callback

__version__ = "0.1.0"

_NAMES = {
    "train": "hpcsgd.api",
    "fit": "hpcsgd.estimators.fit",
    "path": "hpcsgd.estimators.path",
    "Path": "hpcsgd.estimators.path",
    "tick_tock": "hpcsgd.api",
    "sweep": "hpcsgd.estimators.sweep",
    "Sweep": "hpcsgd.estimators.sweep",
    "load_sweep": "hpcsgd.estimators.sweep",
    "race": "hpcsgd.estimators.sweep",
    "evaluate": "hpcsgd.runs.predict",
    "predict": "hpcsgd.runs.predict",
    "predict_blocks": "hpcsgd.runs.predict",
    "RunConfig": "hpcsgd.config",
    "FitSummary": "hpcsgd.runs.inference",
    "Result": "hpcsgd.runs.result",
    "Status": "hpcsgd.runs.result",
    "load_result": "hpcsgd.runs.result",
    "load": "hpcsgd.estimators.saved",
    "Callback": "hpcsgd.solvers.callbacks",
    "FAMILIES": "hpcsgd.glm",
    "PRODUCTS": "hpcsgd.products",
    "RECIPES": "hpcsgd.precision",
    "UPDATES": "hpcsgd.glm",
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
    "NegativeBinomialRegressor",
    "PoissonRegressor",
    "Ridge",
    "TweedieRegressor",
)


# Names of scikit-learn's linear models, and what does the same here.
_INSTEAD = {
    "Lasso": "Ridge(l1_ratio=1)",
    "ElasticNet": "Ridge(l1_ratio=0.5)",
    "LassoCV": "hpcsgd.path, or GridSearchCV of Ridge(l1_ratio=1)",
    "ElasticNetCV": "hpcsgd.path, or GridSearchCV of Ridge",
    "RidgeCV": "GLM_CV(family='gaussian')",
    "LogisticRegressionCV": "GLM_CV(family='logistic')",
    "RidgeClassifier": "LogisticRegression or LinearSVC",
    "SGDClassifier": "LogisticRegression or LinearSVC(solver='sgd')",
    "SGDRegressor": "Ridge(solver='sgd')",
    "SVC": "LinearSVC, or GLM(family='squared-hinge')",
    "LinearSVR": "HuberRegressor",
    "lasso_path": "hpcsgd.path(X, y, l1_ratio=1)",
    "enet_path": "hpcsgd.path(X, y, l1_ratio=0.5)",
}


if not TYPE_CHECKING:  # with it every misspelt name would be of type Any

    def __getattr__(name: str) -> Any:
        if name == "__all__":
            return _public_names()
        if name in _ESTIMATORS:
            return getattr(import_module("hpcsgd.estimators"), name)
        if name in _NAMES:
            return getattr(import_module(_NAMES[name]), name)
        sentence = f"module {__name__!r} has no attribute {name!r}"
        if name in _INSTEAD:
            sentence = f"hpcsgd has no {name}; take {_INSTEAD[name]}"
            # `from hpcsgd import Lasso` shows the sentence of an ImportError alone.
            if sys._getframe(1).f_globals.get("__name__") == "importlib._bootstrap":
                raise ImportError(sentence, name=__name__)
        raise AttributeError(sentence, name=name, obj=sys.modules[__name__])


def _public_names() -> list[str]:
    """Return `__all__`, with the estimators if scikit-learn can be imported.

    scikit-learn is searched for when `__all__` is read, not when the package is
    imported.
    """
    from hpcsgd.estimators import has_sklearn

    return ["__version__", *_NAMES, *(_ESTIMATORS if has_sklearn() else ())]


def __dir__() -> list[str]:
    return sorted(["__version__", *_NAMES, *_ESTIMATORS])

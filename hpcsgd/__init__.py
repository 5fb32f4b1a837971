"""Communication-avoiding SGD for generalized linear models, counted to the word.

Names are loaded when they are first used, so that importing the package costs nothing
and needs nothing; training in memory needs NumPy and SciPy only.
"""

import _signal
import sys


def _is_command() -> bool:
    """Whether this interpreter was started for `hpcsgd` or `python -m hpcsgd`."""
    program = sys.argv[0] if "argv" in vars(sys) and sys.argv else ""
    if program == "-m":  # the name of the module follows when the package is loaded
        return bool({"hpcsgd", "-mhpcsgd"} & set(sys.orig_argv))
    return program.rpartition("/")[2] == "hpcsgd"


def _end_by_interrupts() -> bool:
    """Let SIGINT end a command until `main` listens; True where it does from here on.

    An exception would be a traceback amid imports. A program that imports the package
    keeps its own handler.
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
from typing import Any  # noqa: E402

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
    "PoissonRegressor",
    "Ridge",
)


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return _public_names()
    if name in _ESTIMATORS:
        return getattr(import_module("hpcsgd.estimators"), name)
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _public_names() -> list[str]:
    """Return `__all__`; the estimators are in it where scikit-learn can be imported.

    It is looked for when somebody asks, and not when the package is imported.
    """
    from hpcsgd.estimators import has_sklearn

    return ["__version__", *_NAMES, *(_ESTIMATORS if has_sklearn() else ())]


def __dir__() -> list[str]:
    return sorted(["__version__", *_NAMES, *_ESTIMATORS])

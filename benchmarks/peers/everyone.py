"""Who takes part, by the loss and by how the rows are stored."""

import importlib
from functools import cache, partial

from benchmarks.peers.methods import ByEpochs, Method, Solver
from benchmarks.peers.problems import Problem

PACKAGES = {"sklearn": "scikit-learn", "torch": "PyTorch"}  # module -> name
RECIPES = ("c", "fp32")


@cache
def version(module: str) -> str:
    """Of a package; nothing where it is not installed."""
    try:
        return str(importlib.import_module(module).__version__)
    except ImportError:
        return ""


def methods(problem: Problem) -> list[Method]:
    """All that minimise this loss on rows stored like this, ours first."""
    found: list[Method] = list(_ours())
    if problem.layout == "dense":
        found += _loops()
    if version("sklearn"):
        found += _of_sklearn(problem.family)
    return found


def _ours() -> list[Method]:
    from benchmarks.peers.with_hpcsgd import Ours

    return [Ours(recipe) for recipe in RECIPES]


def _loops() -> list[Method]:
    from benchmarks.peers.with_numpy import NumpySgd

    found: list[Method] = [ByEpochs("NumPy SGD", NumpySgd)]
    if version("torch"):
        from benchmarks.peers.with_torch import TorchSgd, lbfgs

        found += [ByEpochs("PyTorch SGD", TorchSgd), Solver("PyTorch LBFGS", lbfgs)]
    return found


def _of_sklearn(family: str) -> list[Method]:
    from benchmarks.peers.with_sklearn import SklearnSgd, solvers

    found: list[Method] = [
        Solver(name, fit, in_double="liblinear" in name)
        for name, fit in solvers(family).items()
    ]
    if family == "poisson":
        return found
    name = "SGDClassifier" if family == "logistic" else "SGDRegressor"
    constant = partial(SklearnSgd, "constant")
    found.append(ByEpochs(name, constant, ("rate", "decays", "averages")))
    if family == "logistic":
        optimal = partial(SklearnSgd, "optimal")
        found.append(ByEpochs(f"{name} optimal", optimal, ("averages",)))
    return found

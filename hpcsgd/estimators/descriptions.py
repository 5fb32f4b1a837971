"""Docstrings of estimators and paths, completed from that of `hpcsgd.fit`.

`fit` describes each of its arguments. Estimators and `path` have the same arguments and
some of their own, which are described below or in their docstrings.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

from hpcsgd.estimators.fit import fit

D = TypeVar("D", bound=Callable[..., Any])
# parameter of an estimator that `fit` has not -> its type and its description
PARAMETERS = {
    "family": (
        "str",
        "The loss: a name of `hpcsgd.FAMILIES`. A family of labels makes a classifier,"
        " any other a regressor.",
    ),
    "alphas": ("sequence of float", "Strengths of the ridge penalty to compare."),
    "cv": (
        "int, splitter or iterable",
        "Number of folds, or a splitter of scikit-learn, or pairs (train, test) of row"
        " numbers. Every row is held out once at most. A number deals the rows by"
        " `random_state`, alike on any number of ranks.",
    ),
    "epsilon": (
        "float",
        "Above 1: residuals beyond `epsilon` times the scale count linearly. A larger"
        " value comes nearer to least squares. Ignored where `delta` is given.",
    ),
    "delta": (
        "float or None",
        "Residuals beyond it count linearly, in the units of y. None takes `epsilon`"
        " times the scale of the residuals.",
    ),
    "class_weight": (
        'dict, "balanced" or None',
        "Weight of each class. None gives every class the weight 1.",
    ),
    "max_iter": (
        "int or None",
        "Number of SGD epochs before the refinement, or the largest number of sweeps of"
        " a coordinate form. None takes what suits the solver; where there is a"
        " refinement, a larger number is slower and not better.",
    ),
    "warm_start": ("bool", "Whether a fit begins at the coefficients of the last one."),
    "random_state": (
        "int, RandomState instance or None",
        "Seed of the order of the rows.",
    ),
    "X": (
        "array, frame, sparse matrix or path",
        "Rows of shape (n, d): NumPy, pandas, polars, SciPy, or an array on a GPU. A"
        " path names an HDF5 file, which holds y too.",
    ),
    "rows": (
        "array, frame or sparse matrix of shape (n, d)",
        "Rows with the columns of the fit.",
    ),
    "y": ("array-like of shape (n,)", "Targets: numbers, or labels of any kind."),
    "classes": (
        "array-like of shape (K,) or None",
        "All labels that later calls may give. Required in the first call of a"
        " classifier.",
    ),
    "exposure": (
        "array-like of shape (n,) or None",
        "How long, how many or how much each row stands for, above 0. The same as an"
        " offset of log(exposure); for families with a log link.",
    ),
    "groups": (
        "array-like of shape (n,) or None",
        "Groups of rows for a `cv` that keeps them together, such as GroupKFold.",
    ),
}
# attribute of a fitted estimator -> the same
ATTRIBUTES = {
    "coef_": ("ndarray of shape (d,)", "Coefficients."),
    "intercept_": ("float", "Intercept; 0.0 without one."),
    "n_iter_": ("int", "Passes over the data."),
    "history_": (
        "list of dict",
        "One record for each evaluation: epoch, loss, seconds, messages, and gradient"
        " and gap where they are measured.",
    ),
    "result_": ("hpcsgd.Result", "The run of the fit."),
    "n_features_in_": ("int", "Number of columns d."),
    "feature_names_in_": (
        "ndarray of shape (d,)",
        "Names of the columns, where X has names.",
    ),
}
LINE = 76  # characters of a docstring


SECTION = re.compile(r"(?ms)^Parameters\n---+\n(.*?)\n\n(?=\w[\w ]*\n---)")
NEXT = re.compile(r"(?m)^(Attributes|Returns|Raises|Notes|Examples)(?=\n---)")
AFTER_ATTRIBUTES = re.compile(r"\n\n(?=(?:See Also|Notes|References|Examples)\n---)")


def documented(item: D) -> D:
    """Complete the docstring of an estimator, of a method of one, or of a function.

    The section Parameters has every parameter of the signature, as the docstring itself
    describes it, or `PARAMETERS`, or `fit`. A class gets the attributes of `ATTRIBUTES`
    that its docstring does not describe.
    """
    if not item.__doc__:  # python -OO
        return item
    text = inspect.cleandoc(item.__doc__)
    descriptions = described(inspect.getdoc(fit) or "") | PARAMETERS
    if not item.__name__.endswith("fit"):
        descriptions["X"] = PARAMETERS["rows"]
    descriptions |= described(text)
    parameters = [
        _entry(name, descriptions[name], parameter.default)
        for name, parameter in inspect.signature(item).parameters.items()
        if name != "self"
    ]
    text = SECTION.sub("", text)
    following = NEXT.search(text)
    at = len(text) if following is None else following.start()
    section = "\n".join(["Parameters", "----------", *parameters])
    text = "\n\n".join([text[:at].rstrip(), section, text[at:]])
    if isinstance(item, type):
        text = _with_attributes(text)
    item.__doc__ = text.rstrip() + "\n"
    return item


def described(text: str) -> dict[str, tuple[str, str]]:
    """Return parameter -> its type and its description, as a docstring has them."""
    section = SECTION.search(text)
    if section is None:
        return {}
    descriptions = {}
    for entry in re.split(r"\n(?=\w)", section[1]):
        head, _, description = entry.partition("\n")
        name, _, kind = head.partition(" : ")
        kind = re.sub(r", (optional|default=.*)$", "", kind)
        descriptions[name] = kind, inspect.cleandoc(description)
    return descriptions


def _with_attributes(text: str) -> str:
    """Return the docstring of a class with the attributes of every estimator."""
    names = re.findall(r"(?m)^(\w+_) : ", text)
    shared = [
        _entry(name, description, inspect.Parameter.empty)
        for name, description in ATTRIBUTES.items()
        if name not in names
    ]
    following = AFTER_ATTRIBUTES.search(text)
    at = len(text) if following is None else following.start()
    return "\n".join([text[:at], *shared]) + text[at:]


def _entry(name: str, description: tuple[str, str], default: Any) -> str:
    """Return one parameter as numpydoc has it."""
    kind, text = description
    if default is None and not kind.endswith(" or None"):
        kind = kind.replace(" or ", ", ") + " or None"
    if default is not inspect.Parameter.empty:
        kind += f", default={default!r}"
    lines = textwrap.wrap(text, LINE - 4)
    return "\n    ".join([f"{name} : {kind}", *lines])

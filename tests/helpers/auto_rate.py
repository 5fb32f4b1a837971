"""Rates that are derived from the data."""

import numpy as np

from hpcsgd.glm import get_family


def rate_of(result):
    return result.config["rate"]["value"]


def curvatures(problem, c, offset):
    """∂r/∂t of every row: its bound, or the larger of two scores by formula."""
    bound = get_family(problem.family).curvature
    if np.isfinite(bound):
        return c * bound
    y, exposed = problem.y, np.exp(offset)
    null = (c @ y) / (c @ exposed) * exposed
    if problem.family == "poisson":
        return c * np.maximum(null, y)
    if problem.family == "gamma":
        return c * np.maximum(y / null, 1.0)
    fitting = np.where(y > 0.0, y, null)
    slope = {
        "tweedie": lambda mean: (np.sqrt(mean) + y / np.sqrt(mean)) / 2,
        "negative-binomial": lambda mean: mean * (1 + y) / (1 + mean) ** 2,
    }[problem.family]
    return c * np.maximum(slope(null), slope(fitting))


def smoothness(problem, c, offset, intercept):
    squares = np.square(problem.X).sum(axis=1) + intercept
    return np.max(curvatures(problem, c, offset) * squares)

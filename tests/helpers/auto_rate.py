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
    return c * np.maximum(y / null, 1.0)


def smoothness(problem, c, offset, intercept):
    squares = np.square(problem.X).sum(axis=1) + intercept
    return np.max(curvatures(problem, c, offset) * squares)

"""Gradients large enough to overflow a narrow format."""

from tests.helpers.harness import make_problem


def loud(replicas):
    """Only the rows of the last replica have residuals that are too large at first."""
    problem = make_problem("gaussian", n=40, d=5)
    problem.y[-40 // replicas :] *= 700.0
    return problem

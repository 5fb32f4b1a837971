"""One model of several, as a run of it alone would see an exchange."""

from dataclasses import replace

from hpcsgd.models import Models
from hpcsgd.products.base import Array, Group, State, Task
from hpcsgd.products.plan import ManyCoefficients


def one_of(number: int, task: Task, group: Group) -> tuple[Task, Group]:
    """The task and the group of that model."""
    models, coefficients = task.models, group.coefficients
    assert models is not None and isinstance(coefficients, ManyCoefficients)
    one = Models((models.each[number],), models.scores, (models.weights[number],))
    return (
        replace(task, columns=models.scores, models=one),
        replace(group, coefficients=coefficients.only(number, one)),
    )


def state_of(number: int, task: Task, state: State) -> State:
    """A copy of its state, and its residuals."""
    start, residuals = state.intercept, state.residuals
    return State(
        weights=columns_of(number, task, state.weights),
        intercept=None if start is None else columns_of(number, task, start),
        residuals=None if residuals is None else columns_of(number, task, residuals),
    )


def columns_of(number: int, task: Task, values: Array) -> Array:
    """Of all models' columns, state by state, those of that model."""
    models = task.models
    assert models is not None
    parts = values.reshape(len(values), -1, len(models), models.scores)
    return parts[:, :, number].reshape(len(values), -1)

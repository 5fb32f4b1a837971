"""Models in run folders for the tests of commands that read them."""

import h5py

import hpcsgd
from tests.helpers.problems import make_problem


def write_data(path, problem, with_y=True):
    """The file of a problem, weights and offsets included."""
    with h5py.File(path, "w") as file:
        file["X"] = problem.X
        if with_y:
            file["y"] = problem.y
        file["sample_weight"] = problem.weights
        file["offset"] = problem.offset
    return path


def train_into(folder, family, **problem):
    """A problem, its file and the result of training on it, all in `folder`."""
    data = make_problem(family, **problem)
    path = write_data(folder / "d.h5", data)
    config = {
        "problem": {"family": family, "l2": 0.03, "intercept": True},
        "data": {"path": str(path)},
        "rate": {"value": 0.05},
        "schedule": {"batch": 8, "steps": 2, "epochs": 2},
        "precision": {"recipe": "fp64"},
        "run": {"out": str(folder / "run")},
    }
    return data, hpcsgd.train(config)

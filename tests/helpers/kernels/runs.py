"""Runs on emulated GPUs, by family and update."""

from tests.helpers.harness import config_for

FAMILIES = ("logistic", "gaussian", "poisson", "gamma", "squared-hinge", "huber")
FAMILIES = (*FAMILIES, "probit", "tweedie", "negative-binomial", "binomial", "softmax")
UPDATES = ("momentum", "nesterov", "nesterov-classic")


def on_gpu(problem, /, **sections):
    tables = {
        "precision": {"recipe": "fp32"},
        "schedule": {"batch": 8, "steps": 4, "epochs": 1},
        "run": {"device": "cuda", "evaluate_every": 1},
    }
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}
    return config_for(problem, **tables)

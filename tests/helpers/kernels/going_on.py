"""Runs that are stopped, and go on with the bits of one that was not."""

import numpy as np

from tests.helpers.harness import train_on
from tests.helpers.kernels.gradient_runs import near_weights, shared


def goes_on_bit_for_bit(problem, sections, tmp_path, devices=("cuda", "cpu")):
    """From a checkpoint of its own; from one of the host to roundoff."""
    longer = {**sections, "schedule": {"epochs": 2}}
    whole = train_on(2, shared(problem, 2, **longer), problem)
    for device in devices:
        saved = {"out": str(tmp_path / device), "resume": "auto"}
        run = {**sections.get("run", {}), **saved}
        half = shared(problem, 2, **{**sections, "run": {**run, "device": device}})
        train_on(2, half, problem)
        again = train_on(2, shared(problem, 2, **{**longer, "run": run}), problem)
        assert again.report["resumes"] == 1
        if device == "cuda":
            np.testing.assert_array_equal(again.weights, whole.weights)
        near_weights(again, whole)

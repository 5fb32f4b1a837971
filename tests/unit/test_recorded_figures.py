"""Recorded figures of machines: `auto` chooses today what it chose when they were kept.

The files are as earlier versions wrote them: JSON, kind of run -> figures.
"""

import json
from dataclasses import replace

import pytest

from hpcsgd.backends import compiled_calls
from hpcsgd.products.cost import Machine, Overheads
from tests.helpers.harness import config_for, make_problem, train_on
from tests.helpers.sparse import make_sparse

USUAL = Machine()
FIGURES = {
    "usual": USUAL,
    "two cores": replace(USUAL, latency=4.55e-6, per_byte=4.4e-11, read=1.2e10),
    "slow network": replace(USUAL, latency=2e-4, per_byte=8e-10),
    "slow Gram": replace(USUAL, latency=1e-4, gram=1e6, inner=1e6),
    "long calls": replace(
        USUAL, latency=1e-7, overheads=Overheads(exchange=1e-3, step=1e-8)
    ),
    "free messages": replace(
        USUAL, latency=0.0, per_byte=0.0, overheads=Overheads(step=0.0)
    ),
}
RUNS = {
    "dense": (2, {}),
    "once": (3, {"schedule": {"epochs": 1}}),
    "sparse": (2, {"schedule": {"batch": 8}}),
    "classes": (2, {"precision": {"recipe": "fp32"}, "schedule": {"epochs": 1}}),
    "network": (2, {"run": {"network": "lan"}}),
}
CORRECTIONS = {"gram": 4.0, "cached": 3.0, "gather-once": 0.5}
# (figures, run) -> product and steps, without corrections and with them
CHOICES = {
    ("usual", "dense"): (("cached", 32), ("gather-once", 96)),
    ("usual", "once"): (("gram", 24), ("gather", 96)),
    ("usual", "sparse"): (("gather-once", 6), ("gather-once", 6)),
    ("usual", "classes"): (("gram", 20), ("gather", 96)),
    ("usual", "network"): (("cached", 32), ("gather-once", 96)),
    ("two cores", "dense"): (("cached", 32), ("gather-once", 96)),
    ("two cores", "once"): (("gram", 24), ("gather", 96)),
    ("two cores", "sparse"): (("gather-once", 6), ("gather-once", 6)),
    ("two cores", "classes"): (("gram", 20), ("gather", 96)),
    ("two cores", "network"): (("cached", 32), ("gather-once", 96)),
    ("slow network", "dense"): (("gather-once", 96), ("gather-once", 96)),
    ("slow network", "once"): (("gram", 48), ("gather", 96)),
    ("slow network", "sparse"): (("gather-once", 6), ("gather-once", 6)),
    ("slow network", "classes"): (("gram", 48), ("gather", 96)),
    ("slow network", "network"): (("gather-once", 96), ("gather-once", 96)),
    ("slow Gram", "dense"): (("gather-once", 96), ("gather-once", 96)),
    ("slow Gram", "once"): (("gather", 96), ("gather", 96)),
    ("slow Gram", "sparse"): (("gather-once", 6), ("gather-once", 6)),
    ("slow Gram", "classes"): (("gather", 96), ("gather", 96)),
    ("slow Gram", "network"): (("gather-once", 96), ("gather-once", 96)),
    ("long calls", "dense"): (("direct", 96), ("gather-once", 96)),
    ("long calls", "once"): (("direct", 96), ("direct", 96)),
    ("long calls", "sparse"): (("gather-once", 6), ("gather-once", 6)),
    ("long calls", "classes"): (("direct", 96), ("direct", 96)),
    ("long calls", "network"): (("direct", 96), ("gather-once", 96)),
    ("free messages", "dense"): (("direct", 96), ("direct", 96)),
    ("free messages", "once"): (("direct", 96), ("direct", 96)),
    ("free messages", "sparse"): (("direct", 6), ("gather-once", 6)),
    ("free messages", "classes"): (("direct", 96), ("direct", 96)),
    ("free messages", "network"): (("direct", 96), ("direct", 96)),
}


def problem_of(run):
    if run == "sparse":
        return make_sparse("logistic")[0]
    family = "softmax" if run == "classes" else "logistic"
    return make_problem(family, n=400, d=600)


def chosen_with(path, figures, run, corrections):
    """Product and steps of a run whose file has these figures for its kind."""
    ranks, sections = RUNS[run]
    problem = problem_of(run)
    schedule = {"batch": 4, "steps": "auto", "epochs": 3}
    tables = {
        **sections,
        "schedule": schedule | sections.get("schedule", {}),
        "products": {"kind": "auto", "machine": str(path)},
    }
    entry = {"machine": FIGURES[figures].as_dict(), "corrections": corrections}
    path.write_text(json.dumps({kind_of(run): entry}))
    report = train_on(ranks, config_for(problem, **tables), problem).report
    return report["products"], report["schedule"]["steps"]


def kind_of(run):
    """The key of the run in a file of figures."""
    kernels = compiled_calls.instructions() or "numpy"
    return {
        "dense": f"{kernels} dense fp64 fp64 logistic K1 b4 d256 C2 no network",
        "once": f"{kernels} dense fp64 fp64 logistic K1 b4 d256 C3 no network",
        "sparse": f"{kernels} sparse fp64 fp64 logistic K1 b8 d8 C2 no network",
        "classes": f"{kernels} dense fp32 fp32 softmax K4 b4 d256 C2 no network",
        "network": f"{kernels} dense fp64 fp64 logistic K1 b4 d256 C2 lan",
    }[run]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("figures", FIGURES)
def test_recorded_figures_lead_to_the_recorded_choice(tmp_path, figures, run):
    path = tmp_path / "machine.json"
    pairs = ({}, CORRECTIONS)
    chosen = tuple(chosen_with(path, figures, run, pair) for pair in pairs)
    assert chosen == CHOICES[figures, run]

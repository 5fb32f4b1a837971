"""Folders as studies leave them, made of real runs on thread ranks."""

import json

from hpcsgd.studies.folder import expected_traffic
from hpcsgd.studies.report.points import problems_of, read_point
from tests.helpers.harness import config_for, make_problem, train_on

STRONG = [  # figures of a strong study
    *("loss-time", "loss-steps", "loss-words"),
    *("time-ranks", "speed-up", "efficiency", "time-split"),
]

METHODS = {
    "sgd": ("direct", 1),
    "casgd": ("gram", 4),
    "local": ("direct", 2),
}
NETWORK = "alpha=5e-5,bandwidth=1.25e9"


def real_run(method="casgd", ranks=1, steps=None, batch=4, replicas=1, epochs=2):
    """The Result of one small run."""
    problem = make_problem("logistic")
    kind, usual = METHODS[method]
    replicas = ranks if method == "local" else replicas
    config = config_for(
        problem,
        schedule={"batch": batch, "steps": steps or usual, "epochs": epochs},
        products={"kind": kind},
        grid={"replicas": replicas, "members": ranks // replicas},
        run={"evaluate_every": 1},
    )
    return train_on(ranks, config, problem)


def line_of(result, method, repeat=1, study="strong", **over):
    """Its line in points.jsonl; `over` is put in place of what was measured."""
    said = json.loads(result.json())
    grid, schedule, ranks = said["grid"], said["schedule"], said["ranks"]
    key = f"{method}/p{ranks}/s{schedule['steps']}/b{schedule['global_batch']}"
    key += f"/{grid['replicas']}x{grid['members']}/seed0/r{repeat}"
    return {
        **{"schema": 1, "key": key, "study": study, "method": method, "ranks": ranks},
        **{"emulated": 0, "repeat": repeat, "seed": 0, "status": "finished"},
        **{"error": None, "data": "small.h5", "grid": grid, "network": None},
        **{"batch": schedule["global_batch"], "steps": schedule["steps"]},
        **{"product": said["products"], "recipe": "fp64"},
        **{"epochs": schedule["epochs"], "seconds": said["seconds_total"]},
        "expected": expected_traffic(said),
        **{name: said[name] for name in SAME},
        **{"host": "here", "cores": 2, "load": [0.1, 0.1, 0.1], "cpu_seconds": 0.5},
        **{"run": f"runs/{key.replace('/', '-')}", "began": "2026-01-01T00:00:00"},
        **over,
    }


SAME = (
    *("rows", "columns", "iterations", "loss", "seconds_wall", "seconds_by_phase"),
    *("ledger", "history", "energy", "versions"),
)


def write_study(folder, lines, kind="strong"):
    """study.toml and points.jsonl."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "study.toml").write_text(f'kind = "{kind}"\n')
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "points.jsonl").write_text(text)
    return folder


def strong_lines():
    """Three methods on 1, 2 and 4 ranks, three repeats with times of their own."""
    lines = []
    for method in METHODS:
        for ranks in (1, 2, 4):
            result = real_run(method, ranks)
            for repeat in (1, 2, 3):
                slower = 1.0 + 0.1 * (repeat - 2)
                seconds = result.report["seconds_total"] * slower
                lines.append(line_of(result, method, repeat, seconds=seconds))
    return lines


def sweep_lines():
    """CA-SGD on two ranks, over s and b."""
    return [
        line_of(real_run("casgd", 2, steps, batch), "casgd", study="sweep")
        for steps in (2, 4, 8)
        for batch in (2, 4)
    ]


def made_up(method="casgd", ranks=1, seconds=1.0, losses=(0.7, 0.5, 0.4), **over):
    """A line without a run behind it, for what only numbers decide."""
    repeat = over.get("repeat", 1)
    count = len(losses) - 1
    history = [
        {"exchanges": k, "seconds": seconds * k / count, "loss": loss, "iterations": k}
        for k, loss in enumerate(losses)
    ]
    return {
        **{"key": f"{method}/p{ranks}/{seconds}/r{repeat}", "method": method},
        **{"study": "strong", "ranks": ranks, "status": "finished", "epochs": 1},
        **{
            "seconds": seconds,
            "history": history,
            "iterations": 10,
            "loss": losses[-1],
        },
        **{"grid": {"replicas": 1, "members": ranks}, "batch": 4, "steps": 2},
        **{"data": "d.h5", "rows": 10, "columns": 3, "cores": 8},
        **over,
    }


def only_problem(*lines):
    """What the report makes of lines about one data set."""
    (found,) = problems_of([read_point(line, "here") for line in lines])
    return found

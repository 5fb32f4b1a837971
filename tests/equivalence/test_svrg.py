"""s-step SVRG is SVRG, goes to the optimum, and sends what mathematics says."""

import dataclasses

import numpy as np
import pytest
from scipy.sparse import csr_array

from hpcsgd.data.sampling import Sampler, plan_groups
from hpcsgd.errors import ConfigError
from tests.helpers.harness import config_for, make_problem, relative_error, train_on
from tests.helpers.problems import FAMILIES
from tests.helpers.svrg_oracle import svrg

EXACT = 3e-13
DATA = {"weights": True, "offset": True}
FULL = {"l2": 0.05, "intercept": True}


def asked(drawn, grid=(1, 1), /, **sections):
    tables = {
        "problem": FULL,
        "update": {"kind": "svrg"},
        "schedule": {"batch": 4, "steps": 3, "epochs": 3},
        "grid": {"replicas": grid[0], "members": grid[1]},
        "run": {"evaluate_every": 1},
    }
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}
    return config_for(drawn, **tables)


def expected(config, problem, *, weights=False, offset=False):
    """The oracle over exactly the rows of the run."""
    n, schedule = problem.X.shape[0], config.schedule
    sampler = Sampler(config.sampling.mode, config.sampling.seed, n, 0)
    sizes = [b for group in plan_groups(n, schedule.batch, 1) for b in group]
    edges = np.cumsum(sizes)[:-1]
    dense = problem.X if isinstance(problem.X, np.ndarray) else problem.X.toarray()
    return svrg(
        dense,
        problem.y,
        [np.split(sampler.order(k), edges) for k in range(schedule.epochs)],
        config.rate.value,
        family=problem.family,
        every=config.update.snapshot,
        l2=config.problem.l2,
        weights=problem.weights if weights else None,
        offset=problem.offset if offset else None,
        intercept=config.problem.intercept,
        classes=problem.classes,
    )


def check(config, problem, tolerance=EXACT, **data):
    result = train_on(
        config.grid.members * config.grid.replicas, config, problem, **data
    )
    assert result.status.value == "completed"
    error = relative_error(result, expected(config, problem, **data))
    assert error <= tolerance, f"relative error {error:.2e}"
    return result


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family(family):
    problem = make_problem(family)
    check(asked(problem, (1, 2)), problem, **DATA)


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
@pytest.mark.parametrize("batch", [1, 5])
def test_whatever_the_steps(steps, batch):
    """53 rows: the last batch and the last group are ragged."""
    problem = make_problem("logistic")
    schedule = {"batch": batch, "steps": steps}
    check(asked(problem, (1, 3), schedule=schedule), problem, **DATA)


@pytest.mark.parametrize("kind", ["direct", "gram", "cached", "gather", "gather-once"])
@pytest.mark.parametrize("family", ["poisson", "softmax"])
def test_whatever_the_product(kind, family):
    problem = make_problem(family)
    check(asked(problem, (1, 2), products={"kind": kind}), problem, **DATA)


def test_looking_ahead():
    problem = make_problem("softmax")
    products = {"kind": "gram", "look_ahead": "on"}
    check(asked(problem, (1, 2), products=products), problem, **DATA)


@pytest.mark.parametrize("problem", [{"l2": 0.0}, {"intercept": False}])
def test_with_less(problem):
    drawn = make_problem("gaussian")
    check(asked(drawn, (1, 2), problem=problem), drawn)


@pytest.mark.parametrize("mode", ["reshuffle", "replacement"])
def test_other_orders_and_rare_snapshots(mode):
    problem = make_problem("logistic")
    more = {"update": {"snapshot": 2}, "schedule": {"epochs": 5}}
    check(asked(problem, (1, 2), sampling={"mode": mode}, **more), problem, **DATA)


def test_a_gradient_of_other_weights_is_no_snapshot():
    """Evaluations take it every other epoch, snapshots are needed in each."""
    problem = make_problem("logistic")
    run, stop = {"evaluate_every": 2}, {"on": "gradient", "tol": 0.0}
    check(asked(problem, (1, 2), run=run, stop=stop), problem, **DATA)


@pytest.mark.parametrize("kind", ["direct", "gram", "gather"])
def test_sparse_rows(kind):
    problem = make_problem("logistic")
    problem.X[np.abs(problem.X) < 0.3] = 0.0
    sparse = dataclasses.replace(problem, X=csr_array(problem.X))
    check(asked(sparse, (1, 2), products={"kind": kind}), sparse, **DATA)


@pytest.mark.parametrize("kind", ["direct", "gram", "gather"])
def test_in_single_precision(kind):
    """Where kernels take the steps of other updates."""
    problem = make_problem("logistic", dtype=np.float32)
    low = {"precision": {"recipe": "fp32"}, "products": {"kind": kind}}
    check(asked(problem, (1, 2), **low), problem, 1e-5, **DATA)


def optimum(problem, **data):
    polish = {"kind": "lbfgs", "tol": 1e-13}
    config = asked(problem, update={"kind": "sgd"}, polish=polish)
    return train_on(1, config, problem, **data).loss


@pytest.mark.parametrize("family", ["logistic", "gaussian"])
@pytest.mark.parametrize("grid", [(1, 1), (1, 2), (2, 2)])
def test_it_goes_to_the_optimum(family, grid):
    """Linearly, at a constant rate; two replicas as well."""
    problem = make_problem(family)
    stop = {"on": "gradient", "tol": 1e-9}
    config = asked(
        problem, grid, stop=stop, schedule={"epochs": 400}, rate={"value": 0.5}
    )
    result = train_on(grid[0] * grid[1], config, problem, **DATA)
    assert result.status.value == "converged"
    best = optimum(problem, **DATA)
    assert result.loss - best <= 1e-14 * abs(best)
    gradients = [record["gradient"] for record in result.history]
    assert gradients[-1] < 1e-8
    middle = gradients[len(gradients) // 2]
    assert gradients[0] / middle > 100 and middle / gradients[-1] > 100
    plain = asked(problem, grid, update={"kind": "sgd"}, rate={"value": 0.5})
    sgd = train_on(grid[0] * grid[1], plain, problem, **DATA)
    assert sgd.loss - best > 1e-6


@pytest.mark.parametrize("recipe", ["fp32", "c"])
def test_low_precision_goes_there_too(recipe):
    """The fixed point is the optimum of the exact values, as far as weights have it."""
    problem = make_problem("logistic")
    config = asked(
        problem,
        schedule={"epochs": 100},
        rate={"value": 0.5},
        precision={"recipe": recipe},
    )
    result = train_on(1, config, problem)
    assert result.loss - optimum(problem) < 1e-9


@pytest.mark.parametrize("l1", [0.02])
def test_with_l1_a_step_at_a_time(l1):
    problem = make_problem("logistic")
    config = asked(
        problem,
        problem={"l1": l1},
        schedule={"steps": 1, "epochs": 200},
        rate={"value": 0.5},
        run={"evaluate": "gap"},
    )
    result = train_on(1, config, problem)
    assert result.history[-1]["gap"] < 1e-12
    assert (result.weights == 0.0).any()


@pytest.mark.parametrize("family", ["logistic", "softmax"])
@pytest.mark.parametrize("kind", ["gram", "cached", "direct"])
def test_messages_are_those_of_the_formulas(family, kind):
    problem, b, s, K = make_problem(family), 4, 3, make_problem(family).classes
    config = asked(problem, (1, 2), products={"kind": kind})
    result = train_on(2, config, problem)
    epochs = config.schedule.epochs
    groups = plan_groups(53, b, s)
    rows = sum(map(sum, groups))
    gram = sum((sum(g) ** 2 - sum(x * x for x in g)) // 2 for g in groups)
    expected = {
        "gram": (len(groups) * epochs, epochs * (gram + 3 * rows * K)),
        "cached": (len(groups) * epochs, gram + epochs * 3 * rows * K),
        "direct": (sum(map(len, groups)) * epochs, epochs * 2 * rows * K),
    }[kind]
    said = result.ledger["products"]
    assert (said["calls"], said["words"]) == expected
    # An evaluation takes F and ∇F, and the snapshot takes that.
    each = 53 * K + 1 + 1
    assert result.ledger["evaluate"]["words"] == (epochs + 1) * each
    assert result.ledger["evaluate"]["calls"] == (epochs + 1) * 3


def test_a_snapshot_alone_costs_a_slope():
    problem = make_problem("logistic")
    config = asked(problem, (1, 2), run={"evaluate_every": 0})
    result = train_on(2, config, problem)
    assert "gradient" not in result.history[-1]
    slopes, losses = config.schedule.epochs, 2
    assert result.ledger["evaluate"]["words"] == (slopes + losses) * (53 + 1)


@pytest.mark.parametrize("grid", [(1, 2), (2, 2)])
@pytest.mark.parametrize("every", [1, 3])
def test_it_resumes_bit_for_bit(grid, every, tmp_path):
    from hpcsgd.runs.progress import Callback
    from hpcsgd.solvers.callbacks import Request

    class Ends(Callback):
        def on_exchange(self, view):
            return Request.PREEMPT if view.exchanges >= 8 else Request.NONE

    problem, ranks = make_problem("logistic"), grid[0] * grid[1]
    run = {"out": str(tmp_path / "run"), "resume": "auto", "check_every": 1}
    sections = {"update": {"snapshot": every}, "run": run}
    sections["schedule"] = {"epochs": 6, "period": 2}
    config = asked(problem, grid, **sections)
    cut = train_on(ranks, config, problem, callbacks=[Ends()])
    assert cut.status.value == "preempted"
    again = train_on(ranks, config, problem)
    whole = asked(problem, grid, **{**sections, "run": {"check_every": 1}})
    result = train_on(ranks, whole, problem)
    assert again.iterations == result.iterations
    np.testing.assert_array_equal(again.weights, result.weights)
    np.testing.assert_array_equal(again.intercept, result.intercept)


@pytest.mark.parametrize(
    ("sections", "remedy"),
    [
        ({"update": {"clip": "norm"}}, "update.clip"),
        ({"run": {"device": "cuda"}}, "--device cpu"),
        ({"run": {"emulate_members": 4}}, "--update sgd"),
        ({"update": {"snapshot": 0}}, "at least 1"),
    ],
)
def test_what_it_is_not_offered_with(sections, remedy):
    problem = make_problem("logistic")
    with pytest.raises(ConfigError, match=remedy):
        train_on(1, asked(problem, **sections), problem)


def test_several_models_have_no_common_snapshot():
    from hpcsgd.runs.checks import check_configuration

    with pytest.raises(ConfigError, match="one by one"):
        check_configuration(asked(make_problem("logistic"), sweep={"l2": [0.1, 0.2]}))


def test_replicas_do_not_average_what_they_hold_alike():
    """Thirds of a number do not add up to it: w̃ would drift away from its μ̃."""
    from hpcsgd.comm.threads import run_ranks

    problem = make_problem("logistic")
    config = asked(problem, (3, 1), update={"snapshot": 2}, run={"evaluate_every": 0})

    def on_rank(world):
        return snapshots_of(config, problem, world)

    for before, after in run_ranks(3, on_rank):
        np.testing.assert_array_equal(before, after)


def snapshots_of(config, problem, world):
    """(w̃, μ̃) of this rank after the first exchange, and after two epochs."""
    from hpcsgd.comm.ledger import Clock
    from hpcsgd.data.readers import MemoryReader
    from hpcsgd.runs.build import build
    from hpcsgd.runs.progress import Callback

    held = []

    class Looks(Callback):
        def on_exchange(self, view):
            if view.exchanges <= 2 * live.feed.exchanges_per_epoch:
                held.append(live.state.weights[:, 1:].copy())

    def reader(_):
        return MemoryReader(problem.X, problem.y)

    live = build(config, world, reader, [Looks()], Clock())
    live.training.run(live.state)
    return held[0], held[-1]


def test_verify_says_that_it_replays_plain_steps(tmp_path):
    from hpcsgd.errors import DataError
    from hpcsgd.studies.verify.replay import open_recorded_run

    problem = make_problem("logistic")
    out = tmp_path / "run"
    train_on(1, asked(problem, run={"out": str(out)}), problem)
    with pytest.raises(DataError, match="verify replays plain SGD"):
        open_recorded_run(out)


@pytest.mark.parametrize("family", ["logistic", "softmax"])
def test_sparse_rows_in_single_precision(family):
    problem = make_problem(family, dtype=np.float32)
    problem.X[np.abs(problem.X) < 0.3] = 0.0
    sparse = dataclasses.replace(problem, X=csr_array(problem.X))
    low = {"precision": {"recipe": "fp32"}}
    check(asked(sparse, (1, 2), **low), sparse, 1e-5, **DATA)

"""Agreements that average, against the same step by step in longdouble."""

import numpy as np
import pytest

from hpcsgd import sweep
from hpcsgd.agreements import get_agreement
from hpcsgd.agreements.averaging import (
    Gossip,
    GossipSettings,
    client_count,
    draw,
    exchanges_in,
)
from hpcsgd.agreements.base import AgreementInputs, StateShape
from hpcsgd.agreements.hierarchical import GroupLevel, label, plan_levels
from hpcsgd.api import train
from hpcsgd.backends.task import State
from hpcsgd.comm.communicator import Address, own_address
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.ledger import Clock
from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.readers import MemoryReader
from hpcsgd.errors import ConfigError
from hpcsgd.precision import Precision
from hpcsgd.runs.build import build
from hpcsgd.runs.progress import Callback
from hpcsgd.runs.result import Status
from tests.helpers.averages import CHANGING, PLAIN, ROWS, SLOW, config_of, error_of
from tests.helpers.averages_laws import gap
from tests.helpers.harness import config_for, make_problem, relative_error, train_on
from tests.helpers.sparse import make_sparse
from tests.helpers.swarm import Swarm

DIVERGING = {"kind": "constant", "value": 1e8}


@pytest.mark.cases(3)
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("members, n", [(1, 58), (2, 58), (1, 129)])
def test_equals_the_same_step_by_step(row, members, n):
    """Last batches are smaller, and of 129 rows one replica has an exchange more."""
    problem = make_problem("logistic", n=n, d=7)
    assert error_of(problem, config_of(problem, row, 4, members)) < 1e-11


@pytest.mark.parametrize("row", [*SLOW, "postlocal"])
@pytest.mark.parametrize("rate", CHANGING)
@pytest.mark.parametrize("members, n", [(1, 129), (2, 58)])
def test_rates_that_change_between_slow_steps(row, rate, members, n):
    """Slow momentum is a sum of gradients, which a slow step takes at its own rate."""
    problem = make_problem("logistic", n=n, d=7)
    more = {"rate": CHANGING[rate], "schedule": {"epochs": 4}}
    config = config_of(problem, row, 4, members, **more)
    assert error_of(problem, config) < 1e-11


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("replicas", [1, 2, 3, 7])
def test_any_number_of_replicas(row, replicas):
    """Of one column, whose slow state most replicas have no part of."""
    problem = make_problem("gaussian", n=9 * replicas - 1, d=1)
    assert error_of(problem, config_of(problem, row, replicas)) < 1e-11


@pytest.mark.parametrize("row", ["average", "hierarchical", "fedavg", "sharded"])
@pytest.mark.parametrize("momentum", ["average", "keep", "reset"])
@pytest.mark.parametrize("kind", ["momentum", "nesterov-classic"])
def test_momentum_is_averaged_kept_or_reset(row, momentum, kind):
    problem = make_problem("softmax", n=58, d=5)
    update = {"kind": kind, "momentum": 0.7}
    agreement = {"momentum": momentum}
    config = config_of(problem, row, agreement=agreement, update=update)
    assert error_of(problem, config) < 1e-11


def test_each_way_with_momentum_is_another():
    """The test above would see one in place of another."""
    problem = make_problem("softmax", n=58, d=5)
    update = {"kind": "momentum", "momentum": 0.7}
    prints = {
        train_on(
            4,
            config_of(problem, "average", agreement={"momentum": how}, update=update),
            problem,
        ).weights_sha256
        for how in ("average", "keep", "reset")
    }
    assert len(prints) == 3


@pytest.mark.cases(3)
@pytest.mark.parametrize("row", ROWS)
def test_gathered_and_sparse_rows(row):
    problem = make_problem("logistic", n=58, d=7)
    config = config_of(problem, row, 4, 2, products={"kind": "gather"})
    assert error_of(problem, config) < 1e-11
    sparse, dense = make_sparse("logistic", n=58, d=9)
    config = config_of(sparse, row)
    wanted = Swarm(config, dense, 4).run()
    assert relative_error(train_on(4, config, sparse), wanted) < 1e-11


@pytest.mark.cases(3)
@pytest.mark.parametrize("row", ROWS)
def test_looks_at_the_loss_change_nothing(row):
    """A consensus is taken of copies, and what is slow or kept is left alone."""
    problem = make_problem("logistic", n=58, d=7)
    update = {"kind": "momentum", "momentum": 0.7}
    seen, unseen = (
        train_on(
            4,
            config_of(problem, row, update=update, run={"evaluate_every": every}),
            problem,
        )
        for every in (1, 0)
    )
    assert seen.weights_sha256 == unseen.weights_sha256
    assert len(seen.history) > len(unseen.history)
    assert seen.ledger["agreement"]["words"] == unseen.ledger["agreement"]["words"]


@pytest.mark.parametrize("row", ROWS)
def test_the_mean_of_the_last_iterates_is_taken_where_all_agree(row):
    """Else every replica would end with a mean of its own."""
    problem = make_problem("logistic", n=117, d=7)
    tail = {"average": {"kind": "tail", "share": 0.9}, "schedule": {"epochs": 3}}
    config = config_of(problem, row, 4, 1, 4, **tail, agreement={"switch": 0.4})

    def on_rank(world):
        return train(config, X=problem.X, y=problem.y, world=world)

    results = run_ranks(4, on_rank)
    assert len({r.weights_sha256 for r in results}) == 1
    assert results[0].report["average"]["iterates"] > 1


@pytest.mark.cases(3)
@pytest.mark.parametrize("row", PLAIN)
def test_svrg_takes_snapshots_of_what_all_agree_on(row):
    """Momentum's place is that of the snapshot, which is never averaged away."""
    problem = make_problem("logistic", n=117, d=7)
    each = {"schedule": {"epochs": 3, "steps": 2}, "update": {"kind": "svrg"}}
    prints = set()
    for momentum in ("average", "keep"):
        config = config_of(problem, row, **each, agreement={"momentum": momentum})
        result = train_on(4, config, problem)
        assert result.status is Status.COMPLETED
        prints.add(np.round(result.weights, 12).tobytes())
    assert len(prints) == 1


@pytest.mark.cases(3)
@pytest.mark.parametrize("row", ROWS)
def test_models_of_a_sweep_average_alike(row):
    """Each is the run of its own penalty, K = 3 of them in one state."""
    problem = make_problem("logistic", n=117, d=7)
    config, penalties = config_of(problem, row), [0.0, 0.05, 0.2]

    def on_rank(world):
        return sweep(config, l2=penalties, X=problem.X, y=problem.y, world=world)

    many = run_ranks(4, on_rank)[0]
    for k, l2 in enumerate(penalties):
        alone = train_on(4, config_of(problem, row, problem={"l2": l2}), problem)
        np.testing.assert_allclose(many.weights[:, k], alone.weights, rtol=1e-10)


@pytest.mark.parametrize("row", SLOW)
def test_models_of_a_sweep_over_rates_that_fall(row):
    """Each is the run of its own rate, with the slow momentum of that."""
    problem, fall = make_problem("logistic", n=117, d=7), CHANGING["inverse"]
    config, rates = config_of(problem, row, rate=fall), [0.05, 0.1, 0.2]

    def on_rank(world):
        return sweep(config, rate=rates, X=problem.X, y=problem.y, world=world)

    many = run_ranks(4, on_rank)[0]
    for k, rate in enumerate(rates):
        one = config_of(problem, row, rate={**fall, "value": rate})
        alone = train_on(4, one, problem)
        np.testing.assert_allclose(many.weights[:, k], alone.weights, rtol=1e-10)


@pytest.mark.cases(3)
@pytest.mark.parametrize("row", ROWS)
def test_weights_that_are_no_numbers_end_the_run(row):
    """On all ranks, and with the weights of the last good loss."""
    problem = make_problem("gaussian", n=58, d=3)
    run = {"check_every": 1, "fall_back": False}
    config = config_of(problem, row, rate=DIVERGING, run=run, schedule={"epochs": 40})
    result = train_on(4, config, problem)
    assert result.status is Status.DIVERGED
    assert np.isfinite(result.weights).all()


class FailsAt(Callback):
    """Something of the user's that goes wrong on one rank."""

    def on_exchange(self, view):
        if view.exchanges == 2:
            raise ZeroDivisionError("amid the run")


@pytest.mark.parametrize("row", ROWS)
def test_a_rank_that_fails_frees_the_others(row):
    """Whatever they wait in: a group of two, a sum of all, an exchange of parts."""
    problem = make_problem("logistic", n=58, d=7)
    config = config_of(problem, row)

    def on_rank(world):
        callbacks = [FailsAt()] if world.rank == 1 else []
        return train(config, X=problem.X, y=problem.y, world=world, callbacks=callbacks)

    with pytest.raises(ZeroDivisionError, match="amid the run"):
        run_ranks(4, on_rank)


@pytest.mark.cases(3)
@pytest.mark.parametrize("row", ROWS)
def test_reproducible_runs_and_low_precision(row):
    problem = make_problem("logistic", n=58, d=7)
    more = {"run": {"reproducible": True}, "precision": {"recipe": "fp32"}}
    config = config_of(problem, row, 4, 2, **more)
    first, second = (train_on(8, config, problem) for _ in range(2))
    assert first.weights_sha256 == second.weights_sha256
    wanted = Swarm(config, problem, 4).run()
    assert relative_error(first, wanted) < 1e-5


def test_clients_are_drawn_by_seed_and_round_alone():
    """Each as often as the others, and all ranks know who without a message."""
    rounds = [draw(3, k, 7, 3) for k in range(7000)]
    counts = np.bincount([r for drawn in rounds for r in drawn], minlength=7)
    assert {len(drawn) for drawn in rounds} == {3}
    # Of 7000 draws with p = 3/7: four standard deviations.
    assert np.abs(counts - 3000).max() < 4 * np.sqrt(7000 * 3 / 7 * 4 / 7)
    assert rounds == [draw(3, k, 7, 3) for k in range(7000)]
    assert rounds[:50] != [draw(4, k, 7, 3) for k in range(50)]
    assert [client_count(*a) for a in ((4, 0.5), (10, 0.1), (3, 0.1), (5, 0.3))] == [
        *(2, 1, 1, 2)
    ]


def test_replicas_that_rest_do_nothing():
    """One of four works: its members sum products, the others' say nothing."""
    problem = make_problem("logistic", n=64, d=7)
    agreement = {"fraction": 0.25}
    config = config_of(problem, "fedavg", 4, 2, 2, agreement=agreement)

    def on_rank(world):
        return train(config, X=problem.X, y=problem.y, world=world)

    results = run_ranks(8, on_rank)
    calls = [r.ledger["products"]["calls"] for r in results[::2]]
    rounds = range(2)  # of 2 exchanges each, of 4 in all
    worked = [2 * sum(r in draw(0, k, 4, 1) for k in rounds) for r in range(4)]
    assert calls == worked and sum(calls) == 4
    # Two epochs in which one of four replicas works at a time.
    assert results[0].history[-1]["rows"] == 2 * 64 // 4
    assert results[0].iterations == 8


def test_a_switch_is_at_an_exchange():
    """Parts of an epoch are rounded up, but for what is only rounding."""
    asked = ((0.1, 30, 3), (0.101, 30, 4), (0.3, 7, 3), (2.0, 7, 14), (0.0, 7, 0))
    for epochs, each, exchanges in asked:
        assert exchanges_in(epochs, each) == exchanges


@pytest.mark.parametrize("row", ["slowmo", "sharded"])
def test_one_copy_of_the_slow_state_says_all(row):
    """Where replicas agree they hold the same of it: checkpoints keep one."""
    problem = make_problem("logistic", n=58, d=7)

    def on_rank(world):
        config = config_of(problem, row)
        reader = MemoryReader(problem.X, problem.y)
        live = build(config, world, lambda _: reader, [], Clock())
        held = live.agreement.holds_one_state(live.state, 3)
        live.close()
        return held

    assert run_ranks(4, on_rank) == [True] * 4


NODES = [Address("a", "1"), Address("a", "1"), Address("a", "2"), Address("b", "3")]


def test_groups_by_where_replicas_are():
    levels = [GroupLevel("node", 1), GroupLevel("rack", 2), GroupLevel("all", 4)]
    assert label(levels, NODES) == [(0, 0, 2, 3), (0, 0, 0, 3), (0, 0, 0, 0)]
    sizes = [GroupLevel("3", 1), GroupLevel("7", 2)]
    assert label(sizes, (NODES * 2)[:7]) == [(0, 0, 0, 3, 3, 3, 6), (0,) * 7]


def test_nodes_of_replicas_make_the_groups_of_a_run():
    """Ranks that say where they are average as they would in groups by size."""
    problem = make_problem("logistic", n=58, d=7)
    by_size = config_of(problem, "hierarchical", 4, 2)
    asked = {"groups": "node,all", "periods": ""}
    more = {"agreement": asked, "schedule": {"period": 3}}
    by_node = config_of(problem, "hierarchical", 4, 2, **more)

    def placed(world):
        world.address = Address("", f"node {world.rank // 4}")
        return world

    wanted = train_on(8, by_size, problem)
    found = train_on(8, by_node, problem, world_hook=placed)
    assert found.weights_sha256 == wanted.weights_sha256
    everywhere = train_on(8, by_node, problem)  # one node is all: every exchange
    assert everywhere.weights_sha256 != wanted.weights_sha256


def test_slurm_says_what_a_rack_is():
    assert own_address({"SLURM_TOPOLOGY_ADDR": "s0.s4.n17"}).rack == "s0.s4"
    assert own_address({}).rack == "" and own_address({}).node
    named = {"SLURM_TOPOLOGY_ADDR": "s0.n1", "HPCSGD_RACK": "r7"}
    assert own_address(named).rack == "r7"


WRONG = [
    ("node,all", "1,2,3", 1, "one period for each group"),
    ("node,all", "2,1", 1, "grow from group to group"),
    ("node,all", "", 1, "use --period 16, or set agreement.periods"),
    ("node,all", "one,2", 1, "must be numbers"),
    ("node,all", "1,8", 4, "differs from the last"),
    ("all,node", "1,2", 1, "must grow to all 4"),
    ("node,rack", "1,2", 1, "must grow to all 4"),
    ("2,3", "1,2", 1, "must grow to all 4"),
    ("node,4", "1,2", 1, "must grow to all 4"),
]


@pytest.mark.parametrize("groups, periods, period, said", WRONG)
def test_groups_that_are_none(groups, periods, period, said):
    with pytest.raises(ConfigError, match=said):
        plan_levels(groups, periods, period, 4)


@pytest.mark.parametrize("replicas", [1, 2, 3, 5])
def test_sizes_that_a_refusal_of_groups_names_are_allowed(replicas):
    with pytest.raises(ConfigError, match="must grow to all") as raised:
        plan_levels("7,9", "1,2", 1, replicas)
    sizes = str(raised.value).partition("give sizes, as ")[2].strip('"')
    assert bool(sizes) == (replicas > 1)
    plan_levels(sizes or "node,all", "1,2", 1, replicas)


def test_groups_must_be_nested_and_racks_known():
    with pytest.raises(ConfigError, match="are not nested"):
        label([GroupLevel("2", 1), GroupLevel("3", 2), GroupLevel("4", 4)], NODES)
    with pytest.raises(ConfigError, match="HPCSGD_RACK"):
        label([GroupLevel("rack", 1), GroupLevel("all", 2)], [Address("", "1")])


REFUSED = [
    ({"kind": "slowmo", "base": "none"}, "base = 'none' must be one of average, post"),
    ({"kind": "slowmo", "base": "slowmo"}, "must be one of average, postlocal"),
    ({"kind": "fedavg", "fraction": 0.0}, "fraction = 0.0 must be above 0"),
    ({"kind": "slowmo", "slow_momentum": 1.0}, "must be at least 0 and below 1"),
    ({"kind": "slowmo", "slow_rate": 0.0}, "slow_rate = 0.0 must be above 0"),
    ({"kind": "postlocal", "switch": -1.0}, "switch = -1.0 must be at least 0"),
    ({"momentum": "drop"}, "must be one of average, keep, reset"),
]


@pytest.mark.parametrize("agreement, said", REFUSED)
def test_settings_that_are_refused(agreement, said):
    problem = make_problem("logistic")
    with pytest.raises(ConfigError, match=said):
        config = config_of(problem, "average", 2, agreement=agreement)
        train_on(2, config, problem)


def test_parts_of_the_slow_state_take_less_memory():
    """Each of four replicas holds a quarter of x_old and u, and of their copies."""
    problem = make_problem("logistic", n=58, d=1000)
    held = {}
    for row in ("slowmo", "sharded"):
        config = config_of(problem, row)

        def on_rank(world, config=config):
            reader = MemoryReader(problem.X, problem.y)
            live = build(config, world, lambda _: reader, [], Clock())
            sizes = {name: kept.shape for name, kept in live.state.memory.items()}
            live.close()
            return sizes

        held[row] = run_ranks(4, on_rank)[1]
    assert held["slowmo"] == {"slow_start": (1000, 1), "slow_momentum": (1000, 1)}
    assert held["sharded"] == {"slow_start": (250, 1), "slow_momentum": (250, 1)}


def test_memory_is_asked_for_the_slow_state():
    problem = make_problem("logistic", n=58, d=1000)
    held = []
    for row in ("slowmo", "sharded", "average"):
        config = config_of(problem, row)
        shape = StateShape(config, Precision(), columns=1000)
        held.append(dict(get_agreement(config.agreement.kind).holds(shape)))
    whole, parts, none = (kept.get("slow state", 0) for kept in held)
    assert none == 0 < parts < whole
    assert whole == 2 * 6 * 1000 * 4


def test_what_a_result_says_of_its_groups():
    problem = make_problem("logistic", n=58, d=3)
    said = {
        row: train_on(4, config_of(problem, row), problem).report["agreement"]
        for row in ("hierarchical", "slow fedavg")
    }
    assert said["hierarchical"]["circles"] == [2, 4]
    assert said["slow fedavg"]["workers"] == 2


# ---------------------------------------------------------------------- FedProx


@pytest.mark.parametrize("kind", ["gram", "direct"])
@pytest.mark.parametrize("momentum", ["average", "keep", "reset"])
@pytest.mark.parametrize("update", ["sgd", "momentum", "nesterov", "nesterov-classic"])
@pytest.mark.parametrize("row", ["average", "hierarchical", "slow fedavg"])
def test_fedprox_of_every_update(row, update, momentum, kind):
    """Steps of F + (μ/2) |w − wᵗ|², s at a time or each, against longdouble."""
    problem = make_problem("softmax", n=58, d=7)
    config = config_of(
        *(problem, row, 4, 2 if kind == "gram" else 1),
        agreement={"proximal": 0.7, "momentum": momentum},
        update={"kind": update, "momentum": 0.6},
        products={"kind": kind},
    )
    assert error_of(problem, config) < 1e-11


def test_fedprox_keeps_replicas_together():
    """A larger μ ends nearer to the optimum of sorted rows; 0 is local SGD."""
    local = {"kind": "average"}
    pulls = (0.0, 0.1, 0.5)
    found = [gap({**local, "proximal": mu}, tau=16, slower=4.0) for mu in pulls]
    assert found[0] == gap(local, tau=16, slower=4.0)
    assert found[0] > found[1] > found[2] > 0


def test_fedprox_of_one_replica_is_the_proximal_point_method():
    """Many steps between two anchors come to argmin F(w) + (μ/2) |w − a|²."""
    problem = make_problem("gaussian", n=24, d=3)
    agreement = {"kind": "average", "proximal": 0.5}
    schedule = {"batch": 24, "steps": 1, "epochs": 4000, "period": 2000}
    config = config_of(
        *(problem, "average", 1),
        agreement=agreement,
        schedule=schedule,
        problem={"l2": 0.05, "intercept": False},
    )
    found = train_on(1, config, problem).weights
    H = problem.X.T @ problem.X / 24 + 0.05 * np.eye(3)
    right, wanted = problem.X.T @ problem.y / 24, np.zeros(3)
    for _ in range(2):
        wanted = np.linalg.solve(H + 0.5 * np.eye(3), right + 0.5 * wanted)
    np.testing.assert_allclose(found, wanted, 1e-9)


@pytest.mark.parametrize(
    "agreement, sections, why",
    [
        ({"kind": "async-average"}, {}, "no moment at which all replicas"),
        ({"kind": "average"}, {"update": {"kind": "svrg"}}, "snapshots of svrg"),
        ({"kind": "average"}, {"run": {"device": "cuda"}}, "not on GPUs"),
        (
            {"kind": "slowmo", "base": "hierarchical"},
            {"update": {"kind": "svrg"}},
            "snapshots of svrg",
        ),
    ],
)
def test_fedprox_is_refused(agreement, sections, why):
    problem = make_problem("logistic", n=58, d=3)
    with pytest.raises(ConfigError, match=why):
        config = config_for(
            problem,
            schedule={"period": 4},
            agreement={**agreement, "proximal": 0.1},
            grid={"replicas": 2},
            **sections,
        )
        train_on(2, config, problem)


# ------------------------------------------------------------------------- SGP


def test_pushes_alone_bring_replicas_together():
    """Without a step, each of ⌈log₂ R⌉ pushes halves what is left of R = 2^L values."""

    def on_rank(world):
        terms = AgreementInputs(
            grid=Grid(world, world.size, 1),
            rows=(7,) * world.size,
            classes=1,
            period=10**6,
            exchanges_per_epoch=10,
            seed=0,
            settings=GossipSettings(),
            last_rate=lambda exchanges: 0.1,
        )
        agreement = Gossip.of(terms)
        state = State(np.array([[float(world.rank)]]), None)
        agreement.prepare(state)
        agreement.start(state, 0)
        found = []
        for number in range(1, 4):
            agreement.after_exchange(state, number)
            found.append(state.weights.item())
        return found

    hops = [1, 2, 4]
    values = np.arange(8.0)
    for number, hop in enumerate(hops):
        values = (values + np.roll(values, hop)) / 2
        found = [values_of[number] for values_of in run_ranks(8, on_rank)]
        np.testing.assert_allclose(found, values, 1e-15)
    np.testing.assert_allclose(values, 3.5, 1e-15)

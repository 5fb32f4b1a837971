"""What agreements become at the ends of their settings, and where they lead."""

from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.agreements import Average, FedAvg, Hierarchical, SlowMo, get_agreement
from hpcsgd.agreements.slowmo import MOMENTUM, SlowMoSettings, slow_step
from hpcsgd.backends.task import State
from hpcsgd.comm.grid import Grid
from hpcsgd.comm.threads import SerialCommunicator
from hpcsgd.data.sampling import Sampler
from hpcsgd.data.shard import split_range
from tests.helpers import oracle
from tests.helpers.averages import ROWS, config_of
from tests.helpers.averages_laws import L2, gap, heterogeneous
from tests.helpers.harness import config_for, make_problem, relative_error, train_on

REPLICAS = 4
pytestmark = pytest.mark.full


def print_of(problem, row, replicas=REPLICAS, members=1, **sections):
    config = config_of(problem, row, replicas, members, **sections)
    return train_on(replicas * members, config, problem).weights_sha256


# settings of one row -> settings that must give the same bits
SAME = {
    "postlocal at once": ("postlocal", {"switch": 0.0}, "average", {}),
    "fedavg of all": ("fedavg", {"fraction": 1.0}, "average", {}),
    "one group": (
        *("hierarchical", {"groups": "4", "periods": "3"}),
        *("average", {}),
    ),
    "groups of one": (
        *("hierarchical", {"groups": "1,4", "periods": "1,3"}),
        *("average", {}),
    ),
    "no slow momentum": (
        *("slowmo", {"slow_rate": 1.0, "slow_momentum": 0.0}),
        *("average", {}),
    ),
    "no slow momentum on fedavg": (
        *("slow fedavg", {"slow_rate": 1.0, "slow_momentum": 0.0}),
        *("fedavg", {}),
    ),
    "no slow momentum on groups": (
        *("slow hierarchical", {"slow_rate": 1.0, "slow_momentum": 0.0}),
        *("hierarchical", {}),
    ),
    "no slow momentum in parts": (
        *("sharded", {"slow_rate": 1.0, "slow_momentum": 0.0}),
        *("average", {}),
    ),
    "slow state in parts": ("sharded", {}, "slowmo", {"slow_rate": 1.0}),
    "slow fedavg in parts": (
        *("slow fedavg", {"slow_sharded": True}),
        *("slow fedavg", {}),
    ),
}


@pytest.mark.cases(9)
@pytest.mark.parametrize(
    "members, momentum", [(1, "average"), (2, "keep"), (1, "reset")]
)
@pytest.mark.parametrize("case", SAME)
def test_the_same_bits(case, members, momentum):
    row, settings, other, theirs = SAME[case]
    problem = make_problem("softmax", n=58, d=7)
    update = {"kind": "nesterov", "momentum": 0.6}
    one, two = (
        print_of(problem, name, 4, members, agreement=own, update=update)
        for name, own in (
            (row, {**settings, "momentum": momentum}),
            (other, {**theirs, "momentum": momentum}),
        )
    )
    assert one == two


@pytest.mark.parametrize("row", ["postlocal", "fedavg", "hierarchical", "slowmo"])
def test_each_row_is_another_method(row):
    """What is the same above is not the same by accident."""
    problem = make_problem("softmax", n=58, d=7)
    assert print_of(problem, row) != print_of(problem, "average")


def test_post_local_that_never_switches_agrees_always():
    problem = make_problem("logistic", n=58, d=7)
    always = print_of(problem, "average", schedule={"period": 1})
    assert print_of(problem, "postlocal", agreement={"switch": 9.0}) == always
    assert print_of(problem, "postlocal", schedule={"period": 1}) == always


def union(problem, config, replicas):
    """Batch k of all replicas together, as row numbers of the whole data."""
    n, b = len(problem.X), config.schedule.batch
    parts = [split_range(n, replicas, r) for r in range(replicas)]
    own = []
    for r, part in enumerate(parts):
        rows = part.stop - part.start
        order = Sampler("shuffle-once", config.sampling.seed, rows, r).order(0)
        own.append(np.split(part.start + order, range(b, rows, b)))
    one = [np.concatenate(batches) for batches in zip(*own, strict=True)]
    return one * config.schedule.epochs


@pytest.mark.parametrize("row", ["average", "postlocal"])
def test_every_step_is_synchronous_sgd(row):
    problem = make_problem("logistic", n=64, d=7)
    each = {"steps": 1, "period": 1}
    config = config_of(problem, row, schedule=each)
    wanted = oracle.sgd(
        *(problem.X, problem.y, union(problem, config, 4)),
        [config.rate.value] * 8,
        family="logistic",
        l2=config.problem.l2,
        intercept=True,
    )
    assert relative_error(train_on(4, config, problem), wanted) < 1e-12


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("alpha, beta", [(1.0, 0.5), (0.7, 0.9)])
def test_slow_momentum_of_every_step_is_heavy_ball(alpha, beta, sharded):
    """u ← βu + ηg, w ← w − αu, on the batches of all replicas together."""
    problem = make_problem("logistic", n=64, d=7)
    agreement = {"slow_rate": alpha, "slow_momentum": beta, "slow_sharded": sharded}
    each = {"steps": 1, "period": 1}
    config = config_of(problem, "slowmo", schedule=each, agreement=agreement)
    wanted = oracle.sgd(
        *(problem.X, problem.y, union(problem, config, 4)),
        [alpha * config.rate.value] * 8,
        family="logistic",
        l2=config.problem.l2,
        update=oracle.Update("momentum", beta),
        intercept=True,
    )
    assert relative_error(train_on(4, config, problem), wanted) < 1e-12


SHAPES = {
    "constant": lambda k: 0.4,
    "inverse": lambda k: 0.4 / (1 + 0.5 * k),
    "inverse-sqrt": lambda k: 0.4 / np.sqrt(1 + 0.5 * k),
}


@pytest.mark.parametrize("sharded", [False, True])
@pytest.mark.parametrize("kind", SHAPES)
def test_slow_momentum_is_that_of_the_paper(kind, sharded):
    """Wang, Tantia, Ballas and Rabbat, ICLR 2020, Algorithm 1, in float64.

    Two replicas take τ = 3 steps on all of their rows between slow steps.
    """
    problem, tau, alpha, beta = make_problem("gaussian", n=24, d=5), 3, 0.9, 0.6
    parts = [(problem.X[part], problem.y[part]) for part in np.split(np.r_[:24], 2)]
    x = np.zeros(5)
    u = np.zeros(5)
    for first in range(0, 12, tau):
        ends = []
        for X, y in parts:
            w = x.copy()
            for step in range(first, first + tau):
                w -= SHAPES[kind](step) * (X.T @ (X @ w - y) / 12 + L2 * w)
            ends.append(w)
        fast = SHAPES[kind](first + tau - 1)  # γ_t, the rate where the slow step is
        u = beta * u + (x - np.mean(ends, axis=0)) / fast
        x = x - alpha * fast * u
    asked = {"slow_rate": alpha, "slow_momentum": beta, "slow_sharded": sharded}
    config = config_for(
        problem,
        problem={"l2": L2},
        rate={"value": 0.4, "kind": kind, "decay": 0.5 * (kind != "constant")},
        schedule={"batch": 12, "steps": 1, "epochs": 12, "period": tau},
        products={"kind": "direct"},
        grid={"replicas": 2, "members": 1},
        agreement={"kind": "slowmo", **asked},
    )
    found = train_on(2, config, problem).weights
    np.testing.assert_allclose(np.ravel(found), x, rtol=1e-11)


def test_a_rate_that_has_fallen_to_zero_divides_nothing():
    """The last steps of a cosine of 10⁸ steps have a rate of 0 in float64."""
    grid = Grid(SerialCommunicator(), 1, 1)
    rates = {1: 0.5, 2: 0.0, 3: 0.0}
    slow = SlowMo(Average(grid, 1.0, 1, classes=1), SlowMoSettings(), rates.__getitem__)
    state = State(weights=np.ones((3, 1)), intercept=None)
    slow.prepare(state)
    slow.start(state, 0)
    state.weights[...] = 0.0
    for exchange in rates:
        slow.after_exchange(state, exchange)
        np.testing.assert_array_equal(state.weights, 0.0)
    np.testing.assert_array_equal(state.memory[MOMENTUM], 0.0)


def test_a_slow_step_is_the_formula():
    rng = np.random.default_rng(0)
    mean, start, slow = rng.normal(size=(3, 5, 2))
    u = 0.7 * slow + (start - mean)
    wanted = start - 0.9 * u
    slow_step(mean, start, slow, 0.9, 0.7)
    for found, right in ((mean, wanted), (start, wanted), (slow, u)):
        np.testing.assert_allclose(found, right, rtol=1e-13, atol=1e-15)


@pytest.mark.parametrize("row", ROWS)
def test_replicas_with_equal_rows_are_one_process(row):
    """Whole shards a step: however seldom they agree, they never differ.

    Momentum of the slow kind, or a proximal term, would make another method of it.
    """
    base = make_problem("logistic", n=16, d=5)
    problem = replace(base, X=np.tile(base.X, (4, 1)), y=np.tile(base.y, 4))
    agreement = {"slow_rate": 1.0, "slow_momentum": 0.0, "proximal": 0.0}
    schedule = {"batch": 16, "steps": 1, "epochs": 12}
    config = config_of(problem, row, schedule=schedule, agreement=agreement)
    alone = config_of(base, "average", 1, schedule=schedule)
    one, many = train_on(1, alone, base), train_on(4, config, problem)
    np.testing.assert_allclose(many.weights, one.weights, rtol=1e-12)


# The worst case of methods that average: shards sorted by margin, λ = 0.05.


def test_local_sgd_is_biased_by_the_square_of_the_rate():
    """Exact where all steps agree; else off by O(rate²), and by less than 0.1 %."""
    local = {"kind": "average"}
    assert gap(local, tau=1) < 1e-10
    found = {tau: gap(local, tau=tau) for tau in (4, 8, 16)}
    assert 0 < found[4] < found[8] < found[16] < 1e-3
    assert gap(local, tau=4, slower=10.0) < found[4] / 50


@pytest.mark.cases(1)
@pytest.mark.parametrize("alpha, beta, sharded", [(1.0, 0.5, True), (0.6, 0.6, False)])
def test_slow_momentum_ends_where_its_base_does(alpha, beta, sharded):
    slow = {"kind": "slowmo", "slow_rate": alpha, "slow_momentum": beta}
    slow["slow_sharded"] = sharded
    wanted = gap({"kind": "average"}, passes=700)
    assert gap(slow, passes=700) == pytest.approx(wanted, rel=1e-6)


NESTED = {"kind": "hierarchical", "groups": "2,4", "periods": "1,8"}
POST = {"kind": "postlocal", "switch": 16.0}
FED = {"kind": "fedavg", "fraction": 0.75}
SLOW = {"kind": "slowmo", "slow_rate": 0.8, "slow_momentum": 0.5}


def test_agreeing_in_groups_between_is_better_than_not():
    seldom = gap({"kind": "average"}, tau=8)
    assert gap(NESTED, tau=1) < seldom < 1e-3
    assert gap({**NESTED, "periods": "4,8"}, tau=1) < seldom


def test_post_local_ends_as_local_sgd_does():
    assert gap(POST) == pytest.approx(gap({"kind": "average"}), rel=1e-6)


def test_slower_rounds_of_a_part_come_nearer():
    """Who is drawn is noise, which a smaller rate averages out."""
    found = gap(FED)
    assert 0 < gap(FED, slower=6.0) < found / 2 < 0.02


# Every row with one mistake in it: where it leads to shows it.


def mean_of_means(self, state, purpose):
    """Replicas count alike, however many rows they have."""
    self.average(state, 1 / self.grid.replicas.size, self.grid.replicas, purpose)


def smallest_circle(self, state, exchanges):
    """The first circle that is due, not the widest."""
    due = [c for c in self.circles if exchanges % c.period == 0]
    if due:
        self.average(state, due[0].share, due[0].group, "agreement")


def of_all_rows(self, exchanges):
    """What was drawn counts as a part of all rows."""
    return self.share if self.grid.replica in self.clients(exchanges) else 0.0


def everybody_is_averaged(self, exchanges):
    """Those that rested, too."""
    return self.share


def fixed_start(mean, start, slow, rate, beta):
    """x_old stays where the run began."""
    kept = start.copy()
    slow_step(mean, start, slow, rate, beta)
    start[...] = kept


def only_at_first(self, exchanges):
    """Nobody agrees after the switch, until the end."""
    return exchanges <= self.switch


BROKEN = [
    ("hpcsgd.agreements.averaging.Average.agree", mean_of_means, {"kind": "average"}),
    (
        "hpcsgd.agreements.hierarchical.Hierarchical.after_exchange",
        *(smallest_circle, NESTED),
    ),
    ("hpcsgd.agreements.averaging.FedAvg.weight", of_all_rows, FED),
    ("hpcsgd.agreements.slowmo.slow_step", fixed_start, SLOW),
    ("hpcsgd.agreements.averaging.PostLocal.is_whole", only_at_first, POST),
]


@pytest.mark.cases(2)
@pytest.mark.parametrize("place, mistake, agreement", BROKEN)
def test_a_mistake_shows(place, mistake, agreement, monkeypatch):
    """The gap of the broken twin is three times as large, at least."""
    uneven = heterogeneous(n=14, d=3)  # 4, 4, 3 and 3 rows
    more = {"problem": uneven} if mistake is mean_of_means else {}
    more["tau"] = 1 if agreement is NESTED or more else 8
    more["slower"] = 8.0 if agreement in (FED, POST) else 1.0
    right = gap(agreement, **more)
    monkeypatch.setattr(place, mistake)
    wrong = gap(agreement, **more)
    assert wrong > max(3 * right, 1e-4)


def test_who_rests_holds_what_the_round_began_with(monkeypatch):
    """Averaging those that rested, too, takes half a step of every round."""
    problem = make_problem("logistic", n=58, d=7)
    right = print_of(problem, "fedavg")
    monkeypatch.setattr(FedAvg, "weight", everybody_is_averaged)
    assert print_of(problem, "fedavg") != right


def test_the_table_holds_them():
    kinds = {"average": Average, "fedavg": FedAvg}
    kinds |= {"hierarchical": Hierarchical, "slowmo": SlowMo}
    assert {kind: get_agreement(kind) for kind in kinds} == kinds
    assert MOMENTUM == "slow_momentum"  # the name that checkpoints know

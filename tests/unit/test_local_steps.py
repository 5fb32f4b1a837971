"""Local steps of any rule between averages: local Adam and Adagrad, by codecs, slow."""

import json

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.shard import split_range
from hpcsgd.errors import ConfigError
from hpcsgd.studies.folder import expected_traffic
from tests.helpers import oracle
from tests.helpers.averages import ROWS as OF_AVERAGES
from tests.helpers.harness import config_for, make_problem, relative_error, train_on
from tests.helpers.resumed import interrupted, losses, run
from tests.helpers.swarm import L, Swarm

ROWS = {
    "local": {},
    "postlocal": {"base": "postlocal", "switch": 0.5},
    "hierarchical": {"base": "hierarchical", "groups": "2,4", "periods": "1,3"},
    "fedavg": {"base": "fedavg", "fraction": 0.5},
    "slow": {"slow_momentum": 0.6, "slow_rate": 0.8},
    "slow fedavg": {"base": "fedavg", "fraction": 0.5, "slow_momentum": 0.6},
    "sharded": {"slow_momentum": 0.6, "slow_sharded": True},
    "qsparse": {"codec": "topk"},
    "fedpaq": {"base": "fedavg", "fraction": 0.5, "codec": "qsgd"},
}
CODECS = {"qsparse": {"share": 0.2, "dense": "never"}, "fedpaq": {"bits": 4}}
BUFFERS = ("average", "keep", "reset")
CASES = [(row, how) for row in ROWS for how in BUFFERS]
CASES = [(row, how) for row, how in CASES if row not in CODECS or how != "average"]


def config_of(drawn, row, how, update, members=1, /, **sections):
    period = 1 if row == "hierarchical" else 3
    tables = {
        "problem": {"intercept": True, "l2": 0.05},
        "schedule": {"batch": 4, "steps": 1, "epochs": 2, "period": period},
        "products": {"kind": "direct"},
        "grid": {"replicas": 4, "members": members},
        "agreement": {"kind": "local-steps", "momentum": how, **ROWS[row]},
        "update": update,
        "codec": CODECS.get(row, {}),
    }
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}
    if update["kind"] == "sgd":  # which has no momentum
        tables["agreement"] = {**tables["agreement"], "momentum": "average"}
    return config_for(drawn, **tables)


class LocalRules(Swarm):
    """Replicas that take steps of adam or adagrad, in longdouble, and average."""

    def __init__(self, config, problem, replicas):
        super().__init__(config, problem, replicas)
        asked = config.agreement
        self.kind = "slowmo" if asked.slow_momentum else asked.base
        d, K = problem.X.shape[1], self.K
        zero = {"w": np.zeros((d, K), dtype=L), "b": np.zeros(K, dtype=L)}
        self.m = [dict(zero) for _ in range(replicas)]  # of adam
        self.h = [dict(zero) for _ in range(replicas)]  # squares
        self.exchange, self.since = 0, 0

    def trains(self, replica, number):
        self.exchange = number
        return self.config.agreement.base != "fedavg" or replica in self.drawn(number)

    def _agree(self, number, last):
        asked = self.config.agreement
        whole = self.full(asked.base)
        early = asked.base == "postlocal" and number <= np.ceil(0.5 * self.each)
        if self.kind == "slowmo" and number % whole == 0:
            self.base(asked.base, number, True)
            for part in ("w", "b"):
                mean, old = self.states[0][part], self.start[part]
                fast = self.fast_rate(number)
                slow = L(asked.slow_momentum) * self.slow[part] + (old - mean) / fast
                self.slow[part] = slow
                self.start[part] = old - L(asked.slow_rate) * fast * slow
                for state in self.states:
                    state[part] = self.start[part]
        else:
            self.base(asked.base, number, last)
        if number % whole == 0 or early:
            self.buffers(asked.momentum, number)

    def buffers(self, how, number):
        """m and h of all replicas where all have averaged."""
        if how == "keep":
            return
        of = range(self.R)
        if self.config.agreement.base == "fedavg":
            of = self.drawn(number)
        share = {r: L(self.rows[r]) / L(sum(self.rows[q] for q in of)) for r in of}
        for arrays in (self.m, self.h):
            mean = {p: sum(share[r] * arrays[r][p] for r in of) for p in ("w", "b")}
            if how == "reset":
                mean = {p: 0 * a for p, a in mean.items()}
            arrays[:] = [dict(mean) for _ in range(self.R)]
        if how == "reset":
            self.since = number

    def _walk(self, r, epoch, index):
        config, state = self.config, self.states[r]
        if index >= len(self.batches[r]):
            return
        (rows,) = self.batches[r][index]
        w, b = state["w"], state["b"]
        res = oracle.residual(config.problem.family, self.X[rows] @ w + b, self.y[rows])
        gradients = {
            "w": self.X[rows].T @ res / len(rows) + L(config.problem.l2) * w,
            "b": res.mean(axis=0),
        }
        rate, update = L(config.rate.value), config.update
        t = self.exchange - self.since
        new = dict(state)
        self.m[r], self.h[r] = dict(self.m[r]), dict(self.h[r])
        for part, g in gradients.items():
            m, h = self.m[r][part], self.h[r][part]
            if update.kind == "adagrad":
                self.h[r][part] = h = h + g**2
                new[part] = state[part] - rate * g / (np.sqrt(h) + L(update.epsilon))
                continue
            one, two = L(update.beta1), L(update.beta2)
            self.m[r][part] = m = one * m + (1 - one) * g
            self.h[r][part] = h = two * h + (1 - two) * g**2
            size = np.sqrt(h / (1 - two**t)) + L(update.epsilon)
            new[part] = state[part] - rate * m / (1 - one**t) / size
        self.states[r] = new


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("update", ["adam", "adagrad"])
@pytest.mark.parametrize("row, how", CASES)
def test_it_is_the_rule_step_by_step(row, how, update, members):
    """m and h averaged, kept or set to zero; the end of a run averages weights."""
    problem = make_problem("softmax", n=58, d=7)
    config = config_of(problem, row, how, {"kind": update}, members)
    found = train_on(4 * members, config, problem)
    wanted = LocalRules(config, problem, 4).run()
    assert relative_error(found, wanted) < 1e-10


@pytest.mark.parametrize("how", BUFFERS)
@pytest.mark.parametrize("kind", ["sgd", "nesterov", "nesterov-classic"])
@pytest.mark.parametrize("row", ["average", "hierarchical", "slow fedavg"])
def test_linear_rules_are_those_of_the_averages(row, kind, how):
    """And they send the same bytes, as the rule has no arrays of its own."""
    problem = make_problem("softmax", n=58, d=7)
    update = {"kind": kind, "momentum": 0.6}
    asked = dict(OF_AVERAGES[row])
    base = asked.pop("base", asked["kind"])
    if row == "slow fedavg":
        asked["slow_momentum"] = 0.5
    tables = {"schedule": {"period": 1 if row == "hierarchical" else 3}}
    same = {"momentum": how, "base": base, **asked, "kind": "local-steps"}
    config = config_of(problem, "local", how, update, **tables, agreement=same)
    found = train_on(4, config, problem)
    if row != "slow fedavg":
        del same["base"]
    other = {**same, "kind": OF_AVERAGES[row]["kind"]}
    tables["agreement"] = other
    plain = config_for(
        problem,
        problem={"intercept": True, "l2": 0.05},
        schedule={"batch": 4, "steps": 1, "epochs": 2, **tables["schedule"]},
        products={"kind": "direct"},
        grid={"replicas": 4},
        agreement={k: v for k, v in other.items() if kind != "sgd" or k != "momentum"},
        update=update,
    )
    wanted = train_on(4, plain, problem)
    np.testing.assert_allclose(found.weights, wanted.weights, 0, 1e-15)
    sent = [r.ledger["agreement"]["bytes"] for r in (found, wanted)]
    assert sent[0] == sent[1]


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("how", BUFFERS)
@pytest.mark.parametrize("update, arrays", [("adam", 2), ("adagrad", 1), ("sgd", 0)])
def test_calls_words_and_bytes(update, arrays, how, members):
    """8 exchanges, τ = 3: two averages with the arrays of the rule, and the end."""
    problem = make_problem("softmax", n=58, d=7)
    config = config_of(problem, "local", how, {"kind": update}, members)

    def on_rank(world):
        result = train(config, X=problem.X, y=problem.y, world=world)
        assert result.exchanges == 8
        return result

    found = run_ranks(4 * members, on_rank)
    travels = arrays if how == "average" else 0
    for rank, result in enumerate(found):
        part = split_range(7, members, rank % members)
        width, two = part.stop - part.start, members > 1
        words = 3 * (width + 1) * 4 + 2 * (width + 1) * 4 * travels
        words += two * (3 * 4 + 2 * 4 * travels)  # of the intercept, to the members
        calls = (3 + 2 * (travels > 0)) * (1 + two)
        entry = result.ledger["agreement"]
        assert (entry["calls"], entry["words"]) == (calls, words)
        assert entry["bytes"] == 8 * words
    wanted = expected_traffic(found[0].report | json.loads(found[0].json()))
    both = [found[0].ledger[p] for p in ("products", "agreement")]
    for figure in ("calls", "words", "bytes"):
        assert wanted[figure] == sum(entry[figure] for entry in both)


@pytest.mark.cases(6)
@pytest.mark.parametrize("at", [3, 7])
@pytest.mark.parametrize("row, how", CASES)
def test_it_resumes_bit_for_bit(row, how, at, tmp_path):
    problem = make_problem("softmax", n=58, d=7)
    config = config_of(problem, row, how, {"kind": "adam"})
    sections = config.tables()
    del sections["run"]
    whole = run(4, problem, tmp_path / "whole", **sections)[0]
    again = interrupted(4, problem, tmp_path / "parts", at, **sections)
    assert {r.weights_sha256 for r in again} == {whole.weights_sha256}
    assert losses(again[0]) == losses(whole)
    entries = [r.ledger["agreement"]["bytes"] for r in (again[0], whole)]
    assert entries[0] == entries[1]


REFUSED = [
    ({"codec": "qsgd"}, {}, "would average momenta"),
    ({"base": "fedavg", "codec": "topk", "momentum": "keep"}, {}, "replicas that rest"),
    ({"slow_sharded": True, "codec": "qsgd", "momentum": "keep"}, {}, "piece by piece"),
    ({}, {"schedule": {"steps": 2, "period": 4}}, "needs schedule.steps = 1"),
    ({}, {"problem": {"l1": 0.1}}, "needs a smooth objective"),
    ({}, {"update": {"kind": "svrg"}}, "needs --update"),
    ({}, {"update": {"kind": "adam", "bits": 8}}, "optimizer state in 8 bits"),
    ({"proximal": 0.1}, {}, "does not read it"),
    ({"accumulate": 2}, {}, "does not read it"),
]


@pytest.mark.parametrize("agreement, sections, why", REFUSED)
def test_it_is_refused(agreement, sections, why):
    problem = make_problem("logistic", n=58, d=3)
    tables = {
        "update": {"kind": "adam"},
        "schedule": {"steps": 1, "period": 4},
        "products": {"kind": "direct"},
        "grid": {"replicas": 2},
        "agreement": {"kind": "local-steps", **agreement},
        **sections,
    }
    with pytest.raises(ConfigError, match=why):
        train_on(2, config_for(problem, **tables), problem)

"""Runs of any batch, and plain restatements of what they do."""

import numpy as np

from hpcsgd.agreements.more.anybatch import ReplicaGraph, as_csv
from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.sampling import Sampler
from hpcsgd.data.shard import split_range
from tests.helpers.harness import config_for, relative_error

MAPS = {
    "euclidean": {},
    "entropy": {"kind": "entropy", "radius": 2.0},
    "eg": {"kind": "eg", "radius": 3.0},
    "p-norm": {"kind": "p-norm"},
    "diagonal": {"kind": "diagonal"},
}


def any_batch(drawn, replicas, members=1, /, **sections):
    """Full rounds of one chunk; as many ranks as R x C."""
    tables = {
        "schedule": {"batch": 4, "steps": 1, "epochs": 2},
        "products": {"kind": "auto"},
        "problem": {"l2": 0.05},
        "agreement": {"kind": "anybatch", "rounds": "full", "graph": "full"},
        "grid": {"replicas": replicas, "members": members},
    }
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}
    return config_for(drawn, **tables)


def script(folder, chunks, iterations=()):
    """A log of rounds, (R, rounds) chunks, as a run writes it."""
    path = folder / "rounds.csv"
    path.write_text(as_csv(chunks, np.zeros_like(chunks), iterations))
    return str(path)


def on_all(ranks, config, problem, **data):
    """The results of all ranks, and their ledgers."""

    def on_rank(world):
        return train(config, X=problem.X, y=problem.y, world=world, **data)

    return run_ranks(ranks, on_rank)


class Map:
    """A mirror map in longdouble, on whole points."""

    def __init__(self, settings, columns, classes):
        self.kind = settings.kind
        self.radius = settings.radius or 1.0
        self.ball = settings.radius
        self.d = columns
        self.p = settings.p or (
            2 * np.log(columns) / (2 * np.log(columns) - 1) if columns > 2 else 2.0
        )
        shape = columns, classes
        self.h = np.zeros(shape, np.longdouble)
        if self.kind == "entropy":
            self.x = np.full(shape, 1 / np.longdouble(columns))
        elif self.kind == "eg":
            self.x = np.full((2 * columns + 1, classes), np.longdouble(1))
            self.x /= 2 * columns + 1
        else:
            self.x = np.zeros(shape, np.longdouble)

    @property
    def weights(self):
        if self.kind == "entropy":
            return self.radius * self.x
        if self.kind == "eg":
            return self.radius * (self.x[: self.d] - self.x[self.d : 2 * self.d])
        return self.x

    def step(self, g, rate):
        if self.kind in ("entropy", "eg"):
            if self.kind == "eg":
                g = np.concatenate([g, -g, np.zeros_like(g[:1])])
            self.x = self.x * np.exp(-rate * g)
            self.x = self.x / self.x.sum(axis=0)
        elif self.kind == "p-norm":
            q = self.p / (self.p - 1)
            self.x = link(link(self.x, self.p) - rate * g, q)
        elif self.kind == "diagonal":
            self.h = self.h + g**2
            self.x = self.x - rate * g / (np.sqrt(self.h) + np.longdouble(1e-8))
        else:
            self.x = self.x - rate * g
            if self.ball:
                size = np.sqrt((self.x**2).sum(axis=0))
                self.x = self.x * np.minimum(1, self.ball / size)


def link(x, p):
    """∇ ½|x|_p², by its formula."""
    norm = (np.abs(x) ** p).sum(axis=0) ** (1 / np.longdouble(p))
    with np.errstate(all="ignore"):
        found = np.sign(x) * np.abs(x) ** (p - 1) * norm ** (2 - p)
    return np.where(x == 0, 0, found)


def restated(config, problem, chunks, iterations=None, plays=None):
    """x_i of all replicas after rounds of so many chunks, (R, rounds), in longdouble.

    Returns weights and intercepts of all of them, and their consensus. `iterations` are
    those of every round; without them all rounds have `mixing`. To the list `plays`,
    (rows, w, b) of all replicas are appended for every round.
    """
    replicas, n = len(chunks), len(problem.X)
    asked = config.agreement
    X = problem.X.astype(np.longdouble)
    classes = problem.classes if problem.family == "softmax" else 1
    maps = [Map(config.mirror, X.shape[1], classes) for _ in range(replicas)]
    biases = [np.zeros(classes, np.longdouble) for _ in range(replicas)]
    streams = [stream(config, n, replicas, r) for r in range(replicas)]
    graph = ReplicaGraph(asked.graph, replicas, config.sampling.seed)
    den = np.ones(replicas)
    for t in range(chunks.shape[1]):
        rate = config.rate.value / np.sqrt(1 + config.rate.decay * t)
        b = np.zeros(replicas)
        played = []
        for i in range(replicas):
            rows = [next(streams[i]) for _ in range(chunks[i, t])]
            b[i] = sum(map(len, rows))
            whole = np.concatenate([np.zeros(0, dtype=int), *rows])
            played.append((whole, maps[i].weights, biases[i]))
            if b[i]:
                rows = np.concatenate(rows)
                r = residuals(problem, X[rows], rows, maps[i].weights, biases[i])
                g = X[rows].T @ r / len(rows)
                maps[i].step(g + config.problem.l2 * maps[i].weights, rate)
                if config.problem.intercept:
                    biases[i] = biases[i] - rate * r.sum(axis=0) / len(rows)
        if plays is not None:
            plays.append(played)
        many = 1 if asked.graph == "full" else asked.mixing
        first = t * many
        if iterations is not None:
            many, first = iterations[t], sum(iterations[:t])
        if asked.weighted:
            den = b.copy()
        num = [m.x * w for m, w in zip(maps, den, strict=True)]
        low = [c * w for c, w in zip(biases, den, strict=True)]
        for k in range(many if replicas > 1 else 0):
            W = graph.at(first + k).astype(np.longdouble)
            num, low, den = mixed(W, num), mixed(W, low), W @ den
        for i in range(replicas):
            if den[i]:
                maps[i].x, biases[i] = num[i] / den[i], low[i] / den[i]
    share = den / den.sum() if den.sum() else np.full(replicas, 1 / replicas)
    weights = [m.weights for m in maps]
    mean = sum(s * w for s, w in zip(share, weights, strict=True))
    bias = sum(s * c for s, c in zip(share, biases, strict=True))
    return weights, mean, bias


def mixed(W, parts):
    return [sum(w * part for w, part in zip(row, parts, strict=True)) for row in W]


def residuals(problem, X, rows, w, bias):
    """r = μ(t) − y, (m, K)."""
    t = X @ w + bias
    if problem.family == "softmax":
        e = np.exp(t - t.max(axis=1, keepdims=True))
        r = e / e.sum(axis=1, keepdims=True)
        r[np.arange(len(rows)), problem.y[rows].astype(int)] -= 1
        return r
    mean = 1 / (1 + np.exp(-t)) if problem.family == "logistic" else t
    return mean - problem.y[rows, None]


def stream(config, n, replicas, replica):
    """The rows of chunk after chunk, pass after pass."""
    part = split_range(n, replicas, replica)
    height, batch = part.stop - part.start, config.schedule.batch
    sampler = Sampler(config.sampling.mode, config.sampling.seed, height, replica)
    turn = 0
    while height:
        order = part.start + sampler.order(turn)
        yield from (order[k : k + batch] for k in range(0, height, batch))
        turn += 1


__all__ = ["MAPS", "any_batch", "on_all", "restated", "script"]


def budgets(replicas, rounds, most=3, seed=0):
    """So many chunks in every round, 0 among them, 0 of all in one."""
    chunks = np.random.default_rng((seed, replicas)).integers(
        0, most + 1, size=(replicas, rounds)
    )
    chunks[:, 1] = 0
    chunks[0, 2] = most
    chunks[1:, 2] = 0
    return chunks


def scripted(folder, drawn, replicas, members=1, /, *, most=3, rounds=8, **sections):
    """A run of random budgets and its budgets."""
    chunks = budgets(replicas, rounds, most)
    told = {"accumulate": most, "replay": script(folder, chunks)}
    sections["agreement"] = {**told, **sections.get("agreement", {})}
    config = any_batch(drawn, replicas, members, **sections)
    each = -(-len(drawn.X) // replicas // (4 * most))
    epochs = {"epochs": max(rounds // max(each, 1), 1)}
    tables = config.tables()
    tables["schedule"] |= epochs
    return type(config).parse(tables), chunks


def check(folder, drawn, replicas, members=1, /, **sections):
    """Train by a script, and by its restatement in longdouble."""
    problem = drawn
    config, chunks = scripted(folder, problem, replicas, members, **sections)
    results = on_all(replicas * members, config, problem)
    assert {r.status.value for r in results} == {"completed"}
    assert len({r.weights_sha256 for r in results}) == 1
    done = chunks[:, : results[0].exchanges]
    told = results[0].report["agreement"]
    assert told["rounds"]["chunks"] == done.tolist()
    _, mean, bias = restated(config, problem, done)
    assert relative_error(results[0], (mean, bias)) <= 1e-12
    return results[0], done

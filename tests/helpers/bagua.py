"""Decentralized, asynchronous and QAdam replicas, step by step in NumPy.

Plain restatements of the cards in docs/reference/methods, in longdouble where nothing
is rounded to bytes; what they share with the package is who has which rows.
"""

import numpy as np

from hpcsgd.data.shard import split_range
from hpcsgd.glm.updates import make_rate
from tests.helpers import oracle
from tests.helpers.harness import config_for, replica_batches

MOMENTUM = {"kind": "momentum", "momentum": 0.5}
L = np.longdouble
ROWS = {
    "all": {"kind": "decentralized"},
    "pairs": {"kind": "decentralized", "peers": "shift_one"},
    "low": {"kind": "decentralized-low"},
    "all, each third": {"kind": "decentralized"},
    "pairs, each third": {"kind": "decentralized", "peers": "shift_one"},
    "low, each third": {"kind": "decentralized-low"},
    "all, in twos": {"kind": "decentralized", "hierarchical": "2"},
    "pairs, in twos": {
        "kind": "decentralized",
        "peers": "shift_one",
        "hierarchical": "2",
    },
    "low, in threes": {"kind": "decentralized-low", "hierarchical": "3"},
    "qadam": {"kind": "qadam", "codec": "bytegrad", "warmup_steps": 5},
    "async": {"kind": "async-average", "delay": 2},
    "async, warm": {"kind": "async-average", "warmup_exchanges": 4},
    "async pairs": {"kind": "async-average", "delay": 2, "peers": "shift_one"},
    "async bytes": {"kind": "async-average", "delay": 2, "codec": "byte"},
}


THIRD = [row for row in ROWS if "third" in row or "async" in row] + ["pairs, in twos"]


def config_of(drawn, row, replicas=4, members=1, /, **sections):
    """One step an exchange; some rows agree in each third one."""
    tables = {
        "problem": {"l2": 0.05, "intercept": True},
        "schedule": {"batch": 4, "steps": 1, "epochs": 2},
        "products": {"kind": "direct" if "async" in row else "auto"},
        "agreement": ROWS[row],
        "grid": {"replicas": replicas, "members": members},
    }
    if row in THIRD:
        tables["schedule"]["period"] = 3
    if row == "qadam":
        tables["update"] = {"kind": "adam"}
        tables["codec"] = {"feedback": "off"}
    for name, table in sections.items():
        tables[name] = {**tables.get(name, {}), **table}
    return config_for(drawn, **tables)


def update_of(row):
    """Momentum, where a row has none of its own and averages what it sends."""
    if row == "qadam":
        return {"kind": "adam"}
    return {"kind": "sgd"} if row == "async bytes" else MOMENTUM


def clocked(problem, replicas, members=1, **sections):
    """Averages start as soon as the last one is used, and average momentum, too."""
    agreement = {"sync_interval_ms": 1e-6, **sections.pop("agreement", {})}
    schedule = {"epochs": 1, **sections.pop("schedule", {})}
    update = {"update": MOMENTUM, **sections}
    row = {"agreement": {"delay": 1, **agreement}, "schedule": schedule, **update}
    return config_of(problem, "async", replicas, members, **row)


class Replicas:
    """R of them, with the rows and rates of a run; `kind` their type of number."""

    def __init__(self, config, problem, kind=L):
        self.config, self.problem, self.kind = config, problem, kind
        self.R, n = config.grid.replicas, len(problem.X)
        parts = [split_range(n, self.R, r) for r in range(self.R)]
        self.rows = np.array([p.stop - p.start for p in parts])
        batches = [replica_batches(config, n, self.R, r) for r in range(self.R)]
        self.each = max(len(b) for b in batches) // config.schedule.epochs
        self.tau = config.schedule.period
        size = config.agreement.hierarchical
        self.place = [r // (1 if size == "off" else int(size)) for r in range(self.R)]
        self.total = self.each * config.schedule.epochs
        self.batches = batches
        self.rates = make_rate(config.rate, self.total).at(0, self.total)
        d, K = problem.X.shape[1], problem.classes
        self.w = [np.zeros((d, K), kind) for _ in range(self.R)]
        self.v = [np.zeros((d, K), kind) for _ in range(self.R)]
        self.b = [np.zeros(K, kind) for _ in range(self.R)]
        self.bv = [np.zeros(K, kind) for _ in range(self.R)]
        self.X, self.y = problem.X.astype(kind), problem.y.reshape(-1, 1)
        self.update = oracle.Update(config.update.kind, config.update.momentum)

    def batch(self, r, t):
        """The rows of replica r in exchange t, or None where it has none."""
        epoch, place = divmod(t, self.each)
        own = len(self.batches[r]) // self.config.schedule.epochs
        return self.batches[r][epoch * own + place] if place < own else None

    def gradient(self, r, t):
        """(g, slope of the intercept), or None."""
        rows = self.batch(r, t)
        if rows is None or not len(rows):
            return None
        w = self.update.point(self.w[r], self.v[r])
        b = self.update.point(self.b[r], self.bv[r])
        res = oracle.residual(self.problem.family, self.X[rows] @ w + b, self.y[rows])
        g = self.X[rows].T @ res / len(rows) + self.kind(self.config.problem.l2) * w
        return g, res.mean(axis=0) * self.config.problem.intercept

    def step(self, r, t, gradient):
        rate = self.kind(self.rates[t])
        g, slope = gradient
        self.w[r], self.v[r] = self.update.step(self.w[r], self.v[r], g, rate)
        self.b[r], self.bv[r] = self.update.step(self.b[r], self.bv[r], slope, rate)

    def share(self):
        return self.rows.astype(self.kind) / self.kind(self.rows.sum())

    def mean(self, parts=None):
        """By rows, of the weights or of something else that all have."""
        parts = self.w if parts is None else parts
        return sum(s * p for s, p in zip(self.share(), parts, strict=True))

    def run(self):
        for t in range(self.total):
            self.exchange(t)
        return self.mean(), self.mean(self.b)

    def groups(self, parts):
        """Rows and mean of each group."""
        rows = np.bincount(self.place, weights=self.rows)
        sums = [0 * parts[0] for _ in rows]
        for part, place, count in zip(parts, self.place, self.rows, strict=True):
            sums[place] = sums[place] + self.kind(count / rows[place]) * part
        return rows, sums


def in_pairs(t, rows, parts):
    """By rows, of each of the first half and one of the other."""
    mixed, half = list(parts), len(rows) // 2
    for i in range(half):
        j = (t + i) % half + half
        a, c = rows[i], rows[j]
        mixed[i] = mixed[j] = (L(a) * parts[i] + L(c) * parts[j]) / L(a + c)
    return mixed


class Mixed(Replicas):
    """w_i ← mix(w)_i − η g_i(w_i), mixed with all or in pairs, each τ steps."""

    def exchange(self, t):
        gradients = [self.gradient(r, t) for r in range(self.R)]
        for parts in (self.w, self.b):
            if t % self.tau == 0:
                parts[:] = self.mix(list(parts), t // self.tau)
        for r, found in enumerate(gradients):
            if found is not None:
                self.step(r, t, found)

    def mix(self, parts, t):
        if self.config.agreement.peers == "all":
            return [self.mean(parts)] * self.R
        mixed = in_pairs(t, *self.groups(parts))
        return [mixed[place] for place in self.place]


class Ring(Replicas):
    """D_LP_S, its neighbours' replicas kept as they are told, in the run's own type."""

    def __init__(self, config, problem, quantise=True):
        super().__init__(config, problem, np.float64)
        self.quantise = quantise
        self.sent = [p.copy() for p in self.w], [p.copy() for p in self.b]

    def exchange(self, t):
        for r in range(self.R):
            found = self.gradient(r, t)
            if found is not None:
                self.step(r, t, found)
        if t % self.tau:
            return
        for old, new, coded in zip(
            self.sent, (self.w, self.b), (True, False), strict=True
        ):
            rows, means = self.groups(new)
            known = [old[self.place.index(g)] for g in range(len(rows))]
            ring = range(len(rows))
            sent = [self.next(g, rows, known, means, coded) for g in ring]
            new[:] = [sent[place].copy() for place in self.place]
            old[:] = [p.copy() for p in new]

    def next(self, g, rows, old, new, coded):
        count = len(rows)
        if count == 1:
            return new[g]
        change = new[g] - old[g]
        for peer in ((g - 1) % count, (g + 1) % count):
            near = min(1.0, rows[peer] / rows[g]) / 3
            change = change + near * (old[peer] - old[g])
        return old[g] + (self.code(change) if coded and self.quantise else change)

    def code(self, change):
        """Each member its own columns."""
        members = self.config.grid.members
        parts = [split_range(len(change), members, c) for c in range(members)]
        return np.concatenate([to_a_byte(change[part]) for part in parts])


class Aside(Replicas):
    """w ← mean(t) + (w − w_own(t)), `delay` exchanges after it set out.

    In pairs the mean is that of a pair. In bytes it is a − (1/R) Σ_r C(c_r), with
    c_r = R (n_r / n) (a − w_r(t)) + e_r, e_r what C loses of it, and a the mean before.
    """

    said = None

    def __init__(self, config, problem):
        super().__init__(config, problem)
        self.agreed = self.w[0] * 0
        self.lost = [0 * w for w in self.w]

    def means(self, number, parts, is_weights):
        """Of weights, momentum or intercept of all, for each replica the mean."""
        asked = self.config.agreement
        if asked.peers == "shift_one" and self.R > 1:
            return in_pairs(number, self.rows, parts)
        if asked.codec == "identity" or not is_weights or self.R == 1:
            return [self.mean(parts)] * self.R
        total = 0 * self.agreed
        for r, share in enumerate(self.share()):
            change = self.R * share * (self.agreed - parts[r]) + self.lost[r]
            told = self.code(change)
            self.lost[r] = change - told
            total = total + told
        self.agreed = self.agreed - total / self.R
        return [self.agreed] * self.R

    def code(self, change):
        """Each member its own columns."""
        members = self.config.grid.members
        parts = [split_range(len(change), members, c) for c in range(members)]
        coded = [to_a_byte(change[part].astype(float)) for part in parts]
        return np.concatenate(coded)

    def exchange(self, t):
        for r in range(self.R):
            found = self.gradient(r, t)
            if found is not None:
                self.step(r, t, found)
        done, asked = t + 1, self.config.agreement
        own = [self.w, self.v, self.b, self.bv]
        if done <= asked.warmup_exchanges:
            for parts in own:
                parts[:] = [self.mean(parts)] * self.R
            return
        if self.said and done == self.said[0] + asked.delay:
            self.apply(own)
        if done % self.tau == 0:
            said = [[p.copy() for p in parts] for parts in own]
            number = done // self.tau - 1
            means = [self.means(number, p, k == 0) for k, p in enumerate(said)]
            self.said = done, said, means
            if asked.delay == 0:
                self.apply(own)

    def apply(self, own):
        _, said, means = self.said
        self.said = None
        for parts, then, mean in zip(own, said, means, strict=True):
            moves = [p - o for p, o in zip(parts, then, strict=True)]
            parts[:] = [m + move for m, move in zip(mean, moves, strict=True)]


class Clocked(Aside):
    """w ← Σ_q (n_q / n) w_q(t_q) + (w − w(t)): starts t and uses are those of a log."""

    def __init__(self, config, problem, averages):
        super().__init__(config, problem)
        self.started, self.used = averages["started"], averages["used"]

    def run(self):
        """Each replica on its own, as far as the averages that it uses are there."""
        warm = self.config.agreement.warmup_exchanges
        for t in range(warm):
            self.exchange(t)
        done, sent = [warm] * self.R, {}
        while min(done) < self.total:
            before = sum(done)
            for r in range(self.R):
                while done[r] < self.total and self.advance(r, done[r], sent):
                    done[r] += 1
            assert sum(done) > before, "uses of averages that are never there"
        return self.mean(), self.mean(self.b)

    def advance(self, r, t, sent):
        """Do exchange t of replica r, or return False where an average is missing."""
        own = [self.w, self.v, self.b, self.bv]
        uses = [k for k, at in enumerate(self.used[r]) if at == t + 1]
        if any((k, q) not in sent for k in uses for q in range(self.R)):
            return False
        found = self.gradient(r, t)
        if found is not None:
            self.step(r, t, found)
        for k in uses:
            for number, parts in enumerate(own):
                mean = self.mean([sent[k, q][number] for q in range(self.R)])
                parts[r] = mean + (parts[r] - sent[k, r][number])
        for k, at in enumerate(self.started[r]):
            if at == t + 1:
                sent[k, r] = [parts[r].copy() for parts in own]
        return True


class Momentum(Replicas):
    """QAdam: Adam on summed gradients, then m of all replicas, v at rest.

    `code(parts)` is what becomes of the R words-arrays that are averaged.
    """

    def __init__(self, config, problem, code=None):
        super().__init__(config, problem)
        self.code = code or (lambda parts: sum(parts) / len(parts))
        zero = self.w[0] * 0, self.b[0] * 0
        self.m, self.s = list(zero), [z.copy() for z in zero]

    def exchange(self, t):
        asked, how = self.config.agreement, self.config.update
        one, two, ridge = L(how.beta1), L(how.beta2), L(self.config.problem.l2)
        found = [self.gradient(r, t) for r in range(self.R)]
        rows = [0 if f is None else len(self.batch(r, t)) for r, f in enumerate(found)]
        count = L(sum(rows))
        for k, at in ((0, self.w[0]), (1, self.b[0])):
            penalty = ridge * at if k == 0 else 0 * at
            sums = [n * (f[k] - penalty) for n, f in zip(rows, found, strict=True) if n]
            counts = [n for n in rows if n]
            if t < asked.warmup_steps:
                g = sum(sums) / count + penalty
                self.m[k] = one * self.m[k] + (1 - one) * g
                self.s[k] = two * self.s[k] + (1 - two) * g**2
            else:
                told = [
                    self.R * (one * n * self.m[k] + (1 - one) * s) / count
                    for n, s in zip(counts, sums, strict=True)
                ]
                told += [0 * at] * (self.R - len(told))
                mean = self.code(told) if k == 0 else sum(told) / self.R
                self.m[k] = mean + (1 - one) * penalty
            square = self.s[k] / (1 - two ** (t + 1))
            below = np.sqrt(square) + L(how.epsilon)
            moved = at - L(self.rates[t]) * self.m[k] / (1 - one ** (t + 1)) / below
            for parts in [self.w] if k == 0 else [self.b]:
                parts[:] = [moved] * self.R


def to_a_byte(values):
    """Multiples of (max − min)/255 between float32 ends: what a byte a word says."""
    down, up = np.float32(-np.inf), np.float32(np.inf)
    least, most = np.float32(values.min()), np.float32(values.max())
    least = np.nextafter(least, down) if float(least) > values.min() else least
    most = np.nextafter(most, up) if float(most) < values.max() else most
    low, high = float(least), float(most)
    if low == high:
        return np.full_like(values, low)
    scale = 255 / (high - low)
    base = np.rint(high * scale) - 255
    codes = np.clip(np.rint(values * scale) - base, 0, 255)
    return (codes + base) / scale


KINDS = {"decentralized": Mixed, "decentralized-low": Ring, "async-average": Aside}
ORACLES = {row: KINDS.get(asked["kind"], Momentum) for row, asked in ROWS.items()}

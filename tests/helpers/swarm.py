"""Replicas that average, step by step in longdouble: what every agreement must equal.

Rows are dealt, and batches and rates taken, as the package documents them; the
averages are written from their formulas, without a line of the package.
"""

import numpy as np

from hpcsgd.data.sampling import Sampler, plan_groups
from hpcsgd.data.shard import split_range
from tests.helpers import oracle

L = oracle.L
PARTS = ("w", "v", "b", "bv")


class Swarm:
    """R replicas in longdouble, and what becomes of them in each exchange."""

    def __init__(self, config, problem, replicas):
        self.config, self.problem, self.R = config, problem, replicas
        self.n, self.K = len(problem.X), problem.classes
        parts = [split_range(self.n, replicas, r) for r in range(replicas)]
        self.rows = np.array([p.stop - p.start for p in parts])
        self.batches = [self._batches(p, r) for r, p in enumerate(parts)]
        self.steps = [[len(g) for g in groups] for groups in self.batches]
        self.each = max(map(len, self.batches))
        d, K = problem.X.shape[1], self.K
        shapes = ((d, K), (d, K), (K,), (K,))
        zero = {p: np.zeros(s, dtype=L) for p, s in zip(PARTS, shapes, strict=True)}
        self.states = [dict(zero) for _ in range(replicas)]
        self.start = dict(zero)  # x_old of slow momentum
        self.slow = dict(zero)  # its u, in units of gradient as the paper has it
        self.anchor = dict(zero)  # wᵗ of FedProx: what all replicas had last
        self.errors = [np.zeros((d, K), dtype=L) for _ in range(replicas)]
        self.averages = 0
        self.push = self.R * self.rows.astype(L) / L(self.n)  # p of SGP
        self.X = problem.X.astype(L)
        self.y = problem.y.astype(L).reshape(-1, 1)

    def run(self):
        """All epochs; w and b of the mean that a run returns."""
        total = self.each * self.config.schedule.epochs
        for number in range(1, total + 1):
            for r in range(self.R):
                if self.trains(r, number):
                    self._walk(r, *divmod(number - 1, self.each))
            self.agree(number, last=number == total)
        return self.states[0]["w"], self.states[0]["b"]

    def trains(self, replica, number):
        """fedavg: those that are drawn for the round."""
        asked = self.config.agreement
        kind = asked.base if asked.kind == "slowmo" else asked.kind
        return kind != "fedavg" or replica in self.drawn(number)

    def drawn(self, number):
        asked, tau = self.config.agreement, self.config.schedule.period
        count = max(int(asked.fraction * self.R + 0.5), 1)
        seed = (self.config.sampling.seed, 0xFEDA, (number - 1) // tau)
        return set(np.random.default_rng(seed).choice(self.R, count, replace=False))

    def agree(self, number, last):
        """After exchange `number`; the last one leaves all replicas one."""
        self.agreed = False
        self._agree(number, last)
        if self.agreed:
            self.anchor = dict(self.states[0])
            self.push = self.R * self.rows.astype(L) / L(self.n)

    def _agree(self, number, last):
        asked = self.config.agreement
        if asked.kind != "slowmo":
            self.base(asked.kind, number, last)
            return
        tau = asked.slow_period or self.full(asked.base)
        if number % tau:
            self.base(asked.base, number, last)
            return
        self.base(asked.base, number, True)
        alpha, beta = L(asked.slow_rate), L(asked.slow_momentum)
        fast = self.fast_rate(number)
        for part in ("w", "b"):
            mean, old = self.states[0][part], self.start[part]
            self.slow[part] = beta * self.slow[part] + (old - mean) / fast
            self.start[part] = old - alpha * fast * self.slow[part]
            for state in self.states:
                state[part] = self.start[part]

    def fast_rate(self, number):
        """γ of a slow step: the rate of the step before it, of the largest replica."""
        epoch, index = divmod(number - 1, self.each)
        steps = self.steps[0]
        return self.rate(0, epoch * sum(steps) + sum(steps[: index + 1]) - 1)

    def rate(self, r, step):
        """Of step `step` of replica r, from 0 on."""
        asked = self.config.rate
        total = L(self.config.schedule.epochs * sum(self.steps[r]))
        falls = {
            "constant": L(1),
            "inverse": 1 / (1 + L(asked.decay) * step),
            "inverse-sqrt": 1 / np.sqrt(1 + L(asked.decay) * step),
            "cosine": (1 + np.cos(np.arccos(L(-1)) * step / total)) / 2,
        }
        grows = min(L(step + 1) / asked.warmup, L(1)) if asked.warmup else L(1)
        return L(asked.value) * falls[asked.kind] * grows

    def full(self, kind):
        """Exchanges between averages of all."""
        if kind == "hierarchical":
            return int(self.config.agreement.periods.split(",")[-1])
        return self.config.schedule.period

    def base(self, kind, number, last):
        asked, tau = self.config.agreement, self.config.schedule.period
        everybody = range(self.R)
        if kind == "gossip":
            if number % tau:
                self.push_halves(number)
            if last or number % tau == 0:
                self.mean(everybody, everybody, self.push / self.R)
            return
        if kind == "hierarchical":
            sizes, periods = (
                list(map(int, text.split(",")))
                for text in (asked.groups, asked.periods)
            )
            due = [s for s, p in zip(sizes, periods, strict=True) if number % p == 0]
            size = self.R if last else (due[-1] if due else 0)
            for first in range(0, self.R, size) if size else ():
                group = everybody[first : first + size]
                self.mean(group, group)
            return
        early = kind == "postlocal" and number <= np.ceil(
            asked.switch * self.each - 1e-9
        )
        is_due = number % tau == 0 or early
        if last or is_due:
            of = self.drawn(number) if kind == "fedavg" else everybody
            self.mean(of, everybody)
        if is_due and asked.codec != "identity":
            self.encode(of)

    def push_halves(self, number):
        """SGP: x = p z; halves of x and p go 2^((k − 1) mod ⌈log₂ R⌉) on; z = x / p."""
        if self.R == 1:
            return
        hop = 2 ** ((number - 1) % int(np.ceil(np.log2(self.R))))
        before, push = [dict(state) for state in self.states], self.push.copy()
        for r, state in enumerate(self.states):
            s = (r - hop) % self.R
            self.push[r] = (push[r] + push[s]) / 2
            for part in ("w", "b"):
                x = (push[r] * before[r][part] + push[s] * before[s][part]) / 2
                state[part] = x / self.push[r]

    def mean(self, of, to, share=None):
        """The mean by rows of some replicas, for some replicas."""
        self.agreed = len(to) == self.R
        self.before = [state["w"] for state in self.states]
        if share is None:
            rows = sum(self.rows[q] for q in of)
            share = {r: L(self.rows[r]) / L(rows) for r in of}
        how = self.config.agreement.momentum
        for part in PARTS:
            if part in ("v", "bv") and how == "keep":
                continue
            mean = sum(share[r] * self.states[r][part] for r in of)
            if part in ("v", "bv") and how == "reset":
                mean = mean * 0
            for r in to:
                self.states[r][part] = mean

    def encode(self, of):
        """Qsparse-local-SGD and FedPAQ: the mean of coded changes since the last one.

        g_r = C(m_r + a − x_r), m_r ← m_r + a − x_r − g_r, a ← a − (1/R) Σ g_r, where a
        change counts by the rows of its replica.
        """
        config, members = self.config, max(self.config.grid.members, 1)
        rows = {r: L(self.rows[r]) / L(sum(self.rows[q] for q in of)) for r in of}
        keeps = config.agreement.codec == "topk"
        total = np.zeros_like(self.before[0])
        for r in range(self.R):
            moved = self.anchor["w"] - self.before[r]
            change = self.R * rows.get(r, L(0)) * moved + self.errors[r]
            coded = np.zeros_like(change)
            for m in range(members):
                part = split_range(len(change), members, m)
                coded[part] = self.coded(change[part], r, m)
            if keeps:
                self.errors[r] = change - coded
            total = total + coded
        self.averages += 1
        for state in self.states:
            state["w"] = self.anchor["w"] - total / self.R

    def coded(self, part, replica, member):
        """C of the words of one member, by its published rule."""
        asked, flat = self.config.codec, part.reshape(-1)
        out = np.zeros_like(flat)
        if self.config.agreement.codec == "topk":
            count = max(round(asked.share * flat.size), 1)
            largest = np.argsort(-np.abs(flat))[:count]
            out[largest] = flat[largest]
            return out.reshape(part.shape)
        # QSGD: N sign(v) ξ, ξ on the grid j / s, up with probability s |v| / N − j.
        who = (self.config.sampling.seed, member, 0, self.averages, 1 + replica)
        dice = np.random.default_rng(who).random(flat.size)
        steps = 2 ** (asked.bits - 1) - 1
        norm = L(np.float32(np.abs(flat).max()))
        if norm < np.abs(flat).max():
            norm = L(np.nextafter(np.float32(norm), np.float32(np.inf)))
        if norm == 0:
            return out.reshape(part.shape)
        ratio = steps * np.abs(flat) / norm
        level = np.minimum(np.floor(ratio), steps - 1)
        level = level + (dice < ratio - level)
        return (norm * np.sign(flat) * level / steps).reshape(part.shape)

    def _batches(self, part, replica):
        schedule, rows = self.config.schedule, part.stop - part.start
        order = Sampler("shuffle-once", self.config.sampling.seed, rows, replica)
        order, groups, first = order.order(0), [], 0
        for sizes in plan_groups(rows, schedule.batch, schedule.steps):
            ends = first + np.cumsum(sizes)
            rows_of = part.start + order[first : ends[-1]]
            groups.append(np.split(rows_of, np.cumsum(sizes)[:-1]))
            first = ends[-1]
        return groups

    def _walk(self, r, epoch, index):
        """The steps of one exchange; none where the replica has no more rows."""
        config, state = self.config, self.states[r]
        update = oracle.Update(config.update.kind, config.update.momentum)
        l2, steps = L(config.problem.l2), self.steps[r]
        mu = L(config.agreement.proximal)
        first = epoch * sum(steps) + sum(steps[:index])
        w, v, b, bv = (state[part] for part in PARTS)
        batches = self.batches[r][index] if index < len(self.batches[r]) else ()
        for step, rows in enumerate(batches, first):
            rate = self.rate(r, step)
            t = self.X[rows] @ update.point(w, v) + update.point(b, bv)
            res = oracle.residual(self.problem.family, t, self.y[rows])
            g = self.X[rows].T @ res / len(rows) + l2 * update.point(w, v)
            # ∇h(w; wᵗ) = ∇F(w) + μ (w − wᵗ), where the gradient is taken.
            gb = res.sum(axis=0) / len(rows)
            gb = gb + mu * (update.point(b, bv) - self.anchor["b"])
            g = g + mu * (update.point(w, v) - self.anchor["w"])
            w, v = update.step(w, v, g, rate)
            if config.problem.intercept:
                b, bv = update.step(b, bv, gb, rate)
        self.states[r] = {"w": w, "v": v, "b": b, "bv": bv}

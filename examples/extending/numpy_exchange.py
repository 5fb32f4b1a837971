"""A product on plain NumPy: s steps of SGD after one sum of G = Y Yᵀ and z = Y w."""

from types import SimpleNamespace

import numpy as np

from hpcsgd import PRODUCTS, RECIPES
from hpcsgd.errors import ConfigError
from hpcsgd.products.gram import Gram


class NumpyExchange:
    """Take s steps on the columns of one member (`hpcsgd.backends.task.Exchange`).

    The s batches Y_1, ..., Y_s are the rows of Y, one batch below the other. Members
    sum the blocks G_ji = Y_j Y_iᵀ of all i < j, and z = Y w. The steps need neither Y
    nor w, but the coefficients (lead, couple, ...) of `hpcsgd/glm/unrolling.py`:

        t_j = lead_j z_j + Σ_{i<j} couple_ji G_ji r_i + β        r_j = ∂ℓ/∂t (t_j, y_j)
        β   ← β + push_j Σ r_j             w ← carry w + Σ_j gain_j Y_jᵀ r_j
    """

    def __init__(self, task, blocks):
        self.task, self.blocks = task, blocks
        self.batches = list(map(slice, blocks.starts[:-1], blocks.starts[1:]))
        # Members sum one message: the blocks of G, and z behind them.
        self.message = np.empty(blocks.gram_words + blocks.rows, task.margin_dtype)
        self.z = self.message[blocks.gram_words :, None]

    def gram(self, j):
        """Return the blocks G_ji of all i < j side by side, in the message."""
        first, last = self.blocks.gram_starts[j : j + 2]
        return self.message[first:last].reshape(self.blocks.sizes[j], -1 if j else 0)

    def load(self, group):
        """Take the rows and the coefficients of this group next."""
        self.rows, self.coefficients = group.rows, group.coefficients.whole

    def attach(self, state):
        """Change the weights of this state."""
        self.state = state

    def sample(self):
        """Gather Y: the sampled rows, in the columns of this member."""
        self.Y = self.task.shard.matrix.take(self.rows)

    def products(self):
        """Compute this member's part of G and of z."""
        for j, batch in enumerate(self.batches):
            self.gram(j)[...] = self.Y[batch] @ self.Y[: batch.start].T
        self.z[...] = self.Y @ self.state.weights

    def messages(self, *names, travels=False):
        """Return what members sum: here G and z, in one message."""
        return [lambda: self.task.members.sum(self.message, "products")]

    def steps(self):
        """Compute the residuals r of all steps from G and z, and move the intercept."""
        c, intercept = self.coefficients, self.state.intercept
        y = self.task.shard.targets[self.rows]
        self.state.residuals = r = np.empty_like(self.z)
        for j, batch in enumerate(self.batches):
            couple = np.repeat(c.couple[j], self.blocks.sizes[:j])
            t = c.lead[j] * self.z[batch] + (couple * self.gram(j)) @ r[: batch.start]
            t += 0.0 if intercept is None else intercept
            r[batch] = self.task.family.residual(t, y[batch])
            if intercept is not None:
                intercept += c.push[j] * r[batch].sum()

    def update(self):
        """Apply all steps to the weights of this member's columns."""
        c, weights = self.coefficients, self.state.weights
        gain = np.repeat(c.gain, self.blocks.sizes, axis=0)
        weights[...] = c.carry * weights + self.Y.T @ (gain * self.state.residuals)

    def finish(self):
        """Do nothing: the state is up to date."""


class NumpyExchanges:
    """Make the exchanges of one member (`hpcsgd.backends.task.MemberExchanges`)."""

    device, gram_kernel = None, ""  # it computes on the host

    def __init__(self, task):
        self.task = task

    def exchange(self, blocks, number=0):
        """Return an exchange of batches of these sizes."""
        return NumpyExchange(self.task, blocks)

    def sequence(self, exchange, before, sums, after, once=False):
        """Return what runs the parts in their order."""
        parts = [*before, *sums, *after]
        return SimpleNamespace(run=lambda: [part() for part in parts])


class NumpyGram(Gram):
    """The product `gram` on these exchanges: `[products] kind = "numpy"`."""

    is_monitored = False  # a monitor reads more of an exchange than it has

    def __init__(self, task, exchanges):
        shard = task.shard
        others = shard.weights, shard.offsets, task.models, task.gradient_sink
        is_plain = task.states == task.columns == 1 and all(x is None for x in others)
        is_wide = task.precision in (RECIPES["fp32"], RECIPES["fp64"])
        is_array = shard.matrix.is_in_memory and not shard.is_sparse
        if not (is_plain and is_wide and is_array):
            raise ConfigError(
                "[products] kind = 'numpy' takes plain SGD, one score a row, fp32 or"
                " fp64, and dense rows without weights and offsets; use kind = 'gram'"
            )
        super().__init__(task, NumpyExchanges(task))


PRODUCTS["numpy"] = f"{__name__}:NumpyGram"

"""The s-step recurrence: its schedule and its coefficients, for one or many models."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cached_property, lru_cache

import numpy as np

from hpcsgd.formats import Array
from hpcsgd.glm.updates import LinearUpdate
from hpcsgd.settings import Settings, setting

# The s steps of one exchange, unrolled: every coefficient known before the loop.
#
# With Φ_{j,i} = M_{j−1} ··· M_i and Φ_{i,i} = I:
#
#     t_j    = Σ_k lead[j, k] (Y_j x_k) + Σ_{i<j} couple[j][i] G_ji r_i
#     lead_j = qᵀ Φ_{j,0}        couple_ji = qᵀ Φ_{j,i+1} u_i
#     x      ← Φ_{s,0} x + Σ_i Φ_{s,i+1} u_i Y_iᵀ r_i


@dataclass(frozen=True)
class UnrolledSteps:
    """Coefficients of the recurrence that computes s steps at once, in float64."""

    lead: Array  # (s, states)
    couple: tuple[Array, ...]  # couple[j] has j entries
    carry: Array  # Φ_{s,0}, (states, states)
    gain: Array  # Φ_{s,i+1} u_i, (s, states)
    free: Array  # M_k at λ = 0 for the intercept, (s, states, states)
    push: Array  # u_k, (s, states)
    probe: Array  # q, (states,)


def unroll(
    update: LinearUpdate, rates: Sequence[float], counts: Sequence[int], l2: float
) -> UnrolledSteps:
    """Return the coefficients of s steps: step j has `rates[j]` and `counts[j]` rows.

    The ridge penalty is λ = `l2`.
    """
    probe = update.probe()
    carry = np.eye(update.states)
    reach = np.empty((update.states, len(counts)))  # column i holds Φ_{j,i+1} u_i
    lead = []
    couple = []
    for j, (rate, count) in enumerate(zip(rates, counts, strict=True)):
        lead.append(probe @ carry)
        couple.append(probe @ reach[:, :j])
        step = update.transition(rate, l2)
        reach[:, :j] = step @ reach[:, :j]
        reach[:, j] = update.gain(rate, count)
        carry = step @ carry
    return UnrolledSteps(
        lead=np.array(lead),
        couple=tuple(couple),
        carry=carry,
        gain=reach.T.copy(),
        free=np.array([update.transition(rate, 0.0) for rate in rates]),
        push=np.array([update.gain(r, c) for r, c in zip(rates, counts, strict=True)]),
        probe=probe,
    )


def gradient_step(scale: float = 1.0) -> UnrolledSteps:
    """Return coefficients that make an update compute gradient ← gradient + Yᵀr.

    The rows Y are stored times `scale`. The gain is `scale`, since a backend divides
    updates of such rows by it. The step leaves the intercept unchanged, because
    replicas combine its gradient first.
    """
    one: Array = np.ones((1, 1))
    return UnrolledSteps(
        lead=one,
        couple=(np.empty(0),),
        carry=one,
        gain=scale * one,
        free=one[None],
        push=0.0 * one,
        probe=np.ones(1),
    )


@dataclass(frozen=True)
class PlainSteps:
    """Coefficients of s steps that are taken one after the other, in float64."""

    carry: Array  # M_k, (s, states, states)
    gain: Array  # u_k, (s, states)
    free: Array  # M_k at λ = 0 for the intercept, (s, states, states)
    probe: Array  # q, (states,)

    @property
    def states(self) -> int:
        """Return the number of states: 1 for w, 2 for (w, v), 3 for (w, w̃, μ̃)."""
        return len(self.probe)


def plain_steps(
    update: LinearUpdate, rates: Sequence[float], counts: Sequence[int], l2: float
) -> PlainSteps:
    """Return the coefficients of steps: step k has `rates[k]` and `counts[k]` rows.

    The ridge penalty is λ = `l2`. M_k and u_k are affine in the rate, whatever the
    update: their values at two rates determine all others.
    """
    each = np.asarray(rates, dtype=np.float64)
    inverse = 1.0 / np.asarray(counts, dtype=np.float64)
    gain = _affine(lambda rate: update.gain(rate, 1), each)
    return PlainSteps(
        carry=_affine(lambda rate: update.transition(rate, l2), each),
        gain=gain * inverse[:, None],
        free=_affine(lambda rate: update.transition(rate, 0.0), each),
        probe=update.probe(),
    )


def _affine(function: Callable[[float], Array], rates: Array) -> Array:
    """Return an affine `function` of the rate at all `rates`, along a first axis."""
    start = function(0.0)
    slope = function(1.0) - start
    values: Array = start + np.multiply.outer(rates, slope)
    return values


# Unrolling for several models at once, each with its own rates and penalty.
#
# Every coefficient has one more axis, the last, with one entry for each setting (λ and
# rates), or after `of` for each column of weights.


@dataclass(frozen=True)
class ManyUnrolledSteps(UnrolledSteps):
    """`UnrolledSteps` with a last axis for settings, or after `of` for weight columns.

    `probe` has no such axis.
    """

    @property
    def reads(self) -> int:
        """Return the number of states whose scores the steps combine.

        It is 1 if the scores that the steps take are combined by q already.
        """
        return int(self.lead.shape[1])

    def of(self, columns: Array) -> "ManyUnrolledSteps":
        """Return the entries `columns` of the last axis, which may repeat.

        `Models.setting_of` gives the setting of each column of weights.
        """
        parts = {f.name: getattr(self, f.name) for f in fields(self)}
        parts["couple"] = tuple(c[..., columns] for c in self.couple)
        for name in ("lead", "carry", "gain", "free", "push"):
            parts[name] = parts[name][..., columns]
        return ManyUnrolledSteps(**parts)


def unroll_many(
    update: LinearUpdate, rates: Array, counts: tuple[int, ...], l2: Array
) -> ManyUnrolledSteps:
    """Return the coefficients of s steps of several models at once.

    `rates` has a column for each setting, (s, settings), and `l2` has the λ of each.
    `counts` are the rows of each step.
    """
    states = update.states
    settings = len(l2)
    steps = _transitions(update, rates, l2)
    push = _gains(update, rates, np.array(counts, dtype=np.float64))
    probe = update.probe()
    carry = np.repeat(np.eye(states)[:, :, None], settings, axis=2)
    reach = np.empty((states, len(counts), settings))  # (·, i) holds Φ_{j,i+1} u_i
    lead = []
    couple = []
    for j, step in enumerate(steps):
        lead.append(np.tensordot(probe, carry, axes=1))
        couple.append(np.tensordot(probe, reach[:, :j], axes=1))
        reach[:, :j] = _times(step, reach[:, :j])
        reach[:, j] = push[j]
        carry = _times(step, carry)
    return ManyUnrolledSteps(
        lead=np.array(lead),
        couple=tuple(couple),
        carry=carry,
        gain=reach.swapaxes(0, 1).copy(),
        free=_transitions(update, rates, np.zeros(settings)),
        push=push,
        probe=probe,
    )


def one_step_many(
    update: LinearUpdate, rates: Array, count: int, l2: Array
) -> ManyUnrolledSteps:
    """Return the coefficients of one step, for scores that q has combined already.

    `rates` and `l2` have an entry for each setting; the batch has `count` rows.
    """
    step = unroll_many(update, rates[None], (count,), l2)
    parts = {f.name: getattr(step, f.name) for f in fields(step)}
    return ManyUnrolledSteps(**parts | {"lead": np.ones((1, 1, len(l2)))})


def _times(step: Array, states: Array) -> Array:
    """Return M x for every column: (a, b, k) and (b, i, k) give (a, i, k)."""
    if len(step) == 1:
        scaled_states: Array = step * states
        return scaled_states
    many: Array = np.einsum("abk,bik->aik", step, states)
    return many


def _transitions(update: LinearUpdate, rates: Array, l2: Array) -> Array:
    """Return M of every step, (s, states, states, settings).

    M is affine in the rate and in λ, whatever the update: four values determine all
    others.
    """
    none = update.transition(0.0, 0.0)
    rate = update.transition(1.0, 0.0)
    ridge = update.transition(0.0, 1.0)
    both = update.transition(1.0, 1.0)
    eta = rates[:, None, None, :]
    lam = np.broadcast_to(l2, rates.shape)[:, None, None]
    transitions: Array = (
        none[..., None]
        + eta * (rate - none)[..., None]
        + lam * (ridge - none)[..., None]
        + eta * lam * (both - rate - ridge + none)[..., None]
    )
    return transitions


def _gains(update: LinearUpdate, rates: Array, counts: Array) -> Array:
    """Return u of every step, (s, states, settings)."""
    start = update.gain(0.0, 1)
    slope = update.gain(1.0, 1) - start
    gains: Array = start[:, None] + rates[:, None, :] * slope[:, None]
    return gains / counts[:, None, None]


# The schedule: how much work lies between two synchronisations, and packed G.

MOST_ROWS = 2048  # of an exchange whose steps are automatic
OPEN_EPOCHS = 5  # of SGD before a refinement, if epochs are automatic


@dataclass(frozen=True)
class Schedule(Settings, section="schedule"):
    """The settings of a run's length: batch, steps, period and epochs.

    They are the rows b of a replica's step, the steps s of an exchange, the exchanges τ
    between agreements, and the passes over the rows.
    """

    batch: int = setting(
        32,
        "rows of one step, per replica; a larger batch means fewer steps in an epoch"
        " and less noise in each step",
        is_whole=True,
        at_least=1,
    )
    steps: int = setting(
        8,
        "SGD steps s of one exchange, or auto; more steps mean fewer messages and more"
        " arithmetic (batch x steps of 512 to 1024 rows is usual)",
        is_whole=True,
        at_least=1,
        auto=0,
    )
    period: int = setting(
        1,
        "exchanges between two agreements; a longer period lets replicas drift further"
        " apart",
        is_whole=True,
        at_least=1,
    )
    epochs: int = setting(
        1,
        "passes of each replica over its rows; auto (with a refinement) takes none if"
        " the rows are in memory or few passes of Newton's method suffice, else 5",
        is_whole=True,
        at_least=0,
        auto=-1,
    )

    @property
    def has_open_epochs(self) -> bool:
        """True where the size of the problem decides how many epochs there are."""
        return self.epochs < 0

    @property
    def most_epochs(self) -> int:
        """Return the epochs, or the most that they may become if they are automatic."""
        return OPEN_EPOCHS if self.has_open_epochs else self.epochs

    @property
    def most_steps(self) -> int:
        """Return s, or the most that it may become if it is automatic."""
        return self.steps or max(MOST_ROWS // self.batch, 1)


@dataclass(frozen=True)
class Blocks:
    """The s batches of one exchange: where each begins, and its place in packed G.

    Packed G is the strictly-lower block triangle, one block row after the other:
    block row j is the dense matrix Y_j (Y_0 .. Y_{j-1})ᵀ of b_j × start_j words,
    so a recurrence reads contiguous memory and nothing on or above the diagonal
    is computed, stored or sent.
    """

    sizes: tuple[int, ...]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """First row of each batch, and the number of rows m at the end."""
        starts = [0]
        for size in self.sizes:
            starts.append(starts[-1] + size)
        return tuple(starts)

    @cached_property
    def rows(self) -> int:
        """Number of rows of the exchange, m = Σ b_j."""
        return self.starts[-1]

    @cached_property
    def gram_starts(self) -> tuple[int, ...]:
        """First word of each block row of packed G, and the words of all of them."""
        starts = [0]
        for size, row in zip(self.sizes, self.starts[:-1], strict=True):
            starts.append(starts[-1] + size * row)
        return tuple(starts)

    @cached_property
    def gram_words(self) -> int:
        """Number of words of packed G, (m² − Σ b_j²) / 2.

        It is b² s (s−1) / 2 if all batches have b rows.
        """
        return self.gram_starts[-1]


@lru_cache(maxsize=256)
def blocks_of(sizes: tuple[int, ...]) -> Blocks:
    """Return the cached `Blocks` of these sizes; an epoch has two or three of them."""
    return Blocks(sizes)


def uniform_blocks(batch: int, steps: int) -> Blocks:
    """Return the `Blocks` of s batches of b rows each."""
    return blocks_of((batch,) * steps)

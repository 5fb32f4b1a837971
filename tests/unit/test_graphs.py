"""Graphs that mix: sums kept, all joined, and how fast disagreement shrinks."""

from itertools import pairwise

import numpy as np
import pytest

from hpcsgd.agreements.more.anybatch import ReplicaGraph, sigma_2
from hpcsgd.comm.threads import run_ranks

GRAPHS = [
    (kind, size)
    for kind in ("full", "ring", "rings", "matching")
    for size in (1, 2, 3, 4, 7)
] + [("0-1,1-2,2-3,1-3", 4), ("0-1,0-2,0-3,0-4,0-5,0-6", 7)]


@pytest.mark.parametrize("kind, size", GRAPHS)
def test_graphs_keep_sums_and_bring_together(kind, size):
    """Doubly stochastic; what differs shrinks by σ₂ at least."""
    graph, rng = ReplicaGraph(kind, size, seed=3), np.random.default_rng(0)
    y = rng.normal(size=(size, 5))
    for time in range(6):
        W = graph.at(time)
        assert W.min() >= 0 and np.allclose(W, W.T)
        np.testing.assert_allclose([W.sum(axis=0), W.sum(axis=1)], 1.0, atol=1e-15)
        after = W @ y
        np.testing.assert_allclose(after.sum(axis=0), y.sum(axis=0), atol=1e-12)
        apart = [np.linalg.norm(v - v.mean(axis=0)) for v in (y, after)]
        assert apart[1] <= sigma_2(W) * apart[0] + 1e-14
        for rank in range(size):
            row = graph.row(rank, time)
            assert list(row) == sorted(row) or rank in row
            assert row[rank] == W[rank, rank] and sum(row.values()) == pytest.approx(1)
        y = after
    if kind in ("ring", "rings") and size > 3:
        assert 0 < sigma_2(graph.at(0)) < 1


def test_graphs_over_time_join_all():
    for kind in ("rings", "matching"):
        for size in (2, 3, 4, 7):
            whole = np.eye(size)
            for time in range(60):
                whole = ReplicaGraph(kind, size).at(time) @ whole
            np.testing.assert_allclose(whole, 1 / size, atol=1e-3)


def test_rows_alone_that_sum_to_one_bias_the_mean():
    """The broken twin: a star whose centre listens to all alike, and they to it."""
    W = np.array([[0.25] * 4, [0.5, 0.5, 0, 0], [0.5, 0, 0.5, 0], [0.5, 0, 0, 0.5]])
    y = np.arange(4.0)
    assert np.allclose(W.sum(axis=1), 1.0)
    end = np.linalg.matrix_power(W, 200) @ y
    assert np.ptp(end) < 1e-12 and abs(end[0] - y.mean()) > 0.1
    from hpcsgd.agreements.more.anybatch import check_doubly_stochastic
    from hpcsgd.errors import ConfigError

    with pytest.raises(ConfigError, match="Metropolis"):
        check_doubly_stochastic(W)


def test_iterations_of_a_run_shrink_disagreement_by_sigma_2():
    """On ranks: parts in rank order, the sum of all kept to 1e-12."""
    from hpcsgd.agreements.more.anybatch import RoundMixer

    start = np.random.default_rng(1).normal(size=(7, 6))

    def on_rank(world):
        mixer, words = (
            RoundMixer(world, ReplicaGraph("ring", 7), 1, False),
            start[world.rank],
        )
        seen = [words.copy()]
        for number in range(9):
            mixer.mix(words, 0, number)
            seen.append(words.copy())
        return seen

    seen = np.array(run_ranks(7, on_rank))  # (R, iterations, words)
    apart = np.linalg.norm(seen - seen.mean(axis=0), axis=(0, 2))
    factor = sigma_2(ReplicaGraph("ring", 7).at(0))
    assert all(b <= factor * a * (1 + 1e-12) for a, b in pairwise(apart))
    sums = seen.sum(axis=0)
    np.testing.assert_allclose(sums, np.broadcast_to(sums[0], sums.shape), atol=1e-12)

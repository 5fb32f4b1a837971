"""Agreed gradients and every codec on real MPI ranks."""

from math import inf

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.comm.mpi import MpiCommunicator
from hpcsgd.data.shard import split_range
from tests.helpers.contracts.codec import NAMES, ROWS, coded
from tests.helpers.gradients import agreed
from tests.helpers.growing import expected, growing
from tests.helpers.harness import make_problem, relative_error, union_oracle
from tests.helpers.shapers import SHAPES
from tests.helpers.shapers import expected as shaped
from tests.ranks.counting import CountingComm


def hashes(comm, result):
    return set(comm.allgather((result.status.value, result.weights_sha256)))


@pytest.mark.cases(1)
@pytest.mark.ranks(2, 4)
def test_replicas_are_one_process_on_the_union(comm):
    problem = make_problem("softmax")
    for members in (1, 2) if comm.size == 4 else (1,):
        for sections in (
            {},
            {"agreement": {"accumulate": 2, "bucket": 2.0**-14}},
            {"update": {"kind": "nesterov"}, "problem": {"intercept": True}},
        ):
            config = agreed(problem, comm.size // members, members, **sections)
            world = MpiCommunicator(comm.Dup())
            result = train(config, X=problem.X, y=problem.y, world=world)
            assert relative_error(result, union_oracle(config, problem)) <= 1e-12
            assert len(hashes(comm, result)) == 1


HEADS = {"threshold": 1, "wangni": 3}  # counts ahead of a bucket, as flags are


@pytest.mark.ranks(2, 4)
def test_every_codec(comm):
    """The same bits on all ranks, members too; what MPI was asked for is booked."""
    problem = make_problem("softmax")
    for name in NAMES:
        for members in (1, 2) if comm.size == 4 else (1,):
            replicas = comm.size // members
            config = coded(problem, name, replicas, members, codec=ROWS[name].rough)
            proxy = CountingComm(comm.Dup())
            world = MpiCommunicator(proxy)
            result = train(config, X=problem.X, y=problem.y, world=world)
            assert len(hashes(comm, result)) == 1, name
            assert result.loss < result.history[0]["loss"], name
            if members == 1:
                said = sum(result.ledger[p]["words"] for p in ("agreement", "evaluate"))
                sent = result.exchanges * result.report["agreement"]["buckets"]
                asked = proxy.counts["words"] - proxy.flags["words"]
                assert asked == said - HEADS.get(name, 0) * sent, name


@pytest.mark.ranks(2, 4)
def test_rules_and_what_is_done_to_gradients(comm):
    """One process in longdouble, or the same bits on all ranks and a lower loss."""
    for name, (asked, restated) in SHAPES.items():
        problem = make_problem("softmax")
        config = agreed(problem, comm.size, update=asked, problem={"intercept": True})
        world = MpiCommunicator(comm.Dup())
        result = train(config, X=problem.X, y=problem.y, world=world)
        w, _, _ = shaped(config, problem, restated(config))
        assert abs(result.weights - w).max() <= 1e-12 * abs(w).max(), name
        assert len(hashes(comm, result)) == 1, name
    problem = make_problem("softmax", n=40, d=1100)
    for update in ({"kind": "adam", "bits": 8}, {"kind": "momentum", "bits": 8}):
        config = agreed(problem, comm.size, update=update, rate={"value": 0.02})
        world = MpiCommunicator(comm.Dup())
        result = train(config, X=problem.X, y=problem.y, world=world)
        assert len(hashes(comm, result)) == 1
        assert result.loss < result.history[0]["loss"]


@pytest.mark.ranks(2)
def test_the_ledger_agrees_with_what_mpi_was_asked(comm):
    problem = make_problem("softmax")
    proxy = CountingComm(comm.Dup())
    config = agreed(problem, 2, agreement={"bucket": 2.0**-13})
    result = train(config, X=problem.X, y=problem.y, world=MpiCommunicator(proxy))
    said = sum(result.ledger[p]["words"] for p in ("agreement", "evaluate"))
    assert proxy.counts["words"] == said + proxy.flags["words"]


@pytest.mark.ranks(2, 4)
def test_batches_grow_on_all_ranks_at_once(comm):
    """The same bits, one way or the other; steps as on threads."""
    problem = make_problem("softmax")
    for members in (1, 2) if comm.size == 4 else (1,):
        replicas = comm.size // members
        config = growing(problem, replicas, members)
        world = MpiCommunicator(comm.Dup())
        result = train(config, X=problem.X, y=problem.y, world=world)
        assert relative_error(result, expected(config, problem, replicas, 2)) <= 1e-12
        assert len(hashes(comm, result)) == 1
        said = result.report["agreement"]
        assert said["small_steps"] and said["large_steps"]


@pytest.mark.ranks(2, 4)
def test_bytes_of_codecs_that_change_their_ways(comm):
    """What MPI was asked for: two phases of bytes, and the mixture of two modes."""
    problem = make_problem("softmax")
    world = MpiCommunicator(comm.Dup())
    config = coded(problem, "bytegrad", comm.size)
    result = train(config, X=problem.X, y=problem.y, world=world)
    buckets = result.report["agreement"]["buckets"]
    words = [
        4 * (p.stop - p.start)
        for p in (split_range(7, buckets, k) for k in range(buckets))
    ]
    each = sum((comm.size + 1) * (-(-w // comm.size) + 8) for w in words)
    assert result.ledger["agreement"]["bytes"] == (each + 40) * result.exchanges
    turned = {"low": "share=0.5", "high": "share=0.2", "eta": inf, "interval": 1}
    turned["codec"] = "topk"
    said = {}
    for settings in (
        {"accordion": turned},
        {"share": 0.5},
        {"share": 0.2},
    ):
        name = "accordion" if "accordion" in settings else "topk"
        config = coded(
            problem,
            name,
            comm.size,
            codec={**settings, "dense": "never"},
            schedule={"batch": 4, "steps": 1, "epochs": 4},
        )
        world = MpiCommunicator(comm.Dup())
        result = train(config, X=problem.X, y=problem.y, world=world)
        said[settings.get("share", name)] = result.ledger["agreement"]["bytes"]
    mixed = (said[0.5] + said[0.2]) // 2  # two epochs of each
    assert said["accordion"] == mixed + 4 * buckets * 3


@pytest.mark.ranks(4)
def test_dgc_clips_a_replica_alike_on_both_grids(comm):
    """2×2, and 2×1 twice: the norm is that of all columns of a replica."""
    problem, weights = make_problem("softmax"), []
    for members, color in ((2, 0), (1, comm.rank // 2)):
        world = MpiCommunicator(comm.Split(color, comm.rank))
        config = coded(problem, "dgc", 2, members, codec={"share": 1.0, "clip": 0.02})
        result = train(config, X=problem.X, y=problem.y, world=world)
        weights.append(result.weights)
    np.testing.assert_allclose(weights[0], weights[1], 0, 1e-12)

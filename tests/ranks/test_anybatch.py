"""Rounds of any batch on real MPI ranks."""

import time

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.comm.mpi import MpiCommunicator
from hpcsgd.products.direct import Direct
from tests.helpers.anybatch import MAPS, any_batch, restated, script
from tests.helpers.harness import make_problem, relative_error
from tests.ranks.counting import CountingComm


def run(comm, config, problem):
    return train(config, X=problem.X, y=problem.y, world=MpiCommunicator(comm))


@pytest.mark.full
@pytest.mark.cases(1)
@pytest.mark.ranks(2, 4)
def test_every_map_on_every_graph(comm, tmp_path):
    """By a script, members too: the restatement, and the same bits on all ranks."""
    problem = make_problem("softmax")
    folder = comm.bcast(str(tmp_path))
    for members in (1, 2) if comm.size == 4 else (1,):
        replicas = comm.size // members
        chunks = np.random.default_rng(replicas).integers(0, 4, size=(replicas, 8))
        chunks[:, 1] = 0
        if comm.rank == 0:
            script(tmp_path, chunks)
        comm.Barrier()
        for name, graph in zip(
            MAPS, ("full", "ring", "matching", "rings", "full"), strict=True
        ):
            config = any_batch(
                problem,
                replicas,
                members,
                problem={"intercept": True},
                mirror=MAPS[name],
                agreement={
                    "accumulate": 3,
                    "replay": folder,
                    "graph": graph,
                    "mixing": 2,
                },
            )
            result = run(comm.Dup(), config, problem)
            done = chunks[:, : result.exchanges]
            _, mean, bias = restated(config, problem, done)
            assert relative_error(result, (mean, bias)) <= 1e-12, name
            assert len(set(comm.allgather(result.weights_sha256))) == 1
            assert result.report["agreement"]["rounds"]["chunks"] == done.tolist()


@pytest.mark.ranks(2, 4)
def test_a_slow_rank_takes_fewer_chunks_and_nobody_waits_for_them(comm, monkeypatch):
    """Rank 1 sleeps through more than half of the deadline in every chunk."""
    problem = make_problem("logistic", n=120 * comm.size)
    if comm.rank == 1:
        advance = Direct.advance

        def slow(self, state, group, upcoming):
            time.sleep(0.09)
            return advance(self, state, group, upcoming)

        monkeypatch.setattr(Direct, "advance", slow)
    config = any_batch(
        problem,
        comm.size,
        agreement={
            "rounds": "clock",
            "deadline": 0.15,
            "accumulate": 10,
            "graph": "ring",
        },
    )
    result = run(comm.Dup(), config, problem)
    chunks = np.array(result.report["agreement"]["rounds"]["chunks"])
    assert result.status.value == "completed"
    assert chunks[1].min() >= 1 and chunks[1].max() <= 2
    others = np.delete(chunks, 1, axis=0)
    assert np.median(others) >= 2.5 * np.median(chunks[1])
    rows = result.report["agreement"]["rows_by_replica"]
    assert rows == (4 * chunks.sum(axis=1)).tolist()


@pytest.mark.ranks(2, 4)
def test_the_ledger_agrees_with_what_mpi_was_asked(comm):
    """Swaps with neighbours, and the mean at the end and where it is judged."""
    problem = make_problem("softmax")
    proxy = CountingComm(comm.Dup())
    config = any_batch(problem, comm.size, agreement={"graph": "ring"})
    result = run(proxy, config, problem)
    degree = min(comm.size - 1, 2)
    words = result.ledger["agreement"]["words"]
    assert words == result.exchanges * degree * 29 + 29
    assert result.ledger["agreement"]["bytes"] == 8 * words
    others = result.ledger["evaluate"]["words"] + 2  # and how far replicas were apart
    assert proxy.counts["words"] == words + others + proxy.flags["words"]

"""`fit` on real MPI ranks: what each of them has, on communicators of mpi4py."""

import sys

import numpy as np
import pytest
from scipy.sparse import csr_array

import hpcsgd
from hpcsgd.comm.mpi import MpiCommunicator
from hpcsgd.errors import DataError, HpcsgdError
from tests.helpers.problems import make_problem

PROBLEM = make_problem("logistic", n=61, d=11)
PLAIN = {"epochs": 2, "steps": 3, "batch": 4}


def part(total, size, rank):
    """Unequal shares: the first rank has most; with three ranks one has no row."""
    cuts = {1: [0, total], 2: [0, total - 4, total]}
    edges = cuts.get(size, [0, total - 4, total - 4, total])
    return slice(edges[rank], edges[rank + 1])


def columns(size, rank):
    edges = {1: [0, 11], 2: [0, 2, 11], 3: [0, 2, 10, 11]}[size]
    return slice(edges[rank], edges[rank + 1])


def whole(X):
    return hpcsgd.fit(X, "logistic", PROBLEM.y, sample_weight=PROBLEM.weights, **PLAIN)


def fits(X, comm):
    """The fit in every layout."""
    y, c = PROBLEM.y, PROBLEM.weights
    options = PLAIN | {"comm": comm}
    yield hpcsgd.fit(X, "logistic", y, sample_weight=c, **options)
    own = part(61, comm.size, comm.rank)
    sides = {"y": y[own], "sample_weight": c[own]}
    yield hpcsgd.fit(X[own], "logistic", layout="rows", **sides, **options)
    mine = X[:, columns(comm.size, comm.rank)]
    sides = {"y": y, "sample_weight": c} if comm.rank == 0 else {}
    yield hpcsgd.fit(mine, "logistic", layout="columns", **sides, **options)


@pytest.mark.ranks(2, 3)
def test_every_layout_is_the_same_model_on_all_ranks(comm):
    for X in (PROBLEM.X, csr_array(PROBLEM.X * (np.abs(PROBLEM.X) > 0.3))):
        expected = whole(X)
        for result in fits(X, comm):
            assert len(set(comm.allgather(result.weights_sha256))) == 1
            assert len(set(comm.allgather(result.loss))) == 1
            np.testing.assert_allclose(result.weights, expected.weights, rtol=1e-6)
            assert (
                result.report["data_fingerprint"]
                == (expected.report["data_fingerprint"])
            )
            assert result.report["ranks"] == comm.size


@pytest.mark.ranks(3)
def test_some_of_the_ranks_fit_while_others_do_not(comm):
    """A communicator that two of the three are in, and comm=None beside it."""
    apart = comm.Split(int(comm.rank == 2), comm.rank)
    if comm.rank == 2:
        result = whole(PROBLEM.X)
        assert result.report["ranks"] == 1
    else:
        result = hpcsgd.fit(PROBLEM.X, "logistic", PROBLEM.y, comm=apart, **PLAIN)
        assert result.report["ranks"] == 2
    apart.Free()
    assert comm.allreduce(1) == 3


class Dealt:
    """A communicator that counts the words of its unequal pieces."""

    def __init__(self, comm):
        self.comm, self.words = comm, []

    def __getattr__(self, name):
        return getattr(self.comm, name)

    def Alltoallv(self, sent, taken):
        self.words.append(sent[0].size)
        self.comm.Alltoallv(sent, taken)


@pytest.mark.ranks(3)
def test_the_ledger_has_what_mpi_was_asked_for(comm):
    """61 rows of 11 columns travel, each once, and the ledger knows of it."""
    proxy = Dealt(comm.Dup())
    own = part(61, comm.size, comm.rank)
    result = hpcsgd.fit(
        PROBLEM.X[own],
        "logistic",
        PROBLEM.y[own],
        layout="rows",
        comm=MpiCommunicator(proxy),
        polish=False,
        **PLAIN,
    )
    assert proxy.words == [11 * (own.stop - own.start)]
    assert sum(comm.allgather(proxy.words[0])) == 61 * 11
    # Rank 0 reports its own ledger; others have theirs.
    assert result.ledger["control"]["words"] > proxy.words[0] + 61


@pytest.mark.ranks(2)
def test_an_error_of_one_rank_is_that_of_all(comm):
    X = PROBLEM.X.copy()
    X[0, 0] = np.nan if comm.rank == 0 else X[0, 0]
    for layout, y in (("rows", PROBLEM.y), ("columns", PROBLEM.y[comm.rank :])):
        with pytest.raises(DataError):
            hpcsgd.fit(X, "logistic", y, layout=layout, comm=comm, **PLAIN)
    assert comm.allreduce(1) == comm.size
    assert "mpi4py" in sys.modules


class Counted:
    """A communicator that counts those that come of it and are not freed."""

    def __init__(self, comm, tally):
        self.comm, self.tally = comm, tally

    def __getattr__(self, name):
        return getattr(self.comm, name)

    def __bool__(self):
        return bool(self.comm)

    def Split(self, *key):
        self.tally["open"] += 1
        return Counted(self.comm.Split(*key), self.tally)

    def Dup(self):
        self.tally["open"] += 1
        return Counted(self.comm.Dup(), self.tally)

    def Free(self):
        self.tally["open"] -= 1
        self.comm.Free()


HUGE = {"X": PROBLEM.X * 1e200}  # found where the rate is looked for
REFUSED = ({"y": -PROBLEM.y - 1.0, "family": "poisson"}, HUGE, {"family": "none"})


@pytest.mark.ranks(2)
@pytest.mark.parametrize("more", [{}, {"l1_ratio": 0.5}], ids=["steps", "coordinates"])
def test_what_is_refused_leaves_nothing_open(comm, more):
    """An MPI has some two thousand communicators, and a search may have as many fits.

    Where all ranks refuse alike the caller's program goes on, with what it had.
    """
    tally = {"open": 0}
    for world in (Counted(comm, tally), MpiCommunicator(Counted(comm, tally))):
        for wrong in REFUSED:
            given = {"X": PROBLEM.X, "family": "gaussian", "y": PROBLEM.y, **wrong}
            if more and wrong is HUGE:
                continue  # coordinates have no rate
            with pytest.raises(HpcsgdError) as raised:
                hpcsgd.fit(
                    given["X"], given["family"], given["y"], comm=world, **PLAIN, **more
                )
            assert raised.value.on_all_ranks
            assert tally["open"] == 0
    assert comm.allreduce(1) == comm.size


@pytest.mark.ranks(2, 3)
def test_a_summary_opens_the_rows_of_every_layout_again(comm):
    """The communicator of a fit is closed behind it, and opened by the summary."""
    y, c = PROBLEM.y, PROBLEM.weights
    options = {"alpha": 0.0, "tol": 1e-10}
    alone = hpcsgd.fit(PROBLEM.X, "logistic", y, sample_weight=c, **options)
    expected = alone.summary(covariance="sandwich")
    own = part(61, comm.size, comm.rank)
    mine = PROBLEM.X[:, columns(comm.size, comm.rank)]
    for X, rows, layout in (
        (PROBLEM.X, slice(None), "replicated"),
        (PROBLEM.X[own], own, "rows"),
        (mine, slice(None), "columns"),
    ):
        there = {"comm": comm, "layout": layout}
        sides = {"y": y[rows], "sample_weight": c[rows]}
        result = hpcsgd.fit(X, "logistic", **sides, **there, **options)
        summary = result.summary(covariance="sandwich")
        assert len(set(comm.allgather(summary.covariance.tobytes()))) == 1
        np.testing.assert_allclose(summary.covariance, expected.covariance, rtol=1e-6)

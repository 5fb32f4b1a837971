"""Sparse problems with every kind of row that is awkward."""

from dataclasses import replace

import numpy as np
from scipy.sparse import csr_array

from tests.helpers.problems import make_problem


def make_sparse(family, n=53, d=17, density=0.2, seed=0):
    """(sparse, dense): one problem in two storages.

    An empty row, an empty column, a dense row, two equal rows, and zeros that are
    stored; X is a scipy.sparse.csr_array in the first.
    """
    drawn = make_problem(family, n, d, seed)
    rng = np.random.default_rng([seed, n, d, 1])
    X = np.where(rng.uniform(size=drawn.X.shape) < density, drawn.X, 0.0)
    X[5], X[:, 3], X[10] = 0.0, 0.0, X[9]
    X[7] = drawn.X[7]
    return replace(drawn, X=as_csr(X, {(0, 0), (5, 2)})), replace(drawn, X=X)


def as_csr(X, kept=()):
    """X as CSR; the places `kept` are stored whatever they hold."""
    stored = X != 0
    for place in kept:
        stored[place] = True
    indptr = np.concatenate([[0], np.cumsum(stored.sum(axis=1))])
    return csr_array((X[stored], np.nonzero(stored)[1], indptr), shape=X.shape)

"""Whole runs over sparse rows, on a device that is the emulation."""

from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.backends.cuda import exchange, sequences
from hpcsgd.data.matrix import Csr
from hpcsgd.errors import ConfigError
from hpcsgd.runs.result import Status
from tests.helpers.harness import oracle_for, relative_error, train_on
from tests.helpers.kernels.runs import FAMILIES, UPDATES, on_gpu
from tests.helpers.sparse import as_csr, make_sparse

SIDES = {"intercept": True, "l2": 0.01}
TWICE = {"epochs": 2}  # in the first exchange scores are 0 whatever kernels do
# One score a row, and many.
KERNELS = (
    {"csr_margin", "recurrence", "csr_update"},
    {"csr_margins_columns", "softmax", "csr_update_columns"},
)
KINDS = [*((name, "gram") for name in FAMILIES), ("logistic", "direct")]


@pytest.mark.cases(2)
@pytest.mark.parametrize("family, kind", [*KINDS, ("softmax", "direct")])
def test_iterates_are_those_of_sgd(devices, family, kind):
    """Rows without a value, a column without one, zeros that are stored."""
    stored, dense = make_sparse(family, n=37, d=37)
    sections = {"problem": SIDES, "products": {"kind": kind}, "schedule": TWICE}
    config = on_gpu(stored, **sections)
    found = train_on(1, config, stored, weights=True, offset=True)
    assert found.status is Status.COMPLETED and found.report["sparse"]
    exact = oracle_for(config, dense, weights=True, offset=True)
    assert relative_error(found, exact) <= 2e-5
    launched = KERNELS[family == "softmax"] | {"sample"}
    launched |= {"csr_gram"} if kind == "gram" else set()
    assert set(devices[0].launched) == launched


@pytest.mark.parametrize("kind, members", [("gram", 1), ("gram", 2), ("direct", 3)])
@pytest.mark.parametrize("family", ["logistic", "softmax"])
@pytest.mark.parametrize("update", UPDATES)
def test_momentum(devices, update, family, kind, members):
    stored, dense = make_sparse(family, n=37, d=37)
    sections = {"update": {"kind": update, "momentum": 0.8}, "problem": SIDES}
    config = on_gpu(stored, products={"kind": kind}, schedule=TWICE, **sections)
    found = train_on(members, config, stored, weights=True)
    exact = oracle_for(config, dense, weights=True)
    assert relative_error(found, exact) <= 2e-5


@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize("recipe, kind", [("fp32", "gram"), ("c", "direct")])
def test_members_sum_as_on_the_host(devices, members, recipe, kind):
    """The same rounding of rows and margins: off by the order of sums alone."""
    stored, _ = make_sparse("logistic", n=37, d=100)
    sections = {"precision": {"recipe": recipe}, "products": {"kind": kind}}
    near = 2e-6 if recipe == "fp32" else 2e-4  # a margin may round the other way
    agree_with_the_host(stored, members, near, **sections)


def test_columns_of_a_member_may_hold_nothing(devices):
    """Those of the second and the third."""
    stored, dense = make_sparse("logistic", n=37, d=36)
    X = dense.X.copy()
    X[:, 12:] = 0.0
    sections = {"data": {"partition": "equal"}, "precision": {"recipe": "c"}}
    agree_with_the_host(replace(stored, X=as_csr(X)), 3, 2e-4, **sections)


@pytest.mark.cases(1)
@pytest.mark.parametrize("recipe", ["fp32", "c"])
def test_columns_may_have_numbers_of_64_bits(devices, monkeypatch, recipe):
    """What is sent goes in pieces."""
    put = exchange.put_csr

    def put_wide(device, matrix, *rest):
        wide = matrix.indices.astype(np.int64)
        return put(device, Csr(matrix.indptr, wide, matrix.data, matrix.width), *rest)

    monkeypatch.setattr(sequences, "put_csr", put_wide)
    monkeypatch.setattr(exchange, "PIECE", 40)
    stored, _ = make_sparse("logistic", n=37, d=100)
    agree_with_the_host(stored, 2, 2e-4, precision={"recipe": recipe})


@pytest.mark.cases(1)
@pytest.mark.parametrize("form", ["fp16", "fp8-e4m3"])
@pytest.mark.parametrize("scale", ["column", "global"])
def test_rows_that_are_stored_times_a_power_of_two(devices, form, scale):
    """Sparse rows have one exponent for all columns, whatever `scale` says."""
    stored, dense = make_sparse("logistic", n=37, d=37)
    X = dense.X * 2.0**-7 * np.where(np.arange(37) % 2, 1.0, 9.0)
    precision = {"recipe": "fp32", "matrix": form, "scale": scale}
    rate = {"value": stored.rate * 2.0**10}
    problem = replace(stored, X=as_csr(X))
    agree_with_the_host(problem, 2, 1e-5, precision=precision, rate=rate)


def agree_with_the_host(problem, members, near, **sections):
    """Weights and loss of a run on either."""
    sections = {"products": {"kind": "gram"}, "schedule": TWICE, **sections}
    here = on_gpu(problem, **sections, run={"device": "cpu"})
    here = train_on(members, here, problem)
    there = train_on(members, on_gpu(problem, **sections), problem)
    size = np.abs(here.weights).max()
    assert np.abs(here.weights - there.weights).max() <= near * size
    assert there.loss == pytest.approx(here.loss, rel=max(near, 1e-5))


@pytest.mark.parametrize("kind", ["gather", "gather-once"])
def test_sparse_rows_are_not_gathered(devices, kind):
    stored, _ = make_sparse("logistic", n=37)
    once = {"sampling": {"mode": "shuffle-once"}, "products": {"kind": kind}}
    with pytest.raises(ConfigError, match="sparse rows .*kind = 'gram', or"):
        train_on(2, on_gpu(stored, **once), stored)
    free = {**once, "products": {"kind": "auto"}}
    assert train_on(2, on_gpu(stored, **free), stored).report["products"] == "gram"

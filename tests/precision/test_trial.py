"""The exchange in lock step is the one that ranks make: the same bits."""

from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.backends import make_backend
from hpcsgd.backends.base import ColumnExponents
from hpcsgd.backends.emulated import RoundedBackend
from hpcsgd.backends.exchange import HostExchanges
from hpcsgd.backends.task import ExchangeCoefficients, Group, State, Task
from hpcsgd.comm.ledger import Clock
from hpcsgd.comm.threads import run_ranks
from hpcsgd.data.matrix import DenseMatrix
from hpcsgd.data.shard import Shard
from hpcsgd.formats import get_format
from hpcsgd.glm import make_update
from hpcsgd.precision import RECIPES, make_precision
from hpcsgd.products.gram import Gram
from hpcsgd.tuning.pilots import perform, with_one_field
from tests.precision import draws

MIXED = {
    "matrix": "fp8-e4m3",
    "margin": "fp16",
    "gram_sum": "bf16",
    "inner": "tf32",
    "gradient_sum": "fp16",
    "weights": "bf16",
}


def by_ranks(exchange, precision):
    """w⁺ of the real product on thread ranks, one a member."""

    def on_rank(world):
        part = exchange.parts[world.rank]
        backend, kind = make_backend(precision), precision.working
        form = get_format(precision.matrix)
        if form.wants_scale:
            backend.scaling = ColumnExponents(form, exchange.exponents, part)
        if isinstance(backend, RoundedBackend) and backend.loss_scale:
            backend.loss_scale.value = exchange.loss_scale
        columns = exchange.before.shape[1]
        batch = exchange.batch
        shard = Shard(
            DenseMatrix(backend.store(np.ascontiguousarray(exchange.rows[:, part]))),
            *(
                None if values is None else values.astype(kind)
                for values in (batch.targets, batch.weights, batch.offsets)
            ),
            rows=slice(0, len(exchange.rows)),
            columns=part,
            parts=exchange.parts,
            total_rows=len(exchange.rows),
        )
        task = Task(
            *(shard, backend, world, exchange.family, precision),
            *(columns, 1, np.ones(1), Clock()),
        )
        weights = backend.zeros((shard.width, columns))
        weights[...] = exchange.before[part]
        beta = exchange.intercept
        state = State(weights, None if beta is None else beta[None].copy())
        coefficients = ExchangeCoefficients(
            *(make_update("sgd", 0.0), exchange.steps.l2, backend),
            *(list(exchange.steps.rates), exchange.steps.sizes),
        )
        order = np.arange(len(exchange.rows))
        group = Group(0, 0, order, coefficients, order, first=0)
        return Gram(task, HostExchanges(task)).advance(state, group, None).weights

    return np.concatenate(run_ranks(len(exchange.parts), on_rank))


@pytest.mark.parametrize("family", draws.FAMILIES)
@pytest.mark.parametrize(
    "precision",
    [
        *(RECIPES[name] for name in ("fp64", "fp32", "c", "fp8")),
        make_precision("fp64", MIXED),
        make_precision("fp32", MIXED),
        with_one_field("residual", "fp16"),
        with_one_field("gram_wire", "fp32"),
        with_one_field("gram_wire", "bf16"),
        with_one_field("gram_wire", "fp8-e4m3"),
        with_one_field("margin_sum", "bf16"),
        *(RECIPES[name] for name in ("d", "bf16")),
    ],
    ids=str,
)
def test_lock_step_and_ranks_agree_bit_for_bit(precision, family):
    for members in (1, 2, 4):
        drawn = draws.draw_exchange(members, (40, 4, 8), family, l2=0.05)
        drawn = replace(drawn, parts=draws.parts_of(drawn.rows.shape[1], members))
        drawn = draws.held(draws.scaled_for(drawn, "fp8-e4m3"), "bf16")
        np.testing.assert_array_equal(
            perform(drawn, precision).after, by_ranks(drawn, precision)
        )

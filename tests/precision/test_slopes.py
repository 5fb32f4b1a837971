"""How errors grow with steps and members, and what the documents say of it."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import bench_precision as bench
from hpcsgd.precision import FIELDS
from hpcsgd.tuning.bound import term
from hpcsgd.tuning.pilots import with_one_field

PAGE = Path(__file__).parents[2] / "docs" / "trust" / "precision.md"


@pytest.fixture(scope="module")
def grown():
    """Exponents of s and of C, over fewer draws than the benchmark takes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench, "DRAWS", 6)
        patch.setattr(bench, "STEPS_TRIED", (2, 6, 16))
        patch.setattr(bench, "MEMBERS_TRIED", (2, 5, 12))
        return {varied: bench.slopes(varied) for varied in ("s", "C")}


@pytest.mark.cases(2)
@pytest.mark.parametrize("field", ["gram_sum", "gram_wire", "gradient_sum"])
def test_sums_over_the_rows_of_an_exchange_err_more_with_more_steps(grown, field):
    error, said = grown["s"][field]
    assert error > 0.15 and said > 0.5


def test_the_bound_of_the_correction_grows_with_steps(grown):
    assert grown["s"]["inner"][1] > 0.3


@pytest.mark.parametrize("field", ["matrix", "margin", "residual"])
def test_what_is_rounded_once_does_not_grow(grown, field):
    assert abs(grown["s"][field][0]) < 0.3
    for slope in grown["C"][field]:
        assert abs(slope) < 0.02


def test_two_roundings_are_two_whatever_the_members(grown):
    """Only the parts that cancel grow in the bound; accumulators get shorter."""
    error, said = grown["C"]["gram_wire"]
    assert abs(error) < 0.25 and 0.1 < said < 0.6
    for field in ("margin_sum", "gram_sum"):
        assert max(grown["C"][field]) < -0.1


def test_a_sum_that_rounds_each_addition_grows_with_members():
    """κ = C − 1 of a wide format; the narrow one rounds twice."""
    said = []
    for members in (2, 4, 8):
        exchange = bench.make_exchange(0, 4, 4, 64, members)
        said.append(term(exchange, with_one_field("gram_wire", "fp32"), "gram_wire"))
    growth = np.diff(np.log([one.absolute for one in said])) / np.log(2)
    assert (growth > 0.6).all()


def test_low_weights_lose_small_updates(grown):
    """Relative to the update, which grows with s."""
    assert max(grown["s"]["weights"]) < -0.2


def test_the_page_shows_what_was_measured():
    figures = json.loads(bench.RESULTS.read_text())["figures"]
    page = PAGE.read_text()
    for table in bench.tables(figures).strip().split("\n\n"):
        assert table in page
    ratio, _, steps, _ = figures
    assert tuple(ratio["fields"]) == tuple(steps["fields"]) == FIELDS

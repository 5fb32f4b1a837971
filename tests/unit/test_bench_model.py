"""What `make bench-model` makes of its rows: shares, medians, and who is behind."""

import pytest

from benchmarks import bench_model
from hpcsgd.tuning.tuner import PROBED


def row(ranks, chosen, *pairs):
    every = [{"predicted": p, "measured": m} for p, m in pairs]
    return {"ranks": ranks, "chosen": every[chosen], "all": every}


def test_shares_are_of_settings_and_of_choices():
    found = bench_model.summed(
        [
            row(1, 0, (1.0, 1.0), (1.2, 1.0), (0.5, 1.5)),
            row(2, 1, (1.0, 1.0), (1.3, 1.5)),
        ]
    )
    assert found["settings"] == 5 and found["choices"] == 2
    assert found["predicted_within_25_percent"] == pytest.approx(4 / 5)
    assert found["choices_within_10_percent"] == pytest.approx(1 / 2)
    assert found["worst_choice"] == pytest.approx(0.5)
    assert found["by_ranks"]["2"]["choices_within_10_percent"] == 0.0
    assert "80 % of 5 settings" in bench_model.in_words(found)


def test_nothing_that_is_judged_was_fitted():
    assert not set(bench_model.JUDGED) & set(PROBED)
    counted = len(bench_model.SHAPES) * (1 + 2 * len(bench_model.NETWORKS))
    assert counted * len(bench_model.JUDGED) >= 30
    assert len(bench_model.SHAPES) == 5 and len(bench_model.NETWORKS) == 3

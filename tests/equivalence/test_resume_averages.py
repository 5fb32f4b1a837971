"""Runs that were interrupted between two agreements go on bit for bit."""

import numpy as np
import pytest

from hpcsgd.agreements.slowmo import SlowMo
from tests.helpers.averages import CHANGING, ROWS, SLOW, config_of
from tests.helpers.harness import make_problem
from tests.helpers.resumed import interrupted, losses, run

MOMENTUM = {"update": {"kind": "momentum", "momentum": 0.6}}


def sections_of(row, members, replicas=4, **sections):
    """What `config_of` makes, as the sections that a resumed run takes."""
    problem = make_problem("softmax", n=117, d=7)
    tables = {"schedule": {"epochs": 3}, "products": {"kind": "gram"}, **sections}
    config = config_of(problem, row, replicas, members, **tables)
    kept = config.tables()
    del kept["run"]
    return problem, kept


def check(again, whole):
    assert {r.weights_sha256 for r in again} == {whole.weights_sha256}
    assert losses(again[0]) == losses(whole)
    assert again[0].iterations == whole.iterations
    rows = [[record["rows"] for record in r.history] for r in (again[0], whole)]
    assert rows[0] == rows[1]
    for figure in ("calls", "words", "bytes"):
        entries = [r.ledger["agreement"][figure] for r in (again[0], whole)]
        assert entries[0] == entries[1]


@pytest.mark.cases(3)
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(
    "members, momentum, at", [(1, "keep", 3), (1, "keep", 8), (2, "average", 4)]
)
def test_at_any_moment(row, members, momentum, at, tmp_path):
    """Right after an agreement of all, after one of pairs, and between two."""
    more = {**MOMENTUM, "agreement": {"momentum": momentum}}
    problem, sections = sections_of(row, members, **more)
    ranks = 4 * members
    whole = run(ranks, problem, tmp_path / "whole", **sections)[0]
    assert whole.exchanges == 12
    again = interrupted(ranks, problem, tmp_path / "parts", at, **sections)
    check(again, whole)


@pytest.mark.parametrize("row", SLOW)
@pytest.mark.parametrize("rate", ["inverse", "cosine"])
@pytest.mark.parametrize("at", [5, 6])
def test_under_a_rate_that_falls(row, rate, at, tmp_path):
    """Slow momentum goes on at the rate that it was saved at."""
    problem, sections = sections_of(row, 1, rate=CHANGING[rate])
    whole = run(4, problem, tmp_path / "whole", **sections)[0]
    again = interrupted(4, problem, tmp_path / "parts", at, **sections)
    check(again, whole)


@pytest.mark.parametrize("row", ["slowmo", "sharded"])
def test_slow_state_is_saved(row, tmp_path, monkeypatch):
    """Without it a run goes elsewhere: what is tested above can fail."""
    problem, sections = sections_of(row, 1)
    whole = run(4, problem, tmp_path / "whole", **sections)[0]
    monkeypatch.setattr(SlowMo, "remember", lambda *_: None)
    again = interrupted(4, problem, tmp_path / "parts", 4, **sections)[0]
    assert again.weights_sha256 != whole.weights_sha256


@pytest.mark.cases(2)
@pytest.mark.parametrize("replicas, members", [(2, 2), (1, 1), (4, 1)])
def test_slow_state_in_parts_goes_to_other_grids(replicas, members, tmp_path):
    """Three replicas agree and stop; others go on from their one state."""
    slow = {"agreement": {"slow_rate": 1.0}, "schedule": {"epochs": 2, "period": 1}}
    problem, sections = sections_of("sharded", 1, 3, **slow)
    each = run(3, problem, tmp_path / "whole", **sections)[0].exchanges // 2
    run(3, problem, tmp_path / "parts", stop_at=each, **sections)
    grid = {"replicas": replicas, "members": members}
    found = {}
    for sharded in (True, False):
        # The same checkpoint, read as parts and as one array on each replica.
        found[sharded] = _goes_on(problem, tmp_path, sections, grid, sharded)
    np.testing.assert_array_equal(found[True].weights, found[False].weights)


def _goes_on(problem, folder, sections, grid, sharded):
    from unittest.mock import patch

    from hpcsgd.runs import resume

    asked = {**sections["agreement"], "slow_sharded": sharded}
    later = {**sections, "grid": grid, "agreement": asked}
    fixed = tuple(name for name in resume.FIXED if name != "agreement")
    with patch.object(resume, "FIXED", fixed):
        return run(
            *(grid["replicas"] * grid["members"], problem, folder / f"to-{sharded}"),
            resume=str(folder / "parts"),
            **later,
        )[0]

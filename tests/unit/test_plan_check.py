"""Ranks that were told different things are told so before they exchange anything."""

import pytest

from hpcsgd.agreements import Gradient
from hpcsgd.agreements.base import check_same, hash_of
from hpcsgd.api import train
from hpcsgd.comm.threads import run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from tests.helpers.gradients import agreed
from tests.helpers.harness import make_problem

PROBLEM = make_problem("softmax")


def outcomes(ranks, action):
    """What each rank ends with: what it has, or its sentence."""

    def on_rank(world):
        try:
            return action(world)
        except ConfigError as error:
            assert error.on_all_ranks
            return str(error)

    return run_ranks(ranks, on_rank)


def trained(ranks, odd, other, **sections):
    """All ranks of a run in which rank `odd` was given other settings."""
    grid = (ranks // 2, 2) if ranks == 4 else (ranks, 1)
    config = agreed(PROBLEM, *grid, **sections)
    tables = config.tables()
    for setting, value in other.items():
        section, key = setting.split(".")
        tables[section][key] = value
    own = RunConfig.parse(tables)

    def on_rank(world):
        asked = own if world.rank == odd else config
        return train(asked, X=PROBLEM.X, y=PROBLEM.y, world=world)

    return outcomes(ranks, on_rank)


TOPK = {"agreement": {"codec": "topk"}}
LOCAL = {"agreement": {"kind": "hierarchical"}}
LOCAL |= {"schedule": {"period": 4}}
DIFFERENT = [
    ("agreement.bucket", 1e-4, {}, "agreement.bucket is 4.0 on rank 0 and 0.0001 on"),
    ("agreement.accumulate", 2, {}, "agreement.accumulate is 1 on rank 0 and 2 on"),
    ("agreement.codec", "bf16", {}, "agreement.codec is 'identity' on rank 0 and 'b"),
    ("codec.share", 0.5, TOPK, "codec.share is 0.0 on rank 0 and 0.5 on"),
    ("sampling.seed", 1, TOPK, "sampling.seed is 0 on rank 0 and 1 on"),
    ("schedule.period", 8, {"agreement": {"kind": "average"}}, "schedule.period is 1"),
    ("agreement.kind", "average", {}, "agreement.kind is 'gradient' on rank 0 and 'av"),
    ("agreement.periods", "1,4", LOCAL, "agreement.periods is '' on rank 0 and '1,4'"),
    ("schedule.batch", 5, {}, "schedule.batch is 4 on rank 0 and 5 on"),
    ("update.kind", "coordinate", {}, "update.kind is 'sgd' on rank 0 and 'coord"),
    ("checkpoint.every", 3, {}, "checkpoint.every"),
    ("run.threads", 2, {}, "run.threads is 1 on rank 0 and 2 on"),
    ("run.check_every", 3, {}, "run.check_every is 64 on rank 0 and 3 on"),
]


@pytest.mark.parametrize("ranks", [3, 4])
@pytest.mark.parametrize(
    "setting, value, sections, words", DIFFERENT, ids=lambda x: str(x)[:24]
)
def test_settings_that_differ_are_named_on_all_ranks(
    ranks, setting, value, sections, words
):
    odd = ranks - 2
    said = trained(ranks, odd, {setting: value}, **sections)
    assert len(set(said)) == 1, said
    assert said[0].startswith(words), said[0]
    assert said[0].endswith(f"on rank {odd}; give all ranks the same")


def test_what_a_rank_uses_of_its_own_machine_may_differ():
    said = trained(3, 1, {"run.memory": 4.0, "data.path": "there"})
    assert len({result.weights_sha256 for result in said}) == 1


@pytest.mark.parametrize("ranks", [3, 4])
def test_plans_that_differ_are_named_though_settings_agree(ranks, monkeypatch):
    """As a fault of the package would have it: one more bucket on one rank."""
    prepare = Gradient.prepare

    def otherwise(self, state):
        if self.grid.world.rank == ranks - 1:
            self.tile_count = lambda columns, itemsize: 2
        prepare(self, state)

    monkeypatch.setattr(Gradient, "prepare", otherwise)
    said = trained(ranks, None, {})
    assert len(set(said)) == 1, said
    last, all_of = (2, "0:7") if ranks == 3 else (1, "0:3")
    cut = "4:7 0:4" if ranks == 3 else "2:3 0:2"
    assert said[0] == (
        f"buckets is {all_of} on replica 0 and {cut} on replica {last};"
        " give all ranks the same"
    )


def test_what_it_costs():
    """Two words of control for the settings and three for the plan; no agreement."""

    def action(world):
        counts = []
        for said in ({"a": "1"}, {"a": "1", "b": "2"}):
            check_same(world, said)
            entry = world.ledger.entries["control"]
            counts.append((entry.calls, entry.words, entry.bytes))
        return counts, world.ledger.entries["agreement"].calls

    for counts, agreements in run_ranks(3, action):
        assert counts == [(2, 2, 16), (4, 4, 32)] and agreements == 0
    assert run_ranks(1, action)[0][0] == [(0, 0, 0)] * 2


def test_a_hash_is_of_what_is_said_and_not_of_its_order():
    assert hash_of({"a": "1", "b": "2"}) == hash_of({"b": "2", "a": "1"})
    assert hash_of({"a": "1"}) != hash_of({"a": "2"}) != hash_of({"b": "2"})


def test_a_name_that_one_rank_alone_says():
    def action(world):
        said = {"a": "1"} if world.rank < 2 else {"a": "1", "b": "2"}
        check_same(world, said)

    said = outcomes(3, action)
    assert set(said) == {"b is None on rank 0 and 2 on rank 2; give all ranks the same"}

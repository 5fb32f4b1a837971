"""direct, gather, gather-once and cached on a device: whole runs on the emulation."""

from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.errors import ConfigError
from hpcsgd.runs import settle
from hpcsgd.runs.result import Status
from tests.helpers.harness import make_problem, oracle_for, relative_error, train_on
from tests.helpers.kernels.fake_device import FakeDevice
from tests.helpers.kernels.runs import FAMILIES, UPDATES, on_gpu

KINDS = ("direct", "gather", "gather-once", "cached")
ONE_SCORE = FAMILIES[:-1]


def of_kind(kind, problem, /, **sections):
    """A run of three epochs whose rows come again."""
    tables = {
        "products": {"kind": kind},
        "schedule": {"epochs": 3},
        "sampling": {"mode": "shuffle-once"},
        "problem": {"intercept": True, "l2": 0.01},
        **sections,
    }
    return on_gpu(problem, **tables)


def on_host(config):
    return replace(config, run=replace(config.run, device="cpu"))


def both(members, config, problem, **data):
    """The same run there and on the host, with their distance from the oracle."""
    there = train_on(members, config, problem, **data)
    here = train_on(members, on_host(config), problem, **data)
    exact = oracle_for(config, problem, **data)
    assert there.status is Status.COMPLETED
    assert relative_error(there, exact) <= 2e-5
    size = np.abs(here.weights).max()
    assert np.abs(here.weights - there.weights).max() <= 4e-6 * size
    return there, here


@pytest.mark.cases(2)
@pytest.mark.parametrize("family", ONE_SCORE)
@pytest.mark.parametrize("kind, members", [("direct", 1), ("gather", 2)])
def test_every_family(devices, kind, members, family):
    problem = make_problem(family, n=37, d=37)
    data = {"weights": True, "offset": True}
    both(members, of_kind(kind, problem), problem, **data)
    kernel = {"direct": "direct_steps", "gather": "gather_steps"}[kind]
    assert kernel in devices[0].launched and "update" not in devices[0].launched


@pytest.mark.cases(2)
@pytest.mark.parametrize("weights, offset", [(True, True), (False, False)])
@pytest.mark.parametrize("members", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_members_say_what_they_say_on_the_host(devices, kind, members, weights, offset):
    """As many collectives, of as many words and bytes; weights to rounding."""
    problem = make_problem("logistic", n=101, d=13)
    own = {"problem": {"intercept": offset, "l2": 0.01}}
    data = {"weights": weights, "offset": offset}
    there, here = both(members, of_kind(kind, problem, **own), problem, **data)
    said = [one.ledger["products"] for one in (there, here)]
    assert (said[0]["calls"] > 0) == (members > 1)
    # Whole tiles of the Gram travel between GPUs.
    for name in ("calls",) if kind == "cached" else ("calls", "words", "bytes"):
        assert said[0][name] == said[1][name]


def test_later_epochs_of_cached_sum_margins_alone(devices):
    problem = make_problem("logistic", n=37, d=13)
    words = []
    for epochs in (1, 2, 3):
        config = of_kind("cached", problem, schedule={"epochs": epochs})
        words.append(train_on(2, config, problem).ledger["products"]["words"])
    assert words[2] - words[1] == words[1] - words[0] == 37


@pytest.mark.parametrize("recipe, members", [("c", 1), ("d", 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_recipes(devices, kind, recipe, members):
    """Rows travel as they are stored, margins are rounded as on the host."""
    problem = make_problem("logistic", n=37, d=37)
    config = of_kind(kind, problem, precision={"recipe": recipe})
    there = train_on(members, config, problem)
    here = train_on(members, on_host(config), problem)
    assert there.status is here.status is Status.COMPLETED
    size = np.abs(here.weights).max()
    assert np.abs(here.weights - there.weights).max() <= 2e-4 * size
    assert members > 1 or "pack_rows" not in devices[0].launched
    if members > 1 and kind.startswith("gather"):
        said = [one.ledger["products"] for one in (there, here)]
        for name in ("calls", "words", "bytes"):
            assert said[0][name] == said[1][name]


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", KINDS)
def test_margins_are_rounded_as_on_the_host(devices, kind):
    """Nearer to the host's run that rounds them than to the one that does not."""
    problem = make_problem("logistic", n=37, d=37)
    config = of_kind(kind, problem, precision={"recipe": "c"})
    wide = of_kind(kind, problem, precision={"recipe": "c", "margin": "fp32"})
    runs = (config, on_host(config), on_host(wide))
    there, here, other = (train_on(2, one, problem).weights for one in runs)
    one = train_on(1, config, problem).weights
    for found in (there, one):
        off = np.abs(found - here).max()
        assert off < 0.2 * np.abs(found - other).max()


@pytest.mark.cases(1)
@pytest.mark.parametrize("form, members", [("fp16", 1), ("fp8-e4m3", 2)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_matrix_that_is_stored_times_a_power_of_two(devices, form, kind, members):
    problem = make_problem("logistic", n=101, d=37)
    precision = {"recipe": "fp32", "matrix": form, "scale": "global"}
    config = of_kind(kind, problem, precision=precision)
    there = train_on(members, config, problem)
    here = train_on(members, on_host(config), problem)
    assert there.status is here.status is Status.COMPLETED
    size = np.abs(here.weights).max()
    assert np.abs(here.weights - there.weights).max() <= 1e-5 * size
    size = np.abs(here.intercept).max()
    assert np.abs(here.intercept - there.intercept).max() <= 1e-5 * size


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("kind", ["gather", "gather-once", "cached"])
@pytest.mark.parametrize(
    "family, update", [("softmax", "sgd"), ("logistic", "nesterov")]
)
def test_classes_and_momentum_are_taken_step_by_step(
    devices, family, update, kind, members
):
    problem = make_problem(family, n=37, d=13)
    own = {"update": {"kind": update, "momentum": 0.8}} if update in UPDATES else {}
    both(members, of_kind(kind, problem, **own), problem, weights=True)
    assert "direct_steps" not in devices[0].launched


@pytest.mark.parametrize(
    "kind, graphs, grams", [("direct", 2, 0), ("gather-once", 2, 0), ("cached", 4, 4)]
)
def test_exchanges_that_come_again_are_one_launch(devices, kind, graphs, grams):
    """Whatever their rates: what is launched does not grow with the epochs.

    Exchanges of 32, 32, 32 and 5 rows; those of cached have each a Gram of its own.
    """
    problem = make_problem("logistic", n=101, d=13)
    rate = {"value": problem.rate, "kind": "inverse", "decay": 0.1}
    counts = []
    for epochs in (4, 6):
        config = of_kind(kind, problem, rate=rate, schedule={"epochs": epochs})
        both(1, config, problem)
        device = devices[-1]
        assert device.captured == graphs
        # A batch alone, that of 5 rows, has no Gram.
        assert device.launched.count("gram") == max(grams - 1, 0)
        counts.append(len(device.launched))
    assert counts[0] == counts[1]


def test_later_epochs_of_gather_once_are_one_launch(devices):
    """Two members: one graph for all exchanges of a size, and no message."""
    problem = make_problem("logistic", n=101, d=13)
    counts = []
    for epochs in (3, 5):
        config = of_kind("gather-once", problem, schedule={"epochs": epochs})
        found = train_on(2, config, problem)
        assert found.ledger["products"]["calls"] == 4
        counts.append((len(devices[-1].launched), devices[-1].captured))
    assert counts[0] == counts[1] and counts[0][1] == 2


@pytest.mark.cases(2)
@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_goes_on_has_the_same_bits(devices, tmp_path, kind, members):
    """And says as much as one that goes on on the host."""
    problem = make_problem("logistic", n=101, d=13)
    whole = train_on(members, of_kind(kind, problem), problem)
    again = {}
    for device in ("cuda", "cpu"):
        run = {"out": str(tmp_path / device), "resume": "auto", "device": device}
        short = of_kind(kind, problem, run=run, schedule={"epochs": 2})
        train_on(members, short, problem)
        again[device] = train_on(members, of_kind(kind, problem, run=run), problem)
    assert np.array_equal(again["cuda"].weights, whole.weights)
    said = [again[device].ledger["products"]["calls"] for device in ("cuda", "cpu")]
    assert said[0] == said[1]


@pytest.mark.parametrize("kind", ["gather", "gather-once"])
def test_wide_rows_are_taken_by_many_blocks(devices, kind, monkeypatch):
    monkeypatch.setattr("hpcsgd.backends.cuda.exchange.ONE_BLOCK", 100)
    problem = make_problem("logistic", n=37, d=137)
    both(2, of_kind(kind, problem), problem)
    assert "gather_steps" not in devices[0].launched
    assert "direct_steps" in devices[0].launched


@pytest.mark.parametrize("d, at_once", [(13, True), (137, False)])
def test_ranks_that_share_a_gpu_wait_for_no_blocks(devices, d, at_once):
    """Those of one rank could have no room beside those of others that wait."""
    problem = make_problem("logistic", n=37, d=d)
    run = {"device": "cuda", "share_gpus": True}
    both(1, of_kind("direct", problem, run=run), problem)
    assert ("direct_steps" in devices[0].launched) == at_once


@pytest.mark.parametrize("kind, room", [("cached", "zeros"), ("gather-once", "empty")])
def test_what_does_not_fit_is_refused_with_what_does(devices, monkeypatch, kind, room):
    """The first array that is kept beside the buffers finds no room."""
    problem = make_problem("logistic", n=37, d=13)
    kept = {"gather-once": (37, 16), "cached": (64 * 64 + 32,)}[kind]
    before, made = getattr(FakeDevice, room), []

    def small(self, shape, dtype):
        made.append(shape)
        # Of cached, one is the message of all.
        if shape == kept and made.count(kept) > (kind == "cached"):
            raise ConfigError("the GPU has no room for 1.00 GiB more; use more members")
        return before(self, shape, dtype)

    monkeypatch.setattr(FakeDevice, room, small)
    with pytest.raises(ConfigError, match=f"'{kind}' cannot .*; or use kind = 'g"):
        train_on(1 + (kind != "cached"), of_kind(kind, problem), problem)


@pytest.mark.parametrize("members", [1, 2])
@pytest.mark.parametrize("mode", ["shuffle-once", "reshuffle"])
def test_auto_runs_what_it_chose(devices, monkeypatch, members, mode):
    """Whatever it is by the figures, it has the bits of that product by name."""
    chosen = []
    choose = settle.choose_on_gpu

    def noting(*given):
        chosen.append(choose(*given).product)
        return choose(*given)

    monkeypatch.setattr("hpcsgd.runs.settle.choose_on_gpu", noting)
    problem = make_problem("logistic", n=37, d=13)
    how = {"sampling": {"mode": mode}}
    found = train_on(members, of_kind("auto", problem, **how), problem)
    (kind,) = set(chosen)
    named = train_on(members, of_kind(kind, problem, **how), problem)
    assert np.array_equal(found.weights, named.weights)
    assert kind not in ("cached", "gather-once") or mode == "shuffle-once"

"""Steps that the host takes: those of zero2, or one gradient late."""

import threading
from dataclasses import replace

import numpy as np
import pytest

from hpcsgd.agreements.more.offload import Offload
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.glm.updates import Adam
from tests.helpers.contracts.codec import heterogeneous, on_all
from tests.helpers.gradients import in_folder
from tests.helpers.harness import make_problem, train_on
from tests.helpers.offload import late
from tests.helpers.zero import offloaded, own_words, sliced


def test_without_delay_it_is_zero2():
    """To the bit: the host's slices take the same operations."""
    for kind in ("momentum", "adam"):
        problem = make_problem("softmax")
        for replicas, members in ((1, 1), (3, 1), (2, 2)):
            update = {"update": {"kind": kind}}
            plain = train_on(
                replicas * members,
                sliced(problem, 2, replicas, members, **update),
                problem,
            )
            for delay in (-1, 10**6):
                config = offloaded(problem, replicas, members, delay=delay, **update)
                results = on_all(replicas * members, config, problem)
                assert {r.weights_sha256 for r in results} == {plain.weights_sha256}
                assert results[0].intercept.tolist() == plain.intercept.tolist()


@pytest.mark.parametrize("kind", ["sgd", "momentum", "adam"])
@pytest.mark.parametrize("delay", [0, 3, 9])
def test_a_delay_is_the_recurrence(kind, delay):
    """From the first exchange, from amid, and of the last one alone; members too."""
    problem = make_problem("logistic")
    for replicas, members in ((1, 1), (3, 1), (7, 1), (2, 2)):
        config = offloaded(
            problem,
            replicas,
            members,
            delay=delay,
            update={"kind": kind, "momentum": 0.5},
            rate={"kind": "cosine", "warmup": 3},
            schedule={"batch": 3},
        )
        results = on_all(replicas * members, config, problem)
        assert len({r.weights_sha256 for r in results}) == 1
        w, b = late(config, problem)
        np.testing.assert_allclose(results[0].weights, w, 0, 1e-13)
        np.testing.assert_allclose(results[0].intercept, b, 0, 1e-13)


def test_batches_that_travel_together_are_one_late_gradient():
    problem = make_problem("logistic")
    config = offloaded(problem, 3, delay=1, agreement={"accumulate": 3})
    w, b = late(config, problem)
    result = train_on(3, config, problem)
    np.testing.assert_allclose(result.weights, w, 0, 1e-13)
    np.testing.assert_allclose(result.intercept, b, 0, 1e-13)


def test_a_step_that_is_not_late_is_another():
    """The broken twin: the gradient at once, or the last one forgotten."""
    problem = make_problem("logistic")
    config = offloaded(problem, 3, delay=0)
    w, _ = late(config, problem)
    plain = train_on(3, offloaded(problem, 3), problem)
    assert np.abs(plain.weights - w).max() > 1e-5


def test_the_last_gradient_is_taken(monkeypatch):
    problem = make_problem("logistic")
    config = offloaded(problem, 3, delay=0)
    w, _ = late(config, problem)
    monkeypatch.setattr(Offload, "settle", lambda *_: None)
    result = train_on(3, config, problem)
    assert np.abs(result.weights - w).max() > 1e-3


def test_losses_are_of_all_gradients():
    """A loss amid a run counts the gradient that is late; at the end it is the same."""
    problem = make_problem("logistic")
    config = offloaded(problem, 3, delay=0, run={"evaluate_every": 1})
    result = train_on(3, config, problem)
    half = replace(config, schedule=replace(config.schedule, epochs=1))
    assert result.history[1]["loss"] == train_on(3, half, problem).loss
    assert result.history[-1]["loss"] == result.loss
    for asked, loss in ((half, result.history[1]["loss"]), (config, result.loss)):
        w, b = late(asked, problem)
        scores = problem.X @ w + b
        seen = np.mean(np.logaddexp(0.0, scores) - (problem.y > 0) * scores)
        assert loss == pytest.approx(seen + config.problem.l2 / 2 * w @ w, rel=1e-12)


@pytest.mark.parametrize("columns, replicas", [(7, 3), (13, 4)])
def test_every_byte_between_device_and_host_is_counted(columns, replicas):
    """b D/R down and b D/R up in each step, the own slices and nothing else."""
    problem = make_problem("softmax", d=columns)
    tiles, width = -(-columns // 2), problem.classes
    for delay in (-1, 2):
        config = offloaded(problem, replicas, delay=delay)
        results = on_all(replicas, config, problem)
        down = up = 0
        for replica, result in enumerate(results):
            said = result.report["agreement"]
            own = 8 * own_words(columns, width, tiles, replicas, replica)
            assert said["down_bytes"] == said["up_bytes"] == own * result.exchanges
            down, up = down + said["down_bytes"], up + said["up_bytes"]
        assert down == up == 8 * columns * width * results[0].exchanges
        plain = train_on(replicas, sliced(problem, 2, replicas), problem)
        for figure in ("calls", "words", "bytes"):  # the network as in zero2
            found = [r.ledger["agreement"][figure] for r in (results[0], plain)]
            assert found[0] == found[1]


@pytest.mark.cases(2)
@pytest.mark.parametrize("kind", ["momentum", "adam"])
@pytest.mark.parametrize("delay", [-1, 2, 4])
def test_a_run_goes_on_bit_for_bit(delay, kind, tmp_path):
    """The gradient that is late, and its Σr, are in the checkpoint."""
    problem = make_problem("softmax")
    for replicas, members in ((3, 1), (2, 2)):
        config = offloaded(
            problem, replicas, members, delay=delay, update={"kind": kind}
        )
        ranks, place = replicas * members, tmp_path / f"{replicas}"
        whole = in_folder(place / "whole", config, ranks, problem)[0]
        in_folder(place / "parts", config, ranks, problem, stop=4)
        again = in_folder(place / "parts", config, ranks, problem)
        assert {r.weights_sha256 for r in again} == {whole.weights_sha256}
        assert again[0].intercept.tolist() == whole.intercept.tolist()


def test_without_the_gradient_that_is_late_it_goes_elsewhere(tmp_path, monkeypatch):
    problem = make_problem("softmax")
    config = offloaded(problem, 3, delay=0)
    whole = in_folder(tmp_path / "whole", config, 3, problem)[0]
    in_folder(tmp_path / "parts", config, 3, problem, stop=4)
    monkeypatch.setattr(Offload, "remember", lambda *_: None)
    again = in_folder(tmp_path / "parts", config, 3, problem)[0]
    assert np.abs(again.weights - whole.weights).max() > 1e-4


def test_a_late_gradient_goes_to_other_replicas(tmp_path):
    """Four stop after an epoch; 1, 3 and 8 go on from what they had."""
    problem = make_problem("softmax", n=64)
    for replicas in (1, 3, 8):
        found = []
        for tiles in (2, 100):
            place, more = tmp_path / f"{replicas}-{tiles}", {"bucket": tiles * 1e-4}
            asked = {"delay": 0, "update": {"kind": "adam"}, "agreement": more}
            in_folder(place, offloaded(problem, 4, **asked), 4, problem, stop=4)
            config = offloaded(problem, replicas, **asked)
            result = in_folder(place, config, replicas, problem)[0]
            assert result.status.value == "completed"
            found.append(result.weights)
        np.testing.assert_allclose(*found, 0, 1e-12)


@pytest.mark.full
def test_a_delay_halves_the_stable_rates():
    """On a scalar with L = 1: z² − z + ηL = 0 leaves the unit circle at 1."""
    scalar = make_problem("gaussian", n=2, d=1)
    scalar = replace(scalar, X=np.ones((2, 1)), y=np.full(2, 3.0))
    for delay, rate, epochs in ((0, 0.99, 800), (0, 1.01, 800), (-1, 1.01, 9)):
        config = offloaded(
            scalar,
            2,
            delay=delay,
            problem={"intercept": False, "l2": 0.0},
            schedule={"batch": 1, "epochs": epochs},
            rate={"value": rate},
            run={"fall_back": False},
        )
        result = train_on(2, config, scalar)
        error = abs(result.weights[0] - 3.0)
        if (delay, rate) == (0, 1.01):
            assert error > 30.0 or result.status.value == "diverged"
        else:
            assert error < 0.1


@pytest.mark.full
def test_the_optimum_of_the_worst_shards():
    """Half of 1/L with a delay: 10⁻¹⁰ of the least objective, as without."""
    X, y, least, slope = heterogeneous()
    problem = replace(make_problem("logistic", n=len(X), d=X.shape[1]), X=X, y=y)
    config = offloaded(
        problem,
        4,
        delay=40,
        problem={"intercept": False},
        schedule={"batch": 30, "epochs": 500},
        rate={"value": float(0.5 / slope)},
        agreement={"bucket": 4.0},
    )
    assert train_on(4, config, problem).loss / least - 1 < 1e-10


def test_a_rate_that_is_left_open_is_half_as_large():
    problem = make_problem("logistic")
    found = [
        train_on(
            2, offloaded(problem, 2, delay=delay, rate={"value": "auto"}), problem
        ).config["rate"]["value"]
        for delay in (-1, 0)
    ]
    assert found[1] == pytest.approx(found[0] / 2, rel=0.01)


def test_a_rate_that_blows_up_ends_on_all_ranks():
    problem = make_problem("gaussian")
    config = offloaded(
        problem,
        3,
        delay=1,
        rate={"value": 1e200},
        schedule={"epochs": 6},
        run={"check_every": 1, "fall_back": False, "evaluate_every": 1},
    )
    results = on_all(3, config, problem)
    assert {r.status.value for r in results} == {"diverged"}


def test_an_error_of_the_host_is_raised():
    """It does not die unseen in a thread."""
    from hpcsgd.agreements.more.offload import Worker

    worker = Worker()
    with pytest.raises(ZeroDivisionError):
        worker.wait(worker.give(lambda: 1 / 0))
    worker.close()


def test_no_thread_outlives_a_run_that_fails(monkeypatch):
    def fails(*_):
        raise MemoryError

    problem = make_problem("logistic", n=11, d=5)
    monkeypatch.setattr(Adam, "step", fails)
    with pytest.raises(MemoryError):
        train_on(2, offloaded(problem, 2, update={"kind": "adam"}), problem)
    names = [thread.name for thread in threading.enumerate()]
    assert not [name for name in names if name.startswith("hpcsgd-offload")]


REFUSED = [
    ({"agreement": {"stage": 3}}, "leave agreement.stage out"),
    ({"agreement": {"kind": "gradient", "delay_after": 3}}, "use --method offload"),
    ({"agreement": {"kind": "average", "delay_after": 3}}, "use --method offload"),
    ({"agreement": {"delay_after": -2}}, "-1 for never"),
]


@pytest.mark.parametrize("sections, said", REFUSED)
def test_what_is_refused(sections, said):
    problem = make_problem("logistic")
    with pytest.raises(ConfigError, match=said):
        train_on(2, offloaded(problem, 2, **sections), problem)


def test_the_method_is_these_settings():
    config = RunConfig.parse({"agreement": {"method": "offload", "delay_after": 40}})
    assert (config.agreement.kind, config.agreement.delay_after) == ("offload", 40)

"""From several replicas with a codec to one, and back: what was owed is paid."""

import numpy as np
import pytest

from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.glm import updates
from hpcsgd.glm.updates import EightBitArray
from hpcsgd.runs.checkpoint import read_checkpoint
from tests.helpers.contracts.codec import coded
from tests.helpers.gradients import in_folder
from tests.helpers.harness import make_problem, oracle, replica_batches


def on(config, replicas):
    tables = config.tables()
    tables["grid"] = {"replicas": replicas, "members": 1}
    return RunConfig.parse(tables)


def saved(folder):
    (path,) = (folder / "checkpoints").glob("*.h5")
    return read_checkpoint(path).arrays


PLAIN = {"intercept": False}


def left_alone(folder, config, problem):
    """Half of a run by two, what they saved, and its other half by one."""
    each = len(replica_batches(config, len(problem.X), 2, 0)) // 2
    in_folder(folder, config, 2, problem, stop=each)
    arrays, alone = saved(folder), on(config, 1)
    result = in_folder(folder, alone, 1, problem)[0]
    batches = replica_batches(alone, len(problem.X), 1, 0)
    return arrays, result, batches[len(batches) // 2 :]


def gradient(config, problem, rows, w):
    score, y = problem.X[rows] @ w, problem.y[rows].reshape(-1, 1)
    r = oracle.residual("logistic", score, y)
    return problem.X[rows].T @ r / len(rows) + config.problem.l2 * w


@pytest.mark.parametrize("name", ["topk", "sign"])
def test_one_replica_begins_with_what_all_had_not_sent(tmp_path, name):
    """w ← w − mean e, then the steps of one process."""
    problem = make_problem("logistic")
    codec = {"share": 0.2} if name == "topk" else {}
    config = coded(problem, name, 2, codec=codec, problem=PLAIN)
    arrays, result, batches = left_alone(tmp_path, config, problem)
    owed = arrays["memory_codec_error"].mean(axis=0)
    assert np.abs(owed).max() > 1e-4
    w = (arrays["weights"][0] - owed)[:, :1].astype(np.longdouble)
    for rows in batches:
        w = w - config.rate.value * gradient(config, problem, rows, w)
    assert np.abs(result.weights - w[:, 0]).max() < 1e-12


@pytest.mark.parametrize("nesterov", [False, True])
def test_one_replica_takes_what_dgc_had_not_sent(tmp_path, nesterov):
    """v, and what the momenta of all would have moved it by without end."""
    problem, m = make_problem("logistic"), 0.5
    codec = {"share": 0.2, "momentum": m, "nesterov": nesterov}
    config = coded(problem, "dgc", 2, codec=codec, problem=PLAIN)
    arrays, result, batches = left_alone(tmp_path, config, problem)
    u, v = (
        arrays[f"memory_codec_{k}"].mean(axis=0).astype(np.longdouble)
        for k in ("momentum", "velocity")
    )
    owed = v + sum(m ** (k + nesterov) * u for k in range(1, 80))
    assert np.abs(owed - v).max() > 1e-4 and np.abs(v).max() > 1e-4
    w = arrays["weights"][0].astype(np.longdouble) - config.rate.value * owed
    for rows in batches:
        w = w - config.rate.value * gradient(config, problem, rows, w)
    assert np.abs(result.weights - w[:, 0]).max() < 1e-12


def test_an_unsent_gradient_moves_the_velocity_of_one_replica(tmp_path):
    """v ← μ v + e/η comes to e / (1 − μ) in the end, as it would have done."""
    problem = make_problem("logistic")
    config = coded(
        problem,
        "topk",
        2,
        codec={"share": 0.2},
        problem=PLAIN,
        update={"kind": "momentum", "momentum": 0.5},
    )
    arrays, result, batches = left_alone(tmp_path, config, problem)
    owed = arrays["memory_codec_error"].mean(axis=0).astype(np.longdouble)
    rate = config.rate.value
    w, v = (arrays["weights"][0][:, k : k + 1].astype(np.longdouble) for k in (0, 1))
    w, v = w - owed, v + owed / rate
    for rows in batches:
        v = 0.5 * v + gradient(config, problem, rows, w)
        w = w - rate * v
    assert np.abs(owed).max() > 1e-4
    assert np.abs(result.weights - w[:, 0]).max() < 1e-12


@pytest.mark.parametrize("kind", ["adam", "adagrad"])
def test_an_unsent_gradient_is_part_of_the_next_one_of_other_rules(tmp_path, kind):
    """g + e/η, once: what a codec would have said, had it said all."""
    problem = make_problem("logistic")
    update = {"kind": kind, "epsilon": 1e-3}
    config = coded(
        problem, "topk", 2, codec={"share": 0.2}, problem=PLAIN, update=update
    )
    arrays, result, batches = left_alone(tmp_path, config, problem)
    debt = arrays["memory_codec_error"].mean(axis=0).astype(np.longdouble)
    names = ["memory_adam_m", "memory_adam_v"] if kind == "adam" else []
    kept = [arrays[n][0].astype(np.longdouble) for n in names]
    kept = kept or [
        arrays[n][0].astype(np.longdouble) for n in arrays if "adagrad" in n
    ]
    w, rate, first = arrays["weights"][0].astype(np.longdouble), config.rate.value, None
    for number, rows in enumerate(batches, start=len(batches)):
        g = gradient(config, problem, rows, w) + (0 if first else debt / rate)
        first = True
        w = w - rate * direction(kind, config.update, kept, g, number)
    assert np.abs(debt).max() > 1e-4
    assert np.abs(result.weights - w[:, 0]).max() < 1e-11


def direction(kind, said, kept, g, number):
    """Of the step, for what was kept, which it moves."""
    if kind == "adagrad":
        kept[0] += g * g
        return g / (np.sqrt(kept[0]) + said.epsilon)
    m, v = kept
    m += (1 - said.beta1) * (g - m)
    v += (1 - said.beta2) * (g * g - v)
    one, two = (1 - b ** (number + 1) for b in (said.beta1, said.beta2))
    return m / one / (np.sqrt(v / two) + said.epsilon)


EIGHT = {"adam": ("adam_m", "adam_v"), "adagrad": ("adagrad_h",)}
EIGHT |= {"momentum": ("velocity",), "nesterov": ("velocity",)}


def narrowed(name, kept):
    """As it is read after a step: what is kept to eight bits, in float64."""
    eight = EightBitArray.zeros(*kept.shape, np.float64, name in updates.SQUARES)
    eight.encode(kept.astype(np.float64))
    return eight.decoded().astype(np.longdouble)


@pytest.mark.parametrize("kind", EIGHT)
@pytest.mark.parametrize("name", ["topk", "dgc"])
def test_an_unsent_gradient_reaches_states_in_eight_bits(
    tmp_path, monkeypatch, name, kind
):
    """With the next gradient, once; what is kept of it is made narrow like the rest."""
    monkeypatch.setattr(updates, "SMALL", 1)
    problem, m = make_problem("logistic"), 0.5 * (kind == "adagrad")
    update = {"kind": kind, "bits": 8}
    update |= {"epsilon": 1e-3} if "ad" in kind else {"momentum": 0.5}
    codec = {"share": 0.2} | ({"momentum": m} if name == "dgc" else {})
    config = coded(problem, name, 2, codec=codec, problem=PLAIN, update=update)
    arrays, result, batches = left_alone(tmp_path, config, problem)
    rate, means = config.rate.value, {}
    for key in ("error", "momentum", "velocity"):
        if f"memory_codec_{key}" in arrays:
            own = arrays[f"memory_codec_{key}"].mean(axis=0)
            means[key] = own.astype(np.longdouble)
    if name == "topk":
        debt = means["error"] / rate
    else:
        debt = means["velocity"] + means["momentum"] * m / (1 - m)
    kept = [arrays[f"memory_{n}"][0].astype(np.longdouble) for n in EIGHT[kind]]
    assert np.abs(debt).max() > 1e-3 and all(one.any() for one in kept)
    w = arrays["weights"][0].astype(np.longdouble)
    for number, rows in enumerate(batches, start=len(batches)):
        g = gradient(config, problem, rows, w)
        g = g + debt if number == len(batches) else g
        w = w - rate * along(kind, config.update, kept, g, number)
        kept = [narrowed(*one) for one in zip(EIGHT[kind], kept, strict=True)]
    assert np.abs(result.weights - w[:, 0]).max() < 1e-11


def along(kind, said, kept, g, number):
    """`direction`, and that of momenta."""
    if "ad" in kind:
        return direction(kind, said, kept, g, number)
    kept[0] = said.momentum * kept[0] + g
    return g + said.momentum * kept[0] if kind == "nesterov" else kept[0]


def test_several_go_on_from_one_that_had_sent_all(tmp_path):
    problem = make_problem("logistic")
    several = coded(problem, "topk", 3, codec={"share": 0.2})
    in_folder(tmp_path, on(several, 1), 1, problem, stop=4)
    results = in_folder(tmp_path, several, 3, problem)
    assert {r.status.value for r in results} == {"completed"}
    assert len({r.weights_sha256 for r in results}) == 1


def test_slices_do_not_go_on_from_gradients_that_were_not_sent(tmp_path):
    problem = make_problem("logistic")
    several = coded(problem, "topk", 2, codec={"share": 0.2})
    in_folder(tmp_path, several, 2, problem, stop=4)
    tables = on(several, 1).tables()
    tables["agreement"] = {"kind": "sharded"}
    del tables["codec"]
    with pytest.raises(ConfigError, match="the checkpoint was made with 'gradient'"):
        in_folder(tmp_path, RunConfig.parse(tables), 1, problem)

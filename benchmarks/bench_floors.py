"""Where methods end on shards that differ most, beside twins that lack a part of them.

Four replicas that are threads of one process, logistic rows sorted by margin, λ = 0.05,
fp64; the objective above its minimum, relative to that. All of it is exact: no clock is
read. Rows and runs are those of the tests that hold the order of these figures
(tests/helpers: contracts/codec.py, averages_laws.py, bagua_laws.py, anybatch_laws.py),
here at the rates and lengths of docs/.

    python -m benchmarks.run bench_floors
"""

import tempfile
from pathlib import Path
from unittest import mock

import numpy as np

from hpcsgd.agreements import AGREEMENTS
from hpcsgd.agreements.averaging import MixPairs
from tests.helpers import anybatch_laws, bagua_laws
from tests.helpers.averages_laws import HARD, L2, OPTIMUM, gap, loss
from tests.helpers.contracts.codec import gap_of
from tests.helpers.harness import config_for, train_on

DENSE = {"start": 0, "min_rate": 0}
# Name -> codec, settings, the rate times L, and what the twin has; the floors are in
# the cards of docs/reference/methods/codecs.md.
CODECS = {
    "identity": ("identity", {}, 1.0, {"feedback": "off"}),
    "fp16": ("fp16", {"feedback": "on"}, 1.0, {"feedback": "off"}),
    "bf16": ("bf16", {"feedback": "on"}, 1.0, {"feedback": "off"}),
    "fp8": ("fp8", {}, 1.0, {"feedback": "off"}),
    "byte": ("byte", {}, 1.0, {"feedback": "off"}),
    "bytegrad": ("bytegrad", {}, 1.0, {"feedback": "off"}),
    "sign": ("sign", {}, 0.25, {"feedback": "off"}),
    "powersgd": ("powersgd", DENSE, 0.25, {"feedback": "off"}),
    "qsgd": ("qsgd", {"bits": 4}, 1.0, None),
    "nuqsgd": ("nuqsgd", {"bits": 4}, 1.0, None),
    "alq": ("alq", {"bits": 4, "adapt": 1}, 1.0, None),
    "amq": ("amq", {"bits": 4, "adapt": 1}, 1.0, None),
}
SPARSE = {
    "identity": ("identity", {}, 0.25, None),
    "topk": ("topk", {"share": 0.2}, 0.25, {"feedback": "off"}),
    "threshold": ("threshold", {"share": 0.2}, 0.25, {"feedback": "off"}),
    "randomk": ("randomk", {"share": 0.2}, 0.25, {"feedback": "off"}),
    "wangni": ("wangni", {"budget": 0.2}, 0.25, None),
    "dgc": ("dgc", {"share": 0.2}, 0.25, {"masking": True}),
}
MIXED = {
    "decentralized, all": {"kind": "decentralized"},
    "decentralized, shift_one": {"kind": "decentralized", "peers": "shift_one"},
    "decentralized-low": {"kind": "decentralized-low"},
}
LOCAL = {"kind": "average"}


def codecs(rows):
    """Name -> gap, and that of the twin."""
    found = {}
    for name, (codec, settings, rate, twin) in rows.items():
        gaps = [gap_of(codec, settings, rate)]
        if twin is not None:
            gaps.append(gap_of(codec, settings | twin, rate))
        found[name] = [float(g) for g in gaps]
    return found


def averages():
    """Steps between two averages -> gap; and one at a tenth of the rate."""
    found = {f"tau {tau}": float(gap(LOCAL, tau=tau)) for tau in (1, 4, 8, 16)}
    return found | {"tau 4, a tenth": float(gap(LOCAL, slower=10.0, tau=4))}


def mixed():
    """Method -> gap at 1/L, a quarter of it and a fortieth."""
    return {
        name: [float(gap(row, slower=slower, tau=1)) for slower in (1.0, 4.0, 40.0)]
        for name, row in MIXED.items()
    }


def twins():
    """Name -> gap of the method and of its twin, at 1/(4L) and at 1/(16L)."""
    pairs, low = MIXED["decentralized, shift_one"], MIXED["decentralized-low"]
    same = mock.patch.object(MixPairs, "start", bagua_laws.always_the_same)
    in_bytes = mock.patch.dict(
        AGREEMENTS, {"decentralized-low": bagua_laws.WithoutFeedback}
    )
    return {
        "the same pairs": beside_twin(pairs, 4.0, same),
        "weights in bytes": beside_twin(low, 16.0, in_bytes),
    }


def beside_twin(row, slower, twin):
    """Gaps of a method and of its twin, which is in force inside of `twin`."""
    right = gap(row, slower=slower, tau=1)
    with twin:
        wrong = gap(row, slower=slower, tau=1)
    return [float(right), float(wrong)]


def momentum(rate=0.01, steps=2000):
    """QAdam after a warm-up of 100 steps, with bytes, without, and after one of 1."""

    def gap_after(warm, codec):
        config = config_for(
            HARD,
            problem={"l2": L2},
            rate={"value": rate},
            schedule={"batch": len(HARD.X) // 4, "steps": 1, "epochs": steps},
            products={"kind": "direct"},
            grid={"replicas": 4, "members": 1},
            agreement={"kind": "qadam", "codec": codec, "warmup_steps": warm},
            update={"kind": "adam"},
            codec={"feedback": "off"},
            run={"check_every": 10**5, "gap_every": 0, "fall_back": False},
        )
        return float(loss(HARD, train_on(4, config, HARD).weights) / OPTIMUM - 1)

    return {
        "bytegrad": gap_after(100, "bytegrad"),
        "identity": gap_after(100, "identity"),
        "one warm step": gap_after(1, "bytegrad"),
    }


def anybatch():
    """Case -> gap of replicas that count by rows, and of those that count alike."""
    dice = np.random.default_rng(7).integers(0, 4, size=(4, 400))
    slow = np.tile(np.array([[1], [3], [3], [3]]), (1, 300))
    many = np.tile(np.array([[1], [1], [1], [15]]), (1, 200))
    drawn = {"sampling": {"mode": "replacement"}, "rate": {"value": 1.0}}
    falling = anybatch_laws.DECAYING
    cases = {
        "slow": (anybatch_laws.sorted_problem(), slow, 10, falling),
        "dice": (anybatch_laws.sorted_problem(), dice, 10, falling),
        "alike": (anybatch_laws.alike_shards(), many, 2, drawn, 4),
    }
    found = {}
    for name, of in cases.items():
        with tempfile.TemporaryDirectory() as folder:
            gaps = [
                anybatch_laws.gaps(Path(folder), *of, weighted=weighted)[0]
                for weighted in (True, False)
            ]
        last = 25 if name == "alike" else 1  # its rate does not fall
        found[name] = [float(np.mean(g[-last:])) for g in gaps]
    return found


def measure():
    """Every table."""
    return {
        "codecs": codecs(CODECS),
        "sparse": codecs(SPARSE),
        "averages": averages(),
        "mixed": mixed(),
        "twins": twins(),
        "qadam": momentum(),
        "anybatch": anybatch(),
    }

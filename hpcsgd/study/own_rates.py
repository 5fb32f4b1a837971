"""Rates of rules whose steps are as long as the rate says, whatever gradients are.

A rate for SGD is one over a curvature: 8 where rows are short, 0.001 where they are
long. Adam moves every weight by about the rate, Adagrad (and the diagonal mirror map)
by the rate over the root of the steps so far, `normalise` moves all weights together by
it. Where one rate is given for all rows of a table, rows of another such rule than that
of the shared settings have one of these: no shape of `benchmarks/bench_own_rates.py`
ends above where it begins with it, nor with three times as much or a third.
"""

from collections.abc import Mapping
from typing import Any

from hpcsgd.config import RunConfig

Tables = Mapping[str, Mapping[str, Any]]
OWN_RATES = {"adam": 0.01, "adagrad": 0.1, "normalise": 0.1}
SCALED = ("per_batch", "norm")  # settings of rates that go by curvatures


def scale_of(config: RunConfig) -> str:
    """Return the rule that says how long steps are; "" for gradients themselves."""
    if config.update.kind in OWN_RATES:
        return config.update.kind
    if (config.agreement.kind, config.mirror.kind) == ("anybatch", "diagonal"):
        return "adagrad"
    return "normalise" if config.update.normalise else ""


def with_own_rate(tables: Tables, base: Tables) -> dict[str, dict[str, Any]]:
    """Return `tables` with a rate for their rule, where that of `base` is another.

    Raises `ConfigError` where either is no configuration.
    """
    found = {section: dict(table) for section, table in tables.items()}
    scale = scale_of(RunConfig.parse(tables))
    if scale and scale != scale_of(RunConfig.parse(base)):
        rate = found.setdefault("rate", {})
        for key in SCALED:
            rate.pop(key, None)
        rate["value"] = OWN_RATES[scale]
    return found

"""What studies compare: each method is a row of one table."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import gcd, isqrt
from typing import Any

from hpcsgd import methods
from hpcsgd.agreement.settings import AgreementConfig
from hpcsgd.errors import ConfigError
from hpcsgd.study.own_rates import with_own_rate
from hpcsgd.unread import without_unread

Tables = Mapping[str, Mapping[str, Any]]
Grid = tuple[int, int]  # replicas, members
# Of a sum in every step: no messages are saved, the loop around them is lighter.
LOOP = 32


@dataclass(frozen=True)
class Method:
    """How p ranks train under a name.

    `sums_each` methods end every step in a sum, so that s is 1 whatever is asked.
    """

    says: str
    grids: Callable[[int], list[Grid]]  # of p ranks, the usual one first
    over: Tables  # tables that lie over what all share
    product: str = ""  # where none is asked for; "" = `over` says which
    sums_each: bool = False
    accumulate: int = 1  # batches that are one step, as far as they divide its rows
    alternates: bool = False  # a step may be of a tick and a tock

    def shares(
        self, batch: int, replicas: int, base: Tables
    ) -> dict[str, dict[str, Any]]:
        """A replica's part of a global batch, in batches that are one step.

        `base` is what all share.
        """
        own, items = batch // replicas, self._items(base)
        if own % items:
            raise ConfigError(
                f"a step is taken in {items} equal parts and a replica has {own} rows"
                f" of it; use --batch {-(-own // items) * items * replicas}"
            )
        own //= items
        together = gcd(own, self.accumulate)
        said: dict[str, dict[str, Any]] = {"schedule": {"batch": own // together}}
        if self.accumulate > 1:
            said["agreement"] = {"accumulate": together}
        return said

    def _items(self, base: Tables) -> int:
        mode = base.get("agreement", {}).get("mode", AgreementConfig.mode)
        return 2 if self.alternates and mode == "exact-sum" else 1

    def tables(self, base: Tables, own: Tables) -> dict[str, dict[str, Any]]:
        """What is trained: `base`, under what is its own, under what makes it one.

        What it would not read of `base` is for other methods, and so is the rate where
        its rule measures rates in other units.
        """
        tables = {section: dict(table) for section, table in base.items()}
        if self.product:
            tables.setdefault("products", {}).setdefault("kind", self.product)
        for over in (own, self.over):
            for section, table in over.items():
                tables.setdefault(section, {}).update(table)
        if self.sums_each and _is_bent(base.get("problem", {})):
            tables["schedule"]["steps"] = 1  # they act behind every step, not a group
        tables = with_own_rate(without_unread(tables, base), base)
        return {section: table for section, table in tables.items() if table}


def _is_bent(problem: Mapping[str, Any]) -> bool:
    """Whether l1 or bounds act behind every step."""
    bounds = (problem.get("lower"), problem.get("upper"))
    return bool(problem.get("l1")) or any(b not in (None, "") for b in bounds)


def columns(ranks: int) -> list[Grid]:
    """One replica: all ranks share the columns."""
    return [(1, ranks)]


def rows(ranks: int) -> list[Grid]:
    """As many replicas as ranks."""
    return [(ranks, 1)]


def both(ranks: int) -> list[Grid]:
    """R x C with both above 1, the squarest first, of two the one with more members."""
    found = [(r, ranks // r) for r in range(2, ranks // 2 + 1) if ranks % r == 0]
    return sorted(found, key=lambda grid: (abs(grid[0] - grid[1]), grid[0]))


def every_grid(ranks: int) -> list[Grid]:
    """All R x C = p, from one replica on."""
    small = [r for r in range(1, isqrt(ranks) + 1) if ranks % r == 0]
    divisors = sorted({*small, *(ranks // r for r in small)})
    return [(r, ranks // r) for r in divisors]


DIRECT = {"kind": "direct", "look_ahead": "off"}
PERIOD = "schedule.period"


def of_row(name: str, row: methods.Method) -> Method:
    """A method of `train --method`: every rank a replica, one step an exchange.

    A row that says nothing of a period agrees in every step.
    """
    settings = {**row.fixed, **row.defaults}
    over: dict[str, Mapping[str, Any]] = {"agreement": {"method": name}}
    if "products.kind" not in settings:
        over["products"] = DIRECT
    if PERIOD not in settings:
        over["schedule"] = {"period": 1}
    together = settings.get("agreement.accumulate", 1)
    return Method(
        row.says,
        rows,
        over,
        sums_each=True,
        accumulate=together,
        alternates=settings.get("agreement.kind") == "ticktock",
    )


ROWS = {name: of_row(name, row) for name, row in methods.METHODS.items()}
OWN: dict[str, Method] = {
    "sgd": Method(
        "mini-batch SGD, a sum in every step",
        columns,
        {"products": DIRECT, "schedule": {"steps": LOOP, "period": 1}},
        sums_each=True,
    ),
    "casgd": Method(
        "CA-SGD: the iterates of sgd, one sum in s steps",
        columns,
        {"schedule": {"period": 1}},
        product="gram",
    ),
    "local": Method(
        "local SGD: every rank a replica, averaged every s x period steps",
        rows,
        {"products": DIRECT},
    ),
    "hybrid": Method(
        "replicas that take s steps a sum as CA-SGD, averaged every s x period steps",
        both,
        {},
        product="gram",
    ),
}
METHODS: dict[str, Method] = {**OWN, **{n: r for n, r in ROWS.items() if n not in OWN}}
PLACED = ("hybrid",)  # methods whose grid can be chosen


def get_method(name: str) -> Method:
    """The row of this name."""
    if name not in METHODS:
        raise unknown(name, METHODS)
    return METHODS[name]


def unknown(name: str, known: Iterable[str]) -> ConfigError:
    """The sentence on a name that is no method's."""
    return ConfigError(
        f"--methods {name}: known: {', '.join(known)}; separate them by commas"
    )

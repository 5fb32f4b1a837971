"""What a study runs: points, methods, settings, checks."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import gcd, isqrt, lcm
from typing import Any

from hpcsgd import config
from hpcsgd.agreements import AUTO
from hpcsgd.comm.grid import parse_grid
from hpcsgd.config import (
    USUAL,
    RunConfig,
    check_read,
    drop_unread_settings,
    is_conditional,
    value_of,
)
from hpcsgd.errors import ConfigError, did_you_mean
from hpcsgd.files import toml_value
from hpcsgd.glm import get_family
from hpcsgd.runs.checks import resolve_grid

# Rates of rules whose steps are as long as the rate says, whatever gradients are.
#
# A rate for SGD is one over a curvature: 8 where rows are short, 0.001 where they are
# long. Adam moves every weight by about the rate, Adagrad (and the diagonal mirror map)
# by the rate over the root of the steps so far, `normalise` moves all weights together
# by it. Where one rate is given for all rows of a table, rows of another such rule than
# that of the shared settings have one of these: no shape of
# `benchmarks/bench_own_rates.py` ends above where it begins with it, nor with three
# times as much or a third.

Tables = Mapping[str, Mapping[str, Any]]
OWN_RATES = {"adam": 0.01, "adagrad": 0.1, "normalise": 0.1}
SCALED = ("per_batch", "norm")  # settings of rates that go by curvatures


def scale_of(config: RunConfig) -> str:
    """Return the rule that says how long steps are; "" for gradients themselves."""
    if config.update.kind in OWN_RATES:
        return config.update.kind
    if "mirror" in config.agreement.reads and config.mirror.kind == "diagonal":
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


# What studies compare: each method is a row of one table.

Grid = tuple[int, int]  # replicas, members
# Of a sum in every step: no messages are saved, the loop around them is lighter.
LOOP = 32


@dataclass(frozen=True)
class StudyMethod:
    """How p ranks train under a name.

    `sums_each` methods end every step in a sum, so that s is 1 whatever is asked.
    """

    says: str
    grids: Callable[[int], list[Grid]]  # of p ranks, the usual one first
    over: Tables  # tables that lie over what all share
    product: str = ""  # where none is asked for; "" = `over` says which
    sums_each: bool = False
    accumulate: int = 1  # batches that are one step, as far as they divide its rows
    agreement: str = AUTO  # its kind, which may make a step of several parts

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
        own = {"method": "", "kind": self.agreement, "accumulate": 1}
        tables = {"agreement": {**base.get("agreement", {}), **own}}
        return RunConfig.parse(tables).agreement.batches_together

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
        tables = with_own_rate(drop_unread_settings(tables, base), base)
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


def of_row(name: str, row: config.MethodRow) -> StudyMethod:
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
    return StudyMethod(
        row.says,
        rows,
        over,
        sums_each=True,
        accumulate=together,
        agreement=settings.get("agreement.kind", AUTO),
    )


ROWS = {name: of_row(name, row) for name, row in config.METHODS.items()}
OWN: dict[str, StudyMethod] = {
    "sgd": StudyMethod(
        "mini-batch SGD, one all-reduce in every step",
        columns,
        {"products": DIRECT, "schedule": {"steps": LOOP, "period": 1}},
        sums_each=True,
    ),
    "casgd": StudyMethod(
        "CA-SGD: the iterates of sgd, one all-reduce for s steps",
        columns,
        {"schedule": {"period": 1}},
        product="gram",
    ),
    "local": StudyMethod(
        "local SGD: each rank is a replica, averaged every s x period steps",
        rows,
        {"products": DIRECT},
    ),
    "hybrid": StudyMethod(
        "replicas of CA-SGD members, averaged every s x period steps",
        both,
        {},
        product="gram",
    ),
}
METHODS: dict[str, StudyMethod] = {
    **OWN,
    **{n: r for n, r in ROWS.items() if n not in OWN},
}
PLACED = ("hybrid",)  # methods whose grid can be chosen


def get_method(name: str) -> StudyMethod:
    """The row of this name."""
    if name not in METHODS:
        raise unknown(name, METHODS)
    return METHODS[name]


def unknown(name: str, known: Iterable[str]) -> ConfigError:
    """The sentence on a name that is no method's."""
    return ConfigError(
        f"--methods {name}: there is no such method{did_you_mean(name, known)}; known:"
        f" {', '.join(known)}; separate them by commas"
    )


# One run of a study: what it is called, and the configuration that it trains.

Steps = int | str  # a number, or "auto"


@dataclass(frozen=True)
class StudyPoint:
    """A method on so many ranks at one setting, one seed and one repeat.

    `batch` is that of all replicas together, `steps` those between two sums.
    """

    study: str
    method: str
    ranks: int
    emulated: int  # ranks that one process stands for; 0 = all are there
    grid: Grid
    batch: int
    steps: Steps
    recipe: str
    seed: int
    rows: int = 0  # the first so many of the data; 0 = all
    repeat: int = 1
    base: Tables = field(default_factory=dict, compare=False, repr=False)

    @property
    def setting(self) -> str:
        """What repeats and seeds share."""
        R, C = self.grid
        size = f"s{self.steps}/b{self.batch}"
        return f"{self.method}/p{self.ranks}/{size}/{R}x{C}/{self.recipe}"

    @property
    def key(self) -> str:
        """Its name in points.jsonl."""
        return f"{self.setting}/seed{self.seed}/r{self.repeat}"

    @property
    def name(self) -> str:
        """Its name as a file."""
        return self.key.replace("/", "-")

    @property
    def launched(self) -> int:
        """Ranks that are really started."""
        return 1 if self.emulated else self.ranks

    @property
    def batch_per_replica(self) -> int:
        """What `train` calls the batch."""
        return self.batch // self.grid[0]

    def again(self, repeat: int) -> "StudyPoint":
        """The same one more time."""
        return replace(self, repeat=repeat)

    def tables(self, data: str = "", out: str = "") -> dict[str, dict[str, Any]]:
        """The configuration to train; `data` and `out` lie over those of the study."""
        method, (replicas, members) = METHODS[self.method], self.grid
        own: dict[str, dict[str, Any]] = {
            **method.shares(self.batch, replicas, self.base),
            "precision": {"recipe": self.recipe},
            "sampling": {"seed": self.seed},
            "grid": {"replicas": replicas, "members": members},
            "run": {"emulate_members": self.emulated} if self.emulated else {},
            "data": {"path": data} if data else {},
        }
        if not method.sums_each:
            own["schedule"]["steps"] = self.steps
        if out and not self.emulated:  # whose weights are made up: nothing to keep
            own["run"]["out"] = out
        return method.tables(self.base, own)


# What a study will run: lists of ranks, methods and settings, multiplied out.

KINDS = ("strong", "weak", "sweep")
PLACES = ("local", "slurm")


@dataclass(frozen=True)
class StudyPlan:
    """A study before it runs.

    Attributes
    ----------
    kind : strong, the same data on all ranks; weak, rows grow with the ranks; sweep,
        all grids R x C at the ranks that are given
    ranks : how many really run
    emulated : how many one rank stands for, for times alone
    batch : of all replicas together, so that methods see as many rows in a step
    rows : of the data
    batch_grows : weak only: the batch grows with the ranks, as the rows do
    base : the tables of `train` that all points share
    """

    kind: str
    ranks: tuple[int, ...]
    methods: tuple[str, ...] = ("sgd", "casgd")
    steps: tuple[Steps, ...] = (8,)
    batch: tuple[int, ...] = (32,)
    grids: tuple[Grid, ...] = ()
    precision: tuple[str, ...] = ("fp32",)
    repeats: int = 3
    seeds: tuple[int, ...] = (0,)
    emulated: tuple[int, ...] = ()
    batch_grows: bool = False
    on: str = "local"
    rows: int = 0
    base: Tables = field(default_factory=dict)

    @property
    def all_ranks(self) -> tuple[int, ...]:
        """Those that run and those that are emulated, in order."""
        return tuple(sorted({*self.ranks, *self.emulated}))

    def settings(self) -> list[StudyPoint]:
        """Every point once, in the order in which each round runs them."""
        return list(self._points())

    def runs(self) -> Iterator[StudyPoint]:
        """Repeats in turns, so that a machine that changes its pace hits all alike."""
        settings = self.settings()
        for repeat in range(1, self.repeats + 1):
            yield from (point.again(repeat) for point in settings)

    def left_out(self) -> list[str]:
        """Methods that have no grid on some of the ranks."""
        none = [
            (name, [p for p in self.all_ranks if not self.grids_of(name, p)])
            for name in self.methods
        ]
        return [
            f"{name} has no grid on {', '.join(map(str, without))} ranks"
            for name, without in none
            if without
        ]

    def grids_of(self, name: str, ranks: int) -> list[Grid]:
        """The grids of a method on so many ranks."""
        method = get_method(name)
        if name not in PLACED:
            return method.grids(ranks)
        if self.grids:
            return [(r, c) for r, c in self.grids if r * c == ranks]
        return every_grid(ranks) if self.kind == "sweep" else method.grids(ranks)[:1]

    def _points(self) -> Iterator[StudyPoint]:
        for name in self.methods:
            method = get_method(name)
            for ranks in self.all_ranks:
                for grid in self.grids_of(name, ranks):
                    for batch in self.batch:
                        yield from self._at(name, method, ranks, grid, batch)

    def _at(
        self, name: str, method: StudyMethod, ranks: int, grid: Grid, batch: int
    ) -> Iterator[StudyPoint]:
        """All steps, recipes and seeds of one place."""
        for steps in (1,) if method.sums_each else self.steps:
            for recipe in self.precision:
                for seed in self.seeds:
                    yield StudyPoint(
                        study=self.kind,
                        method=name,
                        ranks=ranks,
                        emulated=ranks if ranks in self.emulated else 0,
                        grid=grid,
                        batch=self.batch_on(ranks, batch),
                        steps=steps,
                        recipe=recipe,
                        seed=seed,
                        rows=self.rows_on(ranks),
                        base=self.base,
                    )

    def rows_on(self, ranks: int) -> int:
        """How many of the data's rows so many ranks train on; 0 = all."""
        most = max(self.all_ranks)
        if self.kind != "weak" or ranks == most:
            return 0
        return self.rows * ranks // most

    def batch_on(self, ranks: int, batch: int) -> int:
        """The global batch on so many ranks."""
        return batch * ranks // min(self.all_ranks) if self.batch_grows else batch

    def as_dict(self) -> dict[str, Any]:
        """What study.toml holds of it beside the base."""
        return {
            "kind": self.kind,
            "ranks": list(self.ranks),
            "methods": list(self.methods),
            "steps": list(self.steps),
            "batch": list(self.batch),
            "grids": [f"{r}x{c}" for r, c in self.grids],
            "precision": list(self.precision),
            "repeats": self.repeats,
            "seeds": list(self.seeds),
            "emulate_members": list(self.emulated),
            "batch_grows": self.batch_grows,
            "on": self.on,
        }


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """The first thing in which two plans differ, or nothing."""
    for key in dict.fromkeys([*before, *now]):
        was, is_now = before.get(key), now.get(key)
        if isinstance(was, Mapping) and isinstance(is_now, Mapping):
            inner = difference(was, is_now)
            if inner:
                return f"{key}.{inner}"
        elif was != is_now:
            return f"{key} was {_said(was)} and is {_said(is_now)}"
    return ""


def _said(value: Any) -> str:
    return "left out" if value is None else repr(value)


# Settings to compare: named configurations, and whether a comparison is fair.

# What all settings of a comparison share, or it would compare something else.
SHARED = (("data", "path"), ("run", "out"), ("run", "comm"))


@dataclass(frozen=True)
class NamedSetting:
    """A name in the table, and what is trained under it."""

    name: str
    config: RunConfig
    is_method: bool = False  # by its method's name: refused where it cannot run

    @property
    def global_batch(self) -> int:
        """Rows that all replicas together take in one step."""
        config = self.config
        together = config.grid.replicas * config.agreement.batches_together
        return config.schedule.batch * together


@dataclass(frozen=True)
class Refusal:
    """A method that cannot run as asked, and the sentence that says why."""

    name: str
    why: str


Entry = NamedSetting | Refusal


def make_setting(name: str, base: Tables, over: Tables) -> NamedSetting:
    """The tables of `over` laid over those of `base`.

    A rule of steps that is not the base's, and measures its rate in other units, has a
    rate of its own unless `over` gives one.
    """
    for section, key in SHARED:
        if key in over.get(section, {}):
            raise ConfigError(
                f"setting {name!r}: {section}.{key} is one for all settings;"
                " give it outside of them"
            )
    tables = {section: dict(table) for section, table in base.items()}
    for section, table in over.items():
        tables.setdefault(section, {}).update(table)
    others = {  # what all share is for those that read it
        section: {k: v for k, v in table.items() if k not in over.get(section, {})}
        for section, table in base.items()
    }
    try:
        tables = drop_unread_settings(tables, others)
        if not {"value", "per_batch"} & set(over.get("rate", {})):
            tables = with_own_rate(tables, base)
        config = RunConfig.parse(tables)
        check_read(config)
    except ConfigError as error:
        raise ConfigError(f"setting {name!r}: {error}") from error
    return NamedSetting(name, config)


def check_shared(base: Tables, configs: Sequence[RunConfig]) -> None:
    """Refuse what is given for all of them and read by none."""
    given = ((section, key) for section, table in base.items() for key in table)
    for section, key in given:
        name, value = f"{section}.{key}", base[section][key]
        usual = value_of(name, USUAL)
        if value == usual or not configs or not is_conditional(name):
            continue
        if all(value_of(name, one) == usual for one in configs):
            raise ConfigError(
                f"[{section}] {key} = {value!r} is given for all and read by none of"
                " them; leave it out, or add a method or a setting that reads it"
            )


def on_ranks(entry: Entry, ranks: int) -> Entry:
    """With the grid that it has there, where none was given."""
    if isinstance(entry, Refusal):
        return entry
    return replace(entry, config=resolve_grid(entry.config, ranks))


def parse_setting(text: str) -> tuple[str, dict[str, Any]]:
    """(name, key -> value) of "NAME: key=value key=value".

    >>> parse_setting("ca-sgd: products=gram schedule.steps=8")
    ('ca-sgd', {'products': 'gram', 'schedule.steps': 8})
    """
    name, colon, rest = text.partition(":")
    name = name.strip()
    if not colon or not name or "=" in name:
        raise ConfigError(
            f"--setting {text!r}: write it as 'NAME: key=value key=value',"
            " for example 'ca-sgd: products=gram steps=8'"
        )
    table = {}
    for word in rest.split():
        key, equals, value = word.partition("=")
        if not (key and equals and value):
            raise ConfigError(
                f"setting {name!r}: {word!r} is no key=value; write for example steps=8"
            )
        table[key] = toml_value(value)
    return name, table


def expand_settings(
    name: str, table: Mapping[str, Any], short: Mapping[str, str]
) -> dict[str, dict[str, Any]]:
    """`table` as sections: "products.kind", products = {kind = ...}, or a short name.

    `short` maps names to section.key; grid = "2x1" says replicas and members.
    """
    sections: dict[str, dict[str, Any]] = {}
    for key, value in table.items():
        section, dot, own = short.get(key, key).partition(".")
        if isinstance(value, Mapping):
            sections.setdefault(key, {}).update(value)
        elif dot:
            sections.setdefault(section, {})[own] = value
        elif key == "grid":
            sections["grid"] = _grid(name, str(value))
        else:
            raise ConfigError(
                f"setting {name!r}: unknown key {key!r}; write section.key, grid,"
                f" or one of {', '.join(sorted(short))}"
            )
    return sections


def _grid(name: str, text: str) -> dict[str, int]:
    try:
        replicas, members = parse_grid(text)
    except ConfigError as error:
        raise ConfigError(f"setting {name!r}: {error}") from error
    return {"replicas": replicas, "members": members}


def folder_name(name: str) -> str:
    """`name` as a folder."""
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def check_names(settings: Sequence[Entry]) -> None:
    """At least one setting, each under a name and a folder of its own."""
    if not settings:
        raise ConfigError(
            "nothing to compare: add --setting 'NAME: key=value', [compare.NAME] tables"
            " in the file, or --methods all"
        )
    places = [folder_name(setting.name) for setting in settings]
    for setting, place in zip(settings, places, strict=True):
        if not place:
            raise ConfigError(
                f"setting {setting.name!r}: a name needs a letter or a digit"
            )
        if places.count(place) > 1:
            raise ConfigError(
                f"two settings are called {setting.name!r}; give each a name of its own"
            )


def check_equal_batch(settings: Sequence[NamedSetting]) -> None:
    """Refuse settings whose steps do not see as many rows: they solve other tasks."""
    if is_equal_batch(settings):
        return
    said = [
        f"{s.name} {s.global_batch} (batch {s.config.schedule.batch}"
        f" x {s.config.grid.replicas} replicas)"
        for s in settings
    ]
    common = equal_batch(settings)
    remedy = [
        f"batch={common // s.config.grid.replicas} for {s.name}" for s in settings
    ]
    raise ConfigError(
        f"settings differ in their global batch: {', '.join(said)};"
        f" {', '.join(remedy)} makes it {common} for all, or add --allow-unequal"
    )


def is_equal_batch(settings: Sequence[NamedSetting]) -> bool:
    """True where every step sees as many rows."""
    return len({setting.global_batch for setting in settings}) == 1


def equal_batch(settings: Sequence[NamedSetting]) -> int:
    """The first's global batch, or the next one that all replicas can share."""
    share = lcm(*(setting.config.grid.replicas for setting in settings))
    return -(-settings[0].global_batch // share) * share


# What of a plan cannot be run, or would compare unequal things.


def check_plan(plan: StudyPlan) -> None:
    """Refuse what cannot be run, or would compare unequal things."""
    if plan.kind not in KINDS or plan.on not in PLACES:
        raise ConfigError(
            f"a study is one of {', '.join(KINDS)} on {' or '.join(PLACES)},"
            f" not {plan.kind!r} on {plan.on!r}"
        )
    _check_numbers(plan)
    for name in plan.methods:
        get_method(name)
    _check_lists(plan)
    _check_grids(plan)
    _check_weak(plan)
    _check_batch(plan)
    check_shared(plan.base, [_check_point(point) for point in plan.settings()])


def _check_numbers(plan: StudyPlan) -> None:
    for flag, values, least in (
        ("--ranks", plan.ranks, 1),
        ("--emulate-members", plan.emulated, 2),
        ("--batch", plan.batch, 1),
        ("--repeats", (plan.repeats,), 1),
        ("--seeds", plan.seeds, 0),
    ):
        bad = [value for value in values if value < least]
        if bad:
            raise ConfigError(f"{flag} {bad[0]}: must be at least {least}")


def _check_lists(plan: StudyPlan) -> None:
    lists: dict[str, Sequence[Any]] = {
        "--methods": plan.methods,
        "--steps": plan.steps,
        "--batch": plan.batch,
        "--precision": plan.precision,
        "--seeds": plan.seeds,
        "--ranks": plan.all_ranks,
    }
    for flag, values in lists.items():
        if not values:
            raise ConfigError(f"{flag} names nothing; give at least one value")
    once = {"--emulate-members": plan.emulated, "--grids": plan.grids}
    for flag, values in {**lists, "--ranks": plan.ranks, **once}.items():
        twice = [value for value in values if values.count(value) > 1]
        if twice:
            raise ConfigError(f"{flag} has {twice[0]} twice; give each value once")
    both = sorted({*plan.ranks} & {*plan.emulated})
    if both:
        raise ConfigError(
            f"{both[0]} ranks are in --ranks and in --emulate-members, and a point is"
            " either run or emulated; leave it out of one of them"
        )


def _check_grids(plan: StudyPlan) -> None:
    if plan.grids and not set(plan.methods) & set(PLACED):
        raise ConfigError(
            "--grids places hybrid alone, which is not among --methods;"
            " add it, or leave --grids out"
        )
    for r, c in plan.grids:
        if r * c not in plan.all_ranks:
            raise ConfigError(
                f"--grids {r}x{c} needs {r * c} ranks; add {r * c} to --ranks"
            )
    for name in plan.methods:
        if not any(plan.grids_of(name, ranks) for ranks in plan.all_ranks):
            raise ConfigError(
                f"--methods {name} has no R x C grid with both above 1 on any of the"
                " ranks; add 4 to --ranks, name --grids, or leave it out"
            )


def _check_weak(plan: StudyPlan) -> None:
    least = min(plan.all_ranks)
    if plan.batch_grows and plan.kind != "weak":
        raise ConfigError(
            f"--batch-grows is of weak studies alone; leave it out of {plan.kind}"
        )
    odd = [p for p in plan.all_ranks if plan.batch_grows and p % least]
    if odd:
        raise ConfigError(
            f"--batch-grows on {odd[0]} ranks: no multiple of {least}, the fewest;"
            " choose ranks that are, or leave --batch-grows out"
        )
    most = max(plan.all_ranks)
    if plan.kind == "weak" and plan.rows * least < most:
        raise ConfigError(
            f"{plan.rows} rows cannot grow from {least} to {most} ranks; name larger"
            " --data"
        )


def _check_batch(plan: StudyPlan) -> None:
    """All methods see as many rows in a step, so replicas must share them evenly."""
    for point in plan.settings():
        replicas = point.grid[0]
        if point.batch % replicas:
            share = _share(plan)
            larger = -(-point.batch // share) * share
            raise ConfigError(
                f"{point.method} on {point.ranks} ranks: {replicas} replicas cannot"
                f" share a global batch of {point.batch} evenly; use --batch {larger},"
                " or other ranks"
            )


def _share(plan: StudyPlan) -> int:
    """What a batch must be a multiple of, for all replicas of the plan."""
    return lcm(*(point.grid[0] for point in plan.settings()))


def _check_point(point: StudyPoint) -> RunConfig:
    try:
        config = RunConfig.parse(point.tables())
        get_family(config.problem.family)
        config.precision.resolve()
    except ConfigError as error:
        raise ConfigError(f"{point.setting}: {error}") from error
    check_steps(point.method, get_method(point.method), point.grid, config)
    return config


def check_steps(name: str, method: StudyMethod, grid: Grid, config: RunConfig) -> None:
    """Refuse s left open where it changes what is learnt, and products that sum each.

    s is 0 in a configuration that leaves it open.
    """
    if not config.schedule.steps and grid[0] > 1:
        raise ConfigError(
            f"{name} on {grid[0]} replicas: --steps auto would change what is learnt;"
            " name the steps"
        )
    if method.product and config.products.kind == "direct":
        raise ConfigError(
            f"{name} takes s steps a sum, which --products direct does not; leave"
            " --products out, or name gram or cached"
        )

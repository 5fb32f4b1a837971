"""Plans of studies and comparisons: methods, points, settings, checks."""

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

# Learning rates of update rules whose steps do not depend on the size of gradients.
#
# A rate of SGD is the inverse of a curvature: 8 if rows are short, 0.001 if they are
# long. Adam moves every weight by about the rate, Adagrad (and the diagonal mirror map)
# by the rate over the root of the number of steps, and `normalise` moves the vector of
# weights by the rate. If all rows of a table share one rate, a row whose rule has other
# units than the rule of the shared settings takes its rate from OWN_RATES. With these
# rates, and with a third or three times as much, no shape of
# `benchmarks/bench_own_rates.py` ends with a larger loss than it begins with.

Tables = Mapping[str, Mapping[str, Any]]
OWN_RATES = {"adam": 0.01, "adagrad": 0.1, "normalise": 0.1}
SCALED = ("per_batch", "norm")  # settings of rates that are inverse curvatures


def scale_of(config: RunConfig) -> str:
    """Return the key of `OWN_RATES` for the rule of `config`; "" if it has none.

    These are rules whose steps do not depend on the size of gradients.
    """
    if config.update.kind in OWN_RATES:
        return config.update.kind
    if "mirror" in config.agreement.reads and config.mirror.kind == "diagonal":
        return "adagrad"
    return "normalise" if config.update.normalise else ""


def with_own_rate(tables: Tables, base: Tables) -> dict[str, dict[str, Any]]:
    """Return `tables` with a rate from `OWN_RATES` if their rule needs another rate.

    They need one if their rule has a key in `OWN_RATES`, and the rule of `base` has
    another key or none. Raises `ConfigError` if `tables` or `base` is not a valid
    configuration.
    """
    result = {section: dict(table) for section, table in tables.items()}
    scale = scale_of(RunConfig.parse(tables))
    if scale and scale != scale_of(RunConfig.parse(base)):
        rate = result.setdefault("rate", {})
        for key in SCALED:
            rate.pop(key, None)
        rate["value"] = OWN_RATES[scale]
    return result


# The methods that studies and comparisons can run, by name.

Grid = tuple[int, int]  # replicas, members
# Steps of one exchange of a method that sums in every step. A larger number saves no
# messages, but makes the Python loop around the steps shorter.
LOOP = 32


@dataclass(frozen=True)
class StudyMethod:
    """A named way to train on p ranks: its grids and its settings.

    A method with `sums_each` has always s = 1: it sums in every step, or its exchanges
    have one step.
    """

    says: str  # one sentence for `hpcsgd info`
    grids: Callable[[int], list[Grid]]  # possible grids of p ranks, the default first
    over: Tables  # settings of the method, which override those that all share
    product: str = ""  # default product; "" if `over` sets it
    sums_each: bool = False
    accumulate: int = 1  # batches of one step, as far as they divide its rows
    agreement: str = AUTO  # kind of agreement, which may split a step into parts
    usual: Mapping[str, Any] = field(default_factory=dict)  # its other settings

    def shares(
        self, batch: int, replicas: int, base: Tables
    ) -> dict[str, dict[str, Any]]:
        """Return the settings that split the global batch `batch` over replicas.

        A replica may accumulate several batches in a step, as many as the method or
        `base` sets. `base` has the settings that all methods share.
        """
        rows_each = batch // replicas
        parts = self._parts_of_step(base)
        if rows_each % parts:
            raise ConfigError(
                f"a step needs {parts} batches of equal size on each replica, which"
                f" cannot be made of {rows_each} rows; use --batch"
                f" {-(-rows_each // parts) * parts * replicas}"
            )
        rows_each //= parts
        batches = gcd(rows_each, self.accumulate)
        tables: dict[str, dict[str, Any]] = {
            "schedule": {"batch": rows_each // batches}
        }
        if self.accumulate > 1:
            tables["agreement"] = {"accumulate": batches}
        return tables

    def _parts_of_step(self, base: Tables) -> int:
        """Return the batches of a step of a replica that the method does not choose."""
        table = dict(base.get("agreement", {}))
        if "agreement" in self.over:
            table = {**self.usual, **table, "method": "", "kind": self.agreement}
        if self.accumulate > 1:
            table["accumulate"] = 1
        return RunConfig.parse({"agreement": table}).agreement.batches_together

    def tables(self, base: Tables, point: Tables) -> dict[str, dict[str, Any]]:
        """Return the configuration of a run of this method.

        The settings of `point` override those of `base`, and the settings of the method
        override both. Settings of `base` that the method does not read are left out. A
        method whose update rule measures rates in other units has a rate of its own.
        """
        tables = {section: dict(table) for section, table in base.items()}
        if self.product:
            tables.setdefault("products", {}).setdefault("kind", self.product)
        for over in (point, self.over):
            for section, table in over.items():
                tables.setdefault(section, {}).update(table)
        if self.sums_each and _has_proximal_steps(base.get("problem", {})):
            # The proximal operator follows every step and not a group of steps.
            tables["schedule"]["steps"] = 1
        tables = with_own_rate(drop_unread_settings(tables, base), base)
        return {section: table for section, table in tables.items() if table}


def _has_proximal_steps(problem: Mapping[str, Any]) -> bool:
    """Return whether l1 or bounds act after every step."""
    bounds = (problem.get("lower"), problem.get("upper"))
    return bool(problem.get("l1")) or any(b not in (None, "") for b in bounds)


def columns(ranks: int) -> list[Grid]:
    """Return a list of one grid: one replica, whose members share the columns."""
    return [(1, ranks)]


def rows(ranks: int) -> list[Grid]:
    """Return a list of one grid, in which every rank is a replica of its own."""
    return [(ranks, 1)]


def both(ranks: int) -> list[Grid]:
    """Return the grids with several replicas and several members, the squarest first.

    Of two equally square grids, the one with more members comes first.
    """
    grids = [(r, ranks // r) for r in range(2, ranks // 2 + 1) if ranks % r == 0]
    return sorted(grids, key=lambda grid: (abs(grid[0] - grid[1]), grid[0]))


def every_grid(ranks: int) -> list[Grid]:
    """Return all grids of `ranks` ranks, by ascending number of replicas."""
    small = [r for r in range(1, isqrt(ranks) + 1) if ranks % r == 0]
    divisors = sorted({*small, *(ranks // r for r in small)})
    return [(r, ranks // r) for r in divisors]


DIRECT = {"kind": "direct", "look_ahead": "off"}
PERIOD = "schedule.period"


def of_row(name: str, row: config.MethodRow) -> StudyMethod:
    """Return the method of a row of `train --method`, in which every rank is a replica.

    An exchange has one step. A row without a period has an agreement in every step.
    """
    settings = {**row.fixed, **row.defaults}
    over: dict[str, Mapping[str, Any]] = {"agreement": {"method": name}}
    if "products.kind" not in settings:
        over["products"] = DIRECT
    if PERIOD not in settings:
        over["schedule"] = {"period": 1}
    return StudyMethod(
        row.says,
        rows,
        over,
        sums_each=True,
        accumulate=settings.get("agreement.accumulate", 1),
        agreement=settings.get("agreement.kind", AUTO),
        usual={
            key.removeprefix("agreement."): value
            for key, value in row.defaults.items()
            if key.startswith("agreement.")
        },
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
    """Return the method called `name`; raise ConfigError if there is none."""
    if name not in METHODS:
        raise unknown(name, METHODS)
    return METHODS[name]


def unknown(name: str, names: Iterable[str]) -> ConfigError:
    """Return the error that `name` is not the name of a method."""
    return ConfigError(
        f"--methods {name}: there is no such method{did_you_mean(name, names)}; known:"
        f" {', '.join(names)}; separate them by commas"
    )


# A point is one run of a study, with a name and a configuration.

Steps = int | str  # a number, or "auto"


@dataclass(frozen=True)
class StudyPoint:
    """One run of a study: a method on a number of ranks, with a setting and a seed."""

    plan: "StudyPlan" = field(compare=False, repr=False)
    method: str
    ranks: int
    grid: Grid
    batch: int  # rows of a step, over all replicas
    steps: Steps  # SGD steps of one exchange
    recipe: str
    seed: int
    repeat: int = 1

    @property
    def setting(self) -> str:
        """Return the part of the key that repeats and seeds of a point share."""
        R, C = self.grid
        size = f"s{self.steps}/b{self.batch}"
        return f"{self.method}/p{self.ranks}/{size}/{R}x{C}/{self.recipe}"

    @property
    def key(self) -> str:
        """Return the key of the point in points.jsonl."""
        return f"{self.setting}/seed{self.seed}/r{self.repeat}"

    @property
    def name(self) -> str:
        """Return the key in a form that can be the name of a file."""
        return self.key.replace("/", "-")

    @property
    def emulated(self) -> int:
        """Return how many ranks the started rank stands for; 0 if all are started."""
        return self.ranks if self.ranks in self.plan.emulated else 0

    @property
    def rows(self) -> int:
        """Return how many rows, from the first on, the run trains on; 0 for all."""
        return self.plan.rows_on(self.ranks)

    @property
    def launched(self) -> int:
        """Return the number of ranks that are started."""
        return 1 if self.emulated else self.ranks

    @property
    def batch_per_replica(self) -> int:
        """Return the rows of one step of one replica, in all its batches."""
        return self.batch // self.grid[0]

    def tables(self, data: str = "", out: str = "") -> dict[str, dict[str, Any]]:
        """Return the configuration of the run, with the paths `data` and `out`.

        These are the paths of the data and the run folder. Without `data`, the path is
        that of the study.
        """
        method = METHODS[self.method]
        base = self.plan.base
        replicas, members = self.grid
        tables: dict[str, dict[str, Any]] = {
            **method.shares(self.batch, replicas, base),
            "precision": {"recipe": self.recipe},
            "sampling": {"seed": self.seed},
            "grid": {"replicas": replicas, "members": members},
            "run": {"emulate_members": self.emulated} if self.emulated else {},
            "data": {"path": data} if data else {},
        }
        if not method.sums_each:
            tables["schedule"]["steps"] = self.steps
        if out and not self.emulated:  # the weights of an emulated run mean nothing
            tables["run"]["out"] = out
        return method.tables(base, tables)


# A plan has lists of ranks, methods and settings; its points are all combinations.

KINDS = ("strong", "weak", "sweep")
PLACES = ("local", "slurm")


@dataclass(frozen=True)
class StudyAxes:
    """The axes of a study, whose points are all combinations of these values.

    Attributes
    ----------
    methods : tuple of str
        Names of methods.
    steps : tuple of int or str
        SGD steps of one exchange, or "auto".
    batch : tuple of int
        Rows of a step over all replicas, so that all methods have as many.
    grids : tuple of (int, int)
        Grids of the method hybrid. Without any, a sweep takes all grids of the ranks,
        and another study the squarest one.
    precision : tuple of str
        Recipes of number formats.
    seeds : tuple of int
        Seeds of the order of the rows.
    """

    methods: tuple[str, ...] = ("sgd", "casgd")
    steps: tuple[Steps, ...] = (8,)
    batch: tuple[int, ...] = (32,)
    grids: tuple[Grid, ...] = ()
    precision: tuple[str, ...] = ("fp32",)
    seeds: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class StudyPlan:
    """The plan of a study: its runs are all combinations of its ranks and axes.

    Attributes
    ----------
    kind : {"strong", "weak", "sweep"}
        "strong" has the same data on all ranks, in "weak" the rows grow with the ranks,
        "sweep" has the method hybrid on all grids R x C of the ranks.
    ranks : tuple of int
        Numbers of ranks to start.
    axes : StudyAxes
        Methods, steps, batches, grids, recipes and seeds of the points.
    repeats : int
        Runs of each point.
    emulated : tuple of int
        Numbers of ranks that one rank stands for. These runs measure times only.
    batch_grows : bool
        Whether the batch of a weak study grows with the ranks.
    on : {"local", "slurm"}
        Where the runs run.
    rows : int
        Rows of the data.
    base : mapping
        Settings of `train` that all points share.
    """

    kind: str
    ranks: tuple[int, ...]
    axes: StudyAxes = StudyAxes()
    repeats: int = 3
    emulated: tuple[int, ...] = ()
    batch_grows: bool = False
    on: str = "local"
    rows: int = 0
    base: Tables = field(default_factory=dict)

    @property
    def all_ranks(self) -> tuple[int, ...]:
        """Return all numbers of ranks, started or emulated, in ascending order."""
        return tuple(sorted({*self.ranks, *self.emulated}))

    def settings(self) -> list[StudyPoint]:
        """Return the first repeat of every point, in the order in which they run."""
        return list(self._points())

    def runs(self) -> Iterator[StudyPoint]:
        """Yield all runs: all points once, then all points again, for each repeat.

        In this order, all points suffer alike from a machine whose speed varies.
        """
        settings = self.settings()
        for repeat in range(1, self.repeats + 1):
            yield from (replace(point, repeat=repeat) for point in settings)

    def left_out(self) -> list[str]:
        """Return a sentence on each method that has no grid on some of the ranks."""
        none = [
            (name, [p for p in self.all_ranks if not self.grids_of(name, p)])
            for name in self.axes.methods
        ]
        return [
            f"{name} has no grid on {', '.join(map(str, without))} ranks"
            for name, without in none
            if without
        ]

    def grids_of(self, name: str, ranks: int) -> list[Grid]:
        """Return the grids on which the method `name` runs on `ranks` ranks."""
        method = get_method(name)
        if name not in PLACED:
            return method.grids(ranks)
        if self.axes.grids:
            return [(r, c) for r, c in self.axes.grids if r * c == ranks]
        return every_grid(ranks) if self.kind == "sweep" else method.grids(ranks)[:1]

    def _points(self) -> Iterator[StudyPoint]:
        for name in self.axes.methods:
            method = get_method(name)
            for ranks in self.all_ranks:
                for grid in self.grids_of(name, ranks):
                    for batch in self.axes.batch:
                        yield from self._at(name, method, ranks, grid, batch)

    def _at(
        self, name: str, method: StudyMethod, ranks: int, grid: Grid, batch: int
    ) -> Iterator[StudyPoint]:
        """Yield the points of a method on one grid: all steps, recipes and seeds."""
        for steps in (1,) if method.sums_each else self.axes.steps:
            for recipe in self.axes.precision:
                for seed in self.axes.seeds:
                    yield StudyPoint(
                        plan=self,
                        method=name,
                        ranks=ranks,
                        grid=grid,
                        batch=self.batch_on(ranks, batch),
                        steps=steps,
                        recipe=recipe,
                        seed=seed,
                    )

    def rows_on(self, ranks: int) -> int:
        """Return how many rows a run on `ranks` ranks trains on; 0 for all."""
        most = max(self.all_ranks)
        if self.kind != "weak" or ranks == most:
            return 0
        return self.rows * ranks // most

    def batch_on(self, ranks: int, batch: int) -> int:
        """Return the global batch on `ranks` ranks, for the value `batch` of the axes.

        It is `batch`; if the batch grows with the ranks, it is `batch` on the fewest
        ranks and proportional to them on others.
        """
        return batch * ranks // min(self.all_ranks) if self.batch_grows else batch

    def as_dict(self) -> dict[str, Any]:
        """Return the table [study] of study.toml."""
        return {
            "kind": self.kind,
            "ranks": list(self.ranks),
            "methods": list(self.axes.methods),
            "steps": list(self.axes.steps),
            "batch": list(self.axes.batch),
            "grids": [f"{r}x{c}" for r, c in self.axes.grids],
            "precision": list(self.axes.precision),
            "repeats": self.repeats,
            "seeds": list(self.axes.seeds),
            "emulate_members": list(self.emulated),
            "batch_grows": self.batch_grows,
            "on": self.on,
        }


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Return text on the first key in which two plans differ; "" if they are equal."""
    for key in dict.fromkeys([*before, *now]):
        was = before.get(key)
        is_now = now.get(key)
        if isinstance(was, Mapping) and isinstance(is_now, Mapping):
            inner = difference(was, is_now)
            if inner:
                return f"{key}.{inner}"
        elif was != is_now:
            return f"{key} was {_literal(was)} and is {_literal(is_now)}"
    return ""


def _literal(value: Any) -> str:
    return "left out" if value is None else repr(value)


# A comparison has named settings, and it is fair if all see as many rows in a step.

# Settings that all rows of a comparison must share.
SHARED = (("data", "path"), ("run", "out"), ("run", "comm"))


def batches_of_step(config: RunConfig) -> int:
    """Return the largest number of batches of one step, over all replicas."""
    return config.grid.replicas * config.agreement.batches_together


@dataclass(frozen=True)
class NamedSetting:
    """A named configuration in a comparison.

    Attributes
    ----------
    name : str
        Its name in the table.
    config : RunConfig
        The configuration to train.
    is_method : bool
        Whether the name is that of a method. A method that cannot run becomes a
        `Refusal`; any other setting that cannot run is an error.
    """

    name: str
    config: RunConfig
    is_method: bool = False

    @property
    def global_batch(self) -> int:
        """Return the rows of one step, over all replicas."""
        return self.config.schedule.batch * batches_of_step(self.config)


@dataclass(frozen=True)
class Refusal:
    """A method that cannot run with these settings, and the reason as a sentence."""

    name: str
    why: str


Entry = NamedSetting | Refusal


def settings_of(entries: Iterable[Entry]) -> list[NamedSetting]:
    """Return the settings in `entries`, without the refusals."""
    return [entry for entry in entries if isinstance(entry, NamedSetting)]


def refusals_of(entries: Iterable[object]) -> tuple[Refusal, ...]:
    """Return the refusals in `entries`."""
    return tuple(entry for entry in entries if isinstance(entry, Refusal))


def make_setting(name: str, base: Tables, over: Tables) -> NamedSetting:
    """Return a named setting in which the tables of `over` override those of `base`.

    If the update rule of `over` measures rates in other units than that of `base`, the
    setting has a rate of its own, unless `over` has one.
    """
    for section, key in SHARED:
        if key in over.get(section, {}):
            raise ConfigError(
                f"setting {name!r}: {section}.{key} must be the same for all settings;"
                " give it once, outside --setting and [compare.NAME]"
            )
    tables = {section: dict(table) for section, table in base.items()}
    for section, table in over.items():
        tables.setdefault(section, {}).update(table)
    others = {  # shared settings may be left out of a setting that does not read them
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
    """Refuse a shared setting that none of the configurations reads."""
    keys = ((section, key) for section, table in base.items() for key in table)
    for section, key in keys:
        name = f"{section}.{key}"
        value = base[section][key]
        usual = value_of(name, USUAL)
        if value == usual or not configs or not is_conditional(name):
            continue
        if all(value_of(name, run_config) == usual for run_config in configs):
            raise ConfigError(
                f"[{section}] {key} = {value!r} is read by none of the runs;"
                " leave it out, or add a method or a setting that reads it"
            )


def on_ranks(entry: Entry, ranks: int) -> Entry:
    """Return a setting with its default grid on `ranks` ranks.

    A setting that has a grid, and a refusal, stay as they are.
    """
    if isinstance(entry, Refusal):
        return entry
    return replace(entry, config=resolve_grid(entry.config, ranks))


def parse_setting(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name and the settings of "NAME: key=value key=value".

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
    """Return the sections of a table whose keys have several forms.

    A key is "products.kind", or a name of `short`, which maps names to section.key, or
    a section with a table as its value; grid = "2x1" sets replicas and members.
    """
    sections: dict[str, dict[str, Any]] = {}
    for key, value in table.items():
        section, dot, setting = short.get(key, key).partition(".")
        if isinstance(value, Mapping):
            sections.setdefault(key, {}).update(value)
        elif dot:
            sections.setdefault(section, {})[setting] = value
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
    """Return the name of the folder for the setting called `name`.

    It has the letters and digits of `name` in lower case, with - for all between them.
    """
    return "-".join("".join(c if c.isalnum() else " " for c in name.lower()).split())


def check_names(settings: Sequence[Entry]) -> None:
    """Refuse an empty comparison, and two settings with the same name or folder."""
    if not settings:
        raise ConfigError(
            "nothing to compare: add --setting 'NAME: key=value', [compare.NAME] tables"
            " in the file, or --methods all"
        )
    folders = [folder_name(setting.name) for setting in settings]
    for setting, folder in zip(settings, folders, strict=True):
        if not folder:
            raise ConfigError(
                f"the name of setting {setting.name!r} needs a letter or a digit"
            )
        if folders.count(folder) > 1:
            raise ConfigError(
                f"two settings are called {setting.name!r}, apart from case and signs;"
                " give each a name of its own"
            )


def check_equal_batch(settings: Sequence[NamedSetting]) -> None:
    """Refuse settings whose steps have different numbers of rows."""
    if is_equal_batch(settings):
        return
    batches = [f"{s.name} {s.global_batch} ({_factors(s.config)})" for s in settings]
    common = equal_batch(settings)
    remedy = [
        f"batch={common // batches_of_step(s.config)} for {s.name}" for s in settings
    ]
    raise ConfigError(
        f"settings differ in their global batch: {', '.join(batches)};"
        f" write {', '.join(remedy)} to make it {common} for all, or add"
        " --allow-unequal"
    )


def _factors(config: RunConfig) -> str:
    """Return in words the numbers whose product is the global batch."""
    factors = f"batch {config.schedule.batch} x {config.grid.replicas} replicas"
    together = config.agreement.batches_together
    return factors if together == 1 else f"{factors} x {together} batches of a step"


def is_equal_batch(settings: Sequence[NamedSetting]) -> bool:
    """Return whether a step of each setting has the same number of rows."""
    return len({setting.global_batch for setting in settings}) == 1


def equal_batch(settings: Sequence[NamedSetting]) -> int:
    """Return the global batch of the first setting, rounded up.

    The replicas of each setting, and the batches of a step, can then share it evenly.
    """
    share = lcm(*(batches_of_step(setting.config) for setting in settings))
    return -(-settings[0].global_batch // share) * share


# A plan is checked before anything runs.


def check_plan(plan: StudyPlan) -> None:
    """Refuse a plan that cannot run, or that would compare unequal tasks."""
    if plan.kind not in KINDS or plan.on not in PLACES:
        raise ConfigError(
            f"the kind of a study must be one of {', '.join(KINDS)} and its place (on)"
            f" {' or '.join(PLACES)}, not {plan.kind!r} on {plan.on!r}"
        )
    _check_numbers(plan)
    for name in plan.axes.methods:
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
        ("--batch", plan.axes.batch, 1),
        ("--repeats", (plan.repeats,), 1),
        ("--seeds", plan.axes.seeds, 0),
    ):
        bad = [value for value in values if value < least]
        if bad:
            raise ConfigError(f"{flag} {bad[0]}: must be at least {least}")


def _check_lists(plan: StudyPlan) -> None:
    axes = plan.axes
    lists: dict[str, Sequence[Any]] = {
        "--methods": axes.methods,
        "--steps": axes.steps,
        "--batch": axes.batch,
        "--precision": axes.precision,
        "--seeds": axes.seeds,
        "--ranks": plan.all_ranks,
    }
    for flag, values in lists.items():
        if not values:
            raise ConfigError(f"{flag} is empty; give at least one value")
    once = {"--emulate-members": plan.emulated, "--grids": axes.grids}
    for flag, values in {**lists, "--ranks": plan.ranks, **once}.items():
        twice = [value for value in values if values.count(value) > 1]
        if twice:
            raise ConfigError(f"{flag} has {twice[0]} twice; give each value once")
    both = sorted({*plan.ranks} & {*plan.emulated})
    if both:
        raise ConfigError(
            f"{both[0]} is in both --ranks and --emulate-members, and a study either"
            f" starts or emulates so many ranks; remove {both[0]} from one of them"
        )


def _check_grids(plan: StudyPlan) -> None:
    if plan.axes.grids and not set(plan.axes.methods) & set(PLACED):
        raise ConfigError(
            "--grids is for the method hybrid only, which is not among --methods;"
            " add hybrid, or leave --grids out"
        )
    for r, c in plan.axes.grids:
        if r * c not in plan.all_ranks:
            raise ConfigError(
                f"--grids {r}x{c} needs {r * c} ranks; add {r * c} to --ranks"
            )
    for name in plan.axes.methods:
        if not any(plan.grids_of(name, ranks) for ranks in plan.all_ranks):
            raise ConfigError(
                f"--methods {name} needs an R x C grid with R and C above 1, which no"
                f" number in --ranks allows; add 4 to --ranks, or leave {name} out"
            )


def _check_weak(plan: StudyPlan) -> None:
    least = min(plan.all_ranks)
    if plan.batch_grows and plan.kind != "weak":
        raise ConfigError(
            f"--batch-grows is for weak studies only; leave it out of a {plan.kind}"
            " study"
        )
    odd = [p for p in plan.all_ranks if plan.batch_grows and p % least]
    if odd:
        raise ConfigError(
            f"--batch-grows cannot be used on {odd[0]} ranks, because {odd[0]} is no"
            f" multiple of {least}, the smallest number of ranks; choose multiples of"
            f" {least}, or leave --batch-grows out"
        )
    most = max(plan.all_ranks)
    if plan.kind == "weak" and plan.rows * least < most:
        raise ConfigError(
            f"{plan.rows} rows are too few for a weak study from {least} to {most}"
            f" ranks, which needs at least {-(-most // least)}; name larger --data"
        )


def _check_batch(plan: StudyPlan) -> None:
    """Refuse a global batch that the replicas of a method cannot share evenly."""
    for point in plan.settings():
        replicas = point.grid[0]
        if point.batch % replicas:
            share = lcm(*(point.grid[0] for point in plan.settings()))
            larger = -(-point.batch // share) * share
            raise ConfigError(
                f"{point.method} on {point.ranks} ranks: {replicas} replicas cannot"
                f" share a global batch of {point.batch} evenly; use --batch {larger},"
                " or other ranks"
            )


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
    """Refuse --steps auto on several replicas, and CA-SGD with --products direct.

    With --steps auto, the configuration has 0 steps.
    """
    if not config.schedule.steps and grid[0] > 1:
        raise ConfigError(
            f"--steps auto is refused for {name} on {grid[0]} replicas, because there"
            " the number of steps changes the model; give --steps as a number"
        )
    if method.product and config.products.kind == "direct":
        raise ConfigError(
            f"--products direct cannot be used with {name}, because direct needs a"
            " sum in every step; leave --products out, or name gram or cached"
        )

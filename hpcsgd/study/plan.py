"""What a study will run: lists of ranks, methods and settings, multiplied out."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcsgd.study.methods import PLACED, Grid, Method, every_grid, get_method
from hpcsgd.study.points import Point, Steps, Tables

KINDS = ("strong", "weak", "sweep")
PLACES = ("local", "slurm")


@dataclass(frozen=True)
class Plan:
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

    def settings(self) -> list[Point]:
        """Every point once, in the order in which each round runs them."""
        return list(self._points())

    def runs(self) -> Iterator[Point]:
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

    def _points(self) -> Iterator[Point]:
        for name in self.methods:
            method = get_method(name)
            for ranks in self.all_ranks:
                for grid in self.grids_of(name, ranks):
                    for batch in self.batch:
                        yield from self._at(name, method, ranks, grid, batch)

    def _at(
        self, name: str, method: Method, ranks: int, grid: Grid, batch: int
    ) -> Iterator[Point]:
        """All steps, recipes and seeds of one place."""
        for steps in (1,) if method.sums_each else self.steps:
            for recipe in self.precision:
                for seed in self.seeds:
                    yield Point(
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

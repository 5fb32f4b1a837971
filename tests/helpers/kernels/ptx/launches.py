"""Every kernel of the support table, launched by the tests of its own text."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

from hpcsgd.backends.cuda.kernels import CLUSTER, VARIANTS, Build, build_of, serves
from tests.helpers.kernels import walks
from tests.helpers.kernels.problems import numbers, stored

ONCE = (1,)
FEW = (0, 3)
# Tests that launch kernels, by their sources.
MODULES = {
    **{
        source: f"tests.helpers.kernels.checks.{source}"
        for source in (
            *("average", "cast", "columns", "direct_steps", "gather_steps", "gram"),
            *("margin", "pack", "parts", "pieces", "recurrence", "round", "rules"),
            *("sample", "softmax", "update", "gram_wgmma"),
        )
    },
    "csr": "tests.helpers.kernels.checks.csr",
}


def module_of(source: str) -> ModuleType:
    """The tests of one text."""
    return import_module(MODULES[source])


@contextmanager
def run_by(kernel: Callable) -> Iterator[None]:
    """All those tests with something else in the place of `Kernel`."""
    modules = [module_of(source) for source in MODULES]
    before = [module.Kernel for module in modules]
    for module in modules:
        module.Kernel = kernel
    try:
        yield
    finally:
        for module, old in zip(modules, before, strict=True):
            module.Kernel = old


@contextmanager
def rows_packed() -> Iterator[None]:
    """All those tests on matrices that end with the last column of their last row.

    It is among the rows that are taken: whoever reads behind it is seen.
    """
    modules = [module_of(source) for source in MODULES] + [walks]
    before = [vars(module).copy() for module in modules]
    for module in modules:
        for name, own in (("stored", _packed), ("numbers", _with_last)):
            if hasattr(module, name):
                setattr(module, name, own)
    try:
        yield
    finally:
        for module, old in zip(modules, before, strict=True):
            vars(module).update(old)


def _packed(rng: Any, n: int, d: int, name: str = "bf16", spare: int = 0) -> Any:
    return stored(rng, n, d, name)


def _with_last(rng: Any, n: int, m: int) -> Any:
    found = numbers(rng, n, m)
    found[-1:] = n - 1
    return found


def table(arch: str) -> dict[tuple[str, str], Build]:
    """(name, format) -> build of all that a GPU of `arch` may be asked for."""
    found: dict[Build, tuple[str, str]] = {}
    for name, variants in VARIANTS.items():
        for element in sorted({e for v in variants for e in v.elements}):
            if serves(name, element, arch):
                found.setdefault(build_of(name, element, arch), (name, element))
    return {both: build for build, both in found.items()}


def launch(name: str, element: str, arch: str) -> None:
    """One kernel of the table beside float64; AssertionError where it differs."""
    build = build_of(name, element, arch)
    module = module_of(build.source)
    family, cluster = _family(name)
    if build.source == "gram":
        tile = int(name.split("-")[-1])
        module.agrees(element, tile, build.defines, module.CASES[2], None, FEW)
    elif name.startswith("recurrence"):
        sizes, update = module.RAGGED, "momentum"
        module.agrees(family, sizes, update, module.SIDES, cluster, seeds=ONCE)
    elif name.startswith(("direct-steps", "gather-steps")):
        walk = module.walk_of(*module.SIZES[1], element, family)
        module.launches_agree(walk, element, seeds=ONCE)
    else:
        BY_NAME[name](module, element)


def _family(name: str) -> tuple[str, int]:
    """ "squared-hinge", 8 of "recurrence-cluster-squared-hinge"."""
    parts = name.split("-")
    is_many = parts[1:2] == ["cluster"]
    first = 2 if is_many or name.startswith(("direct", "gather")) else 1
    return "-".join(parts[first:]), CLUSTER if is_many else 1


def _csr(launches: Callable, bits: int) -> Callable:
    return lambda m, e: launches(m, m.case_of((e, bits), m.SIZES[1]))


def _csr_kernels(ending: str, bits: int) -> dict[str, Callable]:
    ways = {
        "csr_margin": lambda m, case: m.margins_agree(case),
        "csr_margins_columns": lambda m, case: m.margins_agree(case, 10),
        "csr_update": lambda m, case: m.update_agrees(case),
        "csr_update_columns": lambda m, case: m.update_agrees(case, 10, 2),
        "csr_gram": lambda m, case: m.gram_agrees(case, 64),
    }
    return {f"{name}{ending}": _csr(way, bits) for name, way in ways.items()}


def _steps(rule: str) -> Callable:
    return lambda m, e: m.agrees(rule, 257, first=0)


def _columns(module: ModuleType, element: str) -> None:
    module.agrees(element, *module.SIZES[2])


def _casts(module: ModuleType, element: str) -> None:
    module.casts_agree(element)


def _rows(module: ModuleType, element: str) -> None:
    module.rows_agree(*module.SIZES[1], element)


BY_NAME: dict[str, Callable[[ModuleType, str], None]] = {
    **dict.fromkeys(("margin", "update"), lambda m, e: m.agrees(e, *m.SIZES[1])),
    **dict.fromkeys(("narrow", "widen"), _casts),
    **dict.fromkeys(("margins_columns", "update_columns", "blend"), _columns),
    **dict.fromkeys(("pack_rows", "join_rows"), _rows),
    **dict.fromkeys(("portion", "become"), lambda m, e: m.agrees(257, 300)),
    "gram-wgmma": lambda m, e: m.agrees(e, m.CASES[2], None, FEW),
    "gather_rows": lambda m, e: m.gather_agrees(e, *m.SIZES[1], False),
    "gather_rows_wide": lambda m, e: m.gather_agrees(e, *m.SIZES[1], True),
    "pack_tiles": lambda m, e: m.agrees(m.STARTS[2]),
    "add_parts": lambda m, e: m.adds_as_the_host(*m.SIZES[4], 0, None),
    "round": lambda m, e: m.agrees(e),
    "step_plain": _steps("sgd"),
    "step_momentum": _steps("nesterov"),
    "step_adagrad": _steps("adagrad"),
    "step_adam": _steps("adam"),
    "add_words": lambda m, e: m.sums_agree(257),
    "sample": lambda m, e: m.agrees(True),
    "softmax": lambda m, e: m.agrees(m.RAGGED, 5, "three", m.SIDES, ONCE),
    **_csr_kernels("", 32),
    **_csr_kernels("_64", 64),
}

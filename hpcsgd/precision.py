"""The nine number formats of an exchange, and the recipes that choose them."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from hpcsgd.errors import ConfigError, NameTable
from hpcsgd.formats import formats_of, get_format
from hpcsgd.settings import (
    Resolved,
    RunFacts,
    Settings,
    declarations,
    remembered,
    setting,
)

# What stores the matrix may be more formats than the others.

MATRIX, OTHERS = tuple(formats_of("matrix")), tuple(formats_of("weights"))


@dataclass(frozen=True)
class Precision(Settings, section="precision"):
    """The nine number formats of an exchange; the defaults are recipe `fp32`."""

    matrix: str = setting(
        "fp32", "storage of A, the input of every product", choices=MATRIX
    )
    margin: str = setting("fp32", "storage of the margins z = Yw", choices=OTHERS)
    margin_sum: str = setting(
        "fp32", "accumulator of Yw and of its sum over members", choices=OTHERS
    )
    gram_sum: str = setting(
        "fp32", "accumulator of the Gram matrix YYᵀ", choices=OTHERS
    )
    gram_wire: str = setting(
        "fp32",
        "format in which the Gram matrix is summed over members",
        choices=OTHERS,
    )
    inner: str = setting(
        "fp32", "correction Σ G r and its addition to the margins", choices=OTHERS
    )
    residual: str = setting("fp32", "link function and residuals", choices=OTHERS)
    gradient_sum: str = setting(
        "fp32", "accumulator of the gradient Yᵀr", choices=OTHERS
    )
    weights: str = setting("fp32", "storage and update of the weights", choices=OTHERS)

    @property
    def one_message(self) -> bool:
        """Return whether Gram matrix and margins are sent in one format and message."""
        return self.gram_wire == self.margin_sum

    @property
    def arithmetic(self) -> frozenset[str]:
        """Return the names of the formats in which a rank computes.

        Those of `matrix`, `margin` and `gram_wire` are for storage and messages only,
        and do not count.
        """
        return _arithmetic(self)

    @property
    def is_uniform(self) -> bool:
        """Return whether all arithmetic has one format, fp32 or fp64.

        It must also represent every number of the matrix. NumPy and BLAS then compute
        in that format; otherwise each field is rounded on its own.
        """
        if len(self.arithmetic) > 1:
            return False
        (name,) = self.arithmetic
        form = get_format(name)
        matrix = get_format(self.matrix)
        return form.is_wide and matrix.unit_roundoff >= form.unit_roundoff

    @property
    def working(self) -> np.dtype[Any]:
        """Return the dtype of rows, and of the values that multiply them, on the host.

        It is float64 if the matrix or any arithmetic is in fp64, else float32.
        """
        needed = self.arithmetic | {self.matrix}
        return np.dtype("float64" if "fp64" in needed else "float32")


@remembered
def _arithmetic(precision: Precision) -> frozenset[str]:
    """Return the formats in which a rank computes; runs read them often."""
    stored = {"matrix", "margin", "gram_wire"}
    return frozenset(getattr(precision, f) for f in FIELDS if f not in stored)


AUTO = "auto"  # in the place of a recipe: pilots choose one
SCALES = ("column", "global", "none")
ROUNDINGS = ("nearest", "stochastic")
FIELDS = tuple(field.name for field in fields(Precision))


def _uniform(name: str) -> Precision:
    return Precision(**dict.fromkeys(FIELDS, name))


_FP32 = _uniform("fp32")
RECIPES: dict[str, Precision] = NameTable(
    {
        "fp64": _uniform("fp64"),
        "fp32": _FP32,
        "c": replace(_FP32, matrix="bf16", margin="bf16"),
        "d": replace(_FP32, matrix="bf16", margin="bf16", gram_wire="bf16"),
        "bf16": _uniform("bf16"),
        "fp16": replace(_FP32, matrix="fp16", margin="fp16", residual="fp16"),
        "fp8": replace(_FP32, matrix="fp8-e4m3", margin="bf16"),
    },
    """The recipes of number formats: name -> Precision.

    A recipe is a named choice of the nine number formats of one exchange. The names
    are the values of `precision` in `hpcsgd.fit` and of the setting
    `precision.recipe`. The fields of a `Precision` are `matrix`, `margin`,
    `margin_sum`, `gram_sum`, `gram_wire`, `inner`, `residual`, `gradient_sum` and
    `weights`.

    Examples
    --------
    >>> import hpcsgd
    >>> hpcsgd.RECIPES["c"].matrix, hpcsgd.RECIPES["c"].weights
    ('bf16', 'fp32')
    """,
)


def make_precision(
    recipe: str, overrides: Mapping[str, str] | None = None
) -> Precision:
    """Return the recipe called `recipe`, with the fields in `overrides` changed."""
    if recipe not in RECIPES:
        raise ConfigError(
            f"[precision] unknown recipe: {recipe!r}; known: {sorted(RECIPES)}"
        )
    return replace(RECIPES[recipe], **overrides) if overrides else RECIPES[recipe]


def like(name: str) -> Any:
    """Declare the setting of a field of Precision, whose default the recipe sets."""

    def resolve(facts: RunFacts) -> Resolved:
        precision = facts.config.precision
        return getattr(precision.resolve(), name), f"recipe {precision.recipe}"

    declared = replace(declarations(Precision)[name], default=None, becomes=resolve)
    return field(default=None, metadata={"setting": declared})


@dataclass(frozen=True)
class PrecisionConfig(Settings, section="precision"):
    """A recipe of number formats, and any of its nine formats set on its own."""

    recipe: str = setting(
        "fp32",
        "recipe of number formats, or auto to choose one by pilot runs",
        choices=lambda: (*RECIPES, AUTO),
    )
    tolerance: float = setting(
        0.005,
        "largest relative loss difference to fp64 of a recipe that `auto` chooses",
    )
    matrix: str | None = like("matrix")
    margin: str | None = like("margin")
    margin_sum: str | None = like("margin_sum")
    gram_sum: str | None = like("gram_sum")
    gram_wire: str | None = like("gram_wire")
    inner: str | None = like("inner")
    residual: str | None = like("residual")
    gradient_sum: str | None = like("gradient_sum")
    weights: str | None = like("weights")
    scale: str = setting(
        "column",
        "powers of two that scale an fp16, fp8 or int8 matrix: one for each column (for"
        " sparse rows one for all), one for all (global), or none",
        choices=SCALES,
    )
    rounding: str = setting("nearest", "rounding of the weights", choices=ROUNDINGS)
    loss_scale: float = setting(
        0.0, "factor of fp16 or fp8 residuals; 0 finds it and adapts it"
    )
    loss_scale_start: float = setting(
        2.0**10,
        "first value of a loss scale that adapts, a power of two",
        above=0,
        remedy="1024 is usual",
        read_if={"precision.loss_scale": (0.0,)},
    )
    loss_scale_growth: int = setting(
        1000,
        "exchanges without overflow after which a loss scale that adapts doubles",
        is_whole=True,
        at_least=1,
        remedy="1000 is usual",
        read_if={"precision.loss_scale": (0.0,)},
    )

    def resolve(self) -> Precision:
        """Return the nine number formats: the recipe, and fields set on their own.

        A recipe "auto" counts as fp32 until pilots have chosen one.
        """
        overrides = {
            name: getattr(self, name) for name in FIELDS if getattr(self, name)
        }
        # Until pilots have chosen.
        recipe = "fp32" if self.recipe == AUTO else self.recipe
        return make_precision(recipe, overrides)

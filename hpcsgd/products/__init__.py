"""Products: how the members of a replica compute s steps after one synchronisation."""

from importlib import import_module
from typing import Any

from hpcsgd.errors import ConfigError

PRODUCTS = {
    "direct": "hpcsgd.products.direct:Direct",
    "gram": "hpcsgd.products.gram:Gram",
    "gather": "hpcsgd.products.gather:Gather",
    "gather-once": "hpcsgd.products.gather:GatherOnce",
    "cached": "hpcsgd.products.gram:CachedGram",
}

GATHERS = ("gather", "gather-once")  # every member holds all columns
RECURS = ("gram", "cached")  # with a recurrence, which a monitor can look at
KEEPS = ("gather-once", "cached")  # what one epoch needed is used in all later ones


def get_product(name: str) -> Any:
    """The class of the product called `name`."""
    if name not in PRODUCTS:
        known = [*PRODUCTS, "auto"]
        raise ConfigError(f"[products] unknown kind: {name!r}; known: {known}")
    module, attribute = PRODUCTS[name].split(":")
    return getattr(import_module(module), attribute)

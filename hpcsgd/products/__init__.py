"""Products: what the members of a replica compute and send for s steps of SGD."""

from importlib import import_module
from typing import Any

from hpcsgd.errors import ConfigError, NameTable

PRODUCTS: dict[str, str] = NameTable(
    {
        "direct": "hpcsgd.products.direct:Direct",
        "gram": "hpcsgd.products.gram:Gram",
        "gather": "hpcsgd.products.gather:Gather",
        "gather-once": "hpcsgd.products.gather:GatherOnce",
        "cached": "hpcsgd.products.gram:CachedGram",
    },
    """The products: name -> "module:Class".

    A product is what the members of a replica compute and send for s steps of SGD. The
    names are the values of the setting `products.kind`; "auto" chooses the product that
    a cost model predicts to be the fastest.

    Examples
    --------
    >>> import hpcsgd
    >>> sorted(hpcsgd.PRODUCTS)
    ['cached', 'direct', 'gather', 'gather-once', 'gram']
    """,
)


def get_product(name: str, look_ahead: bool = False) -> Any:
    """Return the class of the product `name`, or `LookAheadGram` if `look_ahead`.

    `LookAheadGram` is the variant of `gram` that sends the next Gram matrix ahead. With
    `look_ahead`, `name` is only checked.
    """
    if name not in PRODUCTS:
        kinds = [*PRODUCTS, "auto"]
        raise ConfigError(f"[products] unknown kind: {name!r}; known: {kinds}")
    where = "hpcsgd.products.gram:LookAheadGram" if look_ahead else PRODUCTS[name]
    module, attribute = where.split(":")
    return getattr(import_module(module), attribute)

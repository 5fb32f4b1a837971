"""Which hooks a run has: what touches its state between exchanges."""

from hpcsgd.config import RunConfig
from hpcsgd.products.hooks import Hooks


def make_hooks(config: RunConfig) -> Hooks:
    """Those that the configuration asks for, in the order they are called."""
    return Hooks([])

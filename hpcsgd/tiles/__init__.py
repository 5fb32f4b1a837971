"""Arrays that live on disk and pass through memory tile by tile."""

from hpcsgd.tiles.plan import Plan, columns_for
from hpcsgd.tiles.store import Layout, Store
from hpcsgd.tiles.traffic import Traffic

__all__ = ["Layout", "Plan", "Store", "Traffic", "columns_for"]

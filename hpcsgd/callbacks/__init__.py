"""What watches a run without changing it."""

from hpcsgd.callbacks.base import Callback, View, Wish
from hpcsgd.callbacks.history import History

__all__ = ["Callback", "History", "View", "Wish"]

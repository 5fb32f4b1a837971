"""A path of penalties: one model for each, each begun where the one before it ended."""

from hpcsgd.paths.api import path
from hpcsgd.paths.outcome import Path

__all__ = ["Path", "path"]

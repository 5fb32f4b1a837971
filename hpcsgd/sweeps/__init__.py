"""One Gram, many models: a sweep of penalties, rates and folds for one run's messages.

Names are loaded when they are first used: the configuration takes a section from here.
"""

from importlib import import_module
from typing import Any

_NAMES = {
    "Sweep": "hpcsgd.sweeps.outcome",
    "load_sweep": "hpcsgd.sweeps.outcome",
    "sweep": "hpcsgd.sweeps.api",
    "race": "hpcsgd.sweeps.race",
}

__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Finds and loads the compiled kernels; where they are missing, says why."""

import ctypes
import os
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

SWITCH = "HPCSGD_NATIVE"  # off: leave the compiled kernels alone


def load(folder: Path, name: str, instead: str) -> tuple[Any, str]:
    """(library or None, why); `instead` is what does its work where it is missing."""
    if os.environ.get(SWITCH, "").lower() in ("off", "0", "no"):
        return None, f"switched off by {SWITCH}"
    for suffix in EXTENSION_SUFFIXES:
        path = folder / f"{name}{suffix}"
        if path.exists():
            return _open(path, instead)
    return None, (
        "not compiled in this installation (no C compiler when it was installed,"
        f" or a bare checkout); {instead} is used"
    )


def _open(path: Path, instead: str) -> tuple[Any, str]:
    try:
        return ctypes.CDLL(str(path)), f"compiled: {path.name}"
    except OSError as error:
        return None, f"{path.name} does not load: {error}; {instead} is used"

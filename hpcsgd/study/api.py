"""Studies from Python: one call each."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcsgd.study.account import Account
from hpcsgd.study.ask import make_plan
from hpcsgd.study.plan import Plan
from hpcsgd.study.run import TIMEOUT, run

Config = Mapping[str, Mapping[str, Any]]


def study(
    plan: Plan, out: str | Path, *, resume: bool = False, timeout: float = TIMEOUT
) -> Account:
    """Run every point of `plan` in a process of its own; see `hpcsgd.study.run`."""
    return run(plan, out, resume=resume, timeout=timeout)


def strong(
    data: str | Path,
    ranks: Sequence[int],
    out: str | Path,
    config: Config | None = None,
    **lists: Any,
) -> Account:
    """The same data on all rank counts.

    Parameters
    ----------
    data : HDF5 file
    ranks : how many to run on
    out : the folder of the study
    config : tables of `train` that all points share
    lists : methods, steps, batch, grids, precision, seeds, emulate_members, repeats,
        and resume, timeout

    Returns
    -------
    Account
    """
    return _ask("strong", data, ranks, out, config, lists)


def weak(
    data: str | Path,
    ranks: Sequence[int],
    out: str | Path,
    config: Config | None = None,
    **lists: Any,
) -> Account:
    """Rows that grow with the ranks; see `strong`, and `batch_grows` beside."""
    return _ask("weak", data, ranks, out, config, lists)


def sweep(
    data: str | Path,
    ranks: Sequence[int],
    out: str | Path,
    config: Config | None = None,
    **lists: Any,
) -> Account:
    """All settings, and all grids of hybrid, at the given ranks; see `strong`."""
    return _ask("sweep", data, ranks, out, config, lists)


def _ask(
    kind: str,
    data: str | Path,
    ranks: Sequence[int],
    out: str | Path,
    config: Config | None,
    lists: dict[str, Any],
) -> Account:
    how = {name: lists.pop(name) for name in ("resume", "timeout") if name in lists}
    base = {section: dict(table) for section, table in (config or {}).items()}
    base.setdefault("data", {})["path"] = str(data)
    plan = make_plan(kind, {"ranks": list(ranks), **lists}, base)
    return study(plan, out, **how)

"""A folder for the time of a run whose states are on disk, where none was named."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import gettempdir
from uuid import uuid4

from hpcsgd.agreement.kinds import is_on_disk
from hpcsgd.comm.base import Communicator
from hpcsgd.config import RunConfig


@contextmanager
def borrowed(config: RunConfig, world: Communicator) -> Iterator[RunConfig]:
    """`config` with a folder of one name on all nodes, which every rank removes."""
    asked = config.agreement
    if not is_on_disk(asked.kind) or asked.store or config.run.out:
        yield config
        return
    name = world.exchange_objects(f"hpcsgd-{uuid4().hex}")[0]
    store = Path(gettempdir()) / name
    try:
        yield replace(config, agreement=replace(asked, store=str(store)))
        world.max_flag(0)  # all have opened what the run has left there
    finally:
        shutil.rmtree(store, ignore_errors=True)

"""The end of a job in which a rank fails where nobody catches it."""

import sys
import time
import traceback
from types import TracebackType

from hpcsgd.comm.base import Communicator

FORWARDING = 0.2  # seconds for a launcher to pass a traceback on


def abort_on_uncaught(world: Communicator) -> None:
    """Replace the hook of uncaught exceptions by one that ends the whole job.

    Otherwise a rank that dies leaves the others waiting in a collective for ever.
    """

    def hook(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        said = "".join(traceback.format_exception(kind, error, trace))
        title = f"hpcsgd: rank {world.rank} of {world.size} failed:"
        try:
            print(f"{title}\n{said}", file=sys.stderr, flush=True)
            # An abort may overtake what the launcher has yet to forward.
            time.sleep(FORWARDING)
        finally:
            world.abort(1)

    sys.excepthook = hook

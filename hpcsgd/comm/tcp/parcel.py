"""Objects as bytes, as mpi4py has them: from ends that have proved who they are."""

import pickle
from typing import Any


def pack(item: Any) -> bytes:
    """For `unpack` on another rank."""
    return pickle.dumps(item)


def unpack(said: Any) -> Any:
    """The object of another rank of this start."""
    return pickle.loads(said)

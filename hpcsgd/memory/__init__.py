"""Whether a run fits into memory, predicted from sizes before anything is allocated."""

from hpcsgd.memory.check import check_memory
from hpcsgd.memory.need import Need, predict

__all__ = ["Need", "check_memory", "predict"]

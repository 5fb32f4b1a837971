"""Many runs that answer one question."""

from hpcsgd.study.compare import Comparison, compare
from hpcsgd.study.settings import Setting

__all__ = ["Comparison", "Setting", "compare"]

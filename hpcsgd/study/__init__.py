"""Many runs that answer one question."""

from hpcsgd.study.account import Account
from hpcsgd.study.api import strong, study, sweep, weak
from hpcsgd.study.compare import Comparison, compare
from hpcsgd.study.plan import Plan
from hpcsgd.study.settings import Setting

__all__ = [
    "Account",
    "Comparison",
    "Plan",
    "Setting",
    "compare",
    "strong",
    "study",
    "sweep",
    "weak",
]

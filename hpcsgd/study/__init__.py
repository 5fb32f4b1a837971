"""Many runs that answer one question."""

from hpcsgd.study.account import Account
from hpcsgd.study.api import strong, study, sweep, weak
from hpcsgd.study.compare import compare, compare_methods
from hpcsgd.study.comparison import Comparison
from hpcsgd.study.plan import Plan
from hpcsgd.study.settings import Setting

__all__ = [
    "Account",
    "Comparison",
    "Plan",
    "Setting",
    "compare",
    "compare_methods",
    "strong",
    "study",
    "sweep",
    "weak",
]

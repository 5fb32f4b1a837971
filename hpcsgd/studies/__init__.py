"""Studies: many runs that answer one question, and their reports."""

from hpcsgd.studies.account import Account
from hpcsgd.studies.compare import Comparison, compare, compare_methods
from hpcsgd.studies.plan import NamedSetting, StudyAxes, StudyPlan
from hpcsgd.studies.run import strong, study, sweep, weak

__all__ = [
    "Account",
    "Comparison",
    "StudyAxes",
    "StudyPlan",
    "NamedSetting",
    "compare",
    "compare_methods",
    "strong",
    "study",
    "sweep",
    "weak",
]

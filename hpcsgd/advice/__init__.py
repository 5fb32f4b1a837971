"""What a run reached, what it cost, what to try next, from its own figures."""

from hpcsgd.advice.of_loss import falls, flat_since
from hpcsgd.advice.of_time import less_agreeing, saving
from hpcsgd.advice.short import advise, cost, in_short, reached

__all__ = [
    "advise",
    "cost",
    "falls",
    "flat_since",
    "in_short",
    "less_agreeing",
    "reached",
    "saving",
]

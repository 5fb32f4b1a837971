"""Small problems on which the gap monitor raises alarms."""

from hpcsgd.backends.exchange import HostExchange
from tests.helpers.harness import config_for

ROWS, COLUMNS, BATCH, STEPS, EVERY = 160, 40, 8, 4, 4


def settings(problem, product="gram", recipe="fp32", /, **sections):
    """20 exchanges, a look at every fourth of them; nothing is done about alarms."""
    ahead = product == "look-ahead"
    tables = {
        "schedule": {"batch": BATCH, "steps": STEPS, "epochs": 4},
        "products": {
            "kind": "gram" if ahead else product,
            "look_ahead": "on" if ahead else "off",
        },
        "precision": {"recipe": recipe},
        "run": {"gap_every": EVERY, "fall_back": False, **sections.pop("run", {})},
    }
    return config_for(problem, **{**tables, **sections})


def alarms(result):
    return [event for event in result.events if event["event"] == "gap"]


def bend(monkeypatch, change):
    """`change` every Gram after it was summed, where the recurrence reads it."""

    def bending(self):
        self.gram = change(self.gram)
        steps(self)

    steps = HostExchange.steps
    monkeypatch.setattr(HostExchange, "steps", bending)


def one_entry(place, factor=1.1):
    def change(packed):
        packed = packed.copy()
        packed[place] *= packed.dtype.type(factor)
        return packed

    return change

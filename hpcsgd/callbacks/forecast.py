"""How the time of the last while was split, and how long a run will still take."""

import math

from hpcsgd.callbacks.base import View

COMMUNICATE = ("communicate", "agreement")
WORK = ("gather", "gram", "scores", "inner", "update", "steps")


class Split:
    """Shares of work, network and the rest since the last look."""

    def __init__(self) -> None:
        self.seen = (0.0, 0.0, 0.0)

    def since_last(self, view: View) -> str:
        """work, net, other in per cent, or nothing where nothing was measured."""
        phases = view.phases()
        work = sum(phases.get(name, 0.0) for name in WORK)
        net = sum(phases.get(name, 0.0) for name in COMMUNICATE)
        now = (work, net, max(view.seconds - work - net, 0.0))
        spent = [max(n - s, 0.0) for n, s in zip(now, self.seen, strict=True)]
        total, self.seen = sum(spent), now
        if total <= 0.0:
            return ""
        work_share, net_share = (round(100 * part / total) for part in spent[:2])
        other = max(100 - work_share - net_share, 0)
        return f"work {work_share} net {net_share} other {other} %"


class Forecast:
    """Time left, from decayed sums of what was done and how long it took.

    A sum that forgets with the time spent cannot jump: one slow exchange among many
    moves the rate by its own share only.
    """

    MEMORY = 20.0  # seconds of training after which a third of a measurement is left

    def __init__(self) -> None:
        self.exchanges, self.seconds = 0, 0.0  # at the last look
        self.done, self.spent = 0.0, 0.0  # decayed sums
        self.evaluations = 0

    def evaluated(self) -> None:
        """Count a full loss."""
        self.evaluations += 1

    def update(self, view: View) -> None:
        """Take in what was done since the last look."""
        done = view.exchanges - self.exchanges
        spent = view.seconds - self.seconds
        if done <= 0 or spent <= 0.0:
            return
        keep = math.exp(-spent / self.MEMORY)
        self.done, self.spent = keep * self.done + done, keep * self.spent + spent
        self.exchanges, self.seconds = view.exchanges, view.seconds

    def seconds_left(self, view: View) -> float:
        """Exchanges and evaluations to come; nan before anything is known."""
        if self.done <= 0.0:
            return math.nan
        exchanges = max(view.exchanges_planned - view.exchanges, 0)
        looks = max(view.evaluations_planned - self.evaluations, 0)
        evaluating = view.phases().get("evaluate", 0.0)
        each = evaluating / self.evaluations if self.evaluations else 0.0
        return exchanges * self.spent / self.done + looks * each

    def left(self, view: View) -> str:
        """The same for a person."""
        return in_words(self.seconds_left(view))


def in_words(seconds: float) -> str:
    """ "45 s left", "2 min 10 s left", "about 3 h left": no finer than it is known."""
    if not math.isfinite(seconds):
        return ""
    if seconds < 57.5:
        return _seconds(seconds)
    if seconds < 595:
        minutes, rest = divmod(10 * round(seconds / 10), 60)
        return f"{minutes} min {rest} s left" if rest else f"{minutes} min left"
    if seconds < 3570:
        return f"{round(seconds / 60)} min left"
    if seconds < 2 * 3600 - 300:
        minutes = 10 * round(seconds / 600) - 60
        return f"about 1 h {minutes} min left" if minutes else "about 1 h left"
    if seconds < 47.5 * 3600:
        return f"about {round(seconds / 3600)} h left"
    return f"about {round(seconds / 86400)} days left"


def _seconds(seconds: float) -> str:
    """Single seconds at the end, five at a time before."""
    if seconds < 1:
        return "almost done"
    whole = round(seconds)
    return f"{whole if whole <= 10 else 5 * round(seconds / 5)} s left"

"""Whether a run takes what it was expected to take: said once, nothing is changed."""

import logging
from typing import Any

from hpcsgd.callbacks.base import Callback, View

log = logging.getLogger(__name__)
PATIENCE = 1.0  # seconds of training after which a step's time is known well enough
SETTLED = 4  # epochs after which the first one, in which all is kept, counts little
MUCH = 1.25  # times what the rival was expected to take


class PaceCheck(Callback):
    """Tells of a product that turns out slower than another was expected to be.

    The run keeps what it has: another product or another s has other bits, and a run
    that was stopped could not be repeated. A machine file takes it in at the end.
    """

    def __init__(self, chosen: Any, keeps: bool) -> None:
        self.chosen = chosen
        self.epochs = SETTLED if keeps else 0
        self.is_open = True

    def on_exchange(self, view: View) -> None:
        """Once, when enough is known."""
        if not self.is_open or view.seconds < PATIENCE or view.epoch < self.epochs:
            return
        self.is_open = False
        each, rival = view.seconds / max(view.steps, 1), self.chosen.rival
        if each > MUCH * rival.seconds and each > MUCH * self.chosen.seconds:
            log.info(
                "a step of %s with s = %d takes %.1f µs and was expected to take %.1f;"
                " --products %s --steps %d may be faster (%.1f expected). This run"
                " goes on as it is: its bits depend on it",
                *(self.chosen.product, self.chosen.steps),
                *(1e6 * each, 1e6 * self.chosen.seconds),
                *(rival.product, rival.steps, 1e6 * rival.seconds),
            )

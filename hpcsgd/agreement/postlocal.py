"""Post-local SGD: agreed after every exchange at first, every τ exchanges later."""

from math import ceil

from hpcsgd.agreement.average import Average
from hpcsgd.agreement.terms import Terms
from hpcsgd.comm.grid import Grid


class PostLocal(Average):
    """Averages after exchanges 1 .. `switch`, then every `period` of them."""

    def __init__(
        self,
        grid: Grid,
        share: float,
        period: int,
        switch: int,
        momentum: str = "average",
        classes: int = 0,
    ) -> None:
        super().__init__(grid, share, period, momentum, classes)
        self.switch = switch

    @classmethod
    def of(cls, terms: Terms) -> "PostLocal":
        """The switch is set in epochs, parts of one included."""
        switch = exchanges_in(terms.settings.switch, terms.exchanges_per_epoch)
        own = terms.grid, terms.share, terms.period
        return cls(*own, switch, *cls.buffers(terms))

    def is_whole(self, exchanges: int) -> bool:
        """The period counts from the start of the run, as in every other row."""
        return exchanges <= self.switch or exchanges % self.period == 0


def exchanges_in(epochs: float, each: int) -> int:
    """So many epochs of `each` exchanges, a part of one rounded up."""
    return ceil(round(epochs * each, 6))  # 0.1 · 30 is 3, not 4

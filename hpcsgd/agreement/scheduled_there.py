"""Gradients that a device sums, for transfers with priorities."""

from hpcsgd.agreement.scheduled_wire import Ordered
from hpcsgd.agreement.there import BufferThere
from hpcsgd.products.base import Array


class OrderedThere(BufferThere, Ordered):
    """The tail lies ahead on the host, and nowhere on the device: the host sums it."""

    def here(self, part: slice) -> Array:
        """The same words of the gradient."""
        return self.gradient.reshape(-1)[part]

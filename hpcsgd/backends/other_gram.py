"""Products of rows of which somebody else than our plain kernel makes the Gram."""

from abc import ABC, abstractmethod
from typing import Any

from hpcsgd.backends.device_products import DenseProducts
from hpcsgd.backends.kernel_table import build_of


class OtherGram(ABC):
    """All but the Gram is made by `own`.

    See `hpcsgd.backends.device_products.Products`.
    """

    def __init__(self, own: DenseProducts) -> None:
        self.own, self.device, self.count = own, own.device, own.count

    @abstractmethod
    def gram(self, numbers: Any, out: Any) -> None:
        """Tiles of Y Yᵀ."""

    def both(self, numbers: Any, weights: Any, gram: Any, margins: Any) -> None:
        """gram ← tiles of Y Yᵀ, margins ← Y W; without weights the first alone."""
        self.gram(numbers, gram)
        if weights is not None:
            self.margins(numbers, weights, margins)

    def margins(self, numbers: Any, weights: Any, out: Any) -> None:
        """Y W."""
        self.own.margins(numbers, weights, out)

    def update(self, numbers: Any, factors: Any, carry: Any, weights: Any) -> None:
        """W ← W carryᵀ + Yᵀ factors."""
        self.own.update(numbers, factors, carry, weights)

    def fetched(self, numbers: Any) -> Any:
        """The rows on the host."""
        return self.own.fetched(numbers)

    def _launch(
        self, kernel: str, element: str, shape: Any, arguments: Any, **more: Any
    ) -> None:
        build = build_of(kernel, element, self.device.arch)
        self.device.kernel(build)(*shape, arguments, **more)

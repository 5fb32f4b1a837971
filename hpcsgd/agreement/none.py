"""Nobody to agree with, or nobody wanted."""

from hpcsgd.agreement.base import Agreement
from hpcsgd.products.base import State


class NoAgreement(Agreement):
    """Replicas never speak; each ends with its own weights."""

    def agree(self, state: State, purpose: str) -> None:
        """Nothing to say."""

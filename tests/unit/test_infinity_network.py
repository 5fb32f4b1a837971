"""Tiles on disk between replicas: one travels while another is used."""

from types import SimpleNamespace

import numpy as np
import pytest

from hpcsgd.agreements.more.infinity.agreement import Between
from hpcsgd.comm.communicator import Pending
from tests.helpers.harness import train_on
from tests.helpers.infinity_child import config_of, problem


class Logged:
    """Replicas of which this is one of two, and what was said when."""

    def __init__(self):
        self.size, self.rank, self.charged, self.said = 2, 0, None, []
        self.ledger = SimpleNamespace(gives_way=None)

    def _pending(self, what, buffer, arrive=lambda: None):
        number = sum(w == f"begin {what}" for w, _ in self.said)
        self.said.append((f"begin {what}", number))

        def finish():
            arrive()
            self.said.append((f"end {what}", number))

        return Pending(buffer, finish)

    def start_gather(self, part, counts, out, purpose):
        """What is sent is read when it is waited for."""
        arrive = lambda: np.copyto(out[: part.size], part)  # noqa: E731
        return self._pending("gather", out, arrive)

    def start_sum_parts(self, buffer, counts, purpose):
        return self._pending("sum", buffer[: counts[0]])


@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_tile_travels_while_another_is_used(count):
    """Gather i + 1 before tile i is used, G of i + 1 before tile i is stepped."""
    replicas = Logged()
    between = Between(replicas, 4, 1, np.dtype(float))
    ring = np.empty((2, 1))  # read into again as soon as the next tile is asked for
    parts = ((k, np.add(0.0, k + 1.0, out=ring)) for k in range(count))
    for number, whole in between.gathered(parts, lambda k: [2, 2], "agreement"):
        assert (whole[:2] == number + 1).all()
        replicas.said.append(("use", number))
    for _ in range(2):  # exchanges
        between.restart()
        for number in range(count):
            own = between.sums(
                number, count, lambda k: [2, 2], lambda k, flat: flat.__iadd__(k + 1.0)
            )
            assert (own == number + 1).all()
            replicas.said.append(("step", number))
    said = replicas.said
    for number in range(count - 1):
        before = said.index(("begin gather", number + 1))
        assert before < said.index(("end gather", number)) < said.index(("use", number))
        before = said.index(("begin sum", number + 1))
        assert before < said.index(("end sum", number)) < said.index(("step", number))
    assert [w for w, _ in said].count("end sum") == 2 * count


def test_what_hides_is_measured(tmp_path):
    """Messages that travel are in the report; one replica has none."""
    drawn = problem()
    for replicas in (1, 2):
        result = train_on(replicas, config_of(drawn, tmp_path, replicas), drawn)
        said = result.report["agreement"]
        assert 0.0 <= said["hidden_seconds"] <= said["transfer_seconds"]
        assert (said["transfer_seconds"] > 0.0) == (replicas > 1)

"""`gather` and `gather-once`: s steps after the sampled rows are gathered."""

from collections.abc import Iterator

from hpcsgd.backends.task import Group, MemberExchanges, State, Task
from hpcsgd.data.matrix import index_dtype
from hpcsgd.products.base import (
    ExchangeMessage,
    ExchangeShape,
    MemoryShape,
    Product,
)
from hpcsgd.products.direct import take_plain_steps

# Narrow data: members exchange the sampled rows, then step without a message.


class Gather(Product):
    """One all-gather of m·d_c words from each member, then s exact local steps.

    m is the number of sampled rows and d_c that of the member's columns. Rows are sent
    as they are stored, so a 16-bit matrix costs half the bytes. Every member stores all
    of w.
    """

    holds_all_columns = True

    def __init__(self, task: Task, exchanges: MemberExchanges) -> None:
        self.task = task
        self.exchanges = exchanges

    @staticmethod
    def messages(shape: ExchangeShape) -> Iterator[ExchangeMessage]:
        """Yield an all-gather of the values of the sampled rows.

        For sparse rows, the column numbers are gathered, too.
        """
        if shape.stored is None:
            words = sum(shape.sizes) * shape.local_columns
            yield ExchangeMessage(words, "matrix", is_gathered=True)
        else:
            index = index_dtype(shape.local_columns).itemsize
            yield ExchangeMessage(shape.stored, "matrix", is_gathered=True, index=index)

    @staticmethod
    def holds(shape: MemoryShape) -> Iterator[tuple[str, int]]:
        """Yield name and bytes of the rows and vectors of an exchange.

        Dense rows count with the local columns as sent, and with all columns as
        received, as put side by side, and in the working format.
        """
        if shape.density is not None:
            yield "rows", shape.sampled(shape.replica.columns)
        else:
            received = shape.replica.columns * (2 * shape.matrix + shape.working)
            local_bytes = shape.replica.local_columns * shape.matrix
            yield "rows", int(shape.rows * (local_bytes + received))
        yield shape.vectors()

    def advance(self, state: State, group: Group, upcoming: Group | None) -> State:
        """Gather the rows of `group`, then take plain steps, and return the state.

        With `gather-once`, rows that were stored in an earlier epoch are not gathered
        again.
        """
        x = self.exchanges.gathered(group.blocks, self.keeps_batches)
        x.load(group)
        x.attach(state)
        if not (self.keeps_batches and x.has_rows()):
            x.pack()
            x.gather()
            x.place()
        take_plain_steps(self.exchanges, x)
        return state


# Rows that come again: members exchange them once, and later send no message.
#
# Under "shuffle once" every epoch has the same groups. After the first one every member
# holds all columns of all rows, in the order in which they are taken.


class GatherOnce(Gather):
    """The product `gather` for rows that are not stored yet; others need no message."""

    keeps_batches = True

    @staticmethod
    def messages(shape: ExchangeShape) -> Iterator[ExchangeMessage]:
        """Yield the messages of `gather`; none if the rows are stored already."""
        if not shape.is_kept:
            yield from Gather.messages(shape)

    @staticmethod
    def holds(shape: MemoryShape) -> Iterator[tuple[str, int]]:
        """Yield name and bytes of the arrays of `gather`, and of all gathered rows."""
        yield from Gather.holds(shape)
        size = shape.replica
        yield "kept", int(size.rows * size.columns * shape.matrix)

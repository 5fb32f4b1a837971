"""Many penalties, one after the other, on data that are opened and a Gram made once."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from hpcsgd.assembly.proximal import penalty_of
from hpcsgd.comm.base import Communicator
from hpcsgd.config import RunConfig
from hpcsgd.coordinate.opening import Ready, open_form
from hpcsgd.coordinate.report import result_of
from hpcsgd.coordinate.run import Training
from hpcsgd.data.readers import RowReader
from hpcsgd.problem import ProblemConfig
from hpcsgd.result import Result
from hpcsgd.session import lent
from hpcsgd.timing import Clock


def along(
    config: RunConfig,
    world: Communicator,
    reader: Callable[[Communicator], RowReader],
    problems: Callable[[float], Sequence[ProblemConfig]],
    warm: bool = True,
) -> Iterator[Result]:
    """A result for every problem that `problems` makes of the steepest slope.

    With `warm`, each begins where the one before it ended. The ledger of each result is
    of that one alone.
    """
    setup = Clock()
    ready = open_form(config, world, reader, setup)
    steepest = ready.form.steepest()
    point = ready.form.begin()
    for problem in problems(steepest):
        began, ready = time.perf_counter(), _under(ready, problem)
        columns = ready.opened.loaded.shard
        penalty = penalty_of(problem, columns.total_columns).of(columns.columns)
        ready.form.become(ready.nonempty.penalty(penalty), point)
        point = point if warm else ready.form.begin()
        with lent(ready.opened.grid.world, config.run.reproducible):
            training = Training(ready, [], point)
            status = training.run()
            result = result_of(training, status, began, setup.seconds)
        yield result
    ready.close()


def _under(ready: Ready, problem: ProblemConfig) -> Ready:
    """The same data and Gram for another problem."""
    ready.clock.seconds.clear()
    return replace(ready, config=replace(ready.config, problem=problem))

"""Callbacks of a run: they read a view, and may request an end or a checkpoint."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

from hpcsgd.comm.ledger import Ledger


class Request(IntEnum):
    """Request of a callback to the run. If ranks differ, the largest request holds.

    Attributes
    ----------
    NONE : Request
        Nothing; the same as None and False.
    SAVE : Request
        A checkpoint, in a run with a run folder.
    STOP : Request
        Save and end well; the same as True.
    PREEMPT : Request
        Save and end with the exit code that requests a restart.
    INTERRUPT : Request
        Save and end as after Ctrl-C.

    Examples
    --------
    >>> from hpcsgd.solvers.callbacks import Request
    >>> max(Request.SAVE, Request.STOP).name
    'STOP'
    """

    NONE = 0
    SAVE = 1
    STOP = 2
    PREEMPT = 3
    INTERRUPT = 4


@dataclass
class View:
    """Where a run stands. Callbacks read it; the run writes it.

    Attributes
    ----------
    epochs : int
        Epochs that were requested.
    exchanges_planned : int
        Exchanges of the whole run.
    total_rows : int
        Rows of the data.
    epoch, exchanges, steps : int
        Epochs, exchanges, and steps of this replica that are done.
    rows : int
        Rows that all replicas have processed, as far as this rank knows.
    loss : float
        The loss of the last evaluation; NaN before the first.
    more : dict
        What was measured with it, such as `gradient` and `gap`.
    seconds : float
        Seconds of training, without evaluations.
    words : callable
        Returns the words that this rank has sent for products so far.
    phases : callable
        Returns the seconds of each phase so far.
    evaluations_planned : int
        Evaluations of the whole run, with the one before the first exchange.
    status : str
        "running", or how the run ended.
    history : list of dict
        One record for each evaluation.
    events : list of dict
        Alarms, and what was done about them.

    Examples
    --------
    >>> from hpcsgd.solvers.callbacks import View
    >>> View(epochs=10, exchanges_planned=100, total_rows=4000).status
    'running'
    """

    epochs: int
    exchanges_planned: int
    total_rows: int
    epoch: int = 0
    exchanges: int = 0
    steps: int = 0
    rows: int = 0
    loss: float = float("nan")
    more: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    words: Callable[[], int] = lambda: 0
    phases: Callable[[], Mapping[str, float]] = dict
    evaluations_planned: int = 0
    status: str = "running"
    history: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)

    def note(self, ledger: Ledger, **more: Any) -> None:
        """Add a record to `history`; the run calls it.

        Parameters
        ----------
        ledger : Ledger
            The account of what was sent so far.
        **more : dict
            Further entries of the record.
        """
        self.history.append(
            {
                "epoch": self.epoch,
                "exchanges": self.exchanges,
                "iterations": self.steps,
                "rows": self.rows,
                "loss": self.loss,
                "seconds": self.seconds,
                **ledger.sent(),
                **self.more,
                **more,
            }
        )


class Callback:
    """Base class of what a run calls while it trains; every method does nothing.

    A run calls the callbacks that its rank was given. Ranks may request different
    things: at the next poll all of them do the largest request. A callback reads its
    `view` and must not change it.

    See Also
    --------
    hpcsgd.solvers.callbacks.View : What a callback reads.
    hpcsgd.solvers.callbacks.Request : What a callback may return.

    Examples
    --------
    >>> import numpy as np
    >>> import hpcsgd
    >>> class StopBelow(hpcsgd.Callback):
    ...     def on_evaluate(self, view):
    ...         return view.loss < 0.4
    >>> X = np.random.default_rng(0).normal(size=(200, 3))
    >>> config = {"rate": {"value": 0.5}, "schedule": {"epochs": 50}}
    >>> result = hpcsgd.train(config, X=X, y=X[:, 0] > 0, callbacks=[StopBelow()])
    >>> result.status.value, result.loss < 0.4
    ('stopped', True)
    """

    def on_start(self, view: View) -> Any:
        """Called before the first exchange.

        Parameters
        ----------
        view : View
            Where the run stands.

        Returns
        -------
        Request, bool or None
            What the callback requests; True means `Request.STOP`.
        """

    def on_exchange(self, view: View) -> Any:
        """Called after every exchange.

        Parameters
        ----------
        view : View
            Where the run stands.

        Returns
        -------
        Request, bool or None
            What the callback requests; True means `Request.STOP`.
        """

    def on_evaluate(self, view: View) -> Any:
        """Called after every evaluation of the loss on all rows.

        Parameters
        ----------
        view : View
            Where the run stands.

        Returns
        -------
        Request, bool or None
            What the callback requests; True means `Request.STOP`.
        """

    def on_end(self, view: View) -> Any:
        """Called after the last exchange and the refinement, but not after an error.

        A run that starts again, after a divergence or a loss of ranks, calls it before
        that, too.

        Parameters
        ----------
        view : View
            Where the run stands.

        Returns
        -------
        Request, bool or None
            What the callback requests; it has no effect unless the run starts again.
        """


def request_of(answer: Any) -> Request:
    """Return the request that a callback's answer stands for: STOP for any true value.

    A `Request` stands for itself.
    """
    if isinstance(answer, Request):
        return answer
    return Request.STOP if answer else Request.NONE


class Callbacks:
    """The callbacks of this rank, and the largest request of any of them."""

    def __init__(self, callbacks: Sequence[Callback], view: View) -> None:
        self.callbacks = list(callbacks)
        self.view = view
        self.request = Request.NONE  # not granted yet

    def call(self, event: str) -> None:
        """Call the method `event` of each callback, and keep the largest request."""
        for callback in self.callbacks:
            answer = getattr(callback, event)(self.view)
            if answer:
                self.request = max(self.request, request_of(answer))

    def add(self, callback: Callback) -> None:
        """Add a callback, which is called from the next event on."""
        self.callbacks.append(callback)

    def renew(self, request: Request) -> None:
        """Repeat a request that an earlier leg of the run has not granted."""
        self.request = max(self.request, request)

    def clear_save_request(self) -> None:
        """Note that a checkpoint was written; a request to end stays."""
        if self.request is Request.SAVE:
            self.request = Request.NONE

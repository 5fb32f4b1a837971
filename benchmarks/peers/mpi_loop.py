"""mpi4py and NumPy alone: SGD with one Allreduce a step, under mpiexec.

`columns`: each rank has half of the columns, and the scores of a batch are summed;
`rows`: each rank has half of every batch, and gradients of d words are summed.

mpiexec -n 2 python -m benchmarks.peers.mpi_loop columns SET.npz BATCH STEPS RATE
"""

import json
import sys
from collections.abc import Callable

import numpy as np
from scipy.linalg.blas import saxpy, sgemv
from scipy.special import expit

WARM = 200  # steps before the clock
Add = Callable[[np.ndarray], object]  # sums over ranks, in place
Loop = tuple[Callable[[int], None], np.ndarray]  # does so many steps, to these weights


def main() -> None:
    """Rank 0 prints µs of a step, and the loss that was reached."""
    from mpi4py import MPI

    kind, path, batch, steps, rate = sys.argv[1:]
    comm = MPI.COMM_WORLD
    with np.load(path) as file:
        X, y = file["X"], file["y"]
    walk, w = LOOPS[kind](
        (comm.rank, comm.size),
        lambda words: comm.Allreduce(MPI.IN_PLACE, words),
        (X, y, int(batch), float(rate)),
    )
    walk(WARM)
    comm.Barrier()
    began = MPI.Wtime()
    walk(int(steps))
    comm.Barrier()
    seconds = MPI.Wtime() - began
    parts = comm.allgather(w)
    if comm.rank == 0:
        t = X @ (np.concatenate(parts) if kind == "columns" else w)
        loss = float(np.mean(np.logaddexp(0, t) - y * t))
        print(json.dumps({"us": 1e6 * seconds / int(steps), "loss": loss}))


def by_columns(place: tuple[int, int], add: Add, task: tuple) -> Loop:
    """Sums of b words; the weights of this rank's columns."""
    rank, size = place
    X, y, batch, rate = task
    own = np.array_split(np.arange(X.shape[1]), size)[rank]
    w, scores = np.zeros(len(own), np.float32), np.empty(batch, np.float32)
    pieces = _pieces(np.ascontiguousarray(X[:, own]), y, batch)

    def walk(steps: int) -> None:
        for number in range(steps):
            rows, turned, wanted = pieces[number % len(pieces)]
            np.dot(rows, w, out=scores)
            add(scores)
            expit(scores, out=scores)
            np.subtract(scores, wanted, out=scores)
            sgemv(-rate / batch, turned, scores, 1.0, w, overwrite_y=1)

    return walk, w


def by_rows(place: tuple[int, int], add: Add, task: tuple) -> Loop:
    """Sums of d words; all weights."""
    rank, size = place
    X, y, batch, rate = task
    share, whole = batch // size, len(y) // batch * batch
    own = np.arange(whole).reshape(-1, batch)
    own = own[:, share * rank : share * (rank + 1)].ravel()
    w, slope = np.zeros(X.shape[1], np.float32), np.zeros(X.shape[1], np.float32)
    scores = np.empty(share, np.float32)
    pieces = _pieces(np.ascontiguousarray(X[own]), y[own], share)

    def walk(steps: int) -> None:
        for number in range(steps):
            rows, turned, wanted = pieces[number % len(pieces)]
            np.dot(rows, w, out=scores)
            expit(scores, out=scores)
            np.subtract(scores, wanted, out=scores)
            sgemv(1 / batch, turned, scores, 0.0, slope, overwrite_y=1)
            add(slope)
            saxpy(slope, w, a=-rate)

    return walk, w


LOOPS = {"columns": by_columns, "rows": by_rows}


def _pieces(X: np.ndarray, y: np.ndarray, size: int) -> list[tuple[np.ndarray, ...]]:
    """(rows, the same turned, targets) of every whole batch, made once."""
    starts = range(0, len(y) // size * size, size)
    return [(X[i : i + size], X[i : i + size].T, y[i : i + size]) for i in starts]


if __name__ == "__main__":
    main()

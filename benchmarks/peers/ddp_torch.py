"""One rank of PyTorch DistributedDataParallel on gloo: a linear model, plain SGD.

python -m benchmarks.peers.ddp_torch RANK RANKS MEETING SET.npz BATCH STEPS RATE
"""

import json
import sys
from datetime import timedelta
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import binary_cross_entropy_with_logits as loss_of
from torch.nn.parallel import DistributedDataParallel

WARM = 100  # steps before the clock
PATIENCE = timedelta(seconds=60)


def main() -> None:
    """Rank 0 prints µs of a step and the loss of its model."""
    rank, ranks, meeting, path, batch, steps, rate = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=Path(meeting).as_uri(),
        rank=int(rank),
        world_size=int(ranks),
        timeout=PATIENCE,
    )
    with np.load(path) as file:
        X, y = torch.from_numpy(file["X"]), torch.from_numpy(file["y"])
    model, walk = _learner(X, y, int(batch) // int(ranks), float(rate))
    walk(WARM)
    dist.barrier()
    began = perf_counter()
    walk(int(steps))
    dist.barrier()
    seconds = perf_counter() - began
    if rank == "0":
        with torch.no_grad():
            loss = loss_of(model.module(X)[:, 0], y).item()
        print(json.dumps({"us": 1e6 * seconds / int(steps), "loss": loss}))
    dist.destroy_process_group()


def _learner(X, y, share, rate):
    """The model, and what does so many steps on this rank's share of the rows."""
    model = torch.nn.Linear(X.shape[1], 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    model = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, fused=True)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    whole = len(y) // (share * ranks) * share * ranks
    own = torch.arange(whole).view(-1, share * ranks)
    own = own[:, share * rank : share * (rank + 1)].flatten()
    pieces = list(zip(X[own].split(share), y[own, None].split(share), strict=True))

    def walk(steps: int) -> None:
        for number in range(steps):
            rows, wanted = pieces[number % len(pieces)]
            optimizer.zero_grad()
            loss_of(model(rows), wanted).backward()
            optimizer.step()

    return model, walk


if __name__ == "__main__":
    main()

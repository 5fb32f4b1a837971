"""Weights on disk on real ranks, the last of which may kill itself amid a write.

python -m tests.faults.infinity_ranks OUT RESUME [WHERE COUNT]
"""

import os
import sys
from pathlib import Path

from hpcsgd.api import train
from hpcsgd.comm import open_world
from tests.helpers.infinity_child import arm, config_of, problem


def main(out, resume, where="", count="0"):
    world, drawn = open_world(), problem()
    Path(f"{out}-pid{world.rank}").write_text(str(os.getpid()))
    if where and world.rank == world.size - 1:
        arm(where, int(count))
    config = config_of(drawn, out, world.size, resume)
    result = train(config, X=drawn.X, y=drawn.y, world=world)
    if world.rank == 0:
        print("sha256", result.weights_sha256, result.report["resumes"])
    world.close()


if __name__ == "__main__":
    main(*sys.argv[1:])

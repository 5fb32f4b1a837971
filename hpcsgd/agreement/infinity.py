"""ZeRO-Infinity: weights and what the rule keeps live on disk, tile by tile.

    forward:    read w_b | gather it over replicas | z += Y_b w_b
    r = residual(z)
    backward:   G_b = Y_bᵀ r | reduce-scatter | read (w, m, v)_b | step | write

Every tile is split over the replicas: each reads, steps and writes its own part of
each of them. No more than a tile of w, of G or of the batch is ever in memory. Yᵀr
needs no weights, so they are gathered once a step.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from hpcsgd.agreement.buckets import Buffer
from hpcsgd.agreement.gradient import Gradient, Means
from hpcsgd.agreement.infinity_copy import Copies
from hpcsgd.agreement.infinity_files import files_of, fresh, stand
from hpcsgd.agreement.on_disk import Keeper, OnDisk
from hpcsgd.comm.grid import Grid
from hpcsgd.errors import ConfigError
from hpcsgd.products.base import Array, State, Task, probed
from hpcsgd.tiles import Store
from hpcsgd.updates import Part

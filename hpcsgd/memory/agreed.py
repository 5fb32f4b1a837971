"""What agreements and their codecs hold: states, and what lies beside them."""

from hpcsgd.agreement.buckets import MIB, bucket_count
from hpcsgd.agreement.kinds import SHARDED, takes_gradients
from hpcsgd.codecs import Bucket, kept_bytes
from hpcsgd.comm.grid import Grid
from hpcsgd.config import RunConfig
from hpcsgd.data.partition import lengths
from hpcsgd.formats import get_format
from hpcsgd.precision import Precision
from hpcsgd.updates import ADAPTIVE

# Words a weight of what is sent, what comes, and what neighbours are.
MIXED = {"decentralized": 2, "decentralized-low": 8}
ASIDE = 6  # of an average that comes late: what was said, the sum, and both saved


def of_state(
    config: RunConfig, held: int, states: int, copies: int, precision: Precision
) -> int:
    """Weights with what steps keep beside them, copies of both, and the gradient."""
    word = get_format(precision.weights).carrier.itemsize
    if config.agreement.kind not in SHARDED:
        return held * states * word * copies
    is_offload = config.agreement.kind == "offload"
    stage, replicas = config.agreement.stage, max(config.grid.replicas, 1)
    stage = 2 if is_offload else stage
    own = -(-held // replicas)
    tile = min(int(config.agreement.bucket * MIB), held * word)
    weights = own if stage == 3 else held
    kept = own * (states - 1 + ADAPTIVE.get(config.update.kind, 0))
    # The host's weights and the gradient there, and one that is late.
    kept += is_offload * own * (2 + (config.agreement.delay_after >= 0))
    gradient = held if stage == 1 else own
    # The last good weights; good states that a run falls back to.
    beside = weights + 4 * config.run.fall_back * (weights + kept)
    return word * (weights + kept + gradient + beside) + 4 * tile


def tile_of(config: RunConfig, held: int, precision: Precision) -> int:
    """Columns of sparse rows that are worked on together."""
    asked, word = config.agreement, get_format(precision.weights).carrier.itemsize
    if asked.kind not in SHARDED or config.grid.replicas < 2:
        return held
    return -(-held // bucket_count(held, 1, word, asked.bucket))


def at_once(config: RunConfig) -> int:
    """Batches that are one where replicas hold slices of their gradient."""
    asked = config.agreement
    is_whole = asked.kind == "sharded" and asked.stage == 1
    return asked.accumulate if asked.kind in SHARDED and not is_whole else 1


def of_slow(config: RunConfig, held: int, precision: Precision) -> int:
    """Slow momentum's x_old and u with their copies; averages that come late."""
    asked = config.agreement
    each = held * get_format(precision.weights).carrier.itemsize
    if asked.kind == "async-average":
        return ASIDE * each
    if asked.kind != "slowmo":
        return 0
    parts = config.grid.replicas if asked.slow_sharded else 1
    # Parts are put together where a checkpoint is made.
    return 2 * (each * (1 + 4 * config.run.fall_back) // parts + each)


def of_gradients(config: RunConfig) -> int:
    """The buffer that gradients are summed in; with a codec what is said and heard.

    Rules that keep moments have them beside it.
    """
    if not takes_gradients(config.agreement.kind):
        return 0
    if config.agreement.kind == "anybatch":
        return _of_mixing(config)
    codec, moments = config.agreement.codec, ADAPTIVE.get(config.update.kind, 0)
    if config.update.bits == 8:  # a quarter of a word each, momentum too
        moments = 1
    moments += MIXED.get(config.agreement.kind, 0)
    if config.agreement.kind == "ticktock":
        return moments + 2 + (config.agreement.mode == "delayed")
    return moments + (1 if codec == "identity" else 3)


def of_codec(
    config: RunConfig, grid: Grid, held: int, precision: Precision, sparse: bool
) -> int:
    """What codecs keep, in all buckets, and its copies in states and checkpoints."""
    asked, copies = config.agreement, 2 + 4 * config.run.fall_back
    if not takes_gradients(asked.kind) or grid.replicas.size == 1:
        return 0
    dtype = get_format(precision.weights).carrier
    count = 1 if sparse else bucket_count(held, 1, dtype.itemsize, asked.bucket)
    kept = 0
    for number, columns in enumerate(lengths(held, count)):
        bucket = Bucket(number, columns, 1, dtype)
        kept += kept_bytes(asked.codec, bucket, config.codec, config.accordion)
    if asked.kind == "growing":
        kept += held * dtype.itemsize
    return kept * copies


def _of_mixing(config: RunConfig) -> int:
    """What a map keeps, the gradient, and words of neighbours, mixed in float64."""
    travels = {"entropy": 1, "eg": 2}.get(config.mirror.kind, 0)
    kept = 2 if config.mirror.kind == "diagonal" else travels
    few = {"ring": 2, "rings": 2, "matching": 1, "full": 0}
    peers = config.grid.replicas - 1
    if travels:  # logarithms have no sum: all peers of a full graph
        del few["full"]
    peers = min(peers, few.get(config.agreement.graph, peers))
    return 1 + kept + max(travels, 1) * (3 * peers + 5)

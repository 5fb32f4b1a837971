"""What any-batch rounds of a run need: pace, stream, mixing and the mirror map."""

import numpy as np

from hpcsgd.agreement.anybatch import Terms
from hpcsgd.agreement.anybatch_mixing import Mixer
from hpcsgd.agreement.anybatch_rounds import Full, Pace, Scripted, Timed, read_script
from hpcsgd.agreement.graphs import Graph
from hpcsgd.assembly.feed import Feed, Rounds
from hpcsgd.comm.grid import Grid
from hpcsgd.config import RunConfig
from hpcsgd.data.stream import Streamed
from hpcsgd.errors import ConfigError
from hpcsgd.loading import Loaded
from hpcsgd.mirror import Mirror, make_mirror
from hpcsgd.products.base import Array


def terms_of(config: RunConfig, grid: Grid, loaded: Loaded, feed: Feed) -> Terms | None:
    """None where rounds are exchanges like any other."""
    if not isinstance(feed, Rounds) or feed.stream is None:
        return None
    if isinstance(loaded.shard.matrix, Streamed):
        raise ConfigError(
            "[agreement] kind = 'anybatch' comes to rows when it has the time, and rows"
            " that are read ahead come by plan; use more ranks or a larger run.memory,"
            " so that all rows are held"
        )
    asked, columns = config.agreement, loaded.shard.total_columns
    graph = Graph(asked.graph, grid.replicas.size, config.sampling.seed)

    def mirror(is_alone: bool) -> Mirror:
        """A member that holds all columns adds up nothing but its own."""
        return make_mirror(config.mirror, columns, one if is_alone else gather)

    def one(words: Array) -> Array:
        return words[None]

    def gather(words: Array) -> Array:
        members = grid.members
        found = np.empty(members.size * words.size, dtype=words.dtype)
        counts = [words.size] * members.size
        members.gather(words, counts, found, "products")
        return found.reshape(members.size, -1)

    return Terms(
        pace=_pace(config, grid, feed),
        stream=feed.stream,
        mixer=Mixer(
            grid.replicas,
            graph,
            asked.mixing,
            config.mirror.kind in ("entropy", "eg"),
        ),
        weighted=asked.weighted,
        mirror=mirror,
    )


def _pace(config: RunConfig, grid: Grid, feed: Feed) -> Pace:
    """A script, or the clock, or neither."""
    asked, replicas = config.agreement, grid.replicas.size
    if asked.replay:
        rounds = feed.exchanges_per_epoch * config.schedule.epochs

        def read() -> Array:
            return read_script(asked.replay, replicas, rounds, asked.accumulate)

        return Scripted(grid.world.together(read)[grid.replica])
    if asked.rounds == "full":
        return Full(asked.accumulate)
    return Timed(grid, asked.accumulate, asked.deadline)

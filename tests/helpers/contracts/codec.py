"""The laws of codecs, and what they are tried on: of one bucket, and of a run."""

from tests.helpers.contracts.codec_bucket import (
    BUCKET_LAWS,
    WORDS,
    Alone,
    exchange,
    gives_all_replicas_the_same_bits,
    is_the_mean_where_nothing_is_lost,
    is_unbiased_where_it_says_so,
    keeps_what_it_has_not_sent,
    moments,
    opened,
    parts_of,
    sends_the_bytes_of_its_formula,
)
from tests.helpers.contracts.codec_rows import NAMES, ROWS, Row, sections_of
from tests.helpers.contracts.codec_runs import (
    RUN_LAWS,
    coded,
    gap_of,
    heterogeneous,
    on_all,
)

__all__ = [
    "Alone",
    "BUCKET_LAWS",
    "NAMES",
    "ROWS",
    "RUN_LAWS",
    "Row",
    "WORDS",
    "coded",
    "exchange",
    "gap_of",
    "gives_all_replicas_the_same_bits",
    "heterogeneous",
    "is_the_mean_where_nothing_is_lost",
    "is_unbiased_where_it_says_so",
    "keeps_what_it_has_not_sent",
    "moments",
    "on_all",
    "opened",
    "parts_of",
    "sections_of",
    "sends_the_bytes_of_its_formula",
]

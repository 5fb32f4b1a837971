"""Every codec of the table, under every law."""

import numpy as np
import pytest

from hpcsgd.codecs import CODECS
from tests.contracts.codec import BUCKET_LAWS, NAMES, ROWS, RUN_LAWS

LAWS = [*BUCKET_LAWS, *RUN_LAWS]


def test_every_codec_says_how_it_is_tested():
    assert set(ROWS) == set(CODECS)


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_law(name, law):
    with np.errstate(all="ignore"):
        law(name, ROWS[name])

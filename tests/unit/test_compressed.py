"""Compressed text that is damaged or called by a wrong name."""

import bz2
import gzip
import lzma

import pytest

from hpcsgd.data.convert.text import TextStream
from hpcsgd.errors import DataError

PACKERS = {".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress}


def read(path):
    with TextStream(path) as stream:
        return stream.read(10**6)


@pytest.mark.parametrize("suffix", PACKERS)
def test_truncated(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(PACKERS[suffix](b"1 1:2\n" * 1000)[:-10])
    with pytest.raises(DataError, match="truncated or damaged at about byte"):
        read(path)


@pytest.mark.parametrize("suffix", PACKERS)
def test_a_wrong_suffix(tmp_path, suffix):
    path = tmp_path / f"x{suffix}"
    path.write_bytes(b"1 1:2\n")
    with pytest.raises(DataError, match="first bytes are not those of"):
        read(path)


def test_a_folder(tmp_path):
    with pytest.raises(DataError, match="is a folder"):
        read(tmp_path)

"""Real text, where it is at hand beside the repository."""

import re
from pathlib import Path

import pytest

from tests.helpers.command_line import only_json

SHARED = Path(__file__).parents[3] / "shared" / "data"
SIZES = {"a9a": (32561, 123), "w1a": (2477, 300), "abalone": (4177, 8)}
HERE = [name for name in SIZES if (SHARED / f"{name}.txt").exists()]


if HERE:  # elsewhere there is nothing to collect

    @pytest.mark.full
    @pytest.mark.parametrize("name", HERE)
    def test_real_text_arrives_whole(hpcsgd, name):
        source = SHARED / f"{name}.txt"
        assert hpcsgd("data", "convert", source, "a.h5").returncode == 0
        seen = only_json(hpcsgd("data", "inspect", "a.h5", "--json"))
        assert (seen["rows"], seen["columns"]) == SIZES[name]
        pairs = re.findall(r":(\S+)", source.read_text())
        stored = seen["density"] * seen["rows"] * seen["columns"]
        assert round(stored) == sum(float(value) != 0 for value in pairs)

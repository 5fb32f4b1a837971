"""How figures are written: small, the same again, and read back as they were."""

import json

import numpy as np
import pytest

from benchmarks.bench_methods import NETWORKS, RATES, RESULT
from benchmarks.lines import WIDTH, in_lines, rounded
from benchmarks.methods_file import POINT, known, packed
from benchmarks.methods_shapes import SHAPES

ROW = {
    "status": "completed",
    "loss": 0.123456789,
    "bytes": 123456789,
    "losses_of_rates": [0.5, None],
    "to_target": dict(zip(POINT, (3, 0.1, 4, 5, 6, 0.25), strict=True)),
    "curve": [[0.0, 0, 0, 0.69314718], [1.25, 4, 6, 0.25]],
}


@pytest.mark.parametrize(
    "value",
    [
        *(3, "a, b", None, [], {}, [[1, 2.5], ["x"]]),
        {"a": {"b": [1] * 99}, "c": [{"d": e} for e in range(40)]},
    ],
)
def test_lines_say_what_they_are_given(value):
    assert json.loads(in_lines(value)) == value


def test_records_are_broken_and_curves_are_not():
    curve, records = list(range(99)), [{"name": "x" * 30}] * 3
    made = in_lines({"curve": curve, "records": records}).splitlines()
    assert made[1] == ' "curve": ' + json.dumps(curve, separators=(",", ":")) + ","
    assert made[3] == '  {"name": "' + "x" * 30 + '"},'
    assert all(len(line) <= WIDTH for line in made if "curve" not in line)


def test_only_floats_lose_digits():
    given = {"a": [0.123456789, 123456789, "0.123456789", None, True]}
    assert rounded(given, 3) == {"a": [0.123, 123456789, "0.123456789", None, True]}


def test_a_method_comes_back_as_it_was(tmp_path):
    refused = {"status": "refused", "reason": "no grid", "to_target": None}
    cell = {"target": 1 / 3, "rows": {"ddp": ROW, "hybrid": refused}}
    path = tmp_path / "figures.json"
    document = {"figures": {"susy": packed({"lan": cell})}}
    path.write_text(in_lines(document))
    found = known(path)["figures"]["susy"]["lan"]
    assert found["target"] == 1 / 3
    assert {k: v for k, v in found["rows"]["ddp"].items() if v is not None} == {
        **ROW,
        "loss": 0.123457,
        "curve": [[0.0, 0, 0, 0.693147], [1.25, 4, 6, 0.25]],
    }
    left = {k: v for k, v in found["rows"]["hybrid"].items() if v is not None}
    assert left == {"status": "refused", "reason": "no grid"}
    assert found["rows"]["hybrid"]["to_target"] is None


def test_the_file_of_methods_is_what_the_benchmark_writes():
    document = known(RESULT)
    document["figures"] = {n: packed(f) for n, f in document["figures"].items()}
    assert in_lines(document) + "\n" == RESULT.read_text()
    assert RESULT.stat().st_size < 300_000


def test_the_file_of_methods_has_curves_that_end_where_its_rows_say():
    for shape, cells in known(RESULT)["figures"].items():
        assert shape in SHAPES and set(cells) == {*NETWORKS, "crowd"}
        for cell in cells.values():
            assert cell["parts_of_rate"] == list(RATES)
            rows = [row for row in cell["rows"].values() if row["curve"]]
            assert len(rows) > 4
            for row in rows:
                _, messages, size, loss = row["curve"][-1]
                assert messages <= row["messages"] and size <= row["bytes"]
                assert np.isclose(loss, row["loss"], rtol=1e-5)

"""Which commands of these tests are forks (forge.py), and which start anew."""

import pytest

from tests.helpers.command_line import environment


@pytest.mark.cases("all")
@pytest.mark.parametrize(
    "name, is_fork",
    [("KMP_INIT_AT_FORK", True), ("COLUMNS", True), ("OMP_NUM_THREADS", False)],
)
def test_a_command_starts_anew_where_it_reads_what_has_changed(
    name, is_fork, forge, monkeypatch
):
    """The first import of scikit-learn sets KMP_INIT_AT_FORK for all later tests."""
    monkeypatch.setenv(name, "7")
    assert forge.makes(environment()) == is_fork

"""The messages of the package are those of the table that people have read."""

from tests.helpers.messages import GOLDEN, messages


def test_messages_are_those_of_the_table():
    """A new or changed one is read in its row: python -m tests.helpers.messages"""
    assert messages().splitlines() == GOLDEN.read_text().splitlines()


def test_the_table_has_errors_warnings_and_lines_of_the_log():
    lines = [line for line in messages().splitlines() if not line.startswith("#")]
    kinds = {line.split(":")[0] for line in lines if line}
    assert {"ConfigError", "DataError", "MissingPackage", "log.warning"} <= kinds
    assert len(lines) > 500

"""A comparison for the tests of the command, and its refusals."""

BASE = ("--batch", 32, "--rate", 0.5, "--epochs", 2, "--precision", "fp64")


def refused(process, *words):
    """One sentence, wrong input, nothing on standard output."""
    assert process.returncode == 2, process.stderr
    assert process.stdout == ""
    lines = process.stderr.strip().splitlines()
    assert len(lines) == 1, process.stderr
    for word in words:
        assert word in lines[0], lines[0]

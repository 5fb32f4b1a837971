"""Small experiments before a run: on a few of its rows, in one process."""

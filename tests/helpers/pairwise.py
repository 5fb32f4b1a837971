"""A small set of combinations in which every pair of choices occurs."""

from itertools import combinations, product


def pairwise(choices):
    """Rows (one choice of each factor) that cover every pair of choices.

    Greedy and deterministic: of the full product take, again and again, the row
    that covers most pairs not covered yet.
    """
    names = list(choices)
    rows = [dict(zip(names, row, strict=True)) for row in product(*choices.values())]
    missing = {pair for row in rows for pair in _pairs(row)}
    taken = []
    while missing:
        best = max(rows, key=lambda row: len(missing & _pairs(row)))
        missing -= _pairs(best)
        taken.append(best)
    return taken


def _pairs(row):
    return set(combinations(row.items(), 2))

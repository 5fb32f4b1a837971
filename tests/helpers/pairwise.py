"""A small set of combinations in which every pair of choices occurs."""

from itertools import combinations, product


def pairwise(choices):
    """Rows (one choice of each factor) that cover every pair of choices.

    Greedy and deterministic: of the full product take, again and again, the first row
    that covers most pairs not covered yet.
    """
    names = list(choices)
    rows = list(product(*(range(len(values)) for values in choices.values())))
    numbers = {}  # of each pair, a bit in the masks

    def mask(row):
        pairs = combinations(enumerate(row), 2)
        return sum(1 << numbers.setdefault(pair, len(numbers)) for pair in pairs)

    masks = [mask(row) for row in rows]
    missing = (1 << len(numbers)) - 1
    taken = []
    while missing:
        counts = [(missing & mask).bit_count() for mask in masks]
        best = counts.index(max(counts))
        missing &= ~masks[best]
        taken.append(rows[best])
    return [
        {name: choices[name][k] for name, k in zip(names, row, strict=True)}
        for row in taken
    ]

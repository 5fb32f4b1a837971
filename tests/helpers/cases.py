"""Which cases of a parametrized test `make test` runs; `make test-all` runs them all.

A test of several parameters runs cases until each value of each parameter has been
used once; the other combinations are marked `full`. A test of ranks runs with one
number of ranks (`usual_size`). The mark `cases(n)` keeps n cases; `cases("all")`
keeps every combination, for tests whose cases are claims of their own.
"""

import re
from collections import defaultdict

import pytest

RANKS = "_ranks"  # the parameter of tests that run on several real ranks
ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def mark_repeats(items, quick=False):
    """Mark as `full` the cases that `make test` leaves to `make test-all`.

    With `quick` one case of each test is left.
    """
    tests = defaultdict(list)
    for item in items:
        function = _function(item)
        if hasattr(function, "callspec") and item.get_closest_marker("full") is None:
            tests[item.parent.nodeid, function.originalname].append(item)
    for cases in tests.values():
        marker = cases[0].get_closest_marker("cases")
        limit = 1 if quick else marker.args[0] if marker else None
        if limit == "all":
            continue
        kept = of_usual_size(cases) if limit is None else cases
        kept = [kept[i] for i in covering([_values(case) for case in kept])]
        if limit is not None:
            kept = [kept[i] for i in spread(len(kept), limit)]
        for case in cases:
            if all(case is not one for one in kept):
                case.add_marker(pytest.mark.full)


def of_usual_size(cases):
    """Return the cases with the number of ranks that `make test` uses."""
    sizes = [_function(case).callspec.params.get(RANKS) for case in cases]
    usual = usual_size(sizes)
    return [case for case, size in zip(cases, sizes, strict=True) if size == usual]


def usual_size(sizes):
    """Return the fewest ranks above one of these numbers, or None for no ranks.

    On two cores three or four ranks take several times as long as two: each message
    waits until a rank has a core again.
    """
    return min(sizes, key=lambda size: (size == 1, size or 0))


def _function(item):
    """Return the test function of an item, which may be a stand-in for ranks."""
    return getattr(item, "stands_for", item)


def _values(item):
    """Return the values of a case, in a form that is equal in every process."""
    given = _function(item).callspec.params.items()
    return {name: ADDRESS.sub("", repr(value)) for name, value in given}


def covering(cases):
    """Return the numbers of few cases that use each value of each parameter.

    Each next one uses the most values that are still missing, the first of those.
    """
    missing = {pair for case in cases for pair in case.items()}
    chosen = []
    while missing:
        new = [len(missing.intersection(case.items())) for case in cases]
        best = new.index(max(new))
        chosen.append(best)
        missing -= set(cases[best].items())
    return sorted(chosen)


def spread(count, limit):
    """Return at most `limit` of the first `count` numbers, evenly spread."""
    if count <= limit:
        return list(range(count))
    return [(2 * i + 1) * count // (2 * limit) for i in range(limit)]

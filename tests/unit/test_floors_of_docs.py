"""Losses of rules whose steps ignore L, in docs as in the files of figures."""

import pytest

from tests.helpers.figures import figures_of, hold, name_of, names_its_file, table


def own_rates():
    found = figures_of("bench_own_rates")
    cells = [(r, k) for r in ("adam", "adagrad", "normalise") for k in (0, 2, 4)]
    rows = [
        [name, f"{shape['first']:.3f}", *(f"{shape[r][k][1]:.3f}" for r, k in cells)]
        for name, shape in found.items()
    ]
    heads = [f"{r} {found['susy'][r][k][0]:g}" for r, k in cells]
    yield table(["", "at first", *heads], *rows)
    for shape in found.values():
        runs = [run for name in shape if name != "first" for run in shape[name]]
        assert all(loss < shape["first"] for _, loss, _ in runs)
        assert {status for *_, status in runs} == {"completed"}
    yield (
        "With each learning rate in the table of losses, the final loss of Adam,"
        " Adagrad and normalised gradients is below the loss before training (column"
        " `at first`)."
    )


PAGES = [("howto/compare", own_rates)]


@pytest.mark.parametrize("page, made", PAGES, ids=name_of)
def test_a_page_has_the_figures_of_the_file(page, made):
    hold(page, made)


@pytest.mark.parametrize("page, made", PAGES, ids=name_of)
def test_a_page_says_how_its_figures_are_made(page, made):
    names_its_file(page, made)

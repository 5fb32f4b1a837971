"""docs/reference/stability.md names what users may rely on: each name exists."""

from importlib import import_module

from tests.helpers.stability import PAGE, names_of


def missing(text):
    """Names on a page that cannot be imported from where it says."""
    for name in names_of(text):
        module, _, attribute = name.rpartition(".")
        if not hasattr(import_module(module), attribute):
            yield name


def test_every_name_of_the_page_is_there():
    assert list(missing(PAGE.read_text())) == []


def test_a_name_that_left_is_found():
    planted = "`hpcsgd.comm.open_world`, `hpcsgd.studies` (`strong`, `never_there`)"
    assert list(missing(planted)) == ["hpcsgd.studies.never_there"]


def test_what_an_extension_needs_is_on_the_page():
    wanted = {f"hpcsgd.glm.{name}" for name in ("register", "Family")}
    wanted |= {f"hpcsgd.agreements.{name}" for name in ("register", "Agreement")}
    wanted |= {f"hpcsgd.agreements.codecs.{name}" for name in ("register", "Codec")}
    wanted |= {f"hpcsgd.solvers.callbacks.{name}" for name in ("View", "Request")}
    assert wanted <= set(names_of(PAGE.read_text()))

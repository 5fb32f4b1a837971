"""Docstrings of public names: complete in numpydoc, with an example that is true."""

import doctest
import importlib
import inspect
import re
from enum import Enum
from pathlib import Path

import pytest

import hpcsgd
from tests.helpers.stability import PAGE, names_of

# Modules on the page of stability, whose functions it lists one by one.
NAMES = [f"hpcsgd.{name}" for name in hpcsgd.__all__ if name != "__version__"]
NAMES += [
    name
    for name in names_of(PAGE.read_text())
    if name not in (*NAMES, "hpcsgd.__all__")
]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
PACKAGE = Path(hpcsgd.__file__).parent
WITH_EXAMPLES = [p for p in sorted(PACKAGE.rglob("*.py")) if ">>> " in p.read_text()]
# scikit-learn gives these their docstrings.
INHERITED = re.compile(r"set_\w+_request|get_params|get_metadata_routing|score")


def item_of(name):
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def offenders_in_parameters(name, item, text):
    """Parameters of the signature that the docstring does not describe."""
    described = set()
    for line in re.findall(r"(?m)^\*{0,2}(\w[\w, *]*) : \S", text):
        described |= set(re.split(r"[, *]+", line))
    described |= set(re.findall(r"(?m)^\*{1,2}(\w+)", text))
    for parameter in inspect.signature(item).parameters:
        if parameter not in ("self", "cls") and parameter not in described:
            yield f"{name}: {parameter}"


def methods_of(name, kind):
    """The public methods of a class that is ours."""
    for attribute, found in inspect.getmembers(kind, inspect.isroutine):
        module = getattr(found, "__module__", "") or ""
        if attribute.startswith("_") or not module.startswith("hpcsgd"):
            continue
        if not INHERITED.fullmatch(attribute) or attribute in vars(kind):
            yield f"{name}.{attribute}", found


def callables():
    for name in NAMES:
        item = item_of(name)
        if isinstance(item, type):
            is_made = not getattr(item, "_is_protocol", False)
            if is_made and not issubclass(item, BaseException | Enum):
                yield name, item
            yield from methods_of(name, item)
        elif callable(item):
            yield name, item


def test_every_parameter_is_described():
    """`help` of a public name lists each argument that it takes."""
    offenders = []
    for name, item in callables():
        text = inspect.getdoc(item) or ""
        offenders += offenders_in_parameters(name, item, text)
    assert not offenders, "not in the docstring:\n" + "\n".join(offenders)


def test_what_all_ranks_must_call_says_so():
    """Whatever takes ranks says in its first line that it is collective."""
    offenders = []
    for name, item in callables():
        takes = {"comm", "world"} & set(inspect.signature(item).parameters)
        if takes and "Collective." not in (inspect.getdoc(item) or "").split("\n\n")[0]:
            offenders.append(name)
    assert not offenders, "\n".join(offenders)


def test_a_parameter_that_is_not_described_is_found():
    def planted(first, second):
        """Parameters\n----------\nfirst : int\n"""

    text = inspect.getdoc(planted)
    assert list(offenders_in_parameters("f", planted, text)) == ["f: second"]


@pytest.mark.parametrize("name", [n for n in NAMES if not inspect.ismodule(item_of(n))])
def test_the_example_of_a_public_name_is_true(name):
    """Each name but those of modules has one, which runs in an empty namespace."""
    item = item_of(name)
    names = {"__name__": "example"}
    test = doctest.DocTestParser().get_doctest(inspect.getdoc(item), names, name, "", 0)
    assert test.examples, f"{name} has no example"
    assert failures_of(test) == ""


def failures_of(test):
    """What the examples of a docstring print where it is not what they show."""
    said = []
    doctest.DocTestRunner(optionflags=FLAGS).run(test, out=said.append)
    return "".join(said)


def other_tests(path):
    """The examples of a file, without those of public names."""
    module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    module = importlib.import_module(module.removesuffix(".__init__"))
    public = {inspect.getdoc(item_of(name)) for name in NAMES}
    for test in doctest.DocTestFinder().find(module):
        if test.examples and inspect.cleandoc(test.docstring) not in public:
            yield test


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda p: p.stem)
def test_other_examples_are_true(path):
    """Those of functions that the pages do not list."""
    for test in other_tests(path):
        assert failures_of(test) == ""


def test_no_docstring_has_a_type_and_a_description_on_one_line():
    """numpydoc takes what follows the colon for the type."""
    offenders = []
    for name, item in callables():
        for line in re.findall(r"(?m)^[\w, ]+ : .*", inspect.getdoc(item) or ""):
            if len(line) > 88 or re.search(r": [^:]*; ", line):
                offenders.append(f"{name}: {line}")
    assert not offenders, "\n".join(offenders)

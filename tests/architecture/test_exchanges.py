"""Where all ranks send an object to all ranks: nowhere without need."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "hpcsgd"
NAME = "exchange_objects"
MOST = 58  # uses in the package; a new one needs the items of p ranks on p ranks
# Functions of p items that one message of a fixed size computes: `max_number`,
# `max_flag` and `has_equal`.
REDUCTIONS = {"max", "min", "all", "any"}


def uses(tree):
    """The attributes `exchange_objects` that are called or handed on."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == NAME:
            yield node


def is_call(node):
    function = node.func if isinstance(node, ast.Call) else None
    return isinstance(function, ast.Attribute) and function.attr == NAME


def wasteful(tree):
    """The uses of which one rank's item, or one number of all items, is enough."""
    for node in ast.walk(tree):
        match node:
            case ast.Subscript(value=value, slice=ast.Constant()) if is_call(value):
                yield ast.unparse(node)
            case ast.Call(func=ast.Name(id=name), args=items) if name in REDUCTIONS:
                if any(map(is_call, items)):
                    yield ast.unparse(node)


def trees():
    for path in sorted(PACKAGE.rglob("*.py")):
        yield str(path.relative_to(PACKAGE)), ast.parse(path.read_text())


def test_the_number_of_exchanges_of_objects_does_not_grow():
    """At 4096 ranks each of them is 16 million objects."""
    found = {path: len(list(uses(tree))) for path, tree in trees()}
    assert sum(found.values()) == MOST, {k: v for k, v in found.items() if v}


def test_no_exchange_where_a_broadcast_or_a_reduction_is_enough():
    found = {path: list(wasteful(tree)) for path, tree in trees()}
    assert {path: text for path, text in found.items() if text} == {}


@pytest.mark.parametrize(
    "source",
    [
        "world.exchange_objects(x)[0]",
        "max(world.exchange_objects(x))",
        "all(world.exchange_objects(x))",
    ],
)
def test_what_is_planted_is_found(source):
    assert list(wasteful(ast.parse(source)))

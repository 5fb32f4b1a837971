"""Tests replace parts of the package by public names, and kernels by planted faults."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path for folder in ("tests", "benchmarks") for path in (ROOT / folder).rglob("*.py")
)
PATCHES = {"setattr", "delattr", "patch", "object"}  # of monkeypatch and of mock
# Private names of others that no public name stands for.
ALLOWED = {
    # The Python that a virtual environment was made by; .ci/environment.py reads it.
    ("tests/setup/test_environment.py", "_base_executable"),
}


def is_private(name):
    """Whether a name, or a part of a dotted one, begins with one underscore."""
    is_name = re.fullmatch(r"\w+(\.\w+)*", name)
    return is_name and any(re.match(r"_[A-Za-z]", p) for p in name.split("."))


def is_own(node):
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def called(node):
    """The last part of the name of what a call calls."""
    return getattr(node.func, "attr", getattr(node.func, "id", ""))


def strings(nodes):
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def arguments_of_reads(tree):
    """The arguments of `hasattr` and `getattr`, which replace nothing."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) in ("hasattr", "getattr"):
            yield from node.args


def names_patched(tree):
    """(line, name) of what is patched by its name, or by one out of a table."""
    by_variable = False
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and called(node) in PATCHES:
            yield from strings(node.args[:2])
            name = node.args[1:2] if called(node) in ("setattr", "delattr") else []
            by_variable |= any(not isinstance(one, ast.Constant) for one in name[:1])
    if by_variable:
        yield from strings(set(ast.walk(tree)) - set(arguments_of_reads(tree)))


def names_assigned(tree):
    """(line, name) of attributes of other objects that a statement sets."""
    for node in ast.walk(tree):
        is_stored = isinstance(getattr(node, "ctx", None), ast.Store | ast.Del)
        if isinstance(node, ast.Attribute) and is_stored and not is_own(node.value):
            yield node.lineno, node.attr


def patched(text):
    """Return (line, name) of all private names that a file sets from outside."""
    tree = ast.parse(text)
    found = {*names_patched(tree), *names_assigned(tree)}
    return sorted((line, name) for line, name in found if is_private(name))


def edits_of_kernels(text):
    """Return the lines that replace some text where the source of kernels is read."""
    sources = ("source_of", "inlined", "KERNELS")
    if not any(name in text for name in sources):  # parsing takes longer
        return []
    tree = ast.parse(text)
    names = {getattr(node, "id", "") for node in ast.walk(tree)}
    if not names & set(sources):
        return []
    return [
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (node.func.attr in ("sub", "subn") or node.func.attr == "replace")
        and len(node.args) > 1
    ]


def test_no_test_patches_a_private_name():
    """A private name may change at any time: make it public, or use what is."""
    offenders, used = [], set()
    for path in FILES:
        where = path.relative_to(ROOT).as_posix()
        for line, name in patched(path.read_text()):
            used.add((where, name))
            if (where, name) not in ALLOWED:
                offenders.append(f"{where}:{line}: {name}")
    assert not offenders, "\n".join(offenders)
    assert used >= ALLOWED, f"allowed and not needed: {ALLOWED - used}"


def test_no_test_edits_the_text_of_a_kernel():
    """Faults are planted by tests/helpers/kernels, which checks that they have a place.

    A text that is replaced elsewhere may be gone, and the test would show nothing.
    """
    offenders = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in FILES
        if not path.is_relative_to(ROOT / "tests" / "helpers" / "kernels")
        for line in edits_of_kernels(path.read_text())
    ]
    assert not offenders, "\n".join(offenders)


@pytest.mark.parametrize("line", [
    'monkeypatch.setattr(module, "_name", 1)',
    'monkeypatch.setattr("hpcsgd.module._name", 1)',
    'monkeypatch.setattr("hpcsgd._module.name", 1)',
    'mock.patch("hpcsgd.module._name")',
    'mock.patch.object(Kind, "_name", action)',
    'for name in ("_name", "other"): monkeypatch.setattr(module, name, 1)',
    'setattr(*("x", "y")[:1], name, "_name")',
    "module._name = action",
    "Kind._name, other = action, 1",
    "module._name += 1",
    "del module._name",
])  # fmt: skip
def test_a_patch_of_a_private_name_is_found(line):
    assert patched(line)


@pytest.mark.parametrize("line", [
    'monkeypatch.setattr(module, "name", 1)',
    'monkeypatch.setattr(module, "__init__", action)',
    "self._name = 1",
    "module.name = 1",
    'print("_name")',
])  # fmt: skip
def test_other_lines_are_not(line):
    assert not patched(line)


@pytest.mark.parametrize("call", ['text.replace("a", "b")', 're.sub("a", "b", text)'])
def test_an_edit_of_a_kernel_is_found(call):
    assert edits_of_kernels(f'text = source_of("gram")\n{call}') == [2]
    assert not edits_of_kernels(f"text = path.read_text()\n{call}")

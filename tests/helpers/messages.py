"""All messages of the package in one file, so that one can read them in a row.

    python -m tests.helpers.messages

writes tests/golden/messages.txt: the texts of errors, warnings and lines of the log, by
file in the order of the code. What is put into a text stands as {}.
"""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "messages.txt"
LOGS = ("info", "warning", "error", "log")
SHORTEST = 3  # words of a text: shorter ones are names, or parts of another one


@cache
def messages() -> str:
    """Return all messages, file by file."""
    parts = []
    for path in sorted((ROOT / "hpcsgd").rglob("*.py")):
        texts = list(texts_of(ast.parse(path.read_text())))
        if texts:
            parts.append(f"# {path.relative_to(ROOT)}\n" + "\n".join(texts))
    return "\n\n".join(parts) + "\n"


def texts_of(tree: ast.Module) -> Iterator[str]:
    """Yield the kind and the text of each message in a file."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        kind = kind_of(call.func)
        text = next((t for t in map(text_of, call.args) if t), "")
        if kind and len(text.split()) >= SHORTEST:
            yield f"{kind}: {text}"


def kind_of(function: ast.expr) -> str:
    """Return what such a call says something by; "" if it says nothing."""
    if isinstance(function, ast.Name):
        name = function.id
        return name if name.endswith(("Error", "Package")) else ""
    if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
        owner, name = function.value.id, function.attr
        if owner == "log" and name in LOGS:
            return f"log.{name}"
        if (owner, name) == ("warnings", "warn"):
            return "warning"
        if name == "error" and owner.endswith("parser"):
            return "parser.error"
    return ""


def text_of(node: ast.expr) -> str:
    """Return the text of an expression; what is put in stands as {}."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return (text_of(node.left) or "{}") + (text_of(node.right) or "{}")
    if isinstance(node, ast.IfExp):
        return f"{text_of(node.body)} | {text_of(node.orelse)}"
    return ""


if __name__ == "__main__":
    GOLDEN.write_text(messages())

"""Lengths of files and functions: a report at the end of the run, not a gate."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
LONG_FILE, LONG_FUNCTION = 300, 50


def lengths():
    """(lines, name) of every file and of every function of the package."""
    files, functions = [], []
    for path in sorted((ROOT / "hpcsgd").rglob("*.py")):
        text = path.read_text()
        name = str(path.relative_to(ROOT))
        files.append((len(text.splitlines()), name))
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                lines = node.end_lineno - node.lineno + 1
                functions.append((lines, f"{name}:{node.name}"))
    return files, functions


def test_report(record_property):
    files, functions = lengths()
    assert files and functions
    short = sorted(n for n, _ in functions)
    report = [
        f"{len(files)} files, longest {max(files)[0]} lines ({max(files)[1]})",
        f"{len(functions)} functions, median {short[len(short) // 2]} lines,"
        f" nine in ten under {short[9 * len(short) // 10]},"
        f" longest {max(functions)[0]} ({max(functions)[1]})",
    ]
    report += [f"over {LONG_FILE} lines: {n}" for k, n in files if k > LONG_FILE]
    report += [
        f"over {LONG_FUNCTION} lines: {n}" for k, n in functions if k > LONG_FUNCTION
    ]
    record_property("lengths", report)


def test_the_counter_counts(tmp_path):
    node = ast.parse("def f():\n    a = 1\n    return a\n").body[0]
    assert node.end_lineno - node.lineno + 1 == 3

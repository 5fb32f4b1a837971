"""Code blocks of the documentation: their grammar, and a runner for one page.

A block of `console` holds commands after `$ `, which a backslash at the end continues.
Below a command stands its output, in which `...` is any text. Blocks of `python` share
one namespace; those with `>>>` are doctests. The line `<!-- file: NAME -->` before a
block writes it to NAME; `<!-- needs: slurm -->` before a block leaves it out.
"""

import argparse
import ast
import doctest
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from hpcsgd.cli.parser import make_parser
from hpcsgd.errors import ConfigError
from tests.helpers.limits import HANG

ROOT = Path(__file__).parents[2]
NEEDS = {"slurm", "gpu", "cluster", "network", "minutes", "checkout"}
RUN = ("console", "python")
SHELLS = ("bash", "sh", "shell", "zsh", "shell-session", "pycon", "ipython")
FENCE = re.compile(r"^( *)(`{3,}|~{3,})\s*(\{?[\w+-]*\}?)(.*)$")
MARK = re.compile(r"^\s*<!--\s*(file|needs):\s*(.*?)\s*-->\s*$")
EXAMPLES = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
START, END = "\x02", "\x03"  # of a line of output
OPERATORS = set("|&;<>()")
OTHERS = {"pip", "install", "cd", "git", "which", "ls", "rm"}  # hpcsgd is a file there


class BlockError(AssertionError):
    """A block that does not do what its page shows."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: `line` is that of its first line of text."""

    language: str
    text: str
    line: int
    file: str = ""
    needs: frozenset[str] = frozenset()


def blocks_of(text: str) -> list[Block]:
    """Return the blocks of a page in order, marks included."""
    found: list[Block] = []
    marks: dict[str, str] = {}
    lines = text.splitlines()
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        mark, fence = MARK.match(line), FENCE.match(line)
        if mark:
            marks[mark[1]] = mark[2]
        elif fence:
            indent, ticks, language, _ = fence.groups()
            first, body = number, []
            while number < len(lines) and not is_end(lines[number], ticks):
                body.append(lines[number].removeprefix(indent) + "\n")
                number += 1
            number += 1
            if language.startswith("{"):  # a directive, which may hold blocks
                inner = blocks_of("".join(body))
                found += [replace(block, line=block.line + first) for block in inner]
            else:
                needs = re.findall(r"[^\s,]+", marks.get("needs", ""))
                found.append(
                    Block(
                        language,
                        "".join(body),
                        first + 1,
                        marks.get("file", ""),
                        frozenset(needs),
                    )
                )
            marks = {}
        elif line.strip():
            marks = {}
    return found


def is_end(line: str, ticks: str) -> bool:
    """Return whether a line closes the fence that `ticks` opened."""
    text = line.strip()
    return set(text) == {ticks[0]} and len(text) >= len(ticks)


@dataclass(frozen=True)
class Command:
    """A command of a console block, with the output that the page shows."""

    text: str
    shown: str
    line: int


def commands_of(block: Block) -> list[Command]:
    """Return the commands of a console block; a line before the first is an error."""
    found, lines, number = [], block.text.splitlines(), 0
    while number < len(lines):
        if not lines[number].startswith("$ "):
            raise BlockError(f"line {block.line + number}: no `$ ` before a command")
        first, words = number, [lines[number][2:]]
        while words[-1].endswith("\\") and number + 1 < len(lines):
            number += 1
            words.append(lines[number])
        number += 1
        shown = []
        while number < len(lines) and not lines[number].startswith("$ "):
            shown.append(lines[number])
            number += 1
        text = "\n".join(shown).strip("\n")
        found.append(Command("\n".join(words), text, block.line + first))
    return found


def hpcsgd_words(command: str) -> list[list[str]]:
    """Return the arguments of each `hpcsgd ...` in a line of the shell."""
    text = re.sub(r"\$\{?\w+\}?|\$\([^)]*\)", "1", command.replace("\\\n", " "))
    text = re.sub(r"\b[12]>", ">", text)
    lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
    lexer.whitespace_split, lexer.commenters = True, "#"
    parts: list[list[str]] = [[]]
    for word in lexer:
        if set(word) <= OPERATORS:
            parts.append([])
        else:
            parts[-1].append(word)
    return [
        part[part.index("hpcsgd") + 1 :]
        for part in parts
        if "hpcsgd" in part and not OTHERS & set(part)
    ]


def check_commands(block: Block, parser: argparse.ArgumentParser) -> None:
    """Refuse a command line of hpcsgd that its parser refuses."""
    for command in commands_of(block):
        for words in hpcsgd_words(command.text):
            try:
                parser.parse_args(words)
            except SystemExit as stop:
                error = f"exit code {stop.code}" if stop.code else None
            except ConfigError as refusal:
                error = refusal
            else:
                error = None
            if error:
                shown = f"line {command.line}: hpcsgd {shlex.join(words)}: {error}"
                raise BlockError(shown)


def check_form(block: Block) -> None:
    """Refuse what the conventions do not have, and Python that is none."""
    unknown = block.needs - NEEDS
    if unknown:
        raise BlockError(f"line {block.line}: needs {sorted(unknown)}, not of {NEEDS}")
    if block.language in SHELLS and not block.file:
        raise BlockError(
            f"line {block.line}: a block of {block.language}; write `console` with `$ `"
            " before commands, `python`, or `text` for what is not run"
        )
    if block.language == "console":
        commands_of(block)
    if block.language == "python" and ">>>" not in block.text:
        ast.parse(block.text)


def matches(shown: str, printed: str) -> bool:
    """Return whether output is what a page shows, `...` standing for any text.

    Blanks count once, and those beside `...` belong to it. A line of `...` alone stands
    for any number of lines, none included.
    """
    lines = [plain(line) for line in shown.strip().splitlines()]
    lines = [re.sub(r" ?\.\.\. ?", "...", line) for line in lines]
    wanted = "".join(line if line == "..." else f"{START}{line}{END}" for line in lines)
    found = "".join(f"{START}{plain(s)}{END}" for s in printed.strip().splitlines())
    return doctest.OutputChecker().check_output(wanted, found, doctest.ELLIPSIS)


def plain(line: str) -> str:
    """Return a line with single blanks and none at its ends."""
    return " ".join(line.split())


class Page:
    """Runs the blocks of one page in one folder; the end of `with` ends its Python."""

    def __init__(self, path: Path, folder: Path, limit: float = HANG):
        self.path, self.folder, self.limit = path, folder, limit
        self.state = folder.parent / f"{folder.name}.state"
        self.python = None

    def __enter__(self) -> "Page":
        return self

    def __exit__(self, *_) -> None:
        if self.python:
            end(self.python)

    def run(self) -> None:
        """Run all blocks in order; the first that fails raises BlockError."""
        for block in blocks_of(self.path.read_text()):
            try:
                check_form(block)
                self.run_block(block)
            except (BlockError, SyntaxError) as error:
                raise BlockError(f"{name_of(self.path)}: {error}") from None

    def run_block(self, block: Block) -> None:
        """Write, run or pass over one block."""
        if block.file:
            target = self.folder / block.file
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(block.text)
        elif block.language not in RUN:
            return
        elif block.needs:
            if block.language == "console":
                check_commands(block, make_parser())
        elif block.language == "python":
            self.run_python(block)
        else:
            for command in commands_of(block):
                self.run_command(command)

    def run_command(self, command: Command) -> None:
        """Run a command in the shell's folder and variables of the one before."""
        script = (
            f"test -f {self.state} && . {self.state}\n{command.text}\ncode=$?\n"
            f'{{ export -p; printf "cd %q\\n" "$PWD"; }} > {self.state}\nexit $code\n'
        )
        code, out, merged = call(
            ["bash", "-o", "pipefail", "-c", script], self.folder, self.limit
        )
        if code:
            raise failure(command, f"exit code 0 and {command.shown!r}", code, merged)
        good = matches(command.shown, merged) or matches(command.shown, out)
        if command.shown and not good:
            raise failure(command, command.shown, code, merged)

    def run_python(self, block: Block) -> None:
        """Run a block in the interpreter of the page."""
        if self.python is None:
            self.python = start(
                [sys.executable, "-u", "-c", INTERPRETER],
                self.folder,
                stdin=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        timer = threading.Timer(self.limit, end, [self.python])
        timer.start()
        request = {"text": block.text, "line": block.line, "name": self.path.name}
        self.python.stdin.write(json.dumps(request) + "\n")
        self.python.stdin.flush()
        printed, is_good = [], False
        for line in self.python.stdout:
            text, mark, result = line.partition(DONE)
            printed.append(text)
            if mark:
                is_good = result.strip() == "good"
                break
        timer.cancel()
        if not is_good:
            shown = "the output of its examples" if ">>>" in block.text else "no error"
            command = Command(block.text.rstrip("\n"), "", block.line)
            raise failure(command, shown, 1, "".join(printed))


DONE = "\x00the block has ended:"
INTERPRETER = f"""
import doctest, json, linecache, sys, traceback
sys.argv = [""]
sys.path.insert(0, "")
for request in sys.stdin:
    request = json.loads(request)
    text, name, first = request["text"], request["name"], request["line"]
    is_good = True
    if ">>>" in text:
        test = doctest.DocTestParser().get_doctest(text, {{}}, name, name, first - 1)
        test.globs = globals()
        runner = doctest.DocTestRunner(optionflags={EXAMPLES}, verbose=False)
        is_good = not runner.run(test, clear_globs=False).failed
    else:
        text = "\\n" * (first - 1) + text
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        try:
            exec(compile(text, name, "exec"), globals())
        except BaseException:
            traceback.print_exc()
            is_good = False
    sys.stdout.flush()
    print(end={DONE!r} + (" good\\n" if is_good else " bad\\n"), flush=True)
"""


def call(command: list[str], folder: Path, limit: float) -> tuple[int, str, str]:
    """Return the exit code, the standard output, and both outputs as they came."""
    child = start(command, folder, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
    lines: list[tuple[bool, str]] = []

    def read(pipe, is_output):
        for line in pipe:
            lines.append((is_output, line))

    pipes = ((child.stdout, True), (child.stderr, False))
    readers = [threading.Thread(target=read, args=pipe) for pipe in pipes]
    for reader in readers:
        reader.start()
    try:
        code = child.wait(limit)
    except subprocess.TimeoutExpired:
        code = 124
        lines.append((False, f"(ended after {limit:g} s)\n"))
    end(child)
    for reader in readers:
        reader.join()
    output = "".join(line for is_output, line in lines if is_output)
    return code, output, "".join(line for _, line in lines)


def start(command: list[str], folder: Path, **pipes) -> subprocess.Popen:
    """Start a program as a reader would who has activated the environment."""
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONUNBUFFERED": "1",
        "HYDRA_LAUNCHER": "fork",
        "MPLBACKEND": "agg",
        "COLUMNS": "100",
    }
    environment.pop("PYTHONPATH", None)
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        **pipes,
    )


def end(child: subprocess.Popen) -> None:
    """End a program and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def failure(command: Command, expected: str, code: int, printed: str) -> BlockError:
    """Return the error that shows what a page shows beside what happened."""
    return BlockError(
        f"line {command.line}\n--- command\n{command.text}\n--- expected\n{expected}\n"
        f"--- exit code {code}, printed\n{printed}"
    )


def name_of(path: Path) -> str:
    """Return a page's path as the checkout has it."""
    return str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)

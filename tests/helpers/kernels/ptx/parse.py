"""PTX as text -> entries with their parameters, registers and instructions.

The grammar is that of what NVRTC writes, and of inline assembly in it. What is not
understood is an error that names its line.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

# What ends with its line.
LAUNCH = r"\.(?:maxntid|minnctapersm|explicitcluster|reqnctapercluster)\b"
HEADER = r"\.(?:version|target|address_size)\b"
TOKEN = re.compile(
    rf"""\s*(
    (?:{LAUNCH}|{HEADER})[^\n]*   # ends with its line
    | \.visible[^)]*\)            # an entry and its parameters
    | [{{}}]
    | [$\w]+:
    | [^;]+(?=;)
    );?""",
    re.VERBOSE,
)


class Unknown(ValueError):
    """PTX that is not understood."""


@dataclass(frozen=True)
class Instruction:
    """One instruction; `number` counts those of its entry."""

    number: int
    line: int
    text: str
    guard: str  # "p1", "!p1" or nothing
    opcode: str
    operands: tuple[str, ...]


@dataclass(frozen=True)
class Label:
    """A place to go to."""

    name: str


@dataclass(frozen=True)
class Registers:
    """`count` of them, `prefix` with a number each; or one, of that name."""

    type: str
    prefix: str
    count: int | None

    def names(self) -> list[str]:
        """Each by itself."""
        if self.count is None:
            return [self.prefix]
        return [f"{self.prefix}{i}" for i in range(self.count)]


@dataclass(frozen=True)
class Scope:
    """Where names begin or end to be known."""

    opens: bool


Statement = Instruction | Label | Registers | Scope


@dataclass
class Entry:
    """A kernel."""

    name: str
    parameters: list[tuple[str, str]] = field(default_factory=list)  # type, name
    body: list[Statement] = field(default_factory=list)
    cluster: int = 1
    threads: int = 0

    def registers(self) -> frozenset[str]:
        """All that are declared, inside of braces, too."""
        some = [one for one in self.body if isinstance(one, Registers)]
        return frozenset(name for one in some for name in one.names())

    def instructions(self) -> list[Instruction]:
        """Those that are run."""
        return [one for one in self.body if isinstance(one, Instruction)]


@dataclass
class Module:
    """All that one text holds."""

    shared: list[str] = field(default_factory=list)  # names of extern memory
    entries: dict[str, Entry] = field(default_factory=dict)


def parsed(text: str) -> Module:
    """Of the text of one compilation."""
    module, entry, depth, number = Module(), None, 0, 0
    for line, said in statements(text):
        if said.startswith(".pragma"):
            continue
        if entry is None or depth == 0:
            entry = _outside(module, entry, line, said)
            depth, number = int(said == "{"), 0
            continue
        depth += {"{": 1, "}": -1}.get(said, 0)
        if depth:
            one = _inside(number, line, said)
            number += isinstance(one, Instruction)
            entry.body.append(one)
        else:
            entry = None
    return module


def _outside(module: Module, entry: Entry | None, line: int, said: str) -> Entry | None:
    """What stands before a body: the entry that it belongs to, if there is one yet."""
    if found := re.match(r"\.visible \.entry (\w+)\((.*)\)$", said):
        entry = module.entries[found[1]] = Entry(found[1])
        for one in filter(None, (p.strip() for p in found[2].split(","))):
            entry.parameters.append(_parameter(line, one))
    elif found := re.match(r"\.extern \.shared \.align \d+ \.b8 (\w+)\[\]$", said):
        module.shared.append(found[1])
    elif entry is not None and re.match(LAUNCH, said):
        _of_launch(entry, said)
    elif said != "{" and not re.match(rf"{HEADER}|\.global \.align", said):
        raise Unknown(f"line {line}: {said}")
    return entry


def _of_launch(entry: Entry, said: str) -> None:
    counts = [int(number) for number in re.findall(r"\d+", said)]
    if said.startswith(".maxntid"):
        entry.threads = prod(counts)
    elif said.startswith(".reqnctapercluster"):
        entry.cluster = counts[0]


def _parameter(line: int, said: str) -> tuple[str, str]:
    found = re.fullmatch(r"\.param \.(\w+) (?:\.ptr (?:\.\w+ )*(?:\d+ )?)?(\w+)", said)
    if not found:
        raise Unknown(f"line {line}: parameter {said}")
    return found[1], found[2]


def _inside(number: int, line: int, said: str) -> Statement:
    if said in "{}":
        return Scope(said == "{")
    if found := re.fullmatch(r"([$\w]+):", said):
        return Label(name_of(found[1]))
    if found := re.fullmatch(r"\.reg \.(\w+) %(\w+?)(?:<(\d+)>)?", said):
        return Registers(found[1], found[2], int(found[3]) if found[3] else None)
    found = re.fullmatch(r"(?:@(!?)%(\w+) )?([a-z][\w.:]*)(?: (.*))?", said)
    if not found:
        raise Unknown(f"line {line}: {said}")
    guard = (found[1] or "") + (found[2] or "")
    return Instruction(number, line, said, guard, found[3], split(found[4] or ""))


def name_of(label: str) -> str:
    """As C++ may call it."""
    return label.replace("$", "")


def split(operands: str) -> tuple[str, ...]:
    """At the commas that stand in no braces."""
    parts = re.findall(r"(?:\{[^}]*\}|\[[^\]]*\]|[^,])+", operands)
    return tuple(part.strip() for part in parts)


def statements(text: str) -> Iterator[tuple[int, str]]:
    """(line, what is said there): an instruction, a label, a brace, a directive."""
    text = re.sub(r"//[^\n]*", "", text)
    at, line = 0, 1
    while found := TOKEN.match(text, at):
        line += text.count("\n", at, found.start(1))
        yield line, " ".join(found[1].split())
        line += text.count("\n", found.start(1), found.end())
        at = found.end()
    if rest := text[at:].strip():
        line += text.count("\n", at, text.index(rest, at))
        raise Unknown(f"line {line}: {rest[:80]}")

"""Faults planted in kernels, one at a time: the checks of the tests have to see them.

python -m tests.helpers.kernels.mutants [NAME ...]   (as `make mutants`)

Every module of `checks` lists its own in MUTANTS and has a `check(text)` that
raises where a kernel of that text is wrong. Each runs in a process of its own: a fault
may crash it or never end.
"""

import importlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

LIMIT = 600  # seconds for one
NEEDED = 14 / 16  # of all that are planted


@dataclass(frozen=True)
class Mutant:
    """One fault: what it is, what is replaced, by what; in a kernel or its headers."""

    kernel: str
    name: str
    before: str
    after: str


def planted(mutant, text):
    """The text with the fault; the place has to be there, once."""
    name = f"{mutant.name} in {mutant.kernel}"
    return with_fault(text, mutant.before, mutant.after, name)


def with_fault(text, before, after, name="the fault"):
    """Return the text of a kernel with one place replaced; it has to be there, once."""
    count = text.count(before)
    assert count == 1, f"{name}: {count} places"
    return text.replace(before, after)


def modules():
    """Modules of checks that plant something."""
    found = []
    for path in sorted((Path(__file__).parent / "checks").glob("[a-z]*.py")):
        module = importlib.import_module(f"tests.helpers.kernels.checks.{path.stem}")
        if hasattr(module, "MUTANTS"):
            found.append(module)
    return found


def outcome(module, name):
    """caught, hung or MISSED; of the kernel as it is without a name."""
    if name:
        planted_in(importlib.import_module(module), name)
    command = [sys.executable, "-m", __spec__.name, "--one", module, name]
    try:
        done = subprocess.run(command, capture_output=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return "hung"
    return "caught" if done.returncode else "MISSED"


def run_one(module, name):
    """The check of a module on one of its mutants; raises where it is seen.

    Without a name on the kernel as it is, which has to pass: or nothing was shown.
    """
    from tests.helpers.kernels.emulator import source_of

    module = importlib.import_module(module)
    if not name:
        for kernel in dict.fromkeys(one.kernel for one in module.MUTANTS):
            module.check(source_of(kernel))
        return
    module.check(planted_in(module, name))


def planted_in(module, name):
    """The text with one of a module's faults; a place that is gone ends all."""
    from tests.helpers.kernels.emulator import inlined, source_of

    (mutant,) = [one for one in module.MUTANTS if one.name == name]
    return planted(mutant, inlined(source_of(mutant.kernel)))


def main(wanted):
    """All of them, or those of some kernels; 1 where too many are missed."""
    seen = total = 0
    for module in modules():
        chosen = [one for one in module.MUTANTS if not wanted or one.kernel in wanted]
        if chosen and outcome(module.__name__, "") != "MISSED":
            print(f"{chosen[0].kernel} fails as it is: its mutants show nothing")
            return 1
        for mutant in chosen:
            said = outcome(module.__name__, mutant.name)
            seen, total = seen + (said != "MISSED"), total + 1
            print(f"{mutant.kernel:14s} {mutant.name:44s} {said}", flush=True)
    print(f"{seen} of {total} found")
    return int(seen < NEEDED * total)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        run_one(*sys.argv[2:])
        sys.exit(0)
    sys.exit(main(sys.argv[1:]))

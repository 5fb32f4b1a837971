"""`hpcsgd jobs status`: what became of the jobs of a folder."""

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcsgd.cli.jobs.table import table

if TYPE_CHECKING:
    from hpcsgd.jobs.status import State

HEADS = ("job", "name", "state", "code", "starts", "elapsed", "nodes", "run")


def add_parser(actions: Any) -> None:
    """Add `status`."""
    parser = actions.add_parser(
        "status", help="what became of submitted jobs", allow_abbrev=False
    )
    parser.add_argument("folders", nargs="+", metavar="DIR", help="as --out of submit")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """1 where a job has failed, so that scripts can ask."""
    from hpcsgd.jobs.status import BAD, states
    from hpcsgd.result import finite

    found = [s for folder in arguments.folders for s in states(Path(folder))]
    if arguments.json:
        said = [finite(state.as_dict()) for state in found]
        print(json.dumps(said, indent=2, allow_nan=False))
    else:
        print(text(found))
    return int(any(state.state in BAD for state in found))


def text(found: "list[State]") -> str:
    """A table, and a sentence for each that did not end well."""
    lines = table(HEADS, [_row(state) for state in found])
    for state in found:
        if state.why:
            who = f"rank {state.rank}: " if state.rank is not None else ""
            lines.append(f"{state.job} {state.state}: {who}{state.why}")
            lines += [f"  more in {state.log}"] if state.log and state.code else []
    return "\n".join(lines)


def _row(state: "State") -> list[str]:
    code = "" if state.code is None else str(state.code)
    starts = "" if state.state == "pending" else str(state.restarts + 1)
    head = [state.job, state.name, state.state, code, starts]
    return [*head, state.elapsed, state.nodes, _progress(state)]


def _progress(state: "State") -> str:
    """How far its run is, or how many of several are done."""
    from hpcsgd.result import Status

    if len(state.facts) > 1:
        good = [status.value for status in Status if status.is_good]
        done = sum(facts.get("status") in good for facts in state.facts)
        return f"{done} of {len(state.facts)} completed"
    facts = state.facts[0] if state.facts else {}
    if not facts or facts.get("epoch") is None:
        return str(facts.get("status") or "")
    loss = facts.get("loss")
    shown = f", loss {loss:.6g}" if isinstance(loss, float) else ""
    return f"{facts['status']}, epoch {facts['epoch']:g}{shown}"

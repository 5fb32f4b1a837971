"""`hpcsgd compare`: several settings on the same data, in one table."""

import argparse
import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpcsgd.cli import launch
from hpcsgd.cli import parser as parser_module
from hpcsgd.cli.flags import FLAGS
from hpcsgd.cli.names import COMMANDS, COORDINATE, PAGE
from hpcsgd.cli.parser import on_all_ranks
from hpcsgd.cli.train import (
    add_settings,
    check_data,
    overlaid,
    progress,
)
from hpcsgd.errors import ConfigError, MissingPackage

if TYPE_CHECKING:
    from rich.table import Table

    from hpcsgd.comm.communicator import Communicator
    from hpcsgd.config import RunConfig
    from hpcsgd.studies.compare import Comparison, ComparisonRow
    from hpcsgd.studies.plan import Entry

WIDTH = 180  # where standard output is no terminal
COLUMNS = (
    *("global batch", "s", "products", "precision", "final loss", "gap"),
    *("syncs", "words", "bytes", "wire bytes", "seconds", "speed-up"),
    *("vs 1 rank", "efficiency"),
)
# What the second table shows of each setting, before its seconds behind networks.
FRONTS = {"time": "seconds", "bytes": "bytes"}  # word in the table -> cost
AT_EQUAL_COST = ("rate", "equal epochs", "equal time", "equal bytes", "front")
# A flag's name stands for the setting behind it.
SHORT = {flag.name[2:]: flag.setting for flag in FLAGS if flag.is_setting}

PASSES = ("epoch", "seconds")
COSTS = ("seconds", "words", "messages")
MARK = " +"  # after the name of the baseline

log = logging.getLogger(__name__)


def add_parser(commands: Any) -> None:
    """Add `compare` to the commands."""
    parser = commands.add_parser(
        "compare",
        help=COMMANDS["compare"],
        description="Train several methods or settings on the same data and ranks, one"
        " after the other, and print one table. Flags and the TOML file set what all"
        " runs share. With --methods, --batch is the batch of all replicas together. A"
        " run with Adam or Adagrad takes its own default rate instead of a shared"
        " --rate, unless its setting names a rate.",
        example="hpcsgd compare --data rows.h5 --network lan --ranks 2 --rate 0.5"
        ' --setting "sgd: products=direct" --setting "ca-sgd: products=gram steps=8"',
    )
    parser.add_argument(
        "--setting",
        action="append",
        default=[],
        dest="settings",
        metavar="'NAME: KEY=VALUE ...'",
        help="add a row to the table; KEY is the name of a flag, or section.key; may be"
        " given several times",
    )
    parser.add_argument(
        "--methods",
        metavar="all|A,B,...",
        help="add rows for these methods (`hpcsgd info` lists the names)",
    )
    parser.add_argument(
        "--repeats", type=int, default=3, metavar="N", help="runs of each row"
    )
    parser.add_argument(
        "--allow-unequal",
        action="store_true",
        help="compare rows of unequal global batches too, and mark them in the table",
    )
    parser.add_argument(
        "--one-rank",
        metavar="DIR",
        help="folder of a comparison, a study or runs on one rank; the columns `vs 1"
        " rank` and `efficiency` are relative to the fastest of them with the same"
        " data, batch, epochs and processor",
    )
    parser.add_argument(
        "--race",
        action="store_true",
        help="train each row with the learning rate that ends with the least loss;"
        " rates above and below its own are tried by factors of 4, then 2, in up to 12"
        " runs of each row",
    )
    parser.add_argument(
        "--networks",
        nargs="+",
        default=[],
        metavar="NAME",
        help="train each row again behind these emulated networks, and print the"
        " seconds: hpc, lan, cloud or alpha=5e-5,bandwidth=1.25e9",
    )
    parser.add_argument(
        "--plot", metavar="FILE.png", help="draw the loss curves into this file"
    )
    add_settings(parser, without=("--plain",))
    parser_module.add_json(parser)
    parser_module.add_progress(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Run `hpcsgd compare`, with --ranks under mpiexec; return the exit code.

    Every setting is checked before any of them trains.
    """
    from hpcsgd.comm.network_model import parse_network
    from hpcsgd.studies.compare import check, read_one_rank

    base, entries = plan_comparison(arguments)
    check(entries, arguments.repeats, arguments.allow_unequal)
    for network in arguments.networks:
        parse_network(network)
    if arguments.one_rank:
        read_one_rank(arguments.one_rank)
    check_data(base)
    launch.check_readable(base.data.path)
    parser_module.require_figures(arguments.plot)
    if launch.must_relaunch(arguments.ranks):
        return launch.relaunch(arguments.ranks, argv)
    if not arguments.verbose:
        parser_module.CHATTY.setLevel(logging.WARNING)
    return _compare(base, entries, arguments)


def plan_comparison(arguments: argparse.Namespace) -> "tuple[RunConfig, list[Entry]]":
    """Return the shared configuration and the entries to compare.

    Entries are, in this order, the methods of --methods, the [compare.NAME] tables of
    the file, and those of --setting.
    """
    from hpcsgd.config import RunConfig, read_toml
    from hpcsgd.studies.compare import line_up
    from hpcsgd.studies.plan import (
        Entry,
        NamedSetting,
        check_shared,
        expand_settings,
        make_setting,
        on_ranks,
        parse_setting,
    )

    tables: dict[str, Any] = read_toml(arguments.config) if arguments.config else {}
    named = _of_file(tables.pop("compare", {}))
    named += [parse_setting(text) for text in arguments.settings]
    base = overlaid(tables, arguments)
    shared = RunConfig.parse(base)
    entries = list[Entry]()
    ranks = arguments.ranks or launch.launcher_size()
    if arguments.methods is not None:
        entries += line_up(arguments.methods, base, ranks)
    entries += [make_setting(n, base, expand_settings(n, t, SHORT)) for n, t in named]
    check_shared(
        base, [entry.config for entry in entries if isinstance(entry, NamedSetting)]
    )
    return shared, [on_ranks(entry, ranks) for entry in entries]


def _of_file(tables: Any) -> list[tuple[str, dict[str, Any]]]:
    """Return the [compare.NAME] tables of a file, as (name, settings)."""
    for table in tables.values() if isinstance(tables, dict) else [tables]:
        if not isinstance(table, dict):
            raise ConfigError(
                f"compare: {table!r} is not a table of settings; write [compare.NAME],"
                ' and below it lines such as products = "gram"'
            )
    return list(tables.items())


def _compare(
    base: "RunConfig", entries: "list[Entry]", arguments: argparse.Namespace
) -> int:
    from hpcsgd.studies.compare import compare

    def action(world: "Communicator") -> "Comparison":
        return compare(
            entries,
            repeats=arguments.repeats,
            allow_unequal=arguments.allow_unequal,
            out=base.run.out,
            world=world,
            callbacks=lambda: progress(arguments) if world.rank == 0 else [],
            one_rank=arguments.one_rank,
            race=arguments.race,
            networks=arguments.networks,
        )

    return on_all_ranks(
        base.run.comm,
        action,
        show=lambda found: _show(found, base.run.out, arguments),
        code=lambda found: 1 if found.diverged or found.worse else 0,
        timeout=base.run.timeout,
    )


def _show(found: "Comparison", out: str | None, arguments: argparse.Namespace) -> None:
    """Save, draw and print the comparison; warn of settings that diverged or got worse.

    `out` is the folder for its files; without it, only --plot draws a figure.
    """
    from hpcsgd.studies.report.page import make_report, write_page

    if out:
        found.save(Path(out))
        try:
            _draw(found, arguments, Path(out) / "compare.png")
        except MissingPackage as missing:
            log.info("compare.png was not drawn in %s: %s", out, missing)
        folders = [out, arguments.one_rank] if arguments.one_rank else [out]
        write_page(make_report(folders), Path(out) / PAGE)
    if arguments.plot:
        _draw(found, arguments, arguments.plot)
    if arguments.json:
        print(found.json(), flush=True)
    else:
        console = parser_module.new_console(WIDTH)
        console.print(table_of(found))
        if arguments.methods is not None or arguments.race or arguments.networks:
            console.print(table_at_equal_cost(found, arguments.networks))
        print("\n".join(_notes(found)), end="\n" if _notes(found) else "", flush=True)
    for name in found.diverged:
        print(f"hpcsgd: {name} diverged; lower its rate (rate=...)", file=sys.stderr)
    for row in found.rows:
        if row.worse:
            print(f"hpcsgd: {_on_worse(row)}", file=sys.stderr)


def _on_worse(row: "ComparisonRow") -> str:
    """Return a warning about a setting whose loss ended above its first loss."""
    first = row.result.history[0]["loss"]
    return (
        f"{row.name} ended above where it began (loss {row.result.loss:.4g}, from"
        f" {first:.4g}); lower its rate (rate=...)"
    )


def _draw(found: "Comparison", arguments: argparse.Namespace, path: Path | str) -> None:
    """Draw the losses over epochs and over seconds, one plot each, into `path`.

    With --methods, they are over seconds, words and messages.
    """
    by_method = arguments.methods is not None
    from hpcsgd.runs.figures import loss_curves

    loss_curves({"": found.histories()}, path, COSTS if by_method else PASSES)


def table_of(found: "Comparison") -> "Table":
    """Return the table of the comparison, a row for each setting, also if refused."""
    from hpcsgd.studies.compare import REFUSED
    from hpcsgd.studies.plan import Refusal

    drawn = parser_module.new_table(_title(found), ("setting",), COLUMNS)
    drawn.columns[0].no_wrap = True
    for entry in found.entries:
        if isinstance(entry, Refusal):
            cells = ["" for _ in COLUMNS]
            cells[COLUMNS.index("gap")] = REFUSED
            drawn.add_row(entry.name, *cells)
        else:
            mark = MARK * (entry.name == found.baseline)
            drawn.add_row(entry.name + mark, *_cells(found, entry))
    return drawn


def table_at_equal_cost(found: "Comparison", networks: list[str]) -> "Table":
    """Return the losses for equal epochs, time and bytes, and times behind networks."""
    seconds = found.least("seconds")
    sent = found.least("bytes")
    title = "Loss at equal cost"
    if seconds is not None:
        title += f": time {seconds:.3f} s"
    if sent is not None:
        title += f", {sent:.0f} bytes of rank 0"
    behind = tuple(f"s behind {name}" for name in networks)
    drawn = parser_module.new_table(title, ("setting",), AT_EQUAL_COST + behind)
    fronts = {name: found.front(cost) for name, cost in FRONTS.items()}
    for row in found.rows:
        times = (row.seconds_behind.get(name) for name in networks)
        drawn.add_row(
            row.name,
            f"{row.rate:.4g}",
            f"{row.result.loss:.6f}" if row.is_whole else row.status,
            _loss(found.loss_at_equal("seconds", row)),
            _loss(found.loss_at_equal("bytes", row)),
            ", ".join(name for name, rows in fronts.items() if row.name in rows),
            *("-" if time is None else f"{time:.3f}" for time in times),
        )
    return drawn


def _loss(loss: float | None) -> str:
    return "-" if loss is None else f"{loss:.6f}"


def _title(found: "Comparison") -> str:
    ranks = found.rows[0].result.report["ranks"]
    repeats = len(found.rows[0].times)
    title = f"{ranks} rank{'' if ranks == 1 else 's'}, median of {repeats}"
    if found.reference is not found.rows[0]:
        title += f", gaps and speed-ups against {found.reference.name}"
    if found.is_equal_batch:
        return title
    return f"{title}; UNEQUAL GLOBAL BATCHES: the steps do not see as many rows"


def _notes(found: "Comparison") -> list[str]:
    """Return the notes below the table, on refusals and limits of the comparison."""
    from hpcsgd.studies.compare import REFUSED

    notes = [f"{refusal.name}: {REFUSED}: {refusal.why}" for refusal in found.refused]
    notes += [f"{name}: {why}" for name, why in found.before.items()]
    notes += [
        f"{', '.join(names)}: steps by {_rule(found, rule, names)}, not by"
        f" {_rule(found, found.reference.update, [found.reference.name])}: its gap is"
        " of the rule and of its rate"
        for rule, names in found.others.items()
    ]
    other = [row.name for row in found.rows if row.network != found.reference.network]
    if other:
        notes.append(
            f"{', '.join(other)}: no speed-up, as {found.reference.name} ran on another"
            " network"
        )
    without = [row.name for row in found.rows if found.one_rank(row) is None]
    if without and found.one_rank_runs:
        notes.append(
            f"{', '.join(without)}: not held to one rank, for no run on one rank has"
            " its data, global batch, epochs and machine"
        )
    elif without:
        notes.append(
            "vs 1 rank: there is no run on one rank; make one by the same command with"
            " --ranks 1 --out DIR, and add --one-rank DIR here"
        )
    if found.baseline:
        notes.insert(0, f"{MARK.strip()} the baseline of methods that send fewer bytes")
    return notes


def _rule(found: "Comparison", rule: str, names: list[str]) -> str:
    """Return the update rule as text, for SGD with the rates of the rows `names`."""
    if rule == COORDINATE:
        return rule
    rates = dict.fromkeys(f"{row.rate:g}" for row in found.rows if row.name in names)
    return f"{rule} at a rate of {' or '.join(rates)}"


def _gap(found: "Comparison", row: "ComparisonRow") -> str:
    """Return the loss difference of a row to the reference in percent.

    Return its status instead if the run did not finish, diverged or got worse.
    """
    if not row.is_whole:
        return row.status
    return f"{100 * found.loss_gap(row):+.4f} %"


def _cells(found: "Comparison", row: "ComparisonRow") -> tuple[str, ...]:
    """Return the figures of one row as text, in the order of COLUMNS."""
    from hpcsgd.studies.plots.charts import figures

    report = row.result.report
    first = found.rows[0].setting.global_batch
    mark = "" if row.setting.global_batch == first else " *"
    ahead = " ahead" if report["look_ahead"] else ""
    efficiency = found.efficiency(row)
    return (
        f"{row.setting.global_batch}{mark}",
        str(row.steps),
        report["products"] + ahead,
        row.setting.config.precision.recipe,
        f"{row.result.loss:.6f}",
        _gap(found, row),
        str(row.traffic("calls")),
        str(row.traffic("words")),
        str(row.traffic("bytes")),
        f"{row.wire_bytes:.0f}",
        f"{row.seconds:.3f}",
        _ratio(found.speed_up(row)),
        _ratio(found.speed_up_one_rank(row)),
        "-" if efficiency is None else f"{figures(100 * efficiency, 2)} %",
    )


def _ratio(value: float | None) -> str:
    """Format a ratio as text such as "2.00x"; "-" if it is unknown."""
    return "-" if value is None or value != value else f"{value:.2f}x"

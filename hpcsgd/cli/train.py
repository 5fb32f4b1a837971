"""`hpcsgd train`: one run, from flags, a TOML file, or both."""

import argparse
import sys
from typing import Any

from hpcsgd.agreement import AGREEMENTS
from hpcsgd.cli import launch
from hpcsgd.comm.delayed import NETWORKS
from hpcsgd.comm.grid import parse_grid
from hpcsgd.config import RunConfig, apply_settings, read_toml
from hpcsgd.data.sampling import MODES
from hpcsgd.errors import HpcsgdError
from hpcsgd.families import FAMILIES
from hpcsgd.precision import RECIPES
from hpcsgd.products import PRODUCTS
from hpcsgd.rates import RATES
from hpcsgd.result import Result
from hpcsgd.signals import Signals
from hpcsgd.updates import UPDATES

# flag, the setting it stands for, and what argparse needs to know
FLAGS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--data", "data.path", {"metavar": "FILE.h5", "help": "HDF5 file with /X and /y"}),
    ("--family", "problem.family", {"choices": sorted(FAMILIES), "help": "the GLM"}),
    ("--l2", "problem.l2", {"type": float, "help": "ridge penalty"}),
    (
        "--products",
        "products.kind",
        {
            "choices": [*PRODUCTS, "auto"],
            "help": "how members get through s steps with one synchronisation",
        },
    ),
    (
        "--look-ahead",
        "products.look_ahead",
        {"choices": ["on", "off", "auto"], "help": "send the next Gram early"},
    ),
    ("--batch", "schedule.batch", {"type": int, "help": "rows a step, per replica"}),
    ("--steps", "schedule.steps", {"type": int, "help": "steps per exchange, s"}),
    ("--period", "schedule.period", {"type": int, "help": "exchanges per agreement"}),
    ("--epochs", "schedule.epochs", {"type": int, "help": "passes over the rows"}),
    ("--precision", "precision.recipe", {"choices": list(RECIPES), "help": "recipe"}),
    ("--rate", "rate.value", {"type": float, "help": "step size"}),
    ("--rate-kind", "rate.kind", {"choices": list(RATES), "help": "rate schedule"}),
    ("--update", "update.kind", {"choices": list(UPDATES), "help": "step rule"}),
    ("--momentum", "update.momentum", {"type": float, "help": "of momentum, nesterov"}),
    ("--sampling", "sampling.mode", {"choices": list(MODES), "help": "row order"}),
    ("--seed", "sampling.seed", {"type": int, "help": "of the row order"}),
    (
        "--agreement",
        "agreement.kind",
        {"choices": [*AGREEMENTS, "auto"], "help": "how replicas agree"},
    ),
    (
        "--network",
        "run.network",
        {
            "metavar": "NAME",
            "help": f"feel a network: {', '.join(NETWORKS)},"
            " or alpha=5e-5,bandwidth=1.25e9",
        },
    ),
    ("--out", "run.out", {"metavar": "DIR", "help": "run folder to write"}),
    (
        "--resume",
        "run.resume",
        {
            "metavar": "auto|PATH",
            "help": "go on from the newest checkpoint in --out, or from this one",
        },
    ),
    (
        "--checkpoint-every",
        "checkpoint.every",
        {"type": int, "metavar": "N", "help": "exchanges between checkpoints"},
    ),
    (
        "--checkpoint-seconds",
        "checkpoint.seconds",
        {"type": float, "metavar": "T", "help": "seconds between checkpoints"},
    ),
    (
        "--check-members",
        "run.check_members",
        {"type": int, "metavar": "N", "help": "compare members every N exchanges"},
    ),
    (
        "--record",
        "run.record",
        {"type": int, "metavar": "N", "help": "exchanges kept for hpcsgd verify"},
    ),
)
SWITCHES = (
    ("--intercept", "problem.intercept", "learn an intercept (never penalised)"),
    ("--reproducible", "run.reproducible", "every member holds the same bits"),
)


def add_parser(commands: Any) -> None:
    """Add `train` to the commands."""
    parser = commands.add_parser(
        "train",
        help="train a model",
        description="Train a generalized linear model; flags override the TOML file.",
        allow_abbrev=False,
    )
    parser.add_argument("config", nargs="?", metavar="run.toml", help="configuration")
    for flag, setting, options in FLAGS:
        parser.add_argument(
            flag, dest=setting, default=None, **{"metavar": None, **options}
        )
    for flag, setting, text in SWITCHES:
        parser.add_argument(
            flag, dest=setting, default=None, action="store_true", help=text
        )
    parser.add_argument("--grid", metavar="RxC", help="replicas x members; 1xN default")
    parser.add_argument("--ranks", type=int, metavar="N", help="start N MPI ranks")
    parser.add_argument(
        "--set", action="append", default=[], metavar="SECTION.KEY=VALUE", dest="sets"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--progress",
        type=float,
        default=10.0,
        metavar="SECONDS",
        help="between progress lines when the output is no terminal; 0 = none",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Check the configuration, then train here or under mpiexec."""
    config = configuration(arguments)
    if launch.must_relaunch(arguments.ranks):
        return launch.relaunch(arguments.ranks, argv)
    return _train(config, arguments)


def configuration(arguments: argparse.Namespace) -> RunConfig:
    """The TOML file, then --set, then the flags."""
    tables = read_toml(arguments.config) if arguments.config else {}
    tables = apply_settings(tables, arguments.sets)
    asked = [name for _, name, _ in FLAGS] + [name for _, name, _ in SWITCHES]
    for setting in asked:
        value = getattr(arguments, setting)
        if value is not None:
            section, key = setting.split(".")
            tables.setdefault(section, {})[key] = value
    if arguments.grid:
        replicas, members = parse_grid(arguments.grid)
        tables["grid"] = {"replicas": replicas, "members": members}
    return RunConfig.parse(tables)


def _train(config: RunConfig, arguments: argparse.Namespace) -> int:
    from hpcsgd.api import train
    from hpcsgd.callbacks.progress import make_progress
    from hpcsgd.comm import open_world

    world = open_world(config.run.comm)
    callbacks = make_progress(arguments.progress) if world.rank == 0 else []
    try:
        with Signals() as signals:
            result = train(config, world=world, callbacks=[*callbacks, signals])
    except HpcsgdError as error:
        if world.size > 1 and not error.on_all_ranks:
            # Only this rank knows; the others wait in a collective.
            print(f"hpcsgd: rank {world.rank}: error: {error}", file=sys.stderr)
            world.abort(error.exit_code)
        raise
    if world.rank == 0:
        print(result.json() if arguments.json else summary(result), flush=True)
        if result.status.advice:
            print(
                f"hpcsgd: {result.status.value}: {result.status.advice}",
                file=sys.stderr,
            )
    world.close()
    return result.status.exit_code


def summary(result: Result) -> str:
    """What a person wants to read."""
    report, ledger = result.report, result.ledger
    schedule, grid = report["schedule"], report["grid"]
    products = ledger["products"]
    lines = [
        f"status        {result.status.value}",
        f"loss          {result.loss:.8g}   (all {report['rows']} rows, float64)",
        f"steps         {result.iterations} in {result.exchanges} exchanges"
        f"   (batch {schedule['batch']}, global {schedule['global_batch']},"
        f" steps {schedule['steps']}, products {report['products']})",
        f"ranks         {report['ranks']} as {grid['replicas']} x {grid['members']}",
        f"synchronised  {products['calls']} times for products"
        f" ({products['words']} words), {ledger['agreement']['calls']} times to agree",
        f"seconds       {report['seconds_total']:.3f} training,"
        f" {report['seconds_setup']:.3f} set-up,"
        f" {report['seconds_evaluate']:.3f} evaluating"
        f"   ({report['rows_per_second']:.4g} rows/s)",
        f"weights       sha256 {result.weights_sha256[:16]}…",
    ]
    return "\n".join(lines)

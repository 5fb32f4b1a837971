"""Flags of commands, settings the user chose, templates of configurations."""

import argparse
import ast
import inspect
import io
import tokenize
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from hpcsgd.agreements.averaging import BUFFERS
from hpcsgd.agreements.codecs.base import DENSE, FEEDBACKS, NORMS
from hpcsgd.agreements.settings import PEERS, ROUNDS
from hpcsgd.agreements.slowmo import BASES
from hpcsgd.cli import names
from hpcsgd.cli.commands import COMMANDS
from hpcsgd.cli.parser import COMM_HELP, gib, numbers, rate, steps
from hpcsgd.comm import COMMUNICATORS
from hpcsgd.comm.network_model import NETWORKS
from hpcsgd.config import METHODS, RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.files import toml_literal, write_text
from hpcsgd.formats import formats_of
from hpcsgd.glm.mirror_maps import KINDS
from hpcsgd.glm.penalties import PLACES
from hpcsgd.precision import FIELDS, ROUNDINGS, SCALES, Precision
from hpcsgd.products import PRODUCTS
from hpcsgd.products.base import OVERS, WAYS
from hpcsgd.products.cost import GRAM_KERNELS
from hpcsgd.solvers.coordinate import COORDINATE

# The flags of commands that train, and the settings that they stand for.

# flag, the setting it stands for, and what argparse needs to know
FLAGS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("--data", "data.path", {"metavar": "FILE.h5", "help": "HDF5 file with /X and /y"}),
    (
        "--family",
        "problem.family",
        {"choices": sorted(names.FAMILIES), "help": "the GLM"},
    ),
    ("--l2", "problem.l2", {"type": float, "help": "ridge penalty"}),
    ("--l1", "problem.l1", {"type": float, "help": "penalty that makes weights 0"}),
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
    (
        "--steps",
        "schedule.steps",
        {"type": steps, "metavar": "S", "help": "steps per exchange, s, or auto"},
    ),
    (
        "--machine",
        "products.machine",
        {
            "metavar": "FILE",
            "help": "figures that `auto` chooses by; measured where missing",
        },
    ),
    ("--period", "schedule.period", {"type": int, "help": "exchanges per agreement"}),
    ("--epochs", "schedule.epochs", {"type": int, "help": "passes over the rows"}),
    (
        "--precision",
        "precision.recipe",
        {
            "choices": [*names.RECIPES, names.AUTO],
            "help": "recipe; auto: chosen by pilot runs",
        },
    ),
    (
        "--rate",
        "rate.value",
        {"type": rate, "metavar": "R", "help": "step size, or auto"},
    ),
    ("--rate-kind", "rate.kind", {"choices": names.RATES, "help": "rate schedule"}),
    (
        "--milestones",
        "rate.milestones",
        {
            "type": numbers,
            "metavar": "E,E,...",
            "help": "epochs after which --rate-kind milestones multiplies the rate by"
            " rate.factor (0.1)",
        },
    ),
    (
        "--update",
        "update.kind",
        {"choices": [*names.UPDATES, *names.ADAPTIVE, COORDINATE], "help": "step rule"},
    ),
    ("--momentum", "update.momentum", {"type": float, "help": "of momentum, nesterov"}),
    (
        "--partition",
        "data.partition",
        {"choices": names.PARTITIONS, "help": "columns to members"},
    ),
    (
        "--emulate-members",
        "run.emulate_members",
        {"type": int, "metavar": "N", "help": "time one rank as one of N"},
    ),
    (
        "--threads",
        "run.threads",
        {"type": int, "metavar": "N", "help": "of each rank, in compiled kernels"},
    ),
    ("--hdf5", "data.hdf5", {"choices": names.DRIVERS, "help": "how ranks read"}),
    ("--sampling", "sampling.mode", {"choices": names.SAMPLINGS, "help": "row order"}),
    (
        "--hold-out",
        "sampling.hold_out",
        {"type": float, "metavar": "SHARE", "help": "of the rows, not trained on"},
    ),
    ("--seed", "sampling.seed", {"type": int, "help": "of the row order"}),
    (
        "--agreement",
        "agreement.kind",
        {"choices": [*names.AGREEMENTS, "auto"], "help": "how replicas agree"},
    ),
    (
        "--method",
        "agreement.method",
        {
            "choices": list(METHODS),
            "help": "by name: sets agreement, codec and what belongs to them",
        },
    ),
    (
        "--codec",
        "agreement.codec",
        {"choices": names.CODECS, "help": "gradients on the wire"},
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
    (
        "--comm",
        "run.comm",
        {"metavar": "KIND", "help": COMM_HELP},
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
        "--memory",
        "run.memory",
        {"type": gib, "metavar": "SIZE", "help": "of all ranks of a node, as 64MiB"},
    ),
    (
        "--on-failure",
        "run.on_failure",
        {"choices": ["stop", "shrink"], "help": "when a rank is lost (needs ULFM)"},
    ),
    (
        "--device",
        "run.device",
        {"choices": names.DEVICES, "help": "where exchanges are computed"},
    ),
    (
        "--transport",
        "run.transport",
        {"choices": names.TRANSPORTS, "help": "how arrays on GPUs travel"},
    ),
    (
        "--gram-kernel",
        "products.gram_kernel",
        {"choices": GRAM_KERNELS, "help": "who makes the Gram on a GPU"},
    ),
    (
        "--stop-on",
        "stop.on",
        {
            "choices": names.GOALS,
            "help": "end where an evaluation finds this small enough",
        },
    ),
    ("--tol", "stop.tol", {"type": float, "help": "how small, relative"}),
    (
        "--polish",
        "polish.kind",
        {
            "action": "store_const",
            "const": "auto",
            "help": "then go on to the optimum, by L-BFGS and Newton",
        },
    ),
    (
        "--timeout",
        "run.timeout",
        {
            "type": float,
            "metavar": "SECONDS",
            "help": "a rank waits for one that does nothing; 0 = for ever",
        },
    ),
    (
        "--gap-every",
        "run.gap_every",
        {"type": int, "metavar": "N", "help": "exchanges between looks at the gap"},
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
    ("--share-gpus", "run.share_gpus", "more ranks on a node than it has GPUs"),
    ("--profile", "run.profile", "say where the time went, on all ranks"),
)


NEGATIVE = (
    (
        "--no-fall-back",
        "run.fall_back",
        "an alarm or a divergence changes no settings",
    ),
)


# What a configuration file has chosen, of all that it lists.

Tables = Mapping[str, Mapping[str, Any]]


def chosen(tables: Tables) -> Tables:
    """`tables` without defaults that would be in the way of a method.

    `hpcsgd new` lists every setting. In a file that lists an empty method a default is
    no choice, so that --method can still make it; in one that names a method, those
    that this method fixes are none.
    """
    from hpcsgd.config import RunConfig

    agreement = tables.get("agreement", {})
    name = agreement.get("method") if isinstance(agreement, Mapping) else None
    if name is None or (name and name not in METHODS):
        return tables
    usual = RunConfig().tables()

    def is_default(section: str, key: str, value: Any) -> bool:
        is_open = not name or f"{section}.{key}" in METHODS[name].fixed
        return is_open and usual.get(section, {}).get(key, tables) == value

    return {
        section: {k: v for k, v in table.items() if not is_default(section, k, v)}
        if isinstance(table, Mapping)
        else table
        for section, table in tables.items()
    }


# A configuration file with all there is to set, written from the dataclasses.

WIDTH = 88
# settings that no flag has; those of flags know their choices themselves
CHOICES: dict[str, list[str]] = {
    "run.comm": ["auto", *COMMUNICATORS],
    "agreement.momentum": list(BUFFERS),
    "agreement.base": list(BASES),
    "agreement.peers": list(PEERS),
    "agreement.rounds": list(ROUNDS),
    "mirror.kind": list(KINDS),
    "codec.feedback": list(FEEDBACKS),
    "codec.dense": list(DENSE),
    "codec.norm": list(NORMS),
    "problem.l1_at": list(PLACES),
    "update.clip": list(WAYS),
    "update.clip_over": list(OVERS),
    "precision.scale": list(SCALES),
    "precision.rounding": list(ROUNDINGS),
    **{f"precision.{name}": formats_of(name) for name in FIELDS},
}


def template() -> str:
    """Every section with every key at its default, explained."""
    head = [
        "# A configuration of hpcsgd: hpcsgd train FILE",
        "# Every value is the default; keys with a # in front are optional.",
    ]
    kinds = get_type_hints(RunConfig)
    sections = [_section(f.name, kinds[f.name]) for f in fields(RunConfig)]
    return "\n\n".join(["\n".join(head), *sections]) + "\n"


def _section(name: str, kind: type[Any]) -> str:
    values, notes = kind(), comments(kind)
    # The nine fields are explained where they live.
    notes = comments(Precision) | notes if name == "precision" else notes
    lines = [*_remarks(inspect.getdoc(kind) or ""), f"[{name}]"]
    for field in fields(kind):
        note = explain(f"{name}.{field.name}", notes.get(field.name, ""))
        lines += _key(field.name, getattr(values, field.name), note)
    return "\n".join(lines)


def _key(key: str, value: Any, note: str) -> list[str]:
    """`key = value  # note`, the note above where the line would be too long."""
    line = f'# {key} = ""' if value is None else f"{key} = {toml_literal(value)}"
    if not note:
        return [line]
    whole = f"{line}  # {note}"
    return [whole] if len(whole) <= WIDTH else [*_remarks(note), line]


def _remarks(text: str) -> list[str]:
    """`text` as comment lines that fit, its own line breaks kept."""
    lines = []
    for paragraph in text.splitlines():
        line = "#"
        for word in paragraph.split():
            if len(line) + 1 + len(word) > WIDTH:
                lines.append(line)
                line = "#"
            line += f" {word}"
        lines.append(line)
    return lines


def explain(setting: str, comment: str) -> str:
    """What a setting says: the comment of its source or its flag's help, and choices.

    None of them repeats another.
    """
    options: dict[str, Any] = next((o for _, s, o in FLAGS if s == setting), {})
    switch = next((text for _, s, text in SWITCHES if s == setting), "")
    said = comment or options.get("help", "") or switch
    choices = options.get("choices") or CHOICES.get(setting, [])
    if all(choice in said for choice in choices):
        return said
    return "; ".join(filter(None, [said, ", ".join(choices)]))


def comments(kind: type[Any]) -> dict[str, str]:
    """Field -> the comment beside it in the source, none where there is no source."""
    try:
        source = inspect.cleandoc("\n" + inspect.getsource(kind))
    except OSError:
        return {}
    notes, found = _notes(source), {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.AnnAssign):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            found[ast.unparse(node.target)] = [notes[n] for n in lines if n in notes]
    return {name: " ".join(said) for name, said in found.items() if said}


def _notes(source: str) -> dict[int, str]:
    """Line -> its comment."""
    return {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }


# `hpcsgd new`: a configuration file to start from.


def add_parser(commands: Any) -> None:
    """Add `new` to the commands."""
    parser = commands.add_parser(
        "new",
        help=COMMANDS["new"],
        description="Every section and key at its default, with what it does.",
        allow_abbrev=False,
    )
    parser.add_argument("file", metavar="run.toml", help="file to write")
    parser.add_argument(
        "--force", action="store_true", help="overwrite a file that is there"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Write the file, say how to go on."""

    path = Path(arguments.file)
    if path.is_dir():
        raise ConfigError(f"cannot write {path}: it is a folder; name a file")
    if path.exists() and not arguments.force:
        raise ConfigError(f"{path} exists; name another file, or add --force")
    try:
        write_text(path, template())
    except OSError as error:
        raise ConfigError(
            f"cannot write {path}: {error.strerror}; choose a folder that can be"
            " written"
        ) from error
    print(f"{path}: now set [data] path, then: hpcsgd train {path}")
    return 0

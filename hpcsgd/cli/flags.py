"""Flags of commands, settings the user chose, templates of configurations."""

from typing import Any

from hpcsgd.cli import names
from hpcsgd.cli.parser import COMM_HELP, gib, numbers, rate, steps
from hpcsgd.products import PRODUCTS

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
    (
        "--plain",
        "run.defaults",
        {
            "action": "store_const",
            "const": "sgd",
            "help": "SGD with all its defaults, whatever is not named",
        },
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
        {
            "choices": [*names.UPDATES, *names.ADAPTIVE, names.COORDINATE],
            "help": "step rule",
        },
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
            "choices": list(names.METHODS),
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
            "help": "feel a network:"
            f" {', '.join(names.NETWORKS)},"
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
        {"choices": names.GRAM_KERNELS, "help": "who makes the Gram on a GPU"},
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

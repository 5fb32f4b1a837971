"""The flags of commands that train, each with its group and its setting."""

from hpcsgd.cli import names
from hpcsgd.cli.parser import Flag, gib, numbers, rate, whole_or_auto
from hpcsgd.products import PRODUCTS

DATA = "data"
MODEL = "model"
STEPS = "steps"
REPLICAS = "replicas"
PRECISION = "precision"
RANKS = "ranks and network"
DEVICE = "device and memory"
OUTPUT = "output and resume"
CHECKS = "checks and monitoring"
SETTINGS = "any setting"
TRUE = {"action": "store_true"}
FALSE = {"action": "store_false"}
FLAGS: tuple[Flag, ...] = (
    Flag("--data", "data.path", DATA, {"metavar": "FILE.h5"}, common=True),
    Flag("--hold-out", "sampling.hold_out", DATA, {"type": float, "metavar": "SHARE"}),
    Flag("--sampling", "sampling.mode", DATA, {"choices": names.SAMPLINGS}),
    Flag("--seed", "sampling.seed", DATA, {"type": int}, common=True),
    Flag("--partition", "data.partition", DATA, {"choices": names.PARTITIONS}),
    Flag("--hdf5", "data.hdf5", DATA, {"choices": names.DRIVERS}),
    Flag(
        "--family",
        "problem.family",
        MODEL,
        {"choices": sorted(names.FAMILIES), "metavar": "NAME"},
        common=True,
        own_help="loss family of the generalized linear model: "
        + ", ".join(sorted(names.FAMILIES)),
    ),
    Flag("--power", "problem.power", MODEL, {"type": float, "metavar": "P"}),
    Flag("--dispersion", "problem.dispersion", MODEL, {"type": float, "metavar": "A"}),
    Flag("--intercept", "problem.intercept", MODEL, TRUE, common=True, fit="on"),
    Flag("--l2", "problem.l2", MODEL, {"type": float}, common=True, fit="1e-4"),
    Flag("--l1", "problem.l1", MODEL, {"type": float}),
    Flag(
        "--epochs",
        "schedule.epochs",
        STEPS,
        {"type": whole_or_auto, "metavar": "N"},
        common=True,
        fit="auto",
    ),
    Flag("--batch", "schedule.batch", STEPS, {"type": int}, common=True),
    Flag(
        "--steps",
        "schedule.steps",
        STEPS,
        {"type": whole_or_auto, "metavar": "S"},
        common=True,
        fit="auto",
    ),
    Flag(
        "--rate",
        "rate.value",
        STEPS,
        {"type": rate, "metavar": "R"},
        common=True,
        fit="auto",
    ),
    Flag(
        "--products",
        "products.kind",
        STEPS,
        {"choices": [*PRODUCTS, "auto"]},
        common=True,
    ),
    Flag(
        "--plain",
        "run.defaults",
        STEPS,
        {"action": "store_const", "const": "sgd"},
        own_help="train by SGD with fixed defaults, even where hpcsgd would choose a"
        " faster way to the optimum",
    ),
    Flag(
        "--update",
        "update.kind",
        STEPS,
        {"choices": [*names.UPDATES, *names.ADAPTIVE, names.COORDINATE]},
    ),
    Flag("--momentum", "update.momentum", STEPS, {"type": float}),
    Flag("--rate-kind", "rate.kind", STEPS, {"choices": names.RATES}),
    Flag(
        "--milestones",
        "rate.milestones",
        STEPS,
        {"type": numbers, "metavar": "E,E,..."},
    ),
    Flag(
        "--look-ahead", "products.look_ahead", STEPS, {"choices": ["on", "off", "auto"]}
    ),
    Flag("--machine", "products.machine", STEPS, {"metavar": "FILE"}),
    Flag("--stop-on", "stop.on", STEPS, {"choices": names.GOALS}),
    Flag("--tol", "stop.tol", STEPS, {"type": float}),
    Flag(
        "--polish",
        "polish.kind",
        STEPS,
        {"action": "store_const", "const": "auto"},
        fit="on",
        own_help="after the last step refine the weights to the optimum, with L-BFGS"
        " and Newton's method",
    ),
    Flag(
        "--method",
        "agreement.method",
        REPLICAS,
        {"choices": list(names.METHODS), "metavar": "NAME"},
        common=True,
    ),
    Flag(
        "--agreement",
        "agreement.kind",
        REPLICAS,
        {"choices": [*names.AGREEMENTS, "auto"], "metavar": "NAME"},
    ),
    Flag(
        "--codec",
        "agreement.codec",
        REPLICAS,
        {"choices": names.CODECS, "metavar": "NAME"},
    ),
    Flag("--period", "schedule.period", REPLICAS, {"type": int}),
    Flag(
        "--precision",
        "precision.recipe",
        PRECISION,
        {"choices": [*names.RECIPES, names.AUTO]},
        common=True,
    ),
    Flag(
        "--ranks",
        "ranks",
        RANKS,
        {"type": int, "metavar": "N"},
        common=True,
        own_help="start this number of MPI ranks on this machine; without the flag the"
        " run uses the ranks of mpiexec or srun",
    ),
    Flag(
        "--grid",
        "grid",
        RANKS,
        {"metavar": "RxC"},
        own_help="R replicas of C members each; without the flag all ranks are members"
        " of one replica, or replicas of one member with a method of replicas",
    ),
    Flag("--network", "run.network", RANKS, {"metavar": "NAME"}, common=True),
    Flag("--comm", "run.comm", RANKS, {"metavar": "KIND"}),
    Flag(
        "--emulate-members", "run.emulate_members", RANKS, {"type": int, "metavar": "N"}
    ),
    Flag("--on-failure", "run.on_failure", RANKS, {"choices": ["stop", "shrink"]}),
    Flag("--timeout", "run.timeout", RANKS, {"type": float, "metavar": "SECONDS"}),
    Flag("--device", "run.device", DEVICE, {"choices": names.DEVICES}, common=True),
    Flag("--transport", "run.transport", DEVICE, {"choices": names.TRANSPORTS}),
    Flag(
        "--gram-kernel", "products.gram_kernel", DEVICE, {"choices": names.GRAM_KERNELS}
    ),
    Flag("--share-gpus", "run.share_gpus", DEVICE, TRUE),
    Flag("--threads", "run.threads", DEVICE, {"type": int, "metavar": "N"}),
    Flag(
        "--memory",
        "run.memory",
        DEVICE,
        {"type": gib, "metavar": "SIZE"},
        own_help="memory that all ranks of one node may use together, in GiB or with a"
        " unit as in 64MiB; 0 takes what the system reports as free",
    ),
    Flag("--out", "run.out", OUTPUT, {"metavar": "DIR"}, common=True),
    Flag("--resume", "run.resume", OUTPUT, {"metavar": "auto|PATH"}, common=True),
    Flag(
        "--checkpoint-every", "checkpoint.every", OUTPUT, {"type": int, "metavar": "N"}
    ),
    Flag(
        "--checkpoint-seconds",
        "checkpoint.seconds",
        OUTPUT,
        {"type": float, "metavar": "T"},
    ),
    Flag("--record", "run.record", OUTPUT, {"type": int, "metavar": "N"}),
    Flag("--profile", "run.profile", CHECKS, TRUE),
    Flag("--reproducible", "run.reproducible", CHECKS, TRUE),
    Flag("--check-members", "run.check_members", CHECKS, {"type": int, "metavar": "N"}),
    Flag("--gap-every", "run.gap_every", CHECKS, {"type": int, "metavar": "N"}),
    Flag(
        "--no-fall-back",
        "run.fall_back",
        CHECKS,
        FALSE,
        own_help="keep all settings after an alarm of the monitor or a divergence,"
        " instead of a retry with safer settings",
    ),
    Flag(
        "--set",
        "sets",
        SETTINGS,
        {"action": "append", "default": [], "metavar": "SECTION.KEY=VALUE"},
        common=True,
        own_help="set any key of the configuration, as in --set schedule.steps=16; may"
        " be given several times (`hpcsgd new` writes a file with all keys)",
    ),
)

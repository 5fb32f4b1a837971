"""The flags of commands that train, each with its group, its help and its setting."""

from hpcsgd.cli import names
from hpcsgd.cli.parser import COMM_HELP, Flag, gib, numbers, rate, steps
from hpcsgd.products import PRODUCTS

DATA, MODEL, STEPS = "data", "model", "steps"
REPLICAS, PRECISION = "replicas", "precision"
RANKS, DEVICE = "ranks and network", "device and memory"
OUTPUT, CHECKS = "output and resume", "checks and monitoring"
SETTINGS = "any setting"
TRUE, FALSE = {"action": "store_true"}, {"action": "store_false"}
FLAGS: tuple[Flag, ...] = (
    Flag(
        "--data",
        "data.path",
        DATA,
        "HDF5 file with the rows /X and the targets /y",
        {"metavar": "FILE.h5"},
        common=True,
    ),
    Flag(
        "--hold-out",
        "sampling.hold_out",
        DATA,
        "share of the rows that are kept for validation and not trained on",
        {"type": float, "metavar": "SHARE"},
    ),
    Flag(
        "--sampling",
        "sampling.mode",
        DATA,
        "order of the rows: one random order for all epochs (shuffle-once), a new order"
        " for each epoch (reshuffle), independent draws (replacement), or blocks of"
        " rows, for data larger than memory (blocks)",
        {"choices": names.SAMPLINGS},
    ),
    Flag(
        "--seed",
        "sampling.seed",
        DATA,
        "seed of the random order of the rows",
        {"type": int},
        common=True,
    ),
    Flag(
        "--partition",
        "data.partition",
        DATA,
        "distribution of the columns over the members: equal numbers of columns"
        " (equal), or equal numbers of stored values, for sparse data (stored)",
        {"choices": names.PARTITIONS},
    ),
    Flag(
        "--hdf5",
        "data.hdf5",
        DATA,
        "HDF5 driver: every rank reads on its own (independent), or all ranks read"
        " through MPI-IO (mpio)",
        {"choices": names.DRIVERS},
    ),
    Flag(
        "--family",
        "problem.family",
        MODEL,
        "loss family of the generalized linear model",
        {"choices": sorted(names.FAMILIES)},
        common=True,
    ),
    Flag(
        "--intercept",
        "problem.intercept",
        MODEL,
        "fit an intercept, which is never penalised",
        TRUE,
        common=True,
        fit="on",
    ),
    Flag(
        "--l2",
        "problem.l2",
        MODEL,
        "ridge penalty on the weights (not on the intercept)",
        {"type": float},
        common=True,
        fit="1e-4",
    ),
    Flag(
        "--l1",
        "problem.l1",
        MODEL,
        "lasso penalty on the weights; a larger penalty sets more weights to exactly 0",
        {"type": float},
    ),
    Flag(
        "--epochs",
        "schedule.epochs",
        STEPS,
        "passes of each replica over its rows",
        {"type": int},
        common=True,
        fit="5",
    ),
    Flag(
        "--batch",
        "schedule.batch",
        STEPS,
        "rows of one step, per replica; a larger batch means fewer steps in an epoch"
        " and less noise in each step",
        {"type": int},
        common=True,
    ),
    Flag(
        "--steps",
        "schedule.steps",
        STEPS,
        "SGD steps s of one exchange, or auto; more steps mean fewer messages and more"
        " arithmetic (batch x steps of 512 to 1024 rows is usual)",
        {"type": steps, "metavar": "S"},
        common=True,
        fit="auto",
    ),
    Flag(
        "--rate",
        "rate.value",
        STEPS,
        "learning rate, or auto to derive it from the data; a larger rate learns faster"
        " until the run diverges",
        {"type": rate, "metavar": "R"},
        common=True,
        fit="auto",
    ),
    Flag(
        "--products",
        "products.kind",
        STEPS,
        "product, i.e. what the members all-reduce so that s steps need one"
        " synchronisation; direct is plain SGD, which synchronises in every step",
        {"choices": [*PRODUCTS, "auto"]},
        common=True,
    ),
    Flag(
        "--plain",
        "run.defaults",
        STEPS,
        "use the defaults of SGD for all settings that are not named",
        {"action": "store_const", "const": "sgd"},
    ),
    Flag(
        "--update",
        "update.kind",
        STEPS,
        "update rule that turns a gradient into a step",
        {"choices": [*names.UPDATES, *names.ADAPTIVE, names.COORDINATE]},
    ),
    Flag(
        "--momentum",
        "update.momentum",
        STEPS,
        "momentum coefficient of the update rules momentum, nesterov and"
        " nesterov-classic",
        {"type": float},
    ),
    Flag(
        "--rate-kind",
        "rate.kind",
        STEPS,
        "schedule of the learning rate over the steps",
        {"choices": names.RATES},
    ),
    Flag(
        "--milestones",
        "rate.milestones",
        STEPS,
        "epochs after which the rate schedule `milestones` multiplies the rate by"
        " rate.factor",
        {"type": numbers, "metavar": "E,E,..."},
    ),
    Flag(
        "--look-ahead",
        "products.look_ahead",
        STEPS,
        "send the Gram matrix of the next exchange while this one is computed",
        {"choices": ["on", "off", "auto"]},
    ),
    Flag(
        "--machine",
        "products.machine",
        STEPS,
        "TOML file with the measured speed of this machine, which automatic choices"
        " use; a missing file is measured and written",
        {"metavar": "FILE"},
    ),
    Flag(
        "--stop-on",
        "stop.on",
        STEPS,
        "stop at the first evaluation that reaches the tolerance --tol in this measure:"
        " norm of the gradient (gradient), optimality gap (gap), decrease of the loss"
        " (loss) or of the loss on the rows of --hold-out (validation)",
        {"choices": names.GOALS},
    ),
    Flag(
        "--tol",
        "stop.tol",
        STEPS,
        "relative tolerance of --stop-on; a smaller tolerance stops later",
        {"type": float},
    ),
    Flag(
        "--polish",
        "polish.kind",
        STEPS,
        "after the last step refine the weights to the optimum, with L-BFGS and"
        " Newton's method",
        {"action": "store_const", "const": "auto"},
        fit="on",
    ),
    Flag(
        "--method",
        "agreement.method",
        REPLICAS,
        "named method that sets agreement, codec and the settings that belong to them"
        " (`hpcsgd info` lists the methods)",
        {"choices": list(names.METHODS), "metavar": "NAME"},
        common=True,
    ),
    Flag(
        "--agreement",
        "agreement.kind",
        REPLICAS,
        "how replicas synchronise their weights or gradients (`hpcsgd info` lists the"
        " agreements)",
        {"choices": [*names.AGREEMENTS, "auto"], "metavar": "NAME"},
    ),
    Flag(
        "--codec",
        "agreement.codec",
        REPLICAS,
        "compression of the gradients that replicas send (`hpcsgd info` lists the"
        " codecs)",
        {"choices": names.CODECS, "metavar": "NAME"},
    ),
    Flag(
        "--period",
        "schedule.period",
        REPLICAS,
        "exchanges between two agreements; a longer period lets replicas drift further"
        " apart",
        {"type": int},
    ),
    Flag(
        "--precision",
        "precision.recipe",
        PRECISION,
        "recipe of number formats, or auto to choose one by pilot runs",
        {"choices": [*names.RECIPES, names.AUTO]},
        common=True,
    ),
    Flag(
        "--ranks",
        "ranks",
        RANKS,
        "start this number of MPI ranks on this machine; without the flag the run uses"
        " the ranks of mpiexec or srun",
        {"type": int, "metavar": "N"},
        common=True,
    ),
    Flag(
        "--grid",
        "grid",
        RANKS,
        "R replicas of C members each; without the flag all ranks are members of one"
        " replica, or replicas of one member with a method of replicas",
        {"metavar": "RxC"},
    ),
    Flag(
        "--network",
        "run.network",
        RANKS,
        "emulate a slower network by waiting in each message: "
        + ", ".join(names.NETWORKS)
        + " or alpha=5e-5,bandwidth=1.25e9 (seconds and bytes per second)",
        {"metavar": "NAME"},
        common=True,
    ),
    Flag("--comm", "run.comm", RANKS, COMM_HELP, {"metavar": "KIND"}),
    Flag(
        "--emulate-members",
        "run.emulate_members",
        RANKS,
        "measure the time of one rank as one of N members; the weights of such a run"
        " mean nothing",
        {"type": int, "metavar": "N"},
    ),
    Flag(
        "--on-failure",
        "run.on_failure",
        RANKS,
        "reaction to the loss of a rank: stop, or continue with the remaining ranks"
        " (shrink), which needs an MPI with fault tolerance (ULFM)",
        {"choices": ["stop", "shrink"]},
    ),
    Flag(
        "--timeout",
        "run.timeout",
        RANKS,
        "seconds that a rank waits for a rank that makes no progress before it aborts"
        " the run; 0 waits for ever",
        {"type": float, "metavar": "SECONDS"},
    ),
    Flag(
        "--device",
        "run.device",
        DEVICE,
        "device that computes the exchanges: processor (cpu) or GPU (cuda)",
        {"choices": names.DEVICES},
        common=True,
    ),
    Flag(
        "--transport",
        "run.transport",
        DEVICE,
        "how ranks send arrays that are on GPUs: NCCL, an MPI that reads GPU memory"
        " (mpi-cuda), or copies through the host (mpi-host)",
        {"choices": names.TRANSPORTS},
    ),
    Flag(
        "--gram-kernel",
        "products.gram_kernel",
        DEVICE,
        "kernel that computes the Gram matrix on a GPU; auto takes the faster of own"
        " and cublas",
        {"choices": names.GRAM_KERNELS},
    ),
    Flag(
        "--share-gpus",
        "run.share_gpus",
        DEVICE,
        "allow more ranks on a node than it has GPUs",
        TRUE,
    ),
    Flag(
        "--threads",
        "run.threads",
        DEVICE,
        "threads of each rank in the compiled kernels; more than 1 uses several cores"
        " for each rank",
        {"type": int, "metavar": "N"},
    ),
    Flag(
        "--memory",
        "run.memory",
        DEVICE,
        "memory that all ranks of one node may use together, in GiB or with a unit as"
        " in 64MiB; 0 takes what the system reports as free",
        {"type": gib, "metavar": "SIZE"},
    ),
    Flag(
        "--out",
        "run.out",
        OUTPUT,
        "run folder for the model, the history and the checkpoints; without it nothing"
        " is written",
        {"metavar": "DIR"},
        common=True,
    ),
    Flag(
        "--resume",
        "run.resume",
        OUTPUT,
        "resume from the newest checkpoint in the run folder if there is one (auto), or"
        " from the checkpoint with this path",
        {"metavar": "auto|PATH"},
        common=True,
    ),
    Flag(
        "--checkpoint-every",
        "checkpoint.every",
        OUTPUT,
        "exchanges between two checkpoints; 0 saves by time only",
        {"type": int, "metavar": "N"},
    ),
    Flag(
        "--checkpoint-seconds",
        "checkpoint.seconds",
        OUTPUT,
        "seconds between two checkpoints; 0 saves by exchanges only",
        {"type": float, "metavar": "T"},
    ),
    Flag(
        "--record",
        "run.record",
        OUTPUT,
        "number of exchanges that are recorded for `hpcsgd verify`",
        {"type": int, "metavar": "N"},
    ),
    Flag(
        "--profile",
        "run.profile",
        CHECKS,
        "report how the time divides into phases, over all ranks",
        TRUE,
    ),
    Flag(
        "--reproducible",
        "run.reproducible",
        CHECKS,
        "give every member the same bits, at the price of a second message in each"
        " exchange",
        TRUE,
    ),
    Flag(
        "--check-members",
        "run.check_members",
        CHECKS,
        "exchanges between two comparisons of the members' weights; 0 never compares",
        {"type": int, "metavar": "N"},
    ),
    Flag(
        "--gap-every",
        "run.gap_every",
        CHECKS,
        "exchanges between two checks of the recurrence error by the numerics monitor;"
        " 0 switches the monitor off",
        {"type": int, "metavar": "N"},
    ),
    Flag(
        "--no-fall-back",
        "run.fall_back",
        CHECKS,
        "keep all settings after an alarm of the monitor or a divergence, instead of a"
        " retry with safer settings",
        FALSE,
    ),
    Flag(
        "--set",
        "sets",
        SETTINGS,
        "set any key of the configuration, as in --set schedule.steps=16; may be given"
        " several times (`hpcsgd new` writes a file with all keys)",
        {"action": "append", "default": [], "metavar": "SECTION.KEY=VALUE"},
        common=True,
    ),
)

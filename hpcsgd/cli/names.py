"""Names of commands and of the values of flags, without the code behind the names.

The parsers read this table, so that `--help`, completion and a wrong flag wait for no
import of NumPy. tests/architecture/test_import.py holds it against the registries.
"""

AGREEMENTS = (
    *("none", "average", "gradient", "growing", "postlocal", "gossip"),
    *("hierarchical", "fedavg", "slowmo", "local-steps", "decentralized"),
    *("decentralized-low", "async-average", "qadam"),
    *("anybatch", "scheduled", "ticktock", "sharded", "offload", "infinity"),
)
AUTO = "auto"  # in the place of a recipe: pilots choose one
CODECS = (
    *("identity", "fp16", "bf16", "fp8", "topk", "randomk", "threshold", "wangni"),
    *("dgc", "qsgd", "sign", "vote", "byte", "bytegrad", "nuqsgd", "alq", "amq"),
    *("powersgd", "accordion"),
)
DEVICES = ("cpu", "cuda")
DRIVERS = ("independent", "mpio")  # of HDF5
ELEMENTS = ("fp64", "fp32", "fp16", "bf16", "fp8-e4m3", "fp8-e5m2")  # of stored rows
FAMILIES = (
    *("gaussian", "logistic", "poisson", "softmax", "squared-hinge", "huber", "gamma"),
    *("probit", "tweedie", "negative-binomial", "binomial"),
)
FORMATS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8-e4m3", "fp8-e5m2", "int8")
GOALS = ("none", "gradient", "gap", "loss", "validation")  # of --stop-on
LAYOUTS = ("auto", "sparse", "dense")
SAMPLINGS = ("shuffle-once", "reshuffle", "replacement", "blocks", "in-order")
# Machine files that come with this package.
MACHINES = (
    *("h200-nvlink", "laptop", "perlmutter-a100", "perlmutter-cpu"),
    "two-core-server",
)
PARTITIONS = ("auto", "equal", "stored")
PLACES = ("local", "slurm")  # of studies
PREDICTIONS = ("mean", "score", "class", "probability")
RATES = ("constant", "inverse", "inverse-sqrt", "cosine", "milestones", "step")
RECIPES = ("fp64", "fp32", "c", "d", "bf16", "fp16", "fp8")
SHAPES = ("epsilon", "susy", "higgs", "synth", "poisson-synth")
SOURCES = ("libsvm", "csv", "npy", "npz", "hdf5")
TRANSPORTS = ("auto", "nccl", "mpi-cuda", "mpi-host")
UPDATES = ("sgd", "momentum", "nesterov", "nesterov-classic", "svrg")
ADAPTIVE = ("adagrad", "adam")

METHODS = (  # of --method
    *("ddp", "fp16", "bf16", "fp8", "topk", "randomk", "threshold", "wangni", "dgc"),
    *("qsgd", "sign", "vote", "byte", "bytegrad", "nuqsgd", "alq", "amq", "powersgd"),
    *("infinity", "accordion", "bagua", "decentralized", "decentralized-low", "qadam"),
    *("onebit-adam", "async-average", "accordion-batch", "bytescheduler", "wavelet"),
    *("sgp", "local-adam", "local", "postlocal", "hierarchical", "fedavg", "slowmo"),
    *("anybatch", "zero1", "zero2", "zero3", "offload"),
)
LINE_UP = ("sgd", "casgd", "hybrid", *METHODS)  # of compare

PAGE = "report.html"
POINT_TIMEOUT = 3600.0  # seconds of one run of a study

COORDINATE = "coordinate"  # the update that is no step of SGD
GRAM_KERNELS = ("auto", "own", "cublas", "wgmma")
NETWORKS = ("hpc", "lan", "cloud")

# The commands by group, and what each does: what `hpcsgd --help` shows.
GROUPS = {
    "train": {
        "new": "write a configuration file that explains every setting",
        "train": "train a model",
        "sweep": "train models for many penalties, rates and folds in one run",
        "tune": "measure this machine and choose product, steps, grid and recipe",
        "evaluate": "evaluate a model on data",
        "predict": "write the predictions of a model for data",
    },
    "data": {
        "data": "convert, generate, inspect and check data files",
    },
    "study": {
        "compare": "train several methods or settings on the same data, in one table",
        "precision": "measure what number formats cost and gain on your data",
        "study": "measure or predict strong scaling, weak scaling and sweeps",
        "report": "draw the figures of studies, runs and comparisons on one page",
    },
    "cluster": {
        "jobs": "submit jobs to Slurm, and follow, cancel and collect them",
    },
    "look": {
        "inspect": "show the facts of a run folder, a model or a checkpoint",
        "verify": "replay and check a finished run, and write a certificate",
        "info": "show versions, MPI, processor, kernels, GPUs, Slurm and methods",
        "completion": "print a completion script for a shell",
    },
}
COMMANDS = {name: does for group in GROUPS.values() for name, does in group.items()}

# Modules that a command needs and its parser does not. They are imported after the
# command line is parsed, while an interrupt still ends the process at once.
WORK = {
    "train": ("hpcsgd.config", "hpcsgd.runs.recovery", "hpcsgd.runs.advice"),
    "sweep": ("hpcsgd.estimators.sweep", "hpcsgd.runs.recovery"),
    "tune": ("hpcsgd.tuning.tuner", "hpcsgd.runs.recovery"),
    "compare": ("hpcsgd.studies.report", "hpcsgd.studies.compare"),
    "report": ("hpcsgd.studies.report",),
    "precision": ("hpcsgd.studies.precision",),
    "study": ("hpcsgd.studies.submit", "hpcsgd.studies.predict"),
    "evaluate": ("hpcsgd.runs.predict",),
    "predict": ("hpcsgd.runs.predict", "hpcsgd.data.writers"),
    "inspect": ("hpcsgd.runs.folder",),
    "new": ("hpcsgd.config",),
    "data": ("hpcsgd.data.convert.parallel", "hpcsgd.data.convert.sources"),
    "jobs": ("hpcsgd.config", "hpcsgd.jobs.smoke"),
}

# The function that adds the parser of each command.
PARSERS = {
    "train": "hpcsgd.cli.train:add_train_parser",
    "sweep": "hpcsgd.cli.train:add_sweep_parser",
    "tune": "hpcsgd.cli.tune:add_tune_parser",
    "compare": "hpcsgd.cli.compare:add_parser",
    "report": "hpcsgd.cli.verify:add_report_parser",
    "precision": "hpcsgd.cli.tune:add_precision_parser",
    "study": "hpcsgd.cli.study:add_parser",
    "evaluate": "hpcsgd.cli.models:add_evaluate_parser",
    "predict": "hpcsgd.cli.models:add_predict_parser",
    "inspect": "hpcsgd.cli.models:add_inspect_parser",
    "verify": "hpcsgd.cli.verify:add_verify_parser",
    "new": "hpcsgd.cli.train:add_new_parser",
    "data": "hpcsgd.cli.data:add_parser",
    "jobs": "hpcsgd.cli.jobs:add_parser",
    "info": "hpcsgd.cli.info:add_parser",
    "completion": "hpcsgd.cli.parser:add_completion_parser",
}

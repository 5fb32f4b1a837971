"""Names of commands and of what flags take, without what they name.

The parsers read this table, so that `--help`, completion and a wrong flag wait for no
import of NumPy. tests/architecture/test_import.py holds it against the registries.
"""

AGREEMENTS = (
    *("none", "average", "gradient", "growing", "postlocal", "hierarchical", "fedavg"),
    *("slowmo", "decentralized", "decentralized-low", "async-average", "qadam"),
    *("anybatch", "scheduled", "ticktock", "sharded", "offload", "infinity"),
)
AUTO = "auto"  # in the place of a recipe: pilots choose one
CODECS = (
    *("identity", "fp16", "bf16", "fp8", "topk", "randomk", "threshold", "wangni"),
    *("dgc", "qsgd", "sign", "byte", "bytegrad", "nuqsgd", "alq", "amq", "powersgd"),
    "accordion",
)
DEVICES = ("cpu", "cuda")
DRIVERS = ("independent", "mpio")  # of HDF5
ELEMENTS = ("fp64", "fp32", "fp16", "bf16", "fp8-e4m3", "fp8-e5m2")  # of stored rows
FAMILIES = (
    *("gaussian", "logistic", "poisson", "softmax", "squared-hinge", "huber", "gamma"),
    "probit",
)
FORMATS = ("fp64", "fp32", "tf32", "bf16", "fp16", "fp8-e4m3", "fp8-e5m2", "int8")
GOALS = ("none", "gradient", "gap", "loss", "validation")  # of --stop-on
LAYOUTS = ("auto", "sparse", "dense")
SAMPLINGS = ("shuffle-once", "reshuffle", "replacement", "blocks")
# Machine files that come with this package.
MACHINES = ("h200-nvlink", "laptop", "perlmutter-a100", "two-core-server")
PARTITIONS = ("auto", "equal", "stored")
PLACES = ("local", "slurm")  # of studies
PREDICTIONS = ("mean", "score", "class", "probability")
RATES = ("constant", "inverse", "inverse-sqrt", "cosine", "milestones")
RECIPES = ("fp64", "fp32", "c", "d", "bf16", "fp16", "fp8")
SHAPES = ("epsilon", "susy", "higgs", "synth", "poisson-synth")
SOURCES = ("libsvm", "csv", "npy", "npz", "hdf5")
TRANSPORTS = ("auto", "nccl", "mpi-cuda", "mpi-host")
UPDATES = ("sgd", "momentum", "nesterov", "nesterov-classic", "svrg")
ADAPTIVE = ("adagrad", "adam")

METHODS = (  # of --method
    *("ddp", "fp16", "bf16", "fp8", "topk", "randomk", "threshold", "wangni", "dgc"),
    *("qsgd", "sign", "byte", "bytegrad", "nuqsgd", "alq", "amq", "powersgd"),
    *("infinity", "accordion", "bagua", "decentralized", "decentralized-low", "qadam"),
    *("async-average", "accordion-batch", "bytescheduler", "wavelet", "local"),
    *("postlocal", "hierarchical", "fedavg", "slowmo", "anybatch"),
    *("zero1", "zero2", "zero3", "offload"),
)
LINE_UP = ("sgd", "casgd", "hybrid", *METHODS)  # of compare
STUDIED = tuple(dict.fromkeys(("sgd", "casgd", "local", "hybrid", *METHODS)))

PAGE = "report.html"
POINT_TIMEOUT = 3600.0  # seconds of one run of a study

COORDINATE = "coordinate"  # the update that is no step of SGD
GRAM_KERNELS = ("auto", "own", "cublas", "wgmma")
NETWORKS = ("hpc", "lan", "cloud")

# The commands and what each is for: what `hpcsgd --help` shows.
COMMANDS = {
    "train": "train a model",
    "sweep": "train many models with one Gram",
    "tune": "measure this machine and choose products, steps, grid and recipe",
    "compare": "train several settings or methods on the same data, in one table",
    "report": "make a page with figures of studies, runs or comparisons",
    "precision": "say what number formats cost and gain on your data",
    "study": "strong and weak scaling, sweeps over settings and grids, predictions",
    "evaluate": "say how good a model is on data",
    "predict": "write what a model says about data",
    "inspect": "say what a run folder, a model or a checkpoint is",
    "verify": "check a finished run, and write a certificate",
    "new": "write a configuration file with every setting explained",
    "data": "make, convert and inspect data sets",
    "jobs": "submit to Slurm, and see what became of it",
    "info": "versions, MPI, CPU, kernels, GPUs, transports, Slurm, methods",
    "completion": "print a completion script for a shell",
}

# Modules that a command works with and its parser does without. They are imported when
# the command line is understood, while an interrupt still ends the process at once.
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

# What adds the parser of each.
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
    "completion": "hpcsgd.cli.completion:add_parser",
}

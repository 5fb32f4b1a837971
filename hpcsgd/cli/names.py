"""Names that flags take, and defaults, without what they name.

The parsers read this table, so that `--help`, completion and a wrong flag wait for no
import of NumPy. tests/architecture/test_import.py holds it against the registries.
"""

from hpcsgd.config import METHODS

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

LINE_UP = ("sgd", "casgd", "hybrid", *METHODS)  # of compare
STUDIED = tuple(dict.fromkeys(("sgd", "casgd", "local", "hybrid", *METHODS)))

PAGE = "report.html"
POINT_TIMEOUT = 3600.0  # seconds of one run of a study

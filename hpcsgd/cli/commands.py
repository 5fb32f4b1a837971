"""The commands and what each is for: what `hpcsgd --help` shows.

The module of a command is imported when the command is called.
"""

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
    "train": ("hpcsgd.unread", "hpcsgd.signals", "hpcsgd.advice.short"),
    "sweep": ("hpcsgd.sweeps.api", "hpcsgd.signals"),
    "tune": ("hpcsgd.tuner.told", "hpcsgd.signals"),
    "compare": ("hpcsgd.study.report", "hpcsgd.study.compare"),
    "report": ("hpcsgd.study.report",),
    "precision": ("hpcsgd.study.precision",),
    "study": ("hpcsgd.study.cluster", "hpcsgd.study.predict"),
    "evaluate": ("hpcsgd.assessment",),
    "predict": ("hpcsgd.prediction", "hpcsgd.data.writers"),
    "inspect": ("hpcsgd.run_folder",),
    "new": ("hpcsgd.config",),
    "data": ("hpcsgd.data.crew", "hpcsgd.data.formats"),
    "jobs": ("hpcsgd.config", "hpcsgd.jobs.smoke"),
}

# What adds the parser of each.
PARSERS = {
    "train": "hpcsgd.cli.train:add_parser",
    "sweep": "hpcsgd.cli.sweep:add_parser",
    "tune": "hpcsgd.cli.tune:add_parser",
    "compare": "hpcsgd.cli.compare:add_parser",
    "report": "hpcsgd.cli.report:add_parser",
    "precision": "hpcsgd.cli.precision:add_parser",
    "study": "hpcsgd.cli.study:add_parser",
    "evaluate": "hpcsgd.cli.evaluate:add_parser",
    "predict": "hpcsgd.cli.predict:add_parser",
    "inspect": "hpcsgd.cli.inspect:add_parser",
    "verify": "hpcsgd.cli.verify:add_parser",
    "new": "hpcsgd.cli.new:add_parser",
    "data": "hpcsgd.cli.data:add_parser",
    "jobs": "hpcsgd.cli.jobs:add_parser",
    "info": "hpcsgd.cli.info:add_parser",
    "completion": "hpcsgd.cli.completion:add_parser",
}

"""`hpcsgd info`: what this installation and this machine offer."""

import argparse
import json
import os
import platform
import shutil
import subprocess
from importlib import metadata
from typing import Any

import hpcsgd
from hpcsgd.cli.commands import COMMANDS

PACKAGES = ("numpy", "scipy", "h5py", "mpi4py", "ml_dtypes", "jinja2", "rich", "cupy")
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "sve", "bf16")


def add_parser(commands: Any) -> None:
    """Add `info` to the commands."""
    parser = commands.add_parser(
        "info",
        help=COMMANDS["info"],
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the facts; every missing piece is a fact, none an error."""
    facts = gather()
    if arguments.json:
        print(json.dumps(facts, indent=2))
    else:
        methods = facts.pop("methods")
        for section, content in facts.items():
            print(f"{section:10s} {_line(content)}")
        for name, says in methods.items():
            print(f"{'method':10s} {name:14s} {says}")
    return 0


def gather() -> dict[str, Any]:
    """Section -> facts."""
    from hpcsgd.agreement import AGREEMENTS
    from hpcsgd.backends import cpu
    from hpcsgd.cli.info_gpu import nccl_library, transport_facts
    from hpcsgd.codecs import CODECS
    from hpcsgd.comm import choose
    from hpcsgd.comm.mpi_facts import mpi_facts
    from hpcsgd.data import parse_native
    from hpcsgd.study.line_up import LINE_UP

    packages, cards = {name: _version(name) for name in PACKAGES}, gpus()
    seen = len(cards) if isinstance(cards, list) else 0
    return {
        "hpcsgd": hpcsgd.__version__,
        "python": f"{platform.python_version()} on {platform.platform()}",
        "packages": packages,
        "mpi": mpi_facts(),
        "ranks": dict(zip(("comm", "why"), choose(os.environ), strict=True)),
        "cpu": cpu_facts(),
        "kernels": {
            "compiled": cpu.available(),
            "instructions": cpu.instructions() or "none",
            "why": cpu.why(),
        },
        "parser": {"compiled": parse_native.available(), "why": parse_native.why()},
        "codecs": list(CODECS),
        "agreements": list(AGREEMENTS),
        "gpus": cards,
        "nccl": nccl_library() or "not found",
        "transports": transport_facts(packages, seen),
        "slurm": slurm(),
        "methods": {name: method.says for name, method in LINE_UP.items()},
    }


def _version(package: str) -> str:
    names = [package] if package != "cupy" else ["cupy-cuda13x", "cupy-cuda12x", "cupy"]
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return "not installed"


def cpu_facts() -> dict[str, Any]:
    """Cores, and the vector and matrix units that matter here."""
    model, flags = platform.machine(), set[str]()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    model = value.strip()
                if key.strip() in ("flags", "Features"):
                    flags |= set(value.split())
    except OSError:
        pass  # not Linux: the machine's name and no flags are what there is to say
    return {
        "model": model,
        "cores": os.cpu_count(),
        "features": [name for name in CPU_FLAGS if name in flags],
    }


def gpus() -> list[str] | str:
    """The cards that nvidia-smi sees."""
    if shutil.which("nvidia-smi") is None:
        return "none (no nvidia-smi)"
    shown = _output(
        ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    )
    return shown.splitlines() if shown else "none"


def slurm() -> str:
    """Slurm's version, and the job we are in."""
    if shutil.which("sinfo") is None:
        return "not found"
    job = os.environ.get("SLURM_JOB_ID")
    return _output(["sinfo", "--version"]) + (f", in job {job}" if job else "")


def _output(command: list[str]) -> str:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()


def _line(content: Any) -> str:
    if isinstance(content, dict):
        return ", ".join(f"{key} {_line(value)}" for key, value in content.items())
    if isinstance(content, list):
        return " ".join(str(item) for item in content) or "none"
    return (
        {True: "yes", False: "no"}.get(content, str(content))
        if isinstance(content, bool)
        else str(content)
    )

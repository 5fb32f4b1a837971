"""`hpcsgd info`: facts on this installation and this machine."""

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import hpcsgd
from hpcsgd.cli.names import COMMANDS
from hpcsgd.cli.parser import add_json

if TYPE_CHECKING:
    from hpcsgd.comm.gpu_mpi import PathCheck

PACKAGES = ("numpy", "scipy", "h5py", "mpi4py", "ml_dtypes", "jinja2", "rich", "cupy")
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_tile", "sve", "bf16")


def add_parser(commands: Any) -> None:
    """Add `info` to the commands."""
    parser = commands.add_parser(
        "info",
        help=COMMANDS["info"],
        description="Show the versions and the capabilities of this installation and"
        " this machine, and the names of all codecs, agreements and methods.",
        example="hpcsgd info",
    )
    add_json(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace, argv: list[str]) -> int:
    """Print the facts; a missing package or device is a fact, not an error."""
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
    """Return the facts on this installation and this machine, by section."""
    from hpcsgd.agreements import AGREEMENTS
    from hpcsgd.agreements.codecs import CODECS
    from hpcsgd.backends import compiled_calls
    from hpcsgd.comm import choose
    from hpcsgd.comm.mpi import mpi_facts
    from hpcsgd.data.convert import parsers
    from hpcsgd.studies.compare import LINE_UP

    packages = {name: _version(name) for name in PACKAGES}
    cards = query_gpus()
    listed = [card.label for card in cards]
    missing = "none" if shutil.which("nvidia-smi") else "none (no nvidia-smi)"
    return {
        "hpcsgd": hpcsgd.__version__,
        "python": f"{platform.python_version()} on {platform.platform()}",
        "packages": packages,
        "mpi": mpi_facts(),
        "ranks": dict(zip(("comm", "why"), choose(os.environ), strict=True)),
        "cpu": cpu_facts(),
        "kernels": {
            "compiled": compiled_calls.available(),
            "instructions": compiled_calls.instructions() or "none",
            "why": compiled_calls.why(),
        },
        "parser": {"compiled": parsers.available(), "why": parsers.why()},
        "codecs": list(CODECS),
        "agreements": list(AGREEMENTS),
        "gpus": listed or missing,
        "binding": binding_facts(cards, os.environ),
        "nccl": nccl_library() or "not found",
        "transports": transport_facts(packages, len(cards)),
        "slurm": slurm(),
        "methods": {name: method.says for name, method in LINE_UP.items()},
    }


CUPY = ("cupy-cuda13x", "cupy-cuda12x", "cupy")


def _version(package: str) -> str:
    return _version_of(CUPY if package == "cupy" else (package,)) or "not installed"


def cpu_facts() -> dict[str, Any]:
    """Return the model, the cores, and the vector and matrix units of the CPU."""
    model = platform.machine()
    flags = set[str]()
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key.strip() == "model name":
                    model = value.strip()
                if key.strip() in ("flags", "Features"):
                    flags |= set(value.split())
    except OSError:
        pass  # not Linux: the facts are the machine's name, without flags
    return {
        "model": model,
        "cores": os.cpu_count(),
        "features": [name for name in CPU_FLAGS if name in flags],
    }


class GpuCard(NamedTuple):
    """A GPU as nvidia-smi lists it."""

    label: str  # name and memory
    bus: str
    uuid: str


def query_gpus() -> list[GpuCard]:
    """Return the GPUs that nvidia-smi lists; [] without nvidia-smi."""
    query = "--query-gpu=pci.bus_id,uuid,name,memory.total"
    shown = _output(["nvidia-smi", query, "--format=csv,noheader"])
    rows = [line.split(", ", 2) for line in shown.splitlines()]
    return [GpuCard(row[2], row[0], row[1]) for row in rows if len(row) == 3]


def binding_facts(
    cards: Sequence[GpuCard], environment: Mapping[str, str], root: Path = Path("/")
) -> dict[str, Any]:
    """Return cores, NUMA nodes, GPUs and network adapters of this process.

    The GPU is the one that a single rank with these cores takes; several ranks of a
    node agree on theirs, which `hpcsgd jobs smoke --device cuda` shows.
    """
    from hpcsgd.comm.gpu import (
        adapters,
        as_ranges,
        choose_gpus,
        gpu_request,
        nearest,
        node_of_bus,
        plain_bus,
        rank_place,
    )

    place = rank_place(root)
    near = nearest(adapters(root), place.nodes, root)
    facts: dict[str, Any] = {
        "cores": as_ranges(place.cores),
        "numa": f"{as_ranges(place.nodes) or 'not known'} of {place.of_nodes}",
        "adapters": {nic.name: nic.node for nic in adapters(root)} or "none",
        "nearest_adapter": " ".join(nic.name for nic in near) or "none",
    }
    seen = visible_cards(cards, environment)
    if seen:
        buses = [card.bus for card in seen]
        request = gpu_request(environment, buses, share_gpus=True, root=root)
        (choice,) = choose_gpus([request])
        facts["gpus"] = {plain_bus(bus): node_of_bus(bus, root) for bus in buses}
        facts["gpu"] = f"{plain_bus(buses[choice.number])} because {choice.why}"
    return facts


def visible_cards(
    cards: Sequence[GpuCard], environment: Mapping[str, str]
) -> list[GpuCard]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves visible, in its order.

    As in CUDA, names after the first one that names no GPU are ignored.
    """
    text = environment.get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return list(cards)
    seen = []
    for name in (part.strip() for part in text.split(",")):
        if name.isdigit() and int(name) < len(cards):
            seen.append(cards[int(name)])
            continue
        named = [card for card in cards if name and card.uuid.startswith(name)]
        if not named:
            break
        seen += named[:1]
    return seen


def slurm() -> str:
    """Return Slurm's version, with the number of the current job, or why there is none.

    Without its programs it is "not found"; if sinfo fails, its error is the reason.
    """
    if shutil.which("sinfo") is None:
        return "not found"
    job = os.environ.get("SLURM_JOB_ID")
    shown = _output(["sinfo", "--version"]) or "sinfo --version does not answer"
    return shown + (f", in job {job}" if job else "")


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


# The facts on transports, and on the path of arrays on GPUs.

# Launchers set these variables: a child process that starts MPI would wait for ranks.
LAUNCHED = ("PMI_RANK", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "PMI_FD")
ASK = "from hpcsgd.comm.mpi import reads_device_memory as r; print(r())"
KVIKIO = ("kvikio-cu13", "kvikio-cu12", "kvikio")
BY_HOST = "mpi-host"


def transport_facts(packages: Mapping[str, str], gpus: int) -> dict[str, Any]:
    """Return transport -> availability on this machine, from packages and GPUs."""
    import ctypes.util

    from hpcsgd.comm import gpu_mpi

    root = Path("/")
    library = nccl_library()
    return describe(
        nccl=nccl_version(library),
        cupy=packages.get("cupy", "not installed") != "not installed",
        gpus=gpus,
        mpi=gpu_mpi.mpi_way(probe_mpi_device_memory(), os.environ),
        rdma=gpu_mpi.rdma_way(root, os.environ),
        storage=gpu_mpi.storage_way(
            root, os.environ, _version_of(KVIKIO), ctypes.util.find_library("cufile")
        ),
    )


def describe(
    nccl: str | None,
    cupy: bool,
    gpus: int,
    mpi: "PathCheck",
    rdma: "PathCheck",
    storage: "PathCheck",
) -> dict[str, Any]:
    """Return transport -> availability, for a machine with these properties.

    `nccl` is the version of NCCL, None without it.
    """
    needs = "needs CuPy" if not cupy else ""
    has_nccl = nccl is not None and cupy
    return {
        "nccl": f"{nccl} ({needs})" if nccl and needs else nccl or "not found",
        "mpi-cuda": str(mpi),
        BY_HOST: "possible",
        "auto": _auto(has_nccl, cupy, gpus),
        "gpudirect rdma": str(rdma),
        "gpudirect storage": str(storage),
    }


def _auto(has_nccl: bool, cupy: bool, gpus: int) -> str:
    """Return the transport that --transport auto chooses, or why there is none."""
    if not gpus:
        return "none: no GPU is here"
    if not cupy:
        return "none: CuPy is not installed"
    if not has_nccl:
        return f"{BY_HOST}: NCCL is not found"
    return f"nccl where every rank has a GPU of its own, else {BY_HOST}"


def nccl_library() -> str | None:
    """Return the file of NCCL's library, from its wheel or else the system, or None."""
    import ctypes.util

    wheel = find_spec("nvidia.nccl") if find_spec("nvidia") else None
    folders = list(wheel.submodule_search_locations or ()) if wheel else []
    for folder in folders:
        for path in sorted(Path(folder, "lib").glob("libnccl.so*")):
            return str(path)
    return ctypes.util.find_library("nccl")


def nccl_version(library: str | None) -> str | None:
    """Return the version of NCCL in `library`, or None if it cannot be loaded."""
    import ctypes

    from hpcsgd.comm import gpu_mpi

    if library is None:
        return None
    number = ctypes.c_int(0)
    try:
        failed = ctypes.CDLL(library).ncclGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return None if failed else gpu_mpi.version_text(number.value)


def probe_mpi_device_memory() -> bool | None:
    """Return whether MPI reads device memory, from a child process that starts MPI.

    Return None if MPI does not report it, if the child process fails, or if this
    process was started by a launcher.
    """
    if any(name in os.environ for name in LAUNCHED):
        return None
    try:
        done = subprocess.run(
            [sys.executable, "-c", ASK],
            capture_output=True,
            text=True,
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"True": True, "False": False}.get(done.stdout.strip())


def _version_of(names: tuple[str, ...]) -> str | None:
    for name in names:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return None

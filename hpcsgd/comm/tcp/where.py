"""Where ranks without MPI meet: a host and ports, or a file in a shared folder."""

import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from hpcsgd.errors import ConfigError

STORE = "HPCSGD_STORE"  # HOST:PORT or file:PATH
FILE = "file:"
LOOPBACK = "127.0.0.1"
# Below those that Linux gives to whoever connects: nobody is there by chance.
FIRST_PORT, LAST_PORT = 20_000, 32_767
TRIES = 8  # ports that rank 0 tries, and that the others look at
# What tells one start of one job from all others.
STARTS = (
    "SLURM_CLUSTER_NAME",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_RESTART_COUNT",
    "TORCHELASTIC_RUN_ID",  # its agents count restarts each for themselves
    "MASTER_ADDR",
    "MASTER_PORT",
    STORE,
)
REMEDY = f"set {STORE}=HOST:PORT, or {STORE}=file:PATH in a folder that all ranks see"


class Port(NamedTuple):
    """Rank 0 listens there, at the first of the ports that is free."""

    host: str
    ports: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.host} port {', '.join(map(str, self.ports))}"

    @property
    def loopback(self) -> str:
        """This node's own address, where nobody from another node can be expected."""
        return {"localhost": LOOPBACK, "::1": "::1"}.get(
            self.host, self.host if self.host.startswith("127.") else ""
        )


class SharedFile(NamedTuple):
    """Rank 0 writes there where it listens, and a word that only its owner can read."""

    path: Path

    def __str__(self) -> str:
        return f"{FILE}{self.path}"


def place_of(environment: Mapping[str, str], said: str = "") -> Port | SharedFile:
    """The meeting place: that of `said`, of HPCSGD_STORE, else the launcher's."""
    said = said or environment.get(STORE, "")
    if said:
        return _spelled(said)
    if "MASTER_ADDR" in environment and "MASTER_PORT" in environment:
        return _of_master(environment)
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get(
        "SLURM_JOB_NODELIST", ""
    )
    if nodes and environment.get("SLURM_JOB_ID"):
        return Port(_slurm_host(environment, nodes), ports_of(start_of(environment)))
    raise ConfigError(f"no launcher says where ranks without MPI are to meet; {REMEDY}")


def start_of(environment: Mapping[str, str]) -> str:
    """Equal on all ranks of this start, and on no others."""
    said = [f"{name}={environment.get(name, '')}" for name in STARTS]
    return "\n".join([f"user={os.getuid()}", *said])


def ports_of(start: str) -> tuple[int, ...]:
    """Some ports that another start will hardly have."""
    many = LAST_PORT - FIRST_PORT + 1
    drawn = hashlib.sha256(start.encode()).digest()
    pairs = (drawn[i : i + 2] for i in range(0, 2 * TRIES, 2))
    found = (FIRST_PORT + int.from_bytes(pair, "big") % many for pair in pairs)
    return tuple(dict.fromkeys(found))


def first_node(nodes: str) -> str:
    """n1 of n[1-2,7],m4, as Slurm writes lists of nodes."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", nodes)
    if first is None:
        return nodes
    return re.sub(r"\[([^\]]*)\]", lambda m: re.split("[,-]", m[1])[0], first[0])


def _slurm_host(environment: Mapping[str, str], nodes: str) -> str:
    """Rank 0 is on the first node; on one node the network is not needed."""
    far = environment.get("SLURM_NODEID", "0")
    if environment.get("SLURM_PROCID") == "0" and far != "0":
        raise ConfigError(
            f"rank 0 is on node {far} of the step, not the first; {REMEDY}"
        )
    count = environment.get("SLURM_STEP_NUM_NODES") or environment.get("SLURM_NNODES")
    return LOOPBACK if count == "1" else first_node(nodes)


def _of_master(environment: Mapping[str, str]) -> Port:
    host, port = environment["MASTER_ADDR"], environment["MASTER_PORT"]
    # The agent of torchrun listens at that port itself.
    if environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        return Port(host, ports_of(start_of(environment)))
    return _port(f"{host}:{port}", "MASTER_ADDR:MASTER_PORT", host, port)


def _spelled(said: str) -> Port | SharedFile:
    if said.startswith(FILE):
        path = Path(said[len(FILE) :])
        if not path.name:
            raise ConfigError(f"{said!r} names no file; write {FILE}PATH")
        return SharedFile(path.absolute())
    host, _, port = said.rpartition(":")
    return _port(said, STORE, host.strip("[]"), port)


def _port(said: str, name: str, host: str, port: str) -> Port:
    if not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConfigError(f"{name} = {said!r} must be HOST:PORT or {FILE}PATH")
    return Port(host, (int(port),))

"""Which GPU a rank uses: pure functions of what the launcher and the GPUs say."""

from collections import Counter
from collections.abc import Mapping, Sequence

from hpcsgd.errors import ConfigError

# (rank on this node, ranks on this node), the innermost launcher first: under
# `srun mpiexec` all ranks inherit the Slurm variables of one task.
LAUNCHERS = (
    ("OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("MPI_LOCALRANKID", "MPI_LOCALNRANKS"),  # MPICH and Intel MPI
    ("MV2_COMM_WORLD_LOCAL_RANK", "MV2_COMM_WORLD_LOCAL_SIZE"),
    ("PALS_LOCAL_RANKID", "PALS_LOCAL_SIZE"),  # HPE Cray
    ("LOCAL_RANK", "LOCAL_WORLD_SIZE"),  # what scripts set themselves
    ("SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"),
)
VISIBLE = "CUDA_VISIBLE_DEVICES"
SHARE = "start fewer ranks on each node, or set share_gpus = true"


def gpu_of_rank(
    environment: Mapping[str, str],
    visible: int,
    local_ranks: int | None = None,
    share_gpus: bool = False,
) -> int:
    """The number of this rank's GPU, among those that it sees.

    Parameters
    ----------
    environment : what the launcher left, such as `os.environ`
    visible : GPUs that this process sees
    local_ranks : ranks on this node; None takes what the launcher says
    share_gpus : several ranks may use one GPU
    """
    if visible < 1:
        raise ConfigError(_none_visible(environment))
    rank, said = local_place(environment)
    ranks = local_ranks or said or 1
    if rank is None and ranks > 1:
        raise ConfigError(
            f"{ranks} ranks are on this node and no launcher says which one this is;"
            f" start them with srun or mpiexec, or set {LAUNCHERS[-1][0]}"
        )
    rank = rank or 0
    if _has_its_own(environment, visible, ranks):
        return 0
    if max(ranks, rank + 1) > visible and not share_gpus:
        raise ConfigError(
            f"{max(ranks, rank + 1)} ranks on this node and {visible} GPU"
            f"{'s' if visible > 1 else ''}; {SHARE}"
        )
    return rank % visible


def local_place(environment: Mapping[str, str]) -> tuple[int | None, int | None]:
    """(this rank's number on its node, how many there are); None where nobody says."""
    for rank, size in LAUNCHERS:
        if environment.get(rank, "").isdigit():
            return int(environment[rank]), _number(environment.get(size, ""))
    return None, None


def check_own_gpu(places: Sequence[str], share_gpus: bool, kind: str) -> None:
    """Refuse ranks that met on one GPU; `places` are those of all ranks, in order.

    The last word: where each rank sees one GPU alone, only this tells whether it is
    the same one.
    """
    place, ranks = Counter(places).most_common(1)[0]
    if ranks == 1 or share_gpus:
        return
    remedy = "use transport = mpi-host with share_gpus = true"
    if kind != "nccl":
        remedy = "let each see another one (srun --gpus-per-task=1), or set share_gpus"
    raise ConfigError(f"{ranks} ranks use one GPU ({place}) for {kind}; {remedy}")


def _has_its_own(environment: Mapping[str, str], visible: int, ranks: int) -> bool:
    """Others are hidden, so the launcher has chosen: unless a node has too few."""
    if visible != 1 or len(_listed(environment)) != 1:
        return False
    on_node = _number(environment.get("SLURM_GPUS_ON_NODE", ""))
    return on_node is None or on_node >= ranks


def _listed(environment: Mapping[str, str]) -> list[str]:
    """The GPUs that are not hidden; none where nothing is."""
    return [name for name in environment.get(VISIBLE, "").split(",") if name.strip()]


def _none_visible(environment: Mapping[str, str]) -> str:
    if VISIBLE in environment:
        shown = f"{VISIBLE}={environment[VISIBLE]}"
        return f"no GPU is visible and {shown}; unset it, or use --device cpu"
    if "SLURM_JOB_ID" in environment and "SLURM_GPUS_ON_NODE" not in environment:
        return "Slurm gave this job no GPU; add --gpus-per-node=N, or use --device cpu"
    return "no GPU is visible; see what nvidia-smi says, or use --device cpu"


def _number(text: str) -> int | None:
    return int(text) if text.isdigit() else None

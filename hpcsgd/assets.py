"""Where kernels/, slurm/ and data/ are: in a wheel, an editable install, a checkout."""

from pathlib import Path

from hpcsgd.errors import ConfigError

PACKAGE = Path(__file__).parent


def path(name: str) -> Path:
    """The file or folder called `name`, for example "kernels/cpu/rows.c".

    A wheel carries the three folders inside the package; an editable install and a
    bare checkout have them beside it.
    """
    for base in (PACKAGE / "_shared", PACKAGE.parent):
        found = base / name
        if found.exists() and _is_ours(base):
            return found
    raise ConfigError(
        f"{name} is not part of this installation; install hpcsgd again from its wheel"
    )


def _is_ours(base: Path) -> bool:
    """Whatever lies beside an installed package in site-packages is not ours."""
    return base.name == "_shared" or (base / "setup.cfg").exists()

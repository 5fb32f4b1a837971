"""Where the files of sites are: those that come along, and one's own."""

import os
from collections.abc import Iterator
from pathlib import Path

from hpcsgd import assets
from hpcsgd.errors import ConfigError
from hpcsgd.jobs.words import check_name

VARIABLE = "HPCSGD_SITES"  # a folder of one's own, or of a group


def own_folders() -> list[Path]:
    """Where one's own sites are looked for; the first is where new ones go."""
    config = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    named = os.environ.get(VARIABLE)
    home = Path(config) / "hpcsgd" / "sites"
    return [Path(named), home] if named else [home]


def site_files() -> Iterator[Path]:
    """Every file of a site that a name can stand for, one's own first."""
    for folder in [*own_folders(), assets.path("slurm/sites")]:
        yield from sorted(folder.glob("*.toml"))


def known_sites() -> dict[str, Path]:
    """Name -> file; one's own hides one that came along."""
    found: dict[str, Path] = {}
    for path in site_files():
        found.setdefault(path.stem, path)
    return found


def find_site(name: str) -> Path:
    """The file that `name` stands for, which may be a path itself."""
    if name.endswith(".toml") or os.sep in name:
        path = Path(name)
        if not path.is_file():
            raise ConfigError(f"there is no file of a site {name}; check the path")
        return path
    known = known_sites()
    if name not in known:
        raise ConfigError(
            f"site {name!r} unknown; known: {', '.join(sorted(known))}; write one's own"
            " with: hpcsgd jobs new-site NAME"
        )
    return known[name]


def new_site(name: str, source: str) -> str:
    """The text of a new site's file, which begins as that of `source`."""
    check_name(name, "the name of a site")
    text = find_site(source).read_text(encoding="utf-8")
    begin = (
        f"# {name}: begun from {source}. Change what differs, look at a script with\n"
        f"#     hpcsgd jobs render train --site {name} --out jobs/a -- run.toml\n"
        "# and prove it with\n"
        f"#     hpcsgd jobs submit smoke --site {name} --tasks 4 --out jobs/smoke\n\n"
    )
    return begin + text

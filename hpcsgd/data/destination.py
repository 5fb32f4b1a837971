"""The files a conversion writes, and what is refused before the first pass."""

from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hpcsgd.data.preparation import RAW
from hpcsgd.data.recipe import Recipe
from hpcsgd.data.sink import Part
from hpcsgd.data.source import Outline, Source
from hpcsgd.data.streams import open_file
from hpcsgd.data.transform import count_test
from hpcsgd.errors import ConfigError


def test_path(path: Path) -> Path:
    """DST-test beside DST."""
    return path.with_name(f"{path.stem}-test{path.suffix}")


def parts(path: Path, rows: int, recipe: Recipe) -> list[Part]:
    """The files to write, and how many rows each gets."""
    if not recipe.test_fraction:
        return [Part(path, rows, False)]
    drawn = count_test(rows, recipe.test_fraction, recipe.seed)
    if drawn in (0, rows):
        raise ConfigError(
            f"--test-fraction {recipe.test_fraction} of {rows} rows leaves"
            f" {rows - drawn} to train on and {drawn} to test; choose another"
        )
    return [Part(path, rows - drawn, False), Part(test_path(path), drawn, True)]


def wanted_rows(outline: Outline, recipe: Recipe) -> int:
    """How many of the source's rows are converted."""
    if recipe.rows is not None and recipe.rows > outline.rows:
        raise ConfigError(
            f"--rows {recipe.rows}: the source has {outline.rows}; ask for fewer"
        )
    return recipe.rows or outline.rows


def identity(source: Source, outline: Outline, recipe: Recipe) -> dict[str, Any]:
    """What must be the same for a broken conversion to be gone on with."""
    said = asdict(replace(recipe, like=None))
    del said["memory"]
    said["like"] = None if recipe.like is None else recipe.like.fingerprint()
    said["labels"] = [list(pair) for pair in recipe.labels]
    counted = asdict(replace(outline, preparation=RAW))
    del counted["preparation"]  # the source's own, which stays while it does
    counted["names"] = None if outline.names is None else list(outline.names)
    counted["means"] = None if outline.means is None else outline.means.tolist()
    status = source.path.stat()
    found = {"source": str(source.path.resolve()), "source_bytes": status.st_size}
    return {**said, **found, "source_changed": status.st_mtime_ns, **counted}


def check_target(path: Path, recipe: Recipe, force: bool) -> None:
    """Refuse before the first pass what cannot be written after it."""
    for one in [path, test_path(path)] if recipe.test_fraction else [path]:
        if one.is_dir():
            raise ConfigError(f"cannot write {one}: it is a folder; name a file")
        if one.exists() and not force:
            raise ConfigError(f"{one} exists; add --force to replace it")
    if not path.parent.is_dir():
        raise ConfigError(
            f"cannot write {path}: its folder is missing; make it, or name another"
        )


def check_source(path: Path, target: Path) -> None:
    """Refuse what cannot be read, and a source that would be written over."""
    open_file(path, "a file of rows").close()
    if target.exists() and target.samefile(path):
        raise ConfigError(f"{target} is the source itself; name another file")

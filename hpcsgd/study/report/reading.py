"""The points of studies, of plain run folders and of comparisons."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcsgd.errors import DataError, HpcsgdError
from hpcsgd.files import own_folder, read_entry_text
from hpcsgd.json_text import parse_json
from hpcsgd.study.expected import expected_traffic
from hpcsgd.study.report.point import Point, read_point
from hpcsgd.study.settings import folder_name

POINTS, RESULT, COMPARE = "points.jsonl", "result.json", "compare.json"
log = logging.getLogger(__name__)


def read_folders(folders: Sequence[Path]) -> list[Point]:
    """All points of all folders, in the order of the folders."""
    points = [point for folder in folders for point in read_folder(folder)]
    if not points:
        raise DataError(f"{_all(folders)} holds no run yet that ended; start one there")
    return points


def read_folder(folder: Path) -> list[Point]:
    """The points of a study, of a comparison, of a run, or of runs below it."""
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; name those of studies or runs")
    if (folder / POINTS).exists():
        return list(_of_study(folder))
    if (folder / COMPARE).exists():
        return list(_of_comparison(folder))
    if (folder / RESULT).exists():
        return [_of_run(folder)]
    below = sorted(path.parent for path in folder.glob(f"*/{RESULT}"))
    if not below:
        raise DataError(
            f"{folder} holds no {POINTS}, {COMPARE} or {RESULT}; name the folder of a"
            " study (hpcsgd study --out), of a comparison or of a run (--out)"
        )
    return [_of_run(path) for path in below if not path.name.startswith("earlier-")]


def _of_study(folder: Path) -> Iterator[Point]:
    """The newest line of every key, in the order in which keys came first."""
    newest: dict[str, Mapping[str, Any]] = {}
    for number, text in enumerate(_lines(folder / POINTS), 1):
        line = _parsed(text)
        if line is None:
            log.warning("%s, line %d is no point; left out", folder / POINTS, number)
        else:
            newest[str(line.get("key", number))] = line
    for line in newest.values():
        yield read_point(line, str(folder))


def _parsed(text: str) -> Mapping[str, Any] | None:
    """The object of one line; None for half a line, or anything else."""
    try:
        found = parse_json(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _of_comparison(folder: Path) -> Iterator[Point]:
    """A point for every repeat of every setting; its run folder says more."""
    document = _document(folder / COMPARE)
    for row in document.get("settings", []):
        if not isinstance(row, dict):
            continue
        name, times = str(row.get("name", "")), row.get("seconds_of_repeats") or []
        for number, seconds in enumerate(times, 1):
            own = folder / f"{folder_name(name)}-{number}"
            line = _run_of_repeat(own, seconds)
            if line is None:
                line = _as_line(row) | {"ranks": document.get("ranks")}
                line |= {"seconds": seconds}
            yield read_point(line | {"study": "compare"}, str(folder), name)


def _run_of_repeat(folder: Path, seconds: Any) -> dict[str, Any] | None:
    """The run's own account, where it is still that of this comparison."""
    try:
        own_folder(folder.parent, folder.name)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be read ({error.strerror}); remove that entry"
        ) from error
    if not (folder / RESULT).exists():
        return None
    document = _document(folder / RESULT)
    return _as_line(document) if document.get("seconds_total") == seconds else None


def _of_run(folder: Path) -> Point:
    line = _as_line(_document(folder / RESULT)) | {"study": "runs"}
    return read_point(line, str(folder), folder.name)


def _as_line(document: Mapping[str, Any]) -> dict[str, Any]:
    """A document of result.json or a row of compare.json as a line of a study."""
    config = _table(document, "config")
    schedule, grid = _table(config, "schedule"), _table(config, "grid")
    run, source = _table(config, "run"), _table(document, "source")
    seconds = document.get("seconds_total", document.get("seconds"))
    ahead = " look-ahead" if document.get("look_ahead") is True else ""
    return {
        "grid": document.get("grid", grid),
        "ranks": document.get("ranks"),
        "emulated": document.get("emulated_members"),
        "key": str(run.get("out") or ""),
        "status": document.get("status"),
        "error": document.get("advice"),
        "data": Path(str(_table(config, "data").get("path") or "")).name,
        "rows": document.get("rows", source.get("rows")),
        "columns": document.get("columns"),
        "batch": _batch(document, schedule, grid),
        "steps": _steps(document, grid),
        "product": f"{document.get('products', '')}{ahead}",
        "recipe": _table(config, "precision").get("recipe"),
        "network": run.get("network"),
        "expected": _expected(document),
        "seed": _table(config, "sampling").get("seed"),
        "epochs": schedule.get("epochs"),
        "seconds": seconds,
        **{name: document.get(name) for name in SAME},
    }


SAME = (  # named alike in results and in points
    *("iterations", "loss", "seconds_wall", "seconds_by_phase", "ledger", "history"),
    *("energy", "versions", "transport", "host", "cores"),
)


def _batch(
    document: Mapping[str, Any], schedule: Mapping[str, Any], grid: Mapping[str, Any]
) -> Any:
    """Of all replicas; configurations hold that of one."""
    for place in (document, _table(document, "schedule")):
        if "global_batch" in place:
            return place["global_batch"]
    own, replicas = schedule.get("batch"), grid.get("replicas")
    return own * replicas if isinstance(own, int) and isinstance(replicas, int) else own


def _steps(document: Mapping[str, Any], grid: Mapping[str, Any]) -> Any:
    """Between two messages; s only lightens the loop of a sum in every step."""
    replicas = _table(document, "grid").get("replicas", grid.get("replicas"))
    if document.get("products") == "direct" and replicas == 1:
        return 1
    return _table(document, "schedule").get("steps", document.get("steps"))


def _expected(document: Mapping[str, Any]) -> dict[str, int] | None:
    """By formula; None for a document that is older than the formula, or no run's."""
    try:
        return expected_traffic(document)
    except (KeyError, TypeError, ValueError, HpcsgdError):
        return None


def _table(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key)
    return found if isinstance(found, Mapping) else {}


def _document(path: Path) -> dict[str, Any]:
    try:
        found = parse_json("\n".join(_lines(path)))
    except ValueError as error:
        raise DataError(f"{path} is no JSON ({error}); make it again") from error
    if not isinstance(found, dict):
        raise DataError(f"{path} holds no document of a run; make it again")
    return found


def _lines(path: Path) -> list[str]:
    try:
        return read_entry_text(path, "replace").splitlines()
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}); make it readable"
        ) from error


def _all(folders: Sequence[Path]) -> str:
    return ", ".join(str(folder) for folder in folders)

"""Certificates of finished runs."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hpcsgd
from hpcsgd.backends.blas_threads import one_thread
from hpcsgd.config import split_of
from hpcsgd.data.readers import RowReader, is_sparse, open_reader
from hpcsgd.errors import DataError
from hpcsgd.files import parse_json, read_entry_text, write_text
from hpcsgd.formats import Array
from hpcsgd.glm.families import Family
from hpcsgd.products.base import product_facts
from hpcsgd.runs import plan
from hpcsgd.runs.folder import CERTIFICATE
from hpcsgd.runs.result import finite
from hpcsgd.studies.verify.allowance import (
    PARTS,
    Point,
    RecordedExchange,
    clip_of,
    residual,
    target_size,
)
from hpcsgd.studies.verify.replay import (
    DECISIVE,
    RecordedRun,
    RecordedSource,
    ReplayDifference,
    compare,
    deciding,
    open_recorded_run,
    open_source,
)

# The objective on all rows in longdouble, and how far float64 may be from it.
#
# Float64 errs by u on every product of a score, every score and every loss:
# |δF| ≤ u mean c (|ℓ| + |r| (|x|·|w| + |t|)) + u penalty, to first order; 64 times that
# is allowed, which covers the depth of the sums.

L = np.longdouble
UNIT = 2.0**-53
SAFETY = 64  # times the error of one rounding: sums round in every term


def recompute(
    source: RecordedSource,
    family: Family,
    weights: Array,
    intercept: Array,
    l2: float,
    l1: float = 0.0,
) -> tuple[float, float]:
    """The loss of the model w (d, K), intercept (K,); and the tolerance on it."""
    sums = np.zeros(3, dtype=L)
    for rows, X in source.blocks():
        sums += _block(source, family, rows, X, weights, intercept)
    wide = weights.astype(L)
    penalty = L(l2) / 2 * np.sum(np.square(wide)) + L(l1) * np.sum(np.abs(wide))
    allowed = SAFETY * UNIT * (sums[1] / sums[2] + penalty)
    return float(sums[0] / sums[2] + penalty), float(allowed)


def _block(
    source: RecordedSource, family: Family, rows: slice, X: Array, w: Array, b: Array
) -> Array:
    """Σ c ℓ, Σ c (size of its error in units of roundoff), Σ c."""
    clip = clip_of(np.float64)
    given = source.given
    y, c = given.targets[rows].astype(L), given.weights[rows].astype(L)
    shift = b.astype(L) + given.offsets[rows]
    t = X.astype(L) @ w.astype(L) + shift
    losses = _losses(family, t, y, clip)
    scale = target_size(family, y)
    reach = np.abs(X).astype(np.float64) @ np.abs(w) + np.abs(shift) + np.abs(t)
    slope = np.abs(residual(family, t, y, clip)) * (reach + scale)
    terms = slope + np.abs(t) * scale  # what cancels inside ℓ is of this size
    size = np.abs(losses) + terms.sum(axis=1, keepdims=True)
    return np.array([(c * losses).sum(), (c * size).sum(), c.sum()], dtype=L)


def _losses(family: Family, t: Array, y: Array, clip: float) -> Array:
    """ℓ(t, y) in longdouble, or in float64 where the family has nothing wider."""
    if not np.isfinite(family.curvature) and (np.abs(t) > clip).any():
        # Clipped scores: the bound of float64 is part of what the run reported.
        return family.loss(t.astype(np.float64), y.astype(np.float64)).astype(L)
    try:
        return np.asarray(family.loss(t.copy(), y), dtype=L)
    except TypeError:  # a special function without a longdouble form
        return family.loss(t.astype(np.float64), y.astype(np.float64)).astype(L)


# All checks of a run, put together into one file that can be made again.

Figures = dict[str, Any]


@dataclass(frozen=True)
class VerifiedItem:
    """One thing looked at.

    `ok` is None where it could not be looked at, or where `undecided`: where what was
    seen would hold for a wrong run, too. `why` says which, and what would help.
    """

    name: str
    ok: bool | None
    figures: Figures
    why: str = ""
    undecided: bool = False


@dataclass(frozen=True)
class Certificate:
    """What was checked, with its figures."""

    facts: Figures
    checks: list[VerifiedItem]

    @property
    def failed(self) -> list[str]:
        """The names of the checks that do not hold."""
        return [check.name for check in self.checks if check.ok is False]

    @property
    def undecided(self) -> list[str]:
        """The names of the checks that a wrong run would have passed, too."""
        return [check.name for check in self.checks if check.undecided]

    @property
    def ok(self) -> bool:
        """True where nothing that was checked fails, and nothing is undecided."""
        return not self.failed and not self.undecided

    def json(self) -> str:
        """One document, the same bytes for the same run, k and seed."""
        checks = [asdict(check) for check in self.checks]
        skipped = [
            check.name
            for check in self.checks
            if check.ok is None and not check.undecided
        ]
        document = {
            "verified": self.ok,
            "not_checked": skipped,
            "undecided": self.undecided,
            **self.facts,
        }
        document["checks"] = checks
        return json.dumps(finite(document), indent=2, allow_nan=False)


@one_thread()
def certify(
    folder: str | Path,
    exchanges: int = 3,
    seed: int = 0,
    data: str | None = None,
    reader: RowReader | None = None,
) -> Certificate:
    """Check the run in `folder` and write verification.json into it.

    Parameters
    ----------
    folder : the run folder
    exchanges : k, how many of the recorded exchanges are replayed
    seed : which ones
    data : the data file, where it is not at the place that the run read it from
    reader : the data, instead of a file

    Returns
    -------
    Certificate
    """
    scene = open_recorded_run(Path(folder))
    reader = reader or open_reader(_data_file(scene, data))
    try:
        checks = list(_checks(scene, reader, exchanges, seed))
    finally:
        reader.close()
    found = Certificate(_facts(scene, folder, exchanges, seed, data), checks)
    try:
        write_text(scene.folder / CERTIFICATE, found.json() + "\n")
    except OSError as error:
        raise DataError(
            f"{scene.folder / CERTIFICATE} cannot be written ({error.strerror});"
            " make room or change its permissions"
        ) from error
    return found


def _data_file(scene: RecordedRun, data: str | None) -> Path:
    path = data or scene.config.data.path
    if not path:
        raise DataError("the run was trained from memory; name its data with --data")
    if not Path(path).exists():
        raise DataError(f"{path} does not exist; say with --data where the data is now")
    return Path(path)


def _facts(
    scene: RecordedRun, folder: str | Path, exchanges: int, seed: int, data: str | None
) -> Figures:
    words = ["hpcsgd", "verify", str(folder), "--exchanges", str(exchanges)]
    words += ["--seed", str(seed), *(["--data", data] if data else [])]
    return {
        "versions": {"hpcsgd": hpcsgd.__version__, "numpy": np.__version__},
        "data_fingerprint": scene.result.report["data_fingerprint"],
        "weights_sha256": scene.result.weights_sha256,
        "exchanges": exchanges,
        "seed": seed,
        "command": shlex.join(words),
    }


def _checks(
    scene: RecordedRun, reader: RowReader, count: int, seed: int
) -> Iterator[VerifiedItem]:
    yield _model(scene)
    source = None
    if (reader.rows, reader.cols) == (scene.shape.rows, scene.shape.columns):
        source = open_source(
            reader,
            scene.family,
            scene.precision,
            split_of(scene.config.sweep, scene.config.sampling),
            scene.config.precision.scale,
        )
    data = _data(scene, reader, source)
    yield data
    counted = _traffic(scene, source if data.ok else None)
    yield counted
    if counted.ok is not None and "agreement" not in counted.figures["expected"]:
        codec = scene.config.agreement.codec
        why = f"how many bytes {codec} sends is decided while it runs"
        yield VerifiedItem("traffic of agreement", None, {}, why)
    numbers = _chosen(scene, count, seed)
    if source is None or not data.ok:
        why = "not the data that the run was trained on"
        names = [f"exchange {number}" for number in numbers]
        yield from (VerifiedItem(name, None, {}, why) for name in (*names, "loss"))
        return
    for number in numbers:
        yield _exchange(scene, source, number)
    if not numbers:
        yield VerifiedItem(
            "exchanges", None, {}, "the run recorded none before it ended"
        )
    yield _loss(scene, source)


def _chosen(scene: RecordedRun, count: int, seed: int) -> list[int]:
    """k of the recorded exchanges."""
    known = sorted(scene.recording.states)
    drawn = np.random.default_rng(seed).permutation(len(known))[:count]
    return sorted(known[i] for i in drawn)


def _model(scene: RecordedRun) -> VerifiedItem:
    """The model in result.h5 is the one that result.json speaks of."""
    path = scene.folder / "result.json"
    try:
        said = parse_json(read_entry_text(path))["weights_sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path} cannot be read; take a whole copy") from error
    found = scene.result.weights_sha256
    return VerifiedItem(
        "model", said == found, {"result.h5": found, "result.json": said}
    )


def _data(
    scene: RecordedRun, reader: RowReader, source: RecordedSource | None
) -> VerifiedItem:
    then = scene.result.report["data_fingerprint"]
    now = f"{reader.rows}x{reader.cols}" if source is None else source.fingerprint()
    return VerifiedItem("data", now == then, {"now": now, "then": then})


def _traffic(scene: RecordedRun, source: RecordedSource | None) -> VerifiedItem:
    """The ledger against the formulas, to the byte."""
    shape = scene.shape
    gathers = product_facts(scene.result.report["products"]).holds_all_columns
    if gathers and scene.result.report.get("sparse"):
        if source is None or not is_sparse(source.reader):
            return VerifiedItem(
                "traffic", None, {}, "sparse rows are counted in their data"
            )
        shape = scene.counting(source)
    legs, report = scene.recording.legs, scene.result.report
    if any(event["event"] == "fall-back" for event in scene.result.events):
        why = "the run fell back, and the formulas know the last settings alone"
        return VerifiedItem("traffic", None, {}, why)
    gap = plan.gap_in(legs, scene.result.exchanges, report["resumes"])
    if gap:
        return VerifiedItem("traffic", None, {}, gap)
    asked = scene.config.agreement.kind
    if plan.kind_of(scene.config.agreement) is None:
        why = f"there is no formula for what agreement = {asked!r} sends"
        return VerifiedItem("traffic", None, {}, why)
    expected = plan.expected(shape, legs)
    found = {
        purpose: {key: scene.result.ledger.get(purpose, {}).get(key) for key in entry}
        for purpose, entry in expected.items()
    }
    figures = {"expected": expected, "ledger": found}
    return VerifiedItem("traffic", expected == found, figures)


def _exchange(scene: RecordedRun, source: RecordedSource, number: int) -> VerifiedItem:
    exchange = scene.exchange(number, source)
    before, after = scene.points(number)
    parts = scene.replayed
    if not parts:
        codec = scene.config.agreement.codec
        why = f"gradients travelled as {codec}, which a replay in other bits is not"
        return VerifiedItem(f"exchange {number}", None, {}, why)
    found = compare(exchange, before, after, parts)
    figures = {
        "number": number,
        "steps": len(exchange.sizes),
        "rows": len(exchange.rows),
        "part": found.part,
        "deviation": found.deviation,
        "tolerance": found.tolerance,
    }
    if parts != PARTS:
        figures["replayed"] = list(parts)
    if found.is_decided:
        return VerifiedItem(f"exchange {number}", found.is_within, figures)
    why = _undecided(exchange, before, parts, found)
    return VerifiedItem(f"exchange {number}", None, figures, why, undecided=True)


def _undecided(
    exchange: RecordedExchange,
    before: Point,
    parts: tuple[str, ...],
    found: ReplayDifference,
) -> str:
    """Why an exchange decides nothing, and which one would."""
    share = f"{found.tolerance:.2g} of a step"
    allowed = share if np.isfinite(found.tolerance) else "any distance"
    said = (
        f"deviation {found.deviation:.1e}, and the formats of the run allow {allowed},"
        f" more than {DECISIVE:g}: a wrong step could pass"
    )
    setting = deciding(exchange, before, parts)
    if not setting:
        return f"{said}; so small a step cannot be decided in any format"
    return f"{said}; record an exchange with {setting} to decide"


def _loss(scene: RecordedRun, source: RecordedSource) -> VerifiedItem:
    result = scene.result
    if not result.status.is_finished and result.status.value != "diverged":
        # Of such a run the loss is that of an earlier evaluation.
        return VerifiedItem(
            "loss", None, {}, f"a run {result.status.value} takes no last loss"
        )
    w, b = scene.model()
    problem = scene.config.problem
    found = recompute(source, scene.family, w, b, problem.l2, problem.l1)
    now, allowed = found
    deviation = abs(now - result.loss)
    figures = {
        "reported": result.loss,
        "recomputed": now,
        "deviation": deviation,
        "tolerance": allowed,
    }
    return VerifiedItem("loss", deviation <= allowed, figures)

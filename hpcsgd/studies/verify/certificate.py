"""Certify a finished run: its model, data, traffic, exchanges and loss."""

import json
import shlex
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import hpcsgd
from hpcsgd.backends.blas_threads import one_thread
from hpcsgd.data.readers import RowReader, is_sparse, open_reader
from hpcsgd.errors import DataError
from hpcsgd.files import finite, parse_json, read_entry_text, write_text
from hpcsgd.formats import Array
from hpcsgd.glm.families import Family
from hpcsgd.products.base import product_facts
from hpcsgd.runs import traffic
from hpcsgd.runs.folder import CERTIFICATE
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

# The objective on all rows is evaluated in longdouble and compared with the loss of the
# run, which is float64.
#
# Float64 has a relative error of u in every product of a score, every score and every
# loss: |δF| ≤ u mean c (|ℓ| + |r| (|x|·|w| + |t|)) + u penalty, to first order. The
# tolerance is 64 times this bound, which covers the depth of the sums.

L = np.longdouble
UNIT = 2.0**-53
SAFETY = 64  # the tolerance in units of one rounding, because sums round in every term


def recompute(
    source: RecordedSource,
    family: Family,
    weights: Array,
    intercept: Array,
    l2: float,
    l1: float = 0.0,
) -> tuple[float, float]:
    """Return the loss of a model on all rows, with penalties, and its tolerance.

    The weights have shape (d, K), the intercept has shape (K,).
    """
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
    """Return three sums over some rows: Σ c ℓ, Σ c (error of ℓ) and Σ c.

    c are sample weights and ℓ losses. An error is in units of one roundoff.
    """
    clip = clip_of(np.float64)
    sides = source.given
    y = sides.targets[rows].astype(L)
    c = sides.weights[rows].astype(L)
    shift = b.astype(L) + sides.offsets[rows]
    t = X.astype(L) @ w.astype(L) + shift
    losses = _losses(family, t, y, clip)
    scale = target_size(family, y)
    reach = np.abs(X).astype(np.float64) @ np.abs(w) + np.abs(shift) + np.abs(t)
    slope = np.abs(residual(family, t, y, clip)) * (reach + scale)
    terms = slope + np.abs(t) * scale  # the size of terms that cancel inside ℓ
    size = np.abs(losses) + terms.sum(axis=1, keepdims=True)
    return np.array([(c * losses).sum(), (c * size).sum(), c.sum()], dtype=L)


def _losses(family: Family, t: Array, y: Array, clip: float) -> Array:
    """Return ℓ(t, y), in longdouble.

    It is computed in float64 if the family has nothing wider, or if its curvature has
    no bound and a score is beyond ±`clip`.
    """
    if not np.isfinite(family.curvature) and (np.abs(t) > clip).any():
        # The run has clipped these scores to the range of float64.
        return family.loss(t.astype(np.float64), y.astype(np.float64)).astype(L)
    try:
        return np.asarray(family.loss(t.copy(), y), dtype=L)
    except TypeError:  # a special function without a longdouble form
        return family.loss(t.astype(np.float64), y.astype(np.float64)).astype(L)


# All checks of a run go into one file. The same command makes the same file again.

Figures = dict[str, Any]


@dataclass(frozen=True)
class VerifiedItem:
    """The result of one check.

    Attributes
    ----------
    name : str
        Name of the check.
    ok : bool or None
        Whether the check holds; None if it was not possible or is undecided.
    figures : dict
        The numbers that were compared.
    why : str
        Why `ok` is None, and how to decide the check.
    undecided : bool
        Whether a wrong run could pass the check, too.
    """

    name: str
    ok: bool | None
    figures: Figures
    why: str = ""
    undecided: bool = False


@dataclass(frozen=True)
class Certificate:
    """The checks of a run, and the facts by which they can be repeated."""

    facts: Figures
    checks: list[VerifiedItem]

    @property
    def failed(self) -> list[str]:
        """Names of the checks that do not hold."""
        return [check.name for check in self.checks if check.ok is False]

    @property
    def undecided(self) -> list[str]:
        """Names of the checks that a wrong run could pass, too."""
        return [check.name for check in self.checks if check.undecided]

    @property
    def ok(self) -> bool:
        """Return whether no check fails and no check is undecided."""
        return not self.failed and not self.undecided

    def json(self) -> str:
        """Return the JSON document: the same bytes for the same run and arguments."""
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
    folder : path-like
        The run folder.
    exchanges : int, default=3
        The number k of recorded exchanges to replay.
    seed : int, default=0
        Seed of the choice of these exchanges.
    data : str, optional
        The data file. Without it, it is the path from which the run read its data.
    reader : RowReader, optional
        The data, instead of a file.

    Returns
    -------
    Certificate
        One item for each check.
    """
    scene = open_recorded_run(Path(folder))
    reader = reader or open_reader(_data_file(scene, data))
    try:
        checks = list(_checks(scene, reader, exchanges, seed))
    finally:
        reader.close()
    certificate = Certificate(_facts(scene, folder, exchanges, seed, data), checks)
    try:
        write_text(scene.folder / CERTIFICATE, certificate.json() + "\n")
    except OSError as error:
        raise DataError(
            f"{scene.folder / CERTIFICATE} cannot be written ({error.strerror});"
            " make room or change its permissions"
        ) from error
    return certificate


def _data_file(scene: RecordedRun, data: str | None) -> Path:
    path = data or scene.config.data.path
    if not path:
        raise DataError(
            "the run was trained on arrays in memory; name a file of its data with"
            " --data"
        )
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
    size = scene.shape.data
    if (reader.rows, reader.cols) == (size.rows, size.columns):
        source = open_source(
            reader,
            scene.family,
            scene.precision,
            scene.config.split,
            scene.config.precision.scale,
        )
    data = _data(scene, reader, source)
    yield data
    sent = _traffic(scene, source if data.ok else None)
    yield sent
    if sent.ok is not None and "agreement" not in sent.figures["expected"]:
        agreement = scene.config.agreement
        codec = agreement.codec
        sender = agreement.kind if codec == "identity" else codec
        why = (
            f"the bytes that {sender} sends depend on the run, and no formula has them"
        )
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
            "exchanges", None, {}, "the run recorded no exchange before it ended"
        )
    yield _loss(scene, source)


def _chosen(scene: RecordedRun, count: int, seed: int) -> list[int]:
    """Return the numbers of `count` random recorded exchanges, or of all if fewer."""
    numbers = sorted(scene.recording.states)
    drawn = np.random.default_rng(seed).permutation(len(numbers))[:count]
    return sorted(numbers[i] for i in drawn)


def _model(scene: RecordedRun) -> VerifiedItem:
    """Check that result.h5 has the model whose checksum is in result.json."""
    path = scene.folder / "result.json"
    try:
        recorded = parse_json(read_entry_text(path))["weights_sha256"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path} cannot be read as the result of a run; restore it from an intact"
            " copy"
        ) from error
    actual = scene.result.weights_sha256
    figures = {"result.h5": actual, "result.json": recorded}
    return VerifiedItem("model", recorded == actual, figures)


def _data(
    scene: RecordedRun, reader: RowReader, source: RecordedSource | None
) -> VerifiedItem:
    then = scene.result.report["data_fingerprint"]
    now = f"{reader.rows}x{reader.cols}" if source is None else source.fingerprint()
    return VerifiedItem("data", now == then, {"now": now, "then": then})


def _traffic(scene: RecordedRun, source: RecordedSource | None) -> VerifiedItem:
    """Check that the ledger has the calls, words and bytes of the formulas.

    The check is not possible if no formula holds for the run. `source` is None if the
    data are not those of the run.
    """
    shape = scene.shape
    report = scene.result.report
    legs = scene.recording.legs
    gathers = product_facts(report["products"]).holds_all_columns
    by_stored = scene.config.data.partition != "equal"
    is_cut = shape.replicas > 1 and any(leg["members"] > 1 for leg in legs)
    if report.get("sparse") and (gathers or by_stored and is_cut):
        if source is None or not is_sparse(source.reader):
            why = "the traffic of sparse rows depends on the data"
            return VerifiedItem("traffic", None, {}, why)
        shape = scene.counting(source)
    if any(event["event"] == "fall-back" for event in scene.result.events):
        why = "the run fell back, and the formulas know the last settings alone"
        return VerifiedItem("traffic", None, {}, why)
    gap = traffic.gap_in(legs, scene.result.exchanges, report["resumes"])
    if gap:
        return VerifiedItem("traffic", None, {}, gap)
    kind = scene.config.agreement.kind
    if traffic.kind_of(scene.config.agreement) is None:
        why = f"there is no formula for what agreement = {kind!r} sends"
        return VerifiedItem("traffic", None, {}, why)
    expected = traffic.expected(shape, legs)
    ledger = {
        purpose: {key: scene.result.ledger.get(purpose, {}).get(key) for key in entry}
        for purpose, entry in expected.items()
    }
    figures = {"expected": expected, "ledger": ledger}
    return VerifiedItem("traffic", expected == ledger, figures)


def _exchange(scene: RecordedRun, source: RecordedSource, number: int) -> VerifiedItem:
    exchange = scene.exchange(number, source)
    before, after = scene.points(number)
    parts = scene.replayed
    if not parts:
        codec = scene.config.agreement.codec
        why = f"gradients were sent as {codec}, which a replay cannot repeat exactly"
        return VerifiedItem(f"exchange {number}", None, {}, why)
    difference = compare(exchange, before, after, parts)
    figures = {
        "number": number,
        "steps": len(exchange.steps.sizes),
        "rows": len(exchange.rows),
        "part": difference.part,
        "deviation": difference.deviation,
        "tolerance": difference.tolerance,
    }
    if parts != PARTS:
        figures["replayed"] = list(parts)
    if difference.is_decided:
        return VerifiedItem(f"exchange {number}", difference.is_within, figures)
    why = _undecided(exchange, before, parts, difference)
    return VerifiedItem(f"exchange {number}", None, figures, why, undecided=True)


def _undecided(
    exchange: RecordedExchange,
    before: Point,
    parts: tuple[str, ...],
    difference: ReplayDifference,
) -> str:
    """Return why an exchange is neither verified nor refuted, and the remedy.

    The remedy names the settings with which the check would decide.
    """
    share = f"{difference.tolerance:.2g} of a step"
    allowed = share if np.isfinite(difference.tolerance) else "any distance"
    why = (
        f"deviation {difference.deviation:.1e}, and the formats of the run allow"
        f" {allowed}, more than {DECISIVE:g}: a wrong step could pass"
    )
    setting = deciding(exchange, before, parts)
    if not setting:
        return f"{why}; so small a step cannot be decided in any format"
    return f"{why}; record an exchange with {setting} to decide"


def _loss(scene: RecordedRun, source: RecordedSource) -> VerifiedItem:
    result = scene.result
    if not result.status.is_finished and result.status.value != "diverged":
        # The loss in the result of such a run is older than its weights.
        why = f"a run with status {result.status.value} has no loss of its last weights"
        return VerifiedItem("loss", None, {}, why)
    w, b = scene.model()
    problem = scene.config.problem
    now, allowed = recompute(source, scene.family, w, b, problem.l2, problem.l1)
    deviation = abs(now - result.loss)
    figures = {
        "reported": result.loss,
        "recomputed": now,
        "deviation": deviation,
        "tolerance": allowed,
    }
    return VerifiedItem("loss", deviation <= allowed, figures)

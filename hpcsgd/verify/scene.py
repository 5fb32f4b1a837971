"""What a finished run worked on: read from its folder, its configuration, its data."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from hpcsgd.agreement.kinds import takes_gradients
from hpcsgd.config import RunConfig
from hpcsgd.coordinate.settings import COORDINATE
from hpcsgd.data.partition import split_range
from hpcsgd.data.sampling import plan_groups
from hpcsgd.errors import DataError
from hpcsgd.families import get_family
from hpcsgd.families.base import Array, Family
from hpcsgd.formats import get_format
from hpcsgd.precision import Precision
from hpcsgd.products import GATHERS
from hpcsgd.rates import make_rate
from hpcsgd.recording import NAME, Recording, read_recording
from hpcsgd.result import Result, load_result
from hpcsgd.updates import ADAPTIVE
from hpcsgd.verify.exchange import PARTS, Exchange, L, Point, clip_of
from hpcsgd.verify.gradients import KIND, is_lossless
from hpcsgd.verify.order import order_of
from hpcsgd.verify.source import Source
from hpcsgd.verify.traffic import Shape
from hpcsgd.verify.union import Union


@dataclass(frozen=True)
class Scene:
    """A run folder, read."""

    folder: Path
    result: Result
    recording: Recording
    config: RunConfig
    precision: Precision
    family: Family

    @property
    def shape(self) -> Shape:
        """What the words of the run depend on."""
        report, update = self.result.report, self.config.update.kind
        return Shape(
            schedule=self.config.schedule,
            precision=self.precision,
            rows=report["rows"],
            columns=report["columns"],
            classes=report["classes"],
            states=1 if update == "sgd" else 2,
            intercept=self.config.problem.intercept,
            replicas=report["grid"]["replicas"],
            seed=self.config.sampling.seed,
            agreement=vars(self.config.agreement),
        )

    def model(self) -> tuple[Array, Array]:
        """w (d, K) and the intercept (K,), zero where there is none."""
        w = self.result.weights
        w = w.reshape(len(w), -1)
        b = self.result.intercept
        return w, np.zeros(w.shape[1]) if b is None else np.reshape(b, w.shape[1])

    def exchange(self, number: int, source: Source) -> Exchange:
        """The rows, rates and settings of exchange `number`, from 1."""
        config, update = self.config, self.config.update
        rows, sizes, rates = self._steps(number - 1)
        leg = self._leg(number)
        gathers = leg["product"] in GATHERS
        agrees = self.agrees_on_gradients
        return Exchange(
            family=self.family,
            rows=source.rows(rows),
            targets=source.stored.targets[rows].astype(L),
            weights=source.stored.weights[rows].astype(L),
            offsets=source.stored.offsets[rows].astype(L),
            sizes=sizes,
            rates=rates,
            l2=config.problem.l2,
            update=update.kind,
            momentum=0.0 if update.kind == "sgd" else update.momentum,
            intercept=config.problem.intercept,
            clip=clip_of(get_format(self.precision.residual).carrier),
            precision=self.precision,
            in_steps=agrees or gathers or leg["product"] == "direct",
            members=1 if gathers else leg["members"],
            replicas=self.shape.replicas if agrees else 1,
        )

    def _leg(self, number: int) -> dict[str, Any]:
        """The part of the run, from a start to its end, that took exchange `number`."""
        legs = self.recording.legs
        return next((leg for leg in legs if number <= leg["last"]), legs[-1])

    @property
    def agrees_on_gradients(self) -> bool:
        """Whether all replicas take one step together."""
        return self.config.agreement.kind == KIND

    @property
    def replayed(self) -> tuple[str, ...]:
        """What of an exchange can be: what codecs made of the weights' part cannot."""
        if self.agrees_on_gradients and not is_lossless(
            self.config, self.shape.replicas
        ):
            return ("b", "bv") if self.shape.intercept else ()
        return PARTS

    def _steps(self, number: int) -> tuple[Array, tuple[int, ...], Array]:
        """Rows, batch sizes and rates of exchange `number`, from 0."""
        shape = self.shape
        if self.agrees_on_gradients:
            union = Union(self.config, shape.rows, shape.replicas)
            rows = union.taken(number)
            return rows, (len(rows),), union.rates(number)
        groups = shape.groups()
        epoch, index = divmod(number, len(groups))
        return self._rows(number), groups[index], self._rates(epoch, index)

    def counting(self, source: Source) -> Shape:
        """The shape of a run on sparse rows, which knows how many values they store."""
        known: dict[int, Array] = {}

        def stored(number: int, columns: int) -> int:
            if columns not in known:
                known[columns] = source.lengths(columns)
            return int(known[columns][self._rows(number)].sum())

        return replace(self.shape, stored=stored)

    def _rows(self, number: int) -> Array:
        """The rows of exchange `number` of replica 0, from 0."""
        groups = self.shape.groups()
        epoch, index = divmod(number, len(groups))
        first = sum(map(sum, groups[:index]))
        return self._order(epoch)[first : first + sum(groups[index])]

    def points(self, number: int) -> tuple[Point, Point]:
        """The recorded state before and after exchange `number`."""
        found, K = self.recording.states[number], self.result.report["classes"]
        return _point(found, "before", K), _point(found, "after", K)

    def _order(self, epoch: int) -> Array:
        """The local rows of replica 0."""
        rows = split_range(self.shape.rows, self.shape.replicas, 0).stop
        return order_of(self.config.sampling, rows, 0, epoch)

    def _rates(self, epoch: int, index: int) -> Array:
        schedule = self.config.schedule
        rows = split_range(self.shape.rows, self.shape.replicas, 0).stop
        steps = [len(g) for g in plan_groups(rows, schedule.batch, schedule.steps)]
        epochs = schedule.epochs
        rate = make_rate(self.config.rate, epochs * sum(steps), epochs)
        return rate.at(epoch * sum(steps) + sum(steps[:index]), steps[index])


def open_scene(folder: Path) -> Scene:
    """Read the folder; a run without a recording is refused."""
    result = load_result(folder)
    _check_replayable(folder, result)
    recording = read_recording(folder / NAME)
    config = RunConfig.parse(result.config)
    scene = Scene(
        folder,
        result,
        recording,
        config,
        config.precision.resolve(),
        get_family(config.problem.family),
    )
    _check_report(scene)
    return scene


def _check_replayable(folder: Path, result: Result) -> None:
    """Refuse what has no recording, and steps that are not those of plain SGD."""
    update, kind = result.config["update"], result.config["agreement"]["kind"]
    is_recorded = (folder / NAME).exists()
    for is_wrong, why in (
        (
            update["kind"] == COORDINATE,
            "is of a coordinate form, and verify replays SGD; what it found has its gap"
            " in the history, and hpcsgd evaluate takes the loss again",
        ),
        (
            update.get("clip", "none") != "none",
            "is of a run that clipped its gradients, and verify replays plain SGD;"
            " verify a run with update.clip = 'none'",
        ),
        (
            update["kind"] in ADAPTIVE,
            f"is of {update['kind']}, and verify replays plain SGD; hpcsgd evaluate"
            " takes its loss again",
        ),
        (
            update["kind"] == "svrg",
            "is of SVRG, and verify replays plain SGD; the gradient in its history says"
            " how far it is from the optimum",
        ),
        (
            "models" in result.report,
            "is of a sweep, and verify replays one model; train the model in question"
            " with hpcsgd train and verify that run",
        ),
        (
            takes_gradients(kind) and kind != KIND and not is_recorded,
            f"is of --agreement {kind}, whose steps are not recorded; hpcsgd evaluate"
            " takes its loss again",
        ),
        (
            not is_recorded,
            f"holds no {NAME}, so no exchange can be replayed; train with --out and"
            " --record of at least 1, and with plain steps: others are not recorded",
        ),
    ):
        if is_wrong:
            raise DataError(f"{folder} {why}")


def _check_report(scene: Scene) -> None:
    """Refuse a result of an older package, or a recording of another run."""
    report, said = scene.result.report, scene.recording.facts
    wanted = {"rows", "columns", "classes", "grid", "data_fingerprint", "resumes"}
    if not wanted <= set(report):
        raise DataError(f"{scene.folder} was written by another hpcsgd; train it again")
    if said["fingerprint"] != report["data_fingerprint"]:
        raise DataError(
            f"{scene.folder / NAME} belongs to a run on other data; train it again"
        )
    wide = scene.shape.classes * scene.shape.states
    for number, state in scene.recording.states.items():
        shape = state["weights_before"].shape
        if shape != (report["columns"], wide) or number > scene.result.exchanges:
            raise DataError(
                f"{scene.folder / NAME} holds exchange {number} of another run;"
                " train it again"
            )


def _point(found: dict[str, Array], moment: str, classes: int) -> Point:
    weights = found[f"weights_{moment}"]
    none: Array = np.zeros((1, classes))
    intercept: Any = found.get(f"intercept_{moment}", none)
    speed = weights[:, classes:]
    return {
        "w": weights[:, :classes],
        "v": speed if speed.size else np.zeros_like(weights),
        "b": intercept[0],
        "bv": intercept[1] if len(intercept) > 1 else none[0],
    }

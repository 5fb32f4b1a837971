"""A source of rows becomes a store, in two passes and in bounded memory."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hpcsgd.data.crew import Alone, Crew
from hpcsgd.data.destination import (
    check_source,
    check_target,
    identity,
    parts,
    wanted_rows,
)
from hpcsgd.data.filling import Pouring, fill_from_rows, fill_from_text
from hpcsgd.data.layout import Layout
from hpcsgd.data.libsvm import LibsvmSource
from hpcsgd.data.like import INDEX_BASE
from hpcsgd.data.packing import Parts
from hpcsgd.data.preparation import Scales
from hpcsgd.data.progress import Beating, Progress
from hpcsgd.data.ready import Encoder
from hpcsgd.data.recipe import Recipe
from hpcsgd.data.sink import Part, Plan, SealedParts, Sinks, held
from hpcsgd.data.source import Outline, Source
from hpcsgd.data.survey import Survey, survey_rows, survey_text
from hpcsgd.data.text_source import TextSource
from hpcsgd.errors import HpcsgdError, TransportError

log = logging.getLogger(__name__)
PEEK = 65536  # bytes of the first rows, which show what comes with them


def convert(
    source: Source,
    target: Path,
    recipe: Recipe,
    progress: Progress,
    resume: bool = False,
    force: bool = False,
    crew: Crew | None = None,
) -> dict[str, Any]:
    """Write the store, and the test rows to another; what was done, as JSON holds it.

    The first pass says how much there is and measures the columns; the second writes.
    The ranks of a crew share the parsing of a plain text; `source` is the same on all.
    """
    crew = crew or Crew(Alone())
    one = Conversion(source, target, recipe, progress, resume, force)
    crew.on_root(one.check)
    if isinstance(source, TextSource):
        crew.everywhere(source.begin)
        if source.packed is None:
            return _shared(one, source, crew)
    if crew.size > 1 and crew.is_root:
        log.info("%s cannot be split; rank 0 converts it alone", source.path)
    one.progress = Beating(progress, crew.beat)
    return crew.on_root_for_long(lambda: _alone(one))


class Conversion:
    """What rank 0 knows and does of one."""

    def __init__(
        self,
        source: Source,
        target: Path,
        recipe: Recipe,
        progress: Progress,
        resume: bool,
        force: bool,
    ) -> None:
        self.source, self.target, self.recipe = source, target, recipe
        self.progress, self.resume, self.force = progress, resume, force
        self.sealed = SealedParts(target)
        self.pouring: Pouring | None = None  # once the stores are open
        self._files: list[Part] = []

    def check(self) -> None:
        """Refuse what cannot end well."""
        goes_on = self.resume and self.sealed.exist
        check_target(self.target, self.recipe, self.force or goes_on)
        check_source(self.source.path, self.target)

    def kept(self, outline: Outline) -> Scales | None:
        """Return the scales of the interrupted conversion that this one resumes."""
        if not self.recipe.standardize:
            return None
        return self.sealed.scales if self._resumes(outline) else None

    def _resumes(self, outline: Outline) -> bool:
        now = identity(self.source, outline, self.recipe)
        return self.resume and self.sealed.resume(now)

    def begin_counting(self) -> None:
        """The first pass."""
        self.progress.begin("counting rows", self.source.path.stat().st_size)

    def files(self, outline: Outline) -> list[Part]:
        """What is written."""
        if not self._files:
            rows = wanted_rows(outline, self.recipe)
            self._files = parts(self.target, rows, self.recipe)
        return self._files

    def encoder(self, survey: Survey) -> Encoder:
        """Return what encodes rows for the stores."""
        layout = Layout(
            survey.outline.cols, self.recipe.element, is_sparse=survey.is_sparse
        )
        return Encoder(self.files(survey.outline), layout, self.recipe)

    def open(self, survey: Survey, encoder: Encoder) -> Pouring:
        """Open the stores and append what is complete."""
        outline = survey.outline
        resumes = self._resumes(outline)
        sinks = Sinks(self.files(outline), self._plan(survey))
        # From here on no other program writes these stores, or their parts.
        self.pouring = Pouring(
            survey, self.recipe, encoder, sinks, self.sealed, self.progress
        )
        if not resumes:
            now = identity(self.source, outline, self.recipe)
            self.sealed.begin(now, survey.scales)
        self.pouring.restore()
        return self.pouring

    def take(self, parts: Parts) -> None:
        """Write the next rows."""
        assert self.pouring is not None
        self.pouring.receive(parts)

    def close(self, survey: Survey) -> dict[str, Any]:
        """Complete the stores; return what was done."""
        assert self.pouring is not None
        self.pouring.finish()
        return _said(self.files(survey.outline), survey, self.recipe)

    @contextmanager
    def left_whole(self) -> Iterator[None]:
        """What breaks off is left to be resumed; what is wrong leaves nothing."""
        try:
            yield
        except BaseException as error:
            is_wrong = isinstance(error, HpcsgdError) and not (
                isinstance(error, TransportError)
                or isinstance(error.__cause__, OSError)
            )
            if self.pouring is not None:
                self.pouring.leave(keeps=not is_wrong)
            raise

    def _plan(self, survey: Survey) -> Plan:
        """What both files have in common."""
        preparation = survey.preparation
        first = next(iter(self.source.blocks(survey.outline, PEEK, 0)))
        return Plan(
            cols=survey.outline.cols,
            element=self.recipe.element,
            is_sparse=survey.is_sparse,
            sides=tuple(held(first)),
            attributes={
                "source": self.source.path.name,
                "unit_rows": preparation.unit_rows,
                **_index_base(self.source, survey.outline),
            },
            preparation=preparation,
            names=survey.names,
        )


def _index_base(source: Source, outline: Outline) -> dict[str, Any]:
    """What a LIBSVM text calls its first column, for files that shall be like it."""
    is_text = isinstance(source, LibsvmSource)
    return {INDEX_BASE: outline.index_base} if is_text else {}


def _alone(one: Conversion) -> dict[str, Any]:
    """One rank reads, changes and writes."""
    one.begin_counting()
    if isinstance(one.source, TextSource):
        return _shared(one, one.source, Crew(Alone()), has_begun=True)
    survey = survey_rows(one.source, one.recipe, one.progress, one.kept)
    with one.left_whole():
        fill_from_rows(one.source, one.open(survey, one.encoder(survey)))
        return one.close(survey)


def _shared(
    one: Conversion, source: TextSource, crew: Crew, has_begun: bool = False
) -> dict[str, Any]:
    """All ranks parse and encode, the first one writes."""
    if crew.is_root and not has_begun:
        one.begin_counting()
    survey = survey_text(source, one.recipe, crew, one.progress)
    encoder = one.encoder(survey)
    with one.left_whole():
        row = crew.on_root(lambda: one.open(survey, encoder).row)
        fill_from_text(source, survey, one.recipe, crew, encoder, row, one.take)
        return crew.on_root(lambda: one.close(survey))


def _said(files: Sequence[Part], survey: Survey, recipe: Recipe) -> dict[str, Any]:
    """What was done."""
    outline: Outline = survey.outline
    preparation, like = survey.preparation, recipe.like
    how = "mean 0, spread 1"
    if preparation.columns == "scaled":
        how = "scaled only, to keep their zeros"
    if survey.scales is None:
        how = "scaled before, as the source says"
    elif like is not None:
        how = f"scaled with the means and scales of {like.path}"
    said = {} if outline.label is None else {"label_column": outline.label}
    return {
        "files": [
            {
                "path": str(part.path),
                "rows": part.rows,
                "bytes": part.path.stat().st_size,
            }
            for part in files
        ],
        "columns": outline.cols,
        "element": recipe.element,
        "labelled": outline.labelled,
        **said,
        "sparse": survey.is_sparse,
        "standardized": how if preparation.scales else None,
        "unit_rows": preparation.unit_rows,
        **({} if survey.order is None else {"reordered": True}),
    }

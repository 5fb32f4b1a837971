"""What a notebook shows of a result: a table, a picture, a frame, its progress."""

import logging
import re
import sys
import warnings
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import hpcsgd
from hpcsgd.data.synthetic import write_synthetic
from hpcsgd.errors import ConfigError, MissingPackage
from hpcsgd.estimators.fit import Shown
from hpcsgd.runs import figures, progress
from hpcsgd.runs.machine import load_hardware
from hpcsgd.studies import Account, compare_methods, strong
from hpcsgd.studies.account import AccountRow
from hpcsgd.studies.predict import PredictedRun, predict
from hpcsgd.studies.run import RunEnd

EVIL = '</td></svg><script>alert("1")</script>&<b>\x00'
X = np.random.default_rng(0).normal(size=(120, 3))
Y = (X[:, 0] > 0).astype(float)
CONFIG = {"rate": {"value": 0.5}, "schedule": {"epochs": 3}}


def account_of(*ranks):
    values = dict.fromkeys(AccountRow.__dataclass_fields__)
    values |= {"method": "sgd", "emulated": 0, "steps": 1, "runs": 1}
    rows = [
        AccountRow(**values | {"setting": f"sgd/{r}", "ranks": r, "seconds": 1.0 / r})
        for r in ranks
    ]
    return Account("strong", "f", min(ranks), tuple(rows), (), (), 0, ())


def prediction():
    run = PredictedRun(rows=400_000, columns=2000)
    return predict(load_hardware("perlmutter-a100"), run, [1, 2, 4, 64, 1024])


def result():
    return hpcsgd.train(CONFIG, X=X, y=Y)


SHOWN = {
    "result": result,
    "sweep": lambda: hpcsgd.sweep(CONFIG, l2=[0.01, 0.1, 1.0], folds=2, X=X, y=Y),
    "path": lambda: hpcsgd.path(X, X @ [1.0, 2.0, 0.0], n_alphas=4),
    "comparison": lambda: compare_methods("sgd,ddp", CONFIG, repeats=1, X=X, y=Y),
    "account": lambda: account_of(1, 2, 4),
    "prediction": prediction,
}


@pytest.fixture(params=SHOWN)
def shown(request):
    return SHOWN[request.param]()


@pytest.mark.cases(3)
def test_html_is_a_table_and_a_picture_that_xml_can_read(shown):
    page = ElementTree.fromstring(shown._repr_html_())
    rows = page.findall("./table/tbody/tr")
    assert rows and all(len(row) == len(rows[0]) for row in rows)
    (picture,) = (e for e in page.iter() if e.tag.endswith("}svg"))
    assert any(e.tag.endswith("}path") for e in picture.iter())


@pytest.mark.cases(3)
def test_html_has_no_script_and_no_address(shown):
    text = shown._repr_html_()
    assert "<script" not in text and "<style" not in text
    assert all(link.startswith("#") for link in re.findall(r'href="([^"]*)"', text))
    assert set(re.findall(r"https?:[^\" ]+", text)) == {"http://www.w3.org/2000/svg"}


def test_names_of_an_html_page_are_no_names_of_another():
    texts = [SHOWN[name]()._repr_html_() for name in ("result", "path")]
    one, other = (set(re.findall(r'id="([^"]+)"', text)) for text in texts)
    assert one and not one & other


@pytest.mark.cases(3)
def test_pictures_follow_the_colour_of_the_page(shown):
    text = shown._repr_html_()
    assert "currentColor" in text and figures.TEXT not in text


def test_without_matplotlib_there_is_the_table_alone(shown, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert "<table>" in shown._repr_html_() and "<svg" not in shown._repr_html_()
    with pytest.raises(MissingPackage, match=r"hpcsgd\[plot\]"):
        shown.plot()


def test_plot_draws_on_the_axes_that_it_is_given(shown):
    axes = Figure().subplots()
    assert shown.plot(ax=axes) is axes
    assert axes.lines and axes.get_xlabel() and axes.get_ylabel()


def test_plot_makes_a_figure_where_there_is_none():
    from matplotlib import pyplot

    pyplot.switch_backend("Agg")
    before = pyplot.get_fignums()
    assert isinstance(result().plot(), Axes)
    (number,) = set(pyplot.get_fignums()) - set(before)
    pyplot.close(number)


def test_frames_have_a_row_for_each_thing():
    found = {name: len(make().to_frame()) for name, make in SHOWN.items()}
    assert found == {
        "result": 4, "sweep": 9, "path": 4, "comparison": 2, "account": 3,
        "prediction": 5,
    }  # fmt: skip


def test_without_pandas_a_sentence_names_the_extra(shown, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingPackage, match=r"pip install 'hpcsgd\[pandas\]'"):
        shown.to_frame()


def test_coefficients_are_named_as_the_columns_of_a_frame():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(X, columns=["age", "size", "depth"])
    found = hpcsgd.fit(frame, "logistic", Y)
    assert found.to_frame("coefficients").index.tolist() == ["age", "size", "depth"]
    path = hpcsgd.path(frame, Y, n_alphas=3)
    assert path.to_frame("coefficients").columns.tolist() == ["age", "size", "depth"]
    model = hpcsgd.LogisticRegression().fit(frame, Y)
    values = model.to_frame()["coefficient"]
    assert values["size"] == model.coef_[0, 1] and values.index[2] == "depth"
    labels = model.plot(ax=Figure().subplots()).get_yticklabels()
    assert {label.get_text() for label in labels} == {"age", "size", "depth"}


def test_an_estimator_keeps_the_diagram_of_scikit_learn_and_draws_its_history():
    model = hpcsgd.LogisticRegression().fit(X, np.arange(120) % 3)
    assert "sk-top-container" in model._repr_html_()
    assert len(model.to_frame("history")) == len(model.history_)
    assert model.plot("history", ax=Figure().subplots()).lines
    assert model.to_frame().columns.tolist() == ["0", "1", "2"]


def test_text_from_outside_is_escaped():
    made = result()
    config = {**made.config, "problem": {"family": EVIL}}
    text = replace(made, config=config)._repr_html_()
    assert "<script" not in text and "&lt;script" in text
    ElementTree.fromstring(text)


@pytest.mark.parametrize("call", ["to_frame", "plot"])
def test_an_unknown_part_is_refused_with_those_there_are(call):
    with pytest.raises(ConfigError, match="known: history, coefficients"):
        getattr(result(), call)("weights")
    with pytest.raises(ConfigError, match="known: epoch, seconds, words, messages"):
        result().plot(over="time")


def test_a_figure_for_a_file_leaves_the_backend_of_the_program(tmp_path):
    from matplotlib import pyplot

    pyplot.switch_backend("svg")
    figures.loss_curves({"": {"a": result().history}}, tmp_path / "loss.png")
    assert pyplot.get_backend() == "svg"


def test_the_picture_of_a_prediction_has_the_times_of_its_document():
    made = prediction()
    drawn = {
        line.get_label(): line.get_xydata().tolist()
        for line in made.plot(ax=Figure().subplots()).lines
    }
    points = made.as_dict()["points"]
    assert drawn == {
        name: [[point["ranks"], 1e6 * point[key]] for point in points]
        for name, key in (("SGD", "sgd_seconds"), ("CA-SGD", "ca_sgd_seconds"))
    }
    frame = made.to_frame()
    assert frame.index.tolist() == [1, 2, 4, 64, 1024]
    for name in ("sgd_seconds", "product", "speed_up_one_rank", "limit"):
        assert frame[name].tolist() == [point[name] for point in points]


def test_the_table_of_a_prediction_says_how_many_figures_are_stated():
    assert "0 figures of this machine are measured, 16 stated" in (
        prediction()._repr_html_()
    )


def test_the_table_of_a_study_says_what_failed_and_what_is_missing():
    bad = {"key": "sgd/p2/r1", "status": "failed", "error": "a rank was killed"}
    account = replace(account_of(1, 2), failures=(bad,), missing=3)
    text = account._repr_html_()
    assert "3 runs are missing; sgd/p2/r1 failed: a rank was killed" in text


# Progress.


class Cells:
    """What a notebook has shown: each line with all that was written over it."""

    def __init__(self, monkeypatch):
        self.lines = []
        package, module = type(sys)("IPython"), type(sys)("IPython.display")
        package.display, module.display = module, self.display
        monkeypatch.setitem(sys.modules, "IPython", package)
        monkeypatch.setattr(progress, "in_notebook", lambda: True)
        monkeypatch.setattr("hpcsgd.estimators.fit.in_notebook", lambda: True)
        monkeypatch.setattr("hpcsgd.studies.run.in_notebook", lambda: True)
        comparisons = sys.modules["hpcsgd.studies.compare"]
        monkeypatch.setattr(comparisons, "in_notebook", lambda: True)

    def display(self, data, raw, display_id):
        assert raw and display_id
        self.lines.append([data])
        return self

    def update(self, data, raw):
        self.lines[-1].append(data)


def test_a_notebook_has_one_line_that_is_written_over(monkeypatch, capsys):
    cells = Cells(monkeypatch)
    hpcsgd.LogisticRegression(verbose=1).fit(X, Y)
    (updates,) = cells.lines
    assert len(updates) > 2 and "F " in updates[-1]["text/plain"]
    assert "<progress" in updates[-1]["text/html"]
    assert capsys.readouterr().out == ""


def test_the_bar_of_a_notebook_ends_full(monkeypatch):
    cells = Cells(monkeypatch)
    hpcsgd.train(CONFIG, X=X, y=Y, callbacks=progress.make_progress(0.0))
    ((*_, last),) = cells.lines
    assert last["text/plain"].startswith("100 %  loss 0.")


def test_a_study_in_a_notebook_shows_the_run_that_is_under_way(monkeypatch, tmp_path):
    cells = Cells(monkeypatch)
    monkeypatch.setattr(
        "hpcsgd.studies.run.launch", lambda *_: RunEnd(1, None, "no", 1.0, 1.0)
    )
    write_synthetic(tmp_path / "rows.h5", "susy", 64, 18, 0)
    asked = {"methods": ["sgd"], "repeats": 2}
    strong(tmp_path / "rows.h5", [1], tmp_path / "study", CONFIG, **asked)
    (updates,) = cells.lines
    first, second, last = (update["text/plain"] for update in updates)
    assert re.fullmatch(r"0 %  1 of 2: sgd/\S+/r1", first)
    assert re.fullmatch(r"50 %  2 of 2: sgd/\S+/r2", second)
    assert last.startswith("100 %  2 of 2: ") and last.endswith(
        "failed after 1.0 s: no"
    )


def test_a_comparison_in_a_notebook_shows_the_run_that_is_under_way(monkeypatch):
    cells = Cells(monkeypatch)
    compare_methods("sgd,ddp", CONFIG, repeats=2, X=X, y=Y)
    (updates,) = cells.lines
    assert [update["text/plain"] for update in updates] == [
        "0 %  sgd, run 1 of 2",
        "25 %  ddp, run 1 of 2",
        "50 %  sgd, run 2 of 2",
        "75 %  ddp, run 2 of 2",
        "100 %  2 settings, 2 runs each",
    ]


def test_a_study_without_a_notebook_shows_no_line(monkeypatch, tmp_path):
    cells = Cells(monkeypatch)
    monkeypatch.setattr("hpcsgd.studies.run.in_notebook", lambda: False)
    monkeypatch.setattr(
        "hpcsgd.studies.run.launch", lambda *_: RunEnd(1, None, "no", 1.0, 1.0)
    )
    write_synthetic(tmp_path / "rows.h5", "susy", 64, 18, 0)
    strong(tmp_path / "rows.h5", [1], tmp_path / "study", CONFIG, methods=["sgd"])
    assert cells.lines == []


def test_logs_have_plain_lines_or_none(monkeypatch, capsys):
    monkeypatch.delenv(progress.TERMINAL, raising=False)
    # A command that ran in this process before has left its handler.
    monkeypatch.setattr(logging.getLogger("hpcsgd"), "handlers", [])
    assert progress.make_progress(0.0) == []
    hpcsgd.fit(X, "logistic", Y)
    assert capsys.readouterr() == ("", "")
    hpcsgd.fit(X, "logistic", Y, callbacks=[Shown()])
    text, errors = capsys.readouterr()
    assert errors == "" and not re.search(r"[\r\x1b]", text)
    assert all(line.startswith("pass ") for line in text.splitlines())


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("name", ["LogisticRegression", "LinearSVC"])
def test_a_fit_that_has_not_converged_warns_once(name, classes):
    y = np.argsort(np.argsort(X[:, 1])) % classes
    model = getattr(hpcsgd, name)(max_iter=1, solver="sgd", polish=False)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        model.fit(X, y)
        assert len(heard) == 1
        hpcsgd.fit(X, "logistic", Y, epochs=1, polish=False, solver="sgd")
        assert len(heard) == 2

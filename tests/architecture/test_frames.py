"""How far `train` is from the first sum of a product, and who changes settings."""

import ast
import gc
import logging
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import hpcsgd
from hpcsgd.comm.threads import ThreadCommunicator, run_ranks
from hpcsgd.config import RunConfig
from hpcsgd.products.gram import Gram
from tests.helpers.harness import make_problem

PACKAGE = Path(hpcsgd.__file__).parent
MOST_FRAMES, MOST_FILES_OF_FRAMES = 10, 8
MOST_FILES = 65  # with a call in them, of the 220 of the package
CONFIG = {
    "products": {"kind": "gram"},
    "schedule": {"batch": 8, "steps": 4, "epochs": 1},
    "rate": {"value": 0.1},
    "grid": {"replicas": 1, "members": 2},
}


class Profile:
    """Collects the calls of this thread up to the first sum of a product."""

    def __init__(self):
        self.files = set()
        self.has_begun = False  # whether `train` was entered
        self.is_product = False
        self.stack = []  # (file, function), the innermost first

    def __call__(self, frame, event, arg):
        code = frame.f_code
        if event != "call" or self.stack or not _is_ours(code):
            return
        self.has_begun |= code is hpcsgd.train.__wrapped__.__code__
        if not self.has_begun:
            return
        self.files.add(code.co_filename)
        self.is_product |= code is Gram.advance.__code__
        if self.is_product and code is ThreadCommunicator.begin.__code__:
            self.stack = list(_callers(frame))


def _is_ours(code):
    return Path(code.co_filename).is_relative_to(PACKAGE) and code.co_name != "<module>"


def _callers(frame):
    """The frames of the package from here up to `train`."""
    while frame is not None:
        if _is_ours(frame.f_code):
            yield frame.f_code.co_filename, frame.f_code.co_name
            if frame.f_code.co_name == "train" and "api" in frame.f_code.co_filename:
                return
        frame = frame.f_back


def profiled():
    problem = make_problem("logistic", n=60, d=6)

    def train(world):
        return hpcsgd.train(CONFIG, X=problem.X, y=problem.y, world=world)

    def on_rank(world):
        profile = Profile()
        sys.setprofile(profile)
        try:
            train(world)
        finally:
            sys.setprofile(None)
        return profile

    run_ranks(2, train)  # modules are imported once
    return run_ranks(2, on_rank)[0]


@pytest.fixture
def undisturbed(monkeypatch):
    """Leaves out what other tests left: a handler of the command line, finalizers."""
    monkeypatch.setattr(logging.getLogger("hpcsgd"), "handlers", [])
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("undisturbed")
def test_the_way_to_the_first_sum_is_short():
    profile = profiled()
    assert profile.stack[-1][1] == "train", "the first sum was not seen"
    assert len(profile.stack) <= MOST_FRAMES, profile.stack
    files = {file for file, _ in profile.stack}
    assert len(files) <= MOST_FILES_OF_FRAMES, files
    assert len(profile.files) <= MOST_FILES, sorted(profile.files)


# Places where a configuration is made from another one.

SECTIONS = {field.name for field in fields(RunConfig)}
IN_A_RUN = ("api.py", "runs")
MOST_IN_A_RUN, MOST_PLACES = 5, 8


def rebuilding_places():
    """Yield file and line of every call that makes a RunConfig from another one."""
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _rebuilds(node):
                yield str(path.relative_to(PACKAGE)), node.lineno


def _rebuilds(call):
    """Whether a call makes a RunConfig; those of `rehearsal` do not count.

    A rehearsal is a run of its own, and what makes its settings is the one place in
    `config.rehearsal`.
    """
    name = getattr(call.func, "attr", getattr(call.func, "id", ""))
    if name == "with_values":
        return True
    named = {keyword.arg for keyword in call.keywords}
    is_replaced = name == "replace" and named and named <= SECTIONS
    return is_replaced and "config" in ast.unparse(call.args[0])


def test_a_configuration_is_rebuilt_in_few_places():
    """In a run before its plan alone; elsewhere for trial runs, which are others."""
    places = list(rebuilding_places())
    of_runs = [place for place in places if place[0].startswith(IN_A_RUN)]
    assert len(of_runs) <= MOST_IN_A_RUN, of_runs
    assert len(places) <= MOST_PLACES, places

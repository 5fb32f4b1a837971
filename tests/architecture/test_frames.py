"""How far it is from `train` to the first sum of a product: frames and files."""

import sys
from pathlib import Path

import hpcsgd
from hpcsgd.comm.threads import ThreadCommunicator, run_ranks
from tests.helpers.harness import make_problem

PACKAGE = Path(hpcsgd.__file__).parent
MOST_FRAMES, MOST_FILES_OF_FRAMES = 15, 8
MOST_FILES = 67  # with a call in them, of the 224 of the package
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
        self.is_product = False
        self.stack = []  # (file, function), the innermost first

    def __call__(self, frame, event, arg):
        code = frame.f_code
        if event != "call" or self.stack or not _is_ours(code):
            return
        self.files.add(code.co_filename)
        self.is_product |= Path(code.co_filename).name == "gram.py"
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


def test_the_way_to_the_first_sum_is_short():
    profile = profiled()
    assert profile.stack[-1][1] == "train", "the first sum was not seen"
    assert len(profile.stack) <= MOST_FRAMES, profile.stack
    files = {file for file, _ in profile.stack}
    assert len(files) <= MOST_FILES_OF_FRAMES, files
    assert len(profile.files) <= MOST_FILES, sorted(profile.files)

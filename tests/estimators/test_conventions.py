"""scikit-learn's own checks, all of them, on every estimator."""

import os
import subprocess
import sys
from unittest import SkipTest

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from tests.helpers.limits import HANG
from tests.helpers.zoo import ALL, CHECKED, CHOOSING, NAMED

ARRAY_API = "SCIPY_ARRAY_API"
# Asks each estimator for the record of every check, in a process that has the switch
# of SciPy without which scikit-learn skips the last check.
RECORDS = """
import warnings
warnings.simplefilter("ignore")
from sklearn.utils.estimator_checks import check_estimator
from tests.helpers.zoo import NAMED
for estimator in NAMED:
    found = check_estimator(estimator, on_skip=None, on_fail=None)
    bad = [r["check_name"] for r in found if r["status"] != "passed"]
    print(type(estimator).__name__, len(found), bad)
"""


def suited(estimators):
    """Return the estimators whose targets may be those of the checks."""
    return [one for one in estimators if one.family in CHECKED]


@pytest.fixture(autouse=True)
def array_api(monkeypatch):
    """Without it scikit-learn skips `check_array_api_input`."""
    monkeypatch.setenv(ARRAY_API, "1")


def passes(estimator, check):
    """A check that is skipped says nothing."""
    try:
        check(estimator)
    except SkipTest as skipped:
        pytest.fail(f"skipped: {skipped}")


@pytest.mark.cases(150)
@parametrize_with_checks([*suited(ALL), CHOOSING[0]])
def test_every_check_passes(estimator, check):
    passes(estimator, check)


@pytest.mark.full
@parametrize_with_checks(suited(CHOOSING[1:]))
def test_every_check_passes_of_all_that_choose(estimator, check):
    passes(estimator, check)


@pytest.mark.full
def test_records_say_passed_alone():
    """In a process of its own: the switch is there before SciPy is."""
    done = subprocess.run(
        [sys.executable, "-c", RECORDS],
        env={**os.environ, ARRAY_API: "1"},
        capture_output=True,
        text=True,
        timeout=HANG,
    )
    lines = done.stdout.splitlines()
    assert len(lines) == len(NAMED), done.stderr
    for line in lines:
        name, count, bad = line.split(maxsplit=2)
        assert bad == "[]" and int(count) > 50, line

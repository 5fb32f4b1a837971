"""Every script of the gallery runs, ends in a picture and a sentence, and is right."""

import ast

import pytest

from tests.helpers.gallery import GALLERY, SCRIPTS, check_ended, parsed, run_script

LINES = 60
# script -> what its numbers have to be
CLAIMS = {
    "beside_sklearn": lambda n: n["worst"] < 1e-4,
    "compressed_gradients": lambda n: n["fewer"] > 10,
    "cross_validation": lambda n: n["accuracy"] > 0.75,
    "exactness": lambda n: 0 < n["difference"] < 1e-12,
    "first_fit": lambda n: n["accuracy"] > 0.93,
    "grid": lambda n: n["fewer"] > 1.2,
    "l1_path": lambda n: n["gap"] < 2e-9,
    "local_sgd": lambda n: abs(n["gap"]) < 0.01,
    "own_family": lambda n: abs(n["robust"] - 0.5) < 0.1 < abs(n["squares"] - 0.5),
    "paper_recipes": lambda n: n["worst"] < 0.5,  # per cent
    "poisson_rates": lambda n: n["error"] < 0.08 < 0.2 < n["wrong"],
    "precision_formats": lambda n: 0.2 < n["saved"] < 0.3,
    "resume": lambda n: n["same"] == 1 and n["last"] < 12,
    "scaling_study": lambda n: n["fewer"] > 12,
    "streaming": lambda n: n["bits"] == 1 and n["streams"] == 1,
    "sweep": lambda n: n["difference"] < 1e-4 and n["models"] == 64,
    "what_s_buys": lambda n: n["fewer"] >= 8 and n["gain"] > 1.5,
}


def test_every_script_has_a_claim_and_there_are_enough():
    assert set(SCRIPTS) == set(CLAIMS)
    assert len(SCRIPTS) >= 14
    assert (GALLERY / "GALLERY_HEADER.rst").read_text().startswith("Gallery\n=======\n")


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_script_is_short_and_explains_itself(name):
    text, tree = SCRIPTS[name].read_text(), parsed(name)
    assert len(text.splitlines()) <= LINES
    title, rule, *rest = (ast.get_docstring(tree) or "").splitlines()
    assert rule == "=" * len(title) and len(" ".join(rest).split()) > 10
    assert text.count("\n# %%\n# ") >= 2
    *_, sentence, show = (ast.unparse(node) for node in tree.body)
    assert sentence.startswith("print(") and "{" in sentence
    assert show == "plt.show()"


@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_a_script_runs_and_its_claim_is_true(name, tmp_path):
    ended = run_script(name, tmp_path)
    check_ended(ended)
    assert CLAIMS[name](ended.numbers), (ended.sentence, ended.numbers)

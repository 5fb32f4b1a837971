"""`hpcsgd compare --methods`: rows by name in one table, one launch, one document."""

import json

import pytest

from hpcsgd.config import METHODS
from tests.helpers.command_line import only_json
from tests.helpers.comparisons import BASE, refused
from tests.helpers.limits import HANG


def compare(data, names, *more):
    return ["compare", "--data", data, *BASE, "--methods", names, *more]


def test_all_methods_in_one_document(hpcsgd, susy, tmp_path):
    """Every row by its name; words as in a run of its own; figure and page."""
    short = ("--batch", 200, "--epochs", 1)
    more = ("--ranks", 2, "--repeats", 1, "--network", "lan", "--quiet", *short)
    drawn = ("--plot", "curve.png", "--out", "c", "--json")
    said = only_json(hpcsgd(*compare(susy, "all", *more, *drawn), timeout=HANG))
    rows = {row["method"]: row for row in said["rows"]}
    assert list(rows) == ["sgd", "casgd", "hybrid", *METHODS]
    assert said["network"] == "lan" and said["baseline"] == "bf16"
    assert rows["hybrid"]["status"] == "refused"
    assert "not prime" in rows["hybrid"]["reason"]
    flags = ("--method", "ddp", "--grid", "2x1", "--products", "direct")
    half = (*flags, "--batch", 100, "--epochs", 1, "--ranks", 2, "--json")
    alone = only_json(hpcsgd("train", "--data", susy, *BASE, *half))
    sent = alone["ledger"]["agreement"]
    row = rows["ddp"]
    assert (row["messages"], row["words"]) == (sent["calls"], sent["words"])
    assert row["bytes"] == sent["bytes"] and row["loss"] == alone["loss"]
    kept = json.loads((tmp_path / "c" / "compare.json").read_text())
    assert kept == said
    assert (tmp_path / "c" / "bf16-1" / "result.json").exists()
    assert not (tmp_path / "c" / "hybrid-1").exists()
    for figure in (tmp_path / "c" / "compare.png", tmp_path / "curve.png"):
        assert figure.read_bytes().startswith(b"\x89PNG")


def test_the_table_marks_baseline_and_refusals(hpcsgd, susy):
    setting = ("--setting", "mine: products=gram steps=2")
    done = hpcsgd(*compare(susy, "hybrid,ddp,bf16,casgd", "--repeats", 1, *setting))
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines() if "fp64" in line]
    assert [row[0] for row in rows] == ["casgd", "ddp", "bf16", "mine"]
    assert rows[2][1] == "+" and "against ddp" in done.stdout
    assert "+ the baseline of methods that send fewer bytes" in done.stdout
    assert "hybrid: refused: of 1 rank there is no grid" in done.stdout


def test_a_method_that_diverges_is_said_and_counts(hpcsgd, susy):
    more = ("--repeats", 1, "--rate", 1e300, "--no-fall-back", "--json", "-q")
    done = hpcsgd(*compare(susy, "sgd,hybrid", *more))
    assert done.returncode == 1
    rows = json.loads(done.stdout)["rows"]
    assert [row["status"] for row in rows] == ["diverged", "refused"]
    assert "sgd diverged; lower its rate" in done.stderr


WRONG = [
    (("nonsense",), ["--methods nonsense", "known: all, sgd", "separate them"]),
    (("all", "--ranks", 3), ["3 replicas", "global batch", "32 rows", "--batch 33"]),
    (("all", "--grid", "2x1", "--ranks", 2), ["leave --grid out"]),
    (("hybrid", "--ranks", 2), ["none of the requested methods", "not prime"]),
    (("sgd", "--setting", "sgd: steps=2"), ["two settings", "'sgd'"]),
]


@pytest.mark.parametrize("words, said", WRONG, ids=lambda x: " ".join(map(str, x)))
def test_wrong_methods(hpcsgd, susy, words, said):
    refused(hpcsgd(*compare(susy, *words)), *said)


def test_info_says_what_methods_there_are(hpcsgd):
    said = json.loads(hpcsgd("info", "--json").stdout)["methods"]
    assert list(said) == ["sgd", "casgd", "hybrid", *METHODS]
    assert said["topk"] == METHODS["topk"].says
    lines = hpcsgd("info").stdout.splitlines()
    shown = [line.split()[1] for line in lines if line.startswith("method ")]
    assert shown == list(said)


def test_a_race_and_networks_in_one_table(hpcsgd, susy):
    """Rates, losses at equal cost and seconds behind two networks; one launch."""
    slow = "alpha=1e-3,bandwidth=1e9"
    more = ("--race", "--networks", "lan", slow, "--repeats", 1, "--ranks", 2, "-q")
    done = hpcsgd(*compare(susy, "sgd,local", *more), timeout=HANG)
    assert done.returncode == 0, done.stderr
    assert "Loss at equal cost: time" in done.stdout
    assert "s behind lan" in done.stdout
    rows = [line.split() for line in done.stdout.splitlines() if "." in line]
    assert sum(row[0] in ("sgd", "local") for row in rows) == 4  # in both tables
    said = only_json(hpcsgd(*compare(susy, "sgd,local", *more, "--json"), timeout=HANG))
    for row in said["rows"]:
        losses = dict(row["losses_of_rates"])
        assert losses[row["rate"]] == min(losses.values()) == row["loss"]
        assert set(row["seconds_behind"]) == {"lan", slow}
    assert said["equal_bytes"] == min(row["bytes"] for row in said["rows"])


def test_an_unknown_network_is_refused_before_anything_runs(hpcsgd, susy):
    done = hpcsgd(*compare(susy, "sgd", "--networks", "lan", "wan"))
    refused(done, "--network wan", "hpc, lan, cloud")

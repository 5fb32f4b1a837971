"""`hpcsgd sweep`: a table on the terminal, a run folder, going on."""

import csv
import json


def flags(susy, *more):
    return (
        *("sweep", "--data", susy, "--batch", 32, "--steps", 4, "--intercept"),
        *("--rates", "0.1,0.5", "--l2", "1e-5,1e-2", "--quiet", *more),
    )


def test_a_sweep_leaves_a_table_and_its_best(hpcsgd, susy, tmp_path):
    done = hpcsgd(*flags(susy, "--folds", 3, "--out", "run", "--ranks", 2))
    assert done.returncode == 0, done.stderr
    assert "best          model" in done.stdout and "16 in" in done.stdout
    rows = list(csv.DictReader((tmp_path / "run" / "sweep.csv").open()))
    said = json.loads((tmp_path / "run" / "sweep.json").read_text())
    assert len(rows) == len(said["models"]) == 16
    assert [r["fold"] for r in rows[:4]] == ["0", "1", "2", ""]
    whole = [m for m in said["models"] if m["fold"] is None]
    best = min(whole, key=lambda m: m["mean_held"])
    assert said["best"] == best["model"]
    assert hpcsgd("predict", "run/best", susy, "--out", "p.npy").returncode == 0
    figures = json.loads(hpcsgd("evaluate", "run/best", susy, "--json").stdout)
    assert abs(figures["objective"] - best["loss"]) < 1e-5 * best["loss"]
    seen = json.loads(hpcsgd("inspect", "run", "--json").stdout)
    assert seen["models"] == 16 and seen["settings"]["sweep.folds"] == 3
    refused = hpcsgd("predict", "run", susy, "--out", "p.npy")
    assert refused.returncode == 2 and "best/ of the run folder" in refused.stderr
    refused = hpcsgd("verify", "run")
    assert refused.returncode == 2 and "replays one model" in refused.stderr


def test_a_best_that_learnt_nothing_is_said(hpcsgd, susy):
    """All rates are too large: the least loss is above that of the beginning."""
    asked = ("--rates", "100,300", "--intercept", "--quiet", "--no-fall-back")
    done = hpcsgd("sweep", "--data", susy, *asked)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("worse") == 2
    assert "ended above where it began; use smaller rates" in done.stdout


def test_a_sweep_goes_on(hpcsgd, susy, tmp_path):
    """Two epochs in two calls are two epochs in one, bit for bit."""
    hashes = []
    for folder, epochs in (("whole", [2]), ("parts", [1, 2])):
        for count in epochs:
            more = ("--out", folder, "--resume", "auto", "--epochs", count, "--json")
            done = hpcsgd(*flags(susy, *more))
            assert done.returncode == 0, done.stderr
        run = json.loads(done.stdout)["run"]
        hashes.append(run["weights_sha256"])
    assert run["resumes"] == 1
    assert hashes[0] == hashes[1]
    other = hpcsgd(
        *("sweep", "--data", susy, "--batch", 32, "--steps", 4, "--intercept"),
        *("--rates", "0.1,0.7", "--out", "parts", "--resume", "auto"),
    )
    assert other.returncode == 2 and "[sweep]" in other.stderr


def test_what_is_asked_for_is_checked(hpcsgd, susy):
    one = hpcsgd("sweep", "--data", susy)
    assert one.returncode == 2 and "needs more than one model" in one.stderr
    bad = hpcsgd("sweep", "--data", susy, "--l2", "a,b")
    assert bad.returncode == 2 and "with commas" in bad.stderr
    train = hpcsgd("train", "--data", susy, "--set", "sweep.l2=[0.1, 0.2]")
    assert train.returncode == 2 and "use hpcsgd.sweep" in train.stderr


def test_train_reports_rows_held_out(hpcsgd, susy):
    done = hpcsgd("train", "--data", susy, "--hold-out", 0.2, "--json", "--quiet")
    said = json.loads(done.stdout)
    assert said["held"] == said["history"][-1]["held"] > 0

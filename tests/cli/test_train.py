"""`hpcsgd train` from a process: output, folder, bits, ranks."""

import json
import os
import pty
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hpcsgd.config import RunConfig, read_toml
from hpcsgd.data.convert import parsers
from hpcsgd.estimators.fit import fit
from hpcsgd.runs.predict import predict
from hpcsgd.runs.result import load_result
from tests.helpers.command_line import only_json
from tests.helpers.limits import HANG

DEMANDED = {
    *("status", "loss", "iterations", "exchanges", "schedule", "ledger"),
    *("seconds_total", "seconds_setup", "seconds_evaluate", "seconds_wall"),
    *("seconds_by_phase", "rows_per_second", "peak_rss_bytes", "weights_sha256"),
}


def flags(data, *more):
    return [
        *("train", "--data", data, "--family", "logistic", "--batch", 32),
        *("--steps", 4, "--precision", "fp64", "--rate", 0.5, "--l2", 1e-4),
        *("--epochs", 2, "--seed", 0, *more),
    ]


def test_json_is_all_of_standard_output_and_complete(interpreter, susy):
    said = only_json(interpreter(*flags(susy, "--products", "gram", "--json")))
    assert set(said) >= DEMANDED
    assert said["status"] == "completed"
    assert said["iterations"] == 2 * 63
    assert said["exchanges"] == 2 * 16
    assert {"batch", "steps", "period"} <= set(said["schedule"])
    assert set(said["ledger"]) == {"products", "agreement", "evaluate", "control"}
    for entry in said["ledger"].values():
        assert set(entry) == {"calls", "words", "bytes", "wire_bytes", "seconds"}
    assert said["loss"] < said["history"][0]["loss"] == pytest.approx(np.log(2))


def test_two_real_ranks_agree_with_one(hpcsgd, susy):
    alone = only_json(hpcsgd(*flags(susy, "--products", "direct", "--json")))
    both = flags(susy, "--products", "gram", "--ranks", 2, "--grid", "1x2", "--json")
    shared = only_json(hpcsgd(*both))
    assert shared["loss"] == pytest.approx(alone["loss"], rel=1e-12)
    assert shared["ledger"]["products"]["calls"] == shared["exchanges"] == 32


def test_a_plan_is_what_the_run_does_and_writes_nothing(hpcsgd, susy, tmp_path):
    command = flags(susy, "--products", "gram", "--ranks", 2, "--json", "--out", "run")
    plan = only_json(hpcsgd(*command, "--plan"))
    assert list(tmp_path.iterdir()) == []
    said = only_json(hpcsgd(*command))
    assert plan["last_exchange"] == said["exchanges"]
    for purpose in ("products", "agreement"):
        count = plan["sends"][purpose]
        assert count == {key: said["ledger"][purpose][key] for key in count}
    assert plan["settings"]["schedule"]["steps"]["source"] == "named"


def test_the_parameter_of_a_family_is_a_flag(hpcsgd, tmp_path):
    """It is a row of the plan, a setting of the saved model, and refused elsewhere."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(80, 3)), rng.gamma(1.0, size=80) * rng.integers(0, 2, 80)
    np.savez(tmp_path / "rows.npz", X=X, y=y)
    hpcsgd("data", "convert", "rows.npz", "rows.h5")
    flags = ("--data", "rows.h5", "--family", "tweedie", "--power", "1.7")
    plan = only_json(hpcsgd("train", *flags, "--plan", "--json"))
    power = plan["settings"]["problem"]["power"]
    assert power["value"] == 1.7 and power["source"] == "named"
    hpcsgd("train", *flags, "--out", "run")
    seen = only_json(hpcsgd("evaluate", "run", "rows.h5", "--json"))
    mean = predict(load_result(tmp_path / "run"), X)
    excess = mean**0.3 / 0.3 + y * mean**-0.7 / 0.7 - y**0.3 / (0.3 * 0.7)
    assert seen["family"] == "tweedie"
    assert seen["mean_deviance"] == pytest.approx(2 * excess.mean(), rel=1e-5)
    refused = hpcsgd("train", "--data", "rows.h5", "--power", "1.7")
    assert refused.returncode and "power = 1.7 is for" in refused.stderr


@pytest.mark.full
def test_the_same_command_gives_the_same_bits(hpcsgd, susy):
    command = flags(susy, "--ranks", 2, "--products", "gram", "--json")
    first, second = only_json(hpcsgd(*command)), only_json(hpcsgd(*command))
    assert first["weights_sha256"] == second["weights_sha256"]


@pytest.mark.full
def test_reproducible_sums_are_two_calls(hpcsgd, susy):
    command = flags(
        susy, "--ranks", 2, "--products", "gram", "--reproducible", "--json"
    )
    said = only_json(hpcsgd(*command))
    assert said["ledger"]["products"]["calls"] == 2 * said["exchanges"]


def test_the_run_folder(hpcsgd, susy, tmp_path):
    said = only_json(hpcsgd(*flags(susy, "--out", "run", "--json")))
    folder = tmp_path / "run"
    names = {"resolved.toml", "history.jsonl", "result.h5", "result.json"}
    names |= {"checkpoints", "exchanges.h5"}
    assert {p.name for p in folder.iterdir()} == names
    config = RunConfig.parse(read_toml(folder / "resolved.toml"))
    assert config.schedule.steps == 4
    lines = (folder / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1, 2]
    result = load_result(folder)
    assert result.loss == said["loss"]
    assert result.weights_sha256 == said["weights_sha256"]


def test_an_earlier_run_is_put_aside(hpcsgd, susy, tmp_path):
    for seed in (1, 2, 3):
        only_json(hpcsgd(*flags(susy, "--out", "run", "--json", "--seed", seed)))
    seeds = [
        read_toml(tmp_path / place / "resolved.toml")["sampling"]["seed"]
        for place in ("run/earlier-1", "run/earlier-2", "run")
    ]
    assert seeds == [1, 2, 3]


def test_a_resolved_file_repeats_the_run(hpcsgd, susy):
    first = only_json(hpcsgd(*flags(susy, "--out", "run", "--json")))
    again = only_json(hpcsgd("train", "run/resolved.toml", "--json"))
    assert again["weights_sha256"] == first["weights_sha256"]


@pytest.mark.skipif(os.name != "posix", reason="locks are those of POSIX")
@pytest.mark.full
def test_ranks_read_a_file_without_a_lock_and_leave_it_alone(hpcsgd, susy):
    """Somebody holds the only lock there is; every byte and date stays."""
    import fcntl

    before, looked = susy.read_bytes(), susy.stat()
    with open(susy, "rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        only_json(hpcsgd("train", "--data", susy, "--ranks", 3, "--json"))
        only_json(hpcsgd("data", "inspect", susy, "--json"))
    after = susy.stat()
    assert susy.read_bytes() == before
    assert (after.st_mtime_ns, after.st_ino) == (looked.st_mtime_ns, looked.st_ino)


def test_a_person_reads_a_summary(hpcsgd, susy):
    done = hpcsgd(*flags(susy))
    assert done.returncode == 0
    assert "global 32" in done.stdout and "completed" in done.stdout


def test_set_lies_over_the_file_and_flags_over_both(hpcsgd, susy, tmp_path):
    (tmp_path / "run.toml").write_text("[schedule]\nbatch = 8\nsteps = 2\nepochs = 1\n")
    said = only_json(
        hpcsgd(
            *("train", "run.toml", "--data", susy, "--json"),
            *("--set", "schedule.steps=5", "--set", "schedule.batch=9"),
            *("--batch", 10),
        )
    )
    schedule = said["schedule"]
    assert (schedule["batch"], schedule["steps"], schedule["epochs"]) == (10, 5, 1)


def test_milestones_by_flags_and_by_a_file_are_one_run(hpcsgd, susy, tmp_path):
    """Other milestones are another run, and the wrong ones one sentence."""
    asked = "--rate-kind", "milestones", "--milestones", "0.5,1", "--json"
    said = only_json(hpcsgd(*flags(susy, "--out", tmp_path / "run", *asked)))
    kept = read_toml(tmp_path / "run" / "resolved.toml")
    assert kept["rate"]["milestones"] == [0.5, 1.0] and kept["rate"]["factor"] == 0.1
    again = hpcsgd("train", tmp_path / "run" / "resolved.toml", "--json")
    assert only_json(again)["weights_sha256"] == said["weights_sha256"]
    other = only_json(hpcsgd(*flags(susy, *asked, "--set", "rate.factor=0.5")))
    assert other["weights_sha256"] != said["weights_sha256"]
    for wrong, remedy in (
        (("--rate-kind", "milestones"), "as --milestones 30,60,90"),
        (("--milestones", "1"), "is for [rate] kind = 'milestones'"),
        (("--rate-kind", "milestones", "--milestones", "2,1"), "in rising order"),
    ):
        refused = hpcsgd(*flags(susy, *wrong))
        assert refused.returncode == 2 and remedy in refused.stderr


@pytest.mark.full
def test_a_network_is_felt(hpcsgd, susy):
    """α = 5 ms for each of 32 exchanges: at least 160 ms, whatever the machine does."""
    slow = ("--network", "alpha=5e-3,bandwidth=1e9", "--ranks", 2, "--json")
    said = only_json(hpcsgd(*flags(susy, "--products", "gram", *slow)))
    assert said["ledger"]["products"]["seconds"] >= 0.16


def test_progress_lines_go_to_standard_error(hpcsgd, susy):
    slow = ("--network", "alpha=2e-3,bandwidth=1e9", "--ranks", 2, "--json")
    done = hpcsgd(*flags(susy, "--products", "gram", "--progress", "0.01", *slow))
    only_json(done)
    assert "rows/s" in done.stderr and "words/step" in done.stderr


def test_info(hpcsgd):
    said = json.loads(hpcsgd("info", "--json").stdout)
    assert {"packages", "mpi", "cpu", "kernels", "gpus", "nccl", "slurm"} <= set(said)
    assert said["kernels"]["compiled"] or said["kernels"]["why"]
    ways = {"nccl", "mpi-cuda", "mpi-host", "auto", "gpudirect rdma"}
    assert set(said["transports"]) == {*ways, "gpudirect storage"}
    assert said["transports"]["mpi-host"] == "possible"
    assert hpcsgd("info").returncode == 0


def test_info_says_which_parser_is_in_use(hpcsgd):
    here = {"compiled": parsers.available(), "why": parsers.why()}
    assert json.loads(hpcsgd("info", "--json").stdout)["parser"] == here
    off = subprocess.run(
        [sys.executable, "-m", "hpcsgd", "info", "--json"],
        env={**os.environ, "HPCSGD_NATIVE": "off"},
        capture_output=True,
        check=True,
        timeout=HANG,
    )
    said = json.loads(off.stdout)["parser"]
    assert said == {"compiled": False, "why": "switched off by HPCSGD_NATIVE"}


def test_synth_says_what_it_wrote(hpcsgd, tmp_path):
    done = hpcsgd(
        *("data", "synth", "--shape", "poisson-synth", "--rows", 300, "--cols", 20),
        *("--out", "p.h5", "--seed", 0, "--json"),
    )
    said = json.loads(done.stdout)
    assert (said["rows"], said["cols"]) == (300, 20)
    assert (tmp_path / "p.h5").stat().st_size == said["bytes"]


def test_a_terminal_sees_a_bar_and_standard_output_stays_clean(susy, tmp_path):
    """Loss, rows a second, words a step, through mpiexec; gone at the end."""
    ours, theirs = pty.openpty()
    slow = ("--network", "alpha=1e-2,bandwidth=1e9", "--ranks", 2, "--json")
    command = [sys.executable, "-m", "hpcsgd", *map(str, flags(susy, *slow))]
    with subprocess.Popen(
        [*command, "--products", "gram"],
        cwd=tmp_path,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
    ) as process:
        os.close(theirs)
        seen = b""
        while piece := _read(ours):
            seen += piece
        said = json.loads(process.stdout.read())
    assert process.returncode == 0 and said["status"] == "completed"
    for word in (b"loss 0.6", b"rows/s", b"words/step", b"%"):
        assert word in seen, seen[-500:]


def _read(terminal):
    """What is there; nothing once the other side is closed."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""


# Whose defaults a command has.


def test_a_command_that_names_data_alone_is_fitted(hpcsgd, susy, tmp_path):
    said = only_json(hpcsgd("train", "--data", susy, "--json", "--out", "run"))
    fitted = fit(str(susy))
    assert said["config"]["run"]["defaults"] == "fit"
    assert said["converged"] and not said["advice"]
    assert said["weights_sha256"] == fitted.weights_sha256
    again = only_json(hpcsgd("train", "run/resolved.toml", "--json", "--out", "again"))
    assert again["weights_sha256"] == said["weights_sha256"]
    assert hpcsgd("verify", "run").returncode in (0, 3), "3: formats decide too little"


def test_plain_is_what_any_named_setting_of_sgd_asks_for(hpcsgd, susy):
    plain = only_json(hpcsgd("train", "--data", susy, "--plain", "--json"))
    named = only_json(hpcsgd("train", "--data", susy, "--rate", 0.1, "--json"))
    assert plain["config"] == named["config"]
    assert plain["config"]["run"]["defaults"] == "sgd"
    assert plain["weights_sha256"] == named["weights_sha256"]


def test_a_run_that_ends_above_its_start_fails_in_one_sentence(hpcsgd, susy):
    ended = hpcsgd("train", "--data", susy, "--rate", 1e3, "--json", "--quiet")
    assert ended.returncode == 1
    said = json.loads(ended.stdout)
    assert said["status"] == "worse" and said["loss"] > said["history"][0]["loss"]
    assert ended.stderr.splitlines() == [f"hpcsgd: worse: {said['advice']}"]
    assert "--rate auto" in said["advice"]


def test_help_has_the_rule_and_the_way_out(hpcsgd):
    said = " ".join(hpcsgd("train", "--help").stdout.split())
    assert "names a setting of SGD" in said and "--plain" in said


def test_ranks_train_with_an_agreement_of_a_plugin(
    interpreter, susy, tmp_path, monkeypatch
):
    """A module beside the configuration, imported by every rank if it is trusted."""
    example = Path(__file__).parents[2] / "examples" / "extending" / "trimmed.py"
    shutil.copy(example, tmp_path)
    (tmp_path / "run.toml").write_text(
        '[run]\nplugins = ["trimmed"]\ndefaults = "sgd"\n'
        '[agreement]\nkind = "trimmed"\ntrim = 0\n[schedule]\nperiod = 4\n'
    )
    command = "train", "run.toml", "--data", susy, "--ranks", 2, "--json"
    refused = interpreter(*command)
    assert refused.returncode == 2
    assert "lies in the current directory; add the directory to" in refused.stderr
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    said = only_json(interpreter(*command))
    assert said["grid"]["replicas"] == 2
    assert said["config"]["agreement"]["kind"] == "trimmed"
    assert said["ledger"]["agreement"]["calls"] == -(-said["exchanges"] // 4)

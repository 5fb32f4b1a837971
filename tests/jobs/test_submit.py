"""hpcsgd jobs render, submit and cancel, with programs of Slurm that are played."""

import json
import os
from pathlib import Path

import pytest

from hpcsgd.cli import main
from hpcsgd.jobs.queue import records
from hpcsgd.jobs.sites import load_site
from hpcsgd.jobs.submit import submit
from tests.jobs.examples import example

TRAIN = ["--site", "generic-cpu", "--out", "jobs/a", "--tasks", "4"]
REST = ["--", "--data", "epsilon.h5", "--rate", "8"]


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    """A folder of one's own to stand in."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def jobs(*words):
    return main(["jobs", *words])


def test_render_prints_what_submit_sends(fakes, capsys, workplace):
    assert jobs("render", "train", *TRAIN, *REST) == 0
    rendered = capsys.readouterr().out
    assert not (workplace / "jobs").exists()
    assert jobs("submit", "train", *TRAIN, *REST) == 0
    (call,) = fakes.calls("sbatch")
    assert call[0] == "--parsable" and Path(call[1]).read_text() == rendered
    assert (workplace / "jobs/a/job-4711.sbatch").read_text() == rendered


def test_submit_prints_the_number_alone_and_records(fakes, capsys, workplace):
    assert jobs("submit", "train", *TRAIN, "--after", "12:any", *REST) == 0
    assert capsys.readouterr().out == "4711\n"
    (record,) = records(workplace / "jobs" / "a")
    assert (record["event"], record["job"], record["name"]) == (
        "submitted",
        "4711",
        "a",
    )
    assert record["resources"]["tasks"] == 4 and record["after"] == ["12:any"]
    (step,) = record["steps"]
    assert step["command"] == [
        "train", *REST[1:], "--out", "jobs/a/run", "--resume", "auto",
    ]  # fmt: skip
    assert step["run"] == "jobs/a/run" and record["workplace"] == str(workplace)
    for name in ("log", "state"):
        assert (workplace / "jobs" / "a" / name).is_dir()


def test_the_number_of_a_cluster_among_several(fakes, capsys):
    fakes.answer("sbatch", out="4712;here\n")
    assert jobs("submit", "train", *TRAIN, *REST) == 0
    assert capsys.readouterr().out == "4712\n"


def test_json_and_dry_run(fakes, capsys, workplace):
    assert jobs("submit", "train", *TRAIN, "--dry-run", "--json", *REST) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["job"] is None and said["command"][0] == "sbatch"
    assert jobs("submit", "train", *TRAIN, "--dry-run", *REST) == 0
    assert capsys.readouterr().out == f"sbatch --parsable {said['script']}\n"
    assert fakes.calls("sbatch") == [] and not (workplace / "jobs").exists()
    assert jobs("submit", "train", *TRAIN, "--json", *REST) == 0
    assert json.loads(capsys.readouterr().out)["job"] == "4711"


def test_what_sbatch_refuses_is_said_and_not_recorded(fakes, capsys, workplace):
    fakes.answer("sbatch", code=1, err="sbatch: error: invalid\npartition specified\n")
    assert jobs("submit", "train", *TRAIN, *REST) == 1
    out, err = capsys.readouterr()
    assert out == "" and "sbatch: error: invalid partition specified" in err
    assert not (workplace / "jobs/a/jobs.jsonl").exists()


def test_an_answer_without_a_number_is_an_error(fakes, capsys):
    fakes.answer("sbatch", out="Submitted batch job 4711\n")
    assert jobs("submit", "train", *TRAIN, *REST) == 1
    assert "no job number" in capsys.readouterr().err


@pytest.mark.parametrize("action", ["submit", "cancel"])
def test_without_slurm_one_sentence(action, monkeypatch, tmp_path, capsys, workplace):
    monkeypatch.setenv("PATH", str(tmp_path))
    if action == "cancel":
        (workplace / "jobs/a").mkdir(parents=True)
        (workplace / "jobs/a/jobs.jsonl").write_text("")
        assert jobs("cancel", "jobs/a") == 2
    else:
        assert jobs("submit", "train", *TRAIN, *REST) == 2
    err = capsys.readouterr().err
    assert "on PATH" in err and len(err.splitlines()) == 1


def test_a_workstation_says_what_to_run(fakes, capsys, workplace):
    words = ["--site", "workstation", "--out", "jobs/a", *REST]
    assert jobs("submit", "train", *words) == 2
    script = workplace / "jobs/a/job.sbatch"
    assert f"bash {script}" in capsys.readouterr().err and script.is_file()
    assert fakes.calls("sbatch") == []


def test_variables_that_would_win_over_the_script_are_left_out(fakes, monkeypatch):
    """SBATCH_TIMELIMIT and its like win over #SBATCH lines, silently."""
    fakes.watch()
    for name in ("TIMELIMIT", "SIGNAL", "PARTITION", "ACCOUNT", "JOB_NAME", "OUTPUT"):
        monkeypatch.setenv(f"SBATCH_{name}", "other")
    assert jobs("submit", "train", *TRAIN, "--account", "m1", *REST) == 0
    seen = {k for k in fakes.environment("sbatch") if k.startswith("SBATCH_")}
    # A partition was not asked for: the user's own stays.
    assert seen == {"SBATCH_PARTITION"}


def test_variables_that_say_the_contrary_are_left_out_too(fakes, monkeypatch):
    fakes.watch()
    for name in ("NO_REQUEUE", "REQUEUE", "MEM_PER_CPU", "WAIT"):
        monkeypatch.setenv(f"SBATCH_{name}", "1")
    assert jobs("submit", "train", *TRAIN, "--memory", "4G", *REST) == 0
    seen = {k for k in fakes.environment("sbatch") if k.startswith("SBATCH_")}
    assert seen == set()


@pytest.mark.parametrize("inside", [True, False])
def test_a_job_submits_others_that_know_nothing_of_it(inside, fakes, monkeypatch):
    """A count of restarts, ranks or memory of the first would confuse the second."""
    fakes.watch()
    names = ("SLURM_RESTART_COUNT", "SLURM_MEM_PER_NODE", "PMI_RANK", "SLURM_CONF")
    for name in (*names, *(["SLURM_JOB_ID"] if inside else [])):
        monkeypatch.setenv(name, "7")
    assert jobs("submit", "train", *TRAIN, *REST) == 0
    seen = set(fakes.environment("sbatch"))
    assert seen & {*names, "SLURM_JOB_ID"} == ({"SLURM_CONF"} if inside else {*names})


def test_a_second_job_in_one_folder_waits_or_is_refused(fakes, capsys):
    assert jobs("submit", "train", *TRAIN, *REST) == 0
    fakes.answer("squeue", out="4711|RUNNING|1:00|n1|None\n")
    assert jobs("submit", "train", *TRAIN, *REST) == 2
    assert "4711" in capsys.readouterr().err
    assert jobs("submit", "train", *TRAIN, "--after", "4711:any", *REST) == 0
    fakes.answer("squeue", out="4711|COMPLETED|1:00|n1|None\n")
    assert jobs("submit", "train", *TRAIN, *REST) == 0


def test_a_folder_that_cannot_be_written_is_one_sentence(fakes, capsys, workplace):
    (workplace / "jobs").write_text("a file")
    assert jobs("submit", "train", *TRAIN, *REST) == 2
    assert "cannot write into --out" in capsys.readouterr().err
    assert fakes.calls("sbatch") == []


def test_a_sweep_is_an_array_of_all_combinations(fakes, workplace):
    vary = ["--vary", "schedule.steps=1,4", "--vary", "rate.value=0.5,1,2"]
    limits = ["--array", "0-5%2"]
    assert jobs("submit", "sweep", *TRAIN, *vary, *limits, *REST) == 0
    (record,) = records(workplace / "jobs" / "a")
    assert record["array"] == "0-5%2" and len(record["steps"]) == 6
    last = record["steps"][-1]
    assert last["run"] == "jobs/a/runs/5"
    sets = [w for w in last["command"] if "=" in w]
    assert sets == ["schedule.steps=4", "rate.value=2"]


def test_a_scaling_job_is_as_large_as_its_largest_launch(fakes, workplace):
    words = ["--site", "generic-cpu", "--out", "jobs/a", "--ranks", "1,2,8"]
    assert jobs("submit", "scaling", *words, *REST) == 0
    (record,) = records(workplace / "jobs" / "a")
    assert record["resources"]["tasks"] == 8
    assert [step["tasks"] for step in record["steps"]] == [1, 2, 8]


def test_on_gpus_where_some_are_asked_for(fakes, workplace):
    base = ["--site", "generic-gpu", "--gpus", "1", "--out"]
    assert jobs("submit", "train", *base, "a", *REST) == 0
    assert jobs("submit", "smoke", *base, "b") == 0
    assert jobs("submit", "command", *base, "c", "--", "tune", *REST[1:3]) == 0
    said = [records(workplace / name)[0]["steps"][0]["command"] for name in "abc"]
    devices = [words[words.index("--device") + 1] for words in said]
    assert devices == ["cuda"] * 3


@pytest.mark.parametrize("words", [
    ["train", "--", "--data", "x.h5", "--device", "cpu"],
    ["train", "--", "cpu.toml", "--data", "x.h5"],
    ["sweep", "--vary", "run.device=cpu,cuda", "--", "--data", "x.h5"],
    ["scaling", "--ranks", "1", "--", "--data", "x.h5", "--set", "run.device=cpu"],
    ["command", "--", "evaluate", "run", "x.h5"],
    ["convert", "--gpus", "1", "--", "x.csv", "x.h5"],
    ["smoke", "--", "--device", "cpu"],
])  # fmt: skip
def test_gpus_that_nothing_uses_are_refused(words, fakes, capsys, workplace):
    """What this site gives by default is held as well."""
    (workplace / "cpu.toml").write_text('[run]\ndevice = "cpu"\n')
    template, *rest = words
    place = ["--site", "generic-gpu", "--out", "a"]
    assert jobs("submit", template, *place, *rest) == 2
    err = capsys.readouterr().err
    assert "requests 1 GPU on each node that" in err and "--gpus 0" in err
    assert len(err.splitlines()) == 1 and fakes.calls("sbatch") == []


def test_a_conversion_holds_no_gpus_of_a_site(fakes, workplace):
    words = ["--site", "generic-gpu", "--out", "a", "--", "x.csv", "x.h5"]
    assert jobs("submit", "convert", *words) == 0
    assert records(workplace / "a")[0]["resources"]["gpus"] == 0


def test_the_file_says_where_it_runs(fakes, workplace, capsys):
    """As a flag would: GPUs of the job do not win over it, nor does a site without."""
    for device in ("cpu", "cuda"):
        (workplace / f"{device}.toml").write_text(f'[run]\ndevice = "{device}"\n')
    no_gpus = ["--site", "generic-gpu", "--gpus", "0", "--"]
    for name, words in (
        ("a", [*no_gpus, "cpu.toml"]),
        ("b", ["--site", "generic-gpu", "--gpus", "1", "--", "cuda.toml"]),
        ("c", [*no_gpus, "--set", "run.device=cpu"]),
    ):
        assert jobs("submit", "train", "--out", name, *words, *REST[1:]) == 0
        command = records(workplace / name)[0]["steps"][0]["command"]
        assert ("cuda" in command) == (name == "b")
    words = ["--site", "frontier-cpu", "--out", "d", "--", "cuda.toml", *REST[1:]]
    assert jobs("submit", "train", *words) == 2
    assert "GPUs without CUDA" in capsys.readouterr().err


@pytest.mark.parametrize("said", [
    ["serial.toml"], ["--comm", "serial"], ["--set", "run.comm=serial"],
])  # fmt: skip
def test_ranks_communicate_as_the_file_or_the_command_says(said, fakes, workplace):
    """By MPI where neither says anything: see the accepted scripts."""
    (workplace / "serial.toml").write_text('[run]\ncomm = "serial"\n')
    for template, first in (("train", []), ("command", ["train"])):
        words = [*TRAIN[:3], template, *TRAIN[4:], "--", *first, *said, *REST[1:3]]
        assert jobs("submit", template, *words) == 0
        script = (workplace / template / "job.sbatch").read_text()
        assert "--comm mpi" not in script
        assert "--comm serial" in script or "run.comm=serial" in script


def test_resources_from_a_file_and_defaults_of_a_site(fakes, workplace):
    (workplace / "big.toml").write_text('nodes = 2\ntasks = 8\naccount = "m1"\n')
    words = ["--site", "perlmutter-cpu", "--out", "a", "--resources", "big.toml"]
    assert jobs("submit", "train", *words, "--tasks", "4", *REST) == 0
    (record,) = records(workplace / "a")
    found = record["resources"]
    assert (found["nodes"], found["tasks"], found["account"]) == (2, 4, "m1")
    assert (found["constraint"], found["cpus"]) == ("cpu", 2)


@pytest.mark.parametrize(
    "words, said",
    [
        (["train", "--out", "a", *REST], "no site"),
        (["train", "--site", "nowhere", "--out", "a", *REST], "known: alps-gh200"),
        (["train", *TRAIN, "--", "--data", "x", "--baatch", "3"], "--baatch"),
        (["train", *TRAIN, "--", "--batch", "3"], "no data"),
        (["train", *TRAIN, "--", "gone.toml"], "gone.toml"),
        (["train", *TRAIN, *REST, "--resume", "x"], "resumes by itself"),
        (["sweep", *TRAIN, *REST], "needs --vary"),
        (["sweep", *TRAIN, "--vary", "steps=1", *REST], "section.key=V1,V2"),
        (["sweep", *TRAIN, "--vary", "schedule.steps=1", *REST, "--out", "b"], "--out"),
        (["sweep", *TRAIN, "--vary", "schedule.stepps=1", *REST], "stepps"),
        (["sweep", *TRAIN, "--vary", "schedule.steps=1,x", *REST], 'steps = "x"'),
        (["scaling", *TRAIN, "--ranks", "1,x", *REST], "--ranks 1,x"),
        (["convert", *TRAIN, "--", "a.txt"], "DST.h5"),
        (["command", *TRAIN], "needs a command"),
        (["train", *TRAIN, "--nodes", "0", *REST], "nodes = 0"),
        (["train", *TRAIN, "--resources", "bad.toml", *REST], "['node']"),
        (["train", *TRAIN, *REST, "--ranks", "4"], "--tasks of the job"),
    ],
)
def test_mistakes_are_heard_of_before_the_queue(words, said, fakes, capsys, workplace):
    (workplace / "bad.toml").write_text("node = 2\n")
    assert jobs("submit", *words) == 2
    out, err = capsys.readouterr()
    assert said in err and out == "" and len(err.splitlines()) == 1
    assert fakes.calls("sbatch") == []


def test_cancel_ends_what_is_active_and_writes_that_down(fakes, capsys, workplace):
    vary = ["--vary", "schedule.steps=1,2,4"]
    assert jobs("submit", "sweep", *TRAIN, *vary, *REST) == 0
    fakes.answer(
        "squeue",
        out="4711_0|COMPLETED|1:00|n1|None\n4711_1|RUNNING|1:00|n1|None\n"
        "4711_2|PENDING|0:00||Priority\n99|RUNNING|1:00|n2|None\n",
    )
    capsys.readouterr()
    assert jobs("cancel", "jobs/a") == 0
    assert capsys.readouterr().out == "4711_1\n4711_2\n"
    assert fakes.calls("scancel") == [["4711_1", "4711_2"]]
    said = [
        r["job"] for r in records(workplace / "jobs/a") if r["event"] == "cancelled"
    ]
    assert said == ["4711_1", "4711_2"]
    fakes.forget()
    assert jobs("cancel", "jobs/a", "--job", "4711_2", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"cancelled": ["4711_2"]}
    assert jobs("cancel", "jobs/a", "--job", "99") == 2
    assert "does not belong to" in capsys.readouterr().err


def test_a_scancel_that_fails_is_said(fakes, capsys):
    assert jobs("submit", "train", *TRAIN, *REST) == 0
    fakes.answer("squeue", out="4711|RUNNING|1:00|n1|None\n")
    fakes.answer("scancel", code=1, err="scancel: error: Kill job error\n")
    assert jobs("cancel", "jobs/a") == 1
    assert "Kill job error" in capsys.readouterr().err


def test_a_queue_that_does_not_answer_is_no_empty_one(fakes, capsys):
    """Or a job that runs would get a second one beside it, or not be cancelled."""
    assert jobs("submit", "train", *TRAIN, *REST) == 0
    fakes.answer("squeue", code=1, err="slurm_load_jobs error: timed out\n")
    capsys.readouterr()
    for words in (("submit", "train", *TRAIN, *REST), ("cancel", "jobs/a")):
        assert jobs(*words) == 1
        out, err = capsys.readouterr()
        assert out == "" and "squeue does not answer, so that job 4711 may" in err
    assert len(fakes.calls("sbatch")) == 1 and fakes.calls("scancel") == []


def test_a_folder_of_no_job_is_one_sentence(fakes, capsys, tmp_path):
    for action in ("status", "cancel", "collect"):
        assert jobs(action, str(tmp_path)) == 2
        assert "is not the folder of a job" in capsys.readouterr().err


def test_from_python(fakes, workplace):
    job = example("train", folder=str(workplace))
    sent = submit(job, load_site("generic-cpu"))
    assert sent.job == "4711" and sent.record["sha256"]
    assert not submit(job, load_site("generic-cpu"), dry_run=True).job


def test_new_site_is_found_by_its_name(fakes, capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("HPCSGD_SITES", str(tmp_path / "sites"))
    assert jobs("new-site", "mine", "--from", "perlmutter-gpu") == 0
    path = Path(capsys.readouterr().out.strip())
    assert path == tmp_path / "sites" / "mine.toml"
    assert load_site("mine").node == load_site("perlmutter-gpu").node
    assert load_site(str(path)).name == "mine" and "# mine" in path.read_text()
    assert "--site mine --tasks 4" in path.read_text()
    assert jobs("new-site", "mine", "--out", "own.toml") == 0
    assert "--site own.toml --tasks 4" in Path("own.toml").read_text()
    assert jobs("new-site", "mine") == 2
    assert "exists" in capsys.readouterr().err
    assert jobs("new-site", "--list") == 0
    assert str(path) in capsys.readouterr().out


def test_sites_of_the_cluster_are_between_those_of_the_user_and_of_the_package(
    fakes, capsys, tmp_path, monkeypatch
):
    """A user reads the central sites, hides one by a copy, and never writes there."""
    own, central = tmp_path / "own", tmp_path / "central"
    central.mkdir()
    for name, summary in (("ours", "of all"), ("generic-cpu", "with our account")):
        (central / f"{name}.toml").write_text(f'summary = "{summary}"\n')
    monkeypatch.setenv("HPCSGD_SITES", str(own))
    monkeypatch.setenv("HPCSGD_CENTRAL_SITES", str(central))
    assert load_site("ours").summary == "of all"
    assert load_site("generic-cpu").summary == "with our account"
    assert jobs("new-site", "ours", "--from", "ours") == 0
    assert Path(capsys.readouterr().out.strip()) == own / "ours.toml"
    (own / "ours.toml").write_text('summary = "of one"\n')
    assert load_site("ours").summary == "of one"
    assert sorted(path.name for path in central.iterdir()) == [
        "generic-cpu.toml",
        "ours.toml",
    ]


@pytest.mark.parametrize(
    "words, said",
    [
        (["a b"], "name of a site"),
        (["x", "--from", "none"], "known: "),
        ([], "needs a NAME"),
        (["x", "--out", "/proc/no/x.toml"], "cannot write"),
    ],
)
def test_sites_that_cannot_be_written(words, said, capsys):
    assert jobs("new-site", *words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, said",
    [
        (
            "sumary = 'x'",
            "['sumary'] (did you mean summary?); known: ['defaults', 'env'",
        ),
        ("[node]\ncores = 4", "['cores']"),
        ("[node]\ncpus = '4'", "type int"),
        ("[node]\ngpu = 'metal'", "cuda, rocm, none"),
        ("[launcher]\nkind = 'ssh'", "srun, task, mpiexec"),
        ("[launcher]\nmpi = 'a b'", "mpi"),
        ("[defaults]\nnode = 1", "['node']"),
        ("[limits]\nwalltime = '2h'", "walltime"),
        ("[limits.qos]\ndebug = 30", "quotes"),
        ("[[env]]\nname = 'A'\nvalue = '1'", "has no text for ['why']"),
        ("[[env]]\nname = 'A'\nvalue = '1'\nwhy = ' '", "has no text for ['why']"),
        ("[[flag]]\nvalue = ''\nwhy = 'w'", "has no text for ['value']"),
        ("[[module]]\nwhy = 'w'", "has no text for ['value']"),
        ("[[env]]\nname = 'A'\nwhy = 'w'", "has no text for ['value']"),
        ("[[env]]\nname = 'A B'\nvalue = '1'\nwhy = 'w'", "name of a variable"),
        ("[[module]]\nname = 'x'\nvalue = 'x'\nwhy = 'w'", "['name']"),
        ("env = [1]", "write it as a table"),
        ("x = ", "not TOML"),
    ],
)
def test_mistakes_in_a_site_are_named(text, said, tmp_path, fakes, capsys):
    path = tmp_path / "bad.toml"
    path.write_text(text + "\n")
    words = ["--site", str(path), "--out", "a"]
    assert jobs("render", "train", *words, *REST) == 2
    err = capsys.readouterr().err
    assert said in err and os.fspath(path) in err


def test_warnings_go_to_standard_error(fakes, capsys):
    assert jobs("render", "train", *TRAIN, "--walltime", "3", *REST) == 0
    out, err = capsys.readouterr()
    assert "hpcsgd: warning" in err and "hpcsgd: warning" not in out


LISTS = {  # on standard error with a prefix, or on standard output
    "22.05": (
        "",
        "srun: MPI types are...\nsrun: cray_shasta\nsrun: none\nsrun: pmi2\n",
    ),
    "output": ("MPI plugin types are...\n\tnone\n\tcray_shasta\n\tpmi2\n", ""),
}


@pytest.mark.parametrize("version", LISTS)
@pytest.mark.parametrize("kind, warned", [("pmi2", False), ("pmix", True)])
def test_a_pmi_that_srun_does_not_list_is_a_warning(
    kind, warned, version, fakes, capsys
):
    out, err = LISTS[version]
    fakes.answer("srun", out=out, err=err)
    words = ["submit", "train", *TRAIN, "--mpi", kind, "--dry-run", *REST]
    assert jobs(*words) == 0
    said = capsys.readouterr().err
    expected = "srun --mpi=pmix is not a PMI that srun lists here (cray_shasta"
    if version == "output":
        expected = expected.replace("(cray_shasta", "(none, cray_shasta, pmi2)")
    assert (expected in said) == warned


def test_a_srun_that_lists_nothing_is_no_warning(fakes, capsys):
    fakes.answer("srun", code=1, err="srun: error: no\n")
    assert jobs("submit", "train", *TRAIN, "--dry-run", *REST) == 0
    assert "PMI" not in capsys.readouterr().err

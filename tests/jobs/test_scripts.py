"""Rendered scripts, run by bash under a Slurm that is played."""

import json
import shlex

import pytest

from hpcsgd.cli.parser import make_parser
from hpcsgd.errors import ConfigError
from hpcsgd.jobs.job import Step
from hpcsgd.jobs.resources import Resources
from hpcsgd.jobs.script import COLLECTIVE, render
from hpcsgd.jobs.sites import load_site, with_mpi
from hpcsgd.jobs.status import collect, states
from hpcsgd.jobs.submit import submit
from hpcsgd.runs.result import REQUEUE
from tests.jobs.examples import COMMANDS, PYTHON, STEPS, by_mpi, example

RESTARTING = ("train", "scaling")


@pytest.fixture
def play(fakes, tmp_path):
    """Run a job's script; `code` is how srun ends."""

    def run(template="train", code=0, act="", job=None, site="generic-cpu", **more):
        job = job or example(template, folder=str(tmp_path))
        fakes.answer("srun", code=code, act=act)
        return fakes.play(render(job, load_site(site), PYTHON), **more)

    return run


@pytest.mark.parametrize("kind", [*COMMANDS, *STEPS])
def test_several_ranks_without_a_pmi_are_refused(kind):
    site = with_mpi(load_site("generic-cpu"), "none")
    with pytest.raises(ConfigError, match="job has 4 ranks; .*--mpi pmi2") as caught:
        render(example(kind), site, PYTHON)
    assert "--tasks 1" in str(caught.value) and "\n" not in str(caught.value)
    if kind not in STEPS:
        alone = render(example(kind, resources=Resources(tasks=1)), site, PYTHON)
        assert "srun --mpi=none " in alone


@pytest.mark.parametrize("kind", [*COMMANDS, *STEPS])
def test_ranks_of_a_site_with_mpi_say_so(kind):
    """So that an MPI of another launcher cannot look like a good job."""
    for site in ("generic-cpu", "perlmutter-cpu", "workstation"):
        assert " --comm mpi " in render(example(kind), load_site(site), PYTHON)


@pytest.mark.parametrize("kind", COMMANDS)
def test_one_rank_needs_no_mpi(kind):
    alone = example(kind, resources=Resources(tasks=1))
    assert "--comm" not in render(alone, load_site("workstation"), PYTHON)


@pytest.mark.parametrize("words", [
    ("train", "--comm", "serial"), ("train", "--comm=auto"),
    ("train", "--set", "run.comm=auto"), ("verify", "run"),
])  # fmt: skip
def test_a_command_that_says_how_ranks_communicate_stays_as_it_is(words):
    script = render(example("train", command=words), load_site("generic-cpu"), PYTHON)
    assert shlex.join(words) in script and "--comm mpi" not in script


def test_every_command_of_several_ranks_takes_comm():
    """Those that a job adds it to, and no other that opens a world."""
    for name in COLLECTIVE:
        parser = make_parser(name[0])
        for word in name:
            actions = [a for a in parser._actions if isinstance(a.choices, dict)]
            parser = actions[0].choices[word]
        assert any("--comm" in a.option_strings for a in parser._actions), name


def test_another_pmi_is_for_sites_that_start_ranks_by_srun():
    assert with_mpi(load_site("generic-cpu"), "pmix").launcher.mpi == "pmix"
    with pytest.raises(ConfigError, match="without srun; leave --mpi out"):
        with_mpi(load_site("workstation"), "none")


def notes(tmp_path, job="42"):
    path = tmp_path / "jobs" / "first" / "state" / f"{job}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def events(tmp_path, job="42"):
    return [note["event"] for note in notes(tmp_path, job)]


@pytest.mark.parametrize("code", [0, 1, 137])
@pytest.mark.parametrize("template", [*COMMANDS, *STEPS])
def test_codes_but_75_end_the_job_as_they_are(template, code, play, fakes, tmp_path):
    array = {"SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "1"}
    done = play(template, code, **(array if template == "sweep" else {}))
    assert done.returncode == code, done.stderr
    assert fakes.calls("scontrol") == []
    last = notes(tmp_path, "40_1" if template == "sweep" else "42")[-1]
    assert (last["event"], last["code"]) == ("ended", code)


@pytest.mark.parametrize("template", RESTARTING)
def test_75_asks_once_to_be_started_again(template, play, fakes, tmp_path):
    done = play(template, REQUEUE)
    assert done.returncode == REQUEUE
    assert fakes.calls("scontrol") == [["requeue", "42"]]
    assert notes(tmp_path)[-1]["event"] == "requeued"


@pytest.mark.parametrize("number", [12, 15])
@pytest.mark.parametrize("template", RESTARTING)
def test_a_notice_to_ranks_that_still_start_is_one_too(
    number, template, play, fakes, tmp_path
):
    """Killed by SIGUSR2, or by preemption's SIGTERM, before they could listen to it."""
    assert play(template, 128 + number).returncode == REQUEUE
    assert fakes.calls("scontrol") == [["requeue", "42"]]
    assert notes(tmp_path)[-1]["code"] == REQUEUE


@pytest.mark.parametrize("template", ["convert", "command", "smoke"])
def test_what_does_not_save_is_not_started_again(template, play, fakes):
    assert play(template, REQUEUE).returncode == REQUEUE
    assert fakes.calls("scontrol") == []


def test_an_element_requeues_itself_alone(play, fakes, tmp_path):
    array = {"SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "2"}
    done = play("sweep", REQUEUE, job=None, **array)
    assert done.returncode == REQUEUE
    assert fakes.calls("scontrol") == [["requeue", "40_2"]]
    words = fakes.calls("srun")[0]
    expected = by_mpi(STEPS["sweep"][2].command)
    assert words[-len(expected) :] == expected
    assert events(tmp_path, "40_2") == ["began", "requeued"]


def test_an_element_that_is_not_there_is_an_error(play, fakes):
    array = {"SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "9"}
    done = play("sweep", **array)
    assert done.returncode == 2 and "no element 9" in done.stderr
    assert fakes.calls("srun") == []


def test_start_after_start_without_progress_gives_up(play, fakes, tmp_path):
    codes = [play(code=REQUEUE, restarts=n).returncode for n in range(4)]
    assert codes == [REQUEUE, REQUEUE, 1, 1]
    assert len(fakes.calls("scontrol")) == 2
    assert notes(tmp_path)[5]["event"] == "given-up"


def test_a_new_checkpoint_is_progress(play, fakes, tmp_path):
    """As many starts as it takes, where each saves something."""
    folder = tmp_path / "jobs" / "first" / "run" / "checkpoints"
    for number in range(5):
        act = (
            f"mkdir -p '{folder}'; touch '{folder}/{number:06d}-exchange-000000009.h5'"
        )
        assert play(code=REQUEUE, act=act, restarts=number).returncode == REQUEUE
    assert len(fakes.calls("scontrol")) == 5
    # What is there already is none.
    codes = [play(code=REQUEUE, restarts=n).returncode for n in (5, 6, 7)]
    assert codes == [REQUEUE, REQUEUE, 1]


def test_progress_counts_anew_after_a_checkpoint(play, fakes, tmp_path):
    folder = tmp_path / "jobs" / "first" / "run" / "checkpoints"
    save = f"mkdir -p '{folder}'; touch '{folder}/000001-exchange-000000009.h5'"
    acts = ["", "", save, "", ""]
    codes = [play(code=REQUEUE, act=act).returncode for act in acts]
    assert codes == [REQUEUE] * 5


def test_the_number_of_fruitless_starts_can_be_chosen(play, tmp_path):
    job = example("train", folder=str(tmp_path), restarts=1)
    assert play(code=REQUEUE, job=job).returncode == 1


def test_a_requeue_that_is_refused_is_said(play, fakes, tmp_path):
    fakes.answer("scontrol", code=1, err="Requested operation is presently disabled\n")
    done = play(code=REQUEUE)
    assert done.returncode == REQUEUE and "submit it again" in done.stderr
    assert events(tmp_path) == ["began", "requeued", "ended"]


def test_a_requeue_that_ends_scontrol_is_one(play, fakes, tmp_path):
    """Slurm may be so fast that its answer is never read."""
    fakes.answer("scontrol", act="kill -TERM $PPID; kill -TERM $$")
    done = play(code=REQUEUE)
    assert done.returncode == REQUEUE and "cannot" not in done.stderr
    assert events(tmp_path) == ["began", "requeued"]


@pytest.mark.parametrize("when", ["srun", "sleep"])
def test_a_job_that_is_cancelled_is_not_started_again(when, play, fakes, tmp_path):
    """Slurm ends the ranks and this script: the ranks save and say 75 as ever."""
    fakes.answer("sleep", act="kill -TERM $PPID" if when == "sleep" else "")
    act = "kill -TERM $PPID" if when == "srun" else ""
    assert play(code=REQUEUE, act=act).returncode == REQUEUE
    assert fakes.calls("scontrol") == []
    assert events(tmp_path) == ["began", "terminated"]


@pytest.mark.parametrize(
    ("status", "code", "event"),
    [("completed", 0, "ended"), ("preempted", 143, "terminated")],
)
def test_what_srun_reports_of_a_job_that_was_ended_is_held_to_the_result(
    status, code, event, play, tmp_path
):
    """srun reports 0 of ranks that take longer to end than it waits for them."""
    result = tmp_path / "jobs" / "first" / "run" / "result.json"
    result.parent.mkdir(parents=True)
    result.write_text(json.dumps({"schema": 1, "status": status}, indent=2))
    assert play(code=0, act="kill -TERM $PPID").returncode == code
    assert events(tmp_path) == ["began", event]


def test_a_job_that_was_ended_without_a_result_is_no_success(play, tmp_path):
    assert play(code=0, act="kill -TERM $PPID").returncode == 143
    assert events(tmp_path) == ["began", "terminated"]


def test_a_signal_that_is_for_the_ranks_does_not_end_the_script(play, fakes):
    assert play(code=REQUEUE, act="kill -USR2 $PPID").returncode == REQUEUE
    assert fakes.calls("scontrol") == [["requeue", "42"]]


def test_without_requeues_the_user_is_told(play, fakes, tmp_path):
    site = tmp_path / "no-requeue.toml"
    site.write_text('summary = "s"\n[launcher]\nrequeue = false\n')
    done = play(code=REQUEUE, site=str(site))
    assert done.returncode == REQUEUE and "submit it again" in done.stderr
    assert fakes.calls("scontrol") == []
    assert "#SBATCH --no-requeue" in (fakes.folder / "script").read_text()


def test_every_step_of_a_scaling_job_runs_whatever_the_others_do(play, fakes, tmp_path):
    act = '[[ "$*" == *--ntasks=2* ]] && exit 3'
    done = play("scaling", act=act)
    assert done.returncode == 3
    tasks = [w for call in fakes.calls("srun") for w in call if "--ntasks=" in w]
    assert tasks == ["--ntasks=1", "--ntasks=2", "--ntasks=4"]
    steps = [(n["step"], n["code"]) for n in notes(tmp_path) if n["event"] == "step"]
    assert steps == [(0, 0), (1, 3), (2, 0)]


def test_steps_that_ended_are_not_run_again_after_a_requeue(play, fakes):
    act = '[[ "$*" == *--ntasks=2* ]] && exit 75'
    assert play("scaling", act=act).returncode == REQUEUE
    assert len(fakes.calls("srun")) == 2 and len(fakes.calls("scontrol")) == 1
    fakes.forget()
    assert play("scaling", restarts=1).returncode == 0
    tasks = [w for call in fakes.calls("srun") for w in call if "--ntasks=" in w]
    assert tasks == ["--ntasks=2", "--ntasks=4"]


def test_a_failure_before_a_requeue_is_not_forgotten(play, fakes):
    act = 'case "$*" in *--ntasks=1*) exit 3 ;; *--ntasks=2*) exit 75 ;; esac'
    assert play("scaling", act=act).returncode == REQUEUE
    assert play("scaling", restarts=1).returncode == 3


def test_a_step_in_which_the_job_is_ended_is_run_again(play, fakes, tmp_path):
    """By a node that failed, say: Slurm ends this script, and starts it anew."""
    act = '[[ "$*" == *--ntasks=2* ]] && { kill -TERM $PPID; exit 143; }'
    assert play("scaling", act=act).returncode == REQUEUE
    assert len(fakes.calls("srun")) == 2 and fakes.calls("scontrol") == []
    assert events(tmp_path)[-1] == "terminated"
    fakes.forget()
    assert play("scaling", restarts=1).returncode == 0
    assert len(fakes.calls("srun")) == 2


def test_steps_that_were_not_reached_are_no_success(play, fakes, tmp_path):
    act = '[[ "$*" == *--ntasks=2* ]] && kill -TERM $PPID'
    assert play("scaling", act=act).returncode == 143
    assert events(tmp_path)[-1] == "terminated"


def test_modules_come_before_the_variables_and_stop_what_they_fail(
    play, fakes, tmp_path
):
    site = tmp_path / "modules.toml"
    site.write_text(
        'summary = "s"\n[[module]]\nvalue = "mpi"\nwhy = "w"\n'
        '[[env]]\nname = "MPICH_GPU"\nvalue = "1 or 2"\nwhy = "w"\n'
    )
    # As a function of slurmd's environment.
    more = {"BASH_FUNC_module%%": '() { echo "$@" >> "$FAKES/module.txt"; }'}
    fakes.watch()
    assert play(site=str(site), **more).returncode == 0
    assert (fakes.folder / "module.txt").read_text() == "load mpi\n"
    assert fakes.environment("srun")["MPICH_GPU"] == "1 or 2"
    fakes.forget()
    assert play(site=str(site)).returncode == 1  # no module command here
    assert fakes.calls("srun") == []


def test_commands_run_where_they_were_written(play, fakes, tmp_path):
    play(act='pwd > "$FAKES/pwd"')
    assert (fakes.folder / "pwd").read_text().strip() == str(tmp_path)


def test_a_folder_that_is_gone_is_an_error(play, fakes, tmp_path):
    job = example(
        "train", folder=str(tmp_path / "gone"), out=str(tmp_path / "jobs/first")
    )
    assert play(job=job).returncode == 2
    assert fakes.calls("srun") == []


def test_a_script_for_slurm_wants_slurm(play, fakes):
    done = play(SLURM_JOB_ID="")
    assert done.returncode and "for sbatch" in done.stderr
    assert fakes.calls("srun") == []


@pytest.mark.parametrize("code", [0, 1, REQUEUE])
def test_a_workstation_runs_it_without_slurm(code, fakes, tmp_path):
    python = fakes.add("python")
    fakes.answer("python", code=code)
    job = example("train", folder=str(tmp_path))
    done = fakes.play(render(job, load_site("workstation"), str(python)))
    assert done.returncode == code
    expected = ["-m", "hpcsgd", *by_mpi(COMMANDS["train"]), "--ranks", "4"]
    assert fakes.calls("python") == [expected]
    assert fakes.calls("scontrol") == fakes.calls("srun") == []
    assert ("run this script again" in done.stderr) == (code == REQUEUE)
    assert events(tmp_path, "local") == ["began", "ended"]


@pytest.mark.parametrize("code, calls", [(0, 0), (1, 1)])
def test_a_script_removes_what_killed_ranks_shared(code, calls, fakes, tmp_path):
    """Only its launcher could, and srun does not."""
    python = fakes.add("python")
    fakes.answer("srun", code=code)
    job = example("train", folder=str(tmp_path))
    script = render(job, load_site("generic-cpu"), str(python))
    done = fakes.play(script, SLURM_JOB_ID="7")
    assert done.returncode == code
    assert fakes.calls("python") == calls * [["-m", "hpcsgd.comm.launchers"]]


def test_what_is_run_by_hand_has_a_status_too(fakes, tmp_path):
    """Its own notes and its run folders say all that there is to say."""
    python = fakes.add("python")
    job = example("sweep", folder=str(tmp_path))
    for _ in range(2):
        with pytest.raises(ConfigError, match="by hand"):
            submit(job, load_site("workstation"), python=str(python))
    fakes.answer("squeue", code=1)
    (state,) = states(job.path)
    assert (state.state, len(state.runs)) == ("unknown", 3)
    fakes.play((job.path / "job.sbatch").read_text())
    (state,) = states(job.path)
    assert (state.job, state.state) == ("local", "completed")
    assert state.execution.code == 0
    assert len(collect(job.path)) == 3


def test_one_rank_is_started_without_a_launcher(fakes, tmp_path):
    """`hpcsgd inspect` and others know no --ranks."""
    python = fakes.add("python")
    job = example("command", folder=str(tmp_path), resources=Resources())
    fakes.play(render(job, load_site("workstation"), str(python)))
    assert fakes.calls("python") == [["-m", "hpcsgd", *COMMANDS["command"]]]


def test_a_workstation_runs_a_sweep_one_after_another_and_again(fakes, tmp_path):
    python = fakes.add("python")
    text = render(
        example("sweep", folder=str(tmp_path)), load_site("workstation"), str(python)
    )
    assert fakes.play(text).returncode == 0
    assert len(fakes.calls("python")) == 3
    assert fakes.play(text).returncode == 0  # all of it, once more
    assert len(fakes.calls("python")) == 6


def test_a_run_without_a_folder_never_has_progress(play, tmp_path):
    job = example("train", folder=str(tmp_path), command=("train", "run.toml"))
    codes = [play(code=REQUEUE, job=job).returncode for _ in range(3)]
    assert codes == [REQUEUE, REQUEUE, 1]


@pytest.mark.parametrize(
    "words", [("--out", "x"), ("--out=x",), ("--out", "x", "--plain")]
)
def test_the_run_folder_is_seen_wherever_the_command_names_it(words):
    """Also as the last word: without its folder a run never has progress."""
    assert Step(("train", "a.toml", *words)).folder == "x"
    assert Step(("train", *words, "a.toml")).folder == "x"


def test_folders_that_need_quoting_are_looked_at(play, fakes, tmp_path):
    """The progress of a run in a folder with spaces and glob characters."""
    name = "a [b] *$HOME"
    command = ("train", "run.toml", "--out", name)
    job = example("train", folder=str(tmp_path), command=command)
    folder = tmp_path / name / "checkpoints"
    folder.mkdir(parents=True)
    for number in range(4):
        act = f"touch {shlex.quote(str(folder))}/{number}.h5"
        assert play(code=REQUEUE, act=act, job=job).returncode == REQUEUE
    assert len(list(folder.iterdir())) == 4


def test_one_step_alone_is_an_array_too(play, fakes, tmp_path):
    job = example("sweep", folder=str(tmp_path), steps=(Step(("train", "a.toml")),))
    array = {"SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": "0"}
    assert play(job=job, **array).returncode == 0
    assert fakes.calls("srun")[0][-4:] == by_mpi(["train", "a.toml"])

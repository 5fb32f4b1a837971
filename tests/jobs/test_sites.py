"""Lines that a site adds to scripts: options of sbatch, shell, containers, export."""

import re
import subprocess
from pathlib import Path

import pytest

from hpcsgd.cli import main
from hpcsgd.errors import ConfigError
from hpcsgd.jobs.resources import Resources
from hpcsgd.jobs.script import directives, render, threads_of
from hpcsgd.jobs.sites import Reason, ScriptLines, load_site, with_options
from tests.helpers.limits import HANG
from tests.jobs.examples import GOLDEN, PYTHON, SITES, example

ROOT = Path(__file__).parents[2]
EVERYTHING = str(GOLDEN / "everything.toml")
REST = ["--", "--data", "x.h5"]


def site_of(tmp_path, text):
    path = tmp_path / "ours.toml"
    path.write_text(f'summary = "ours"\n{text}\n')
    return load_site(str(path))


def row(key, value, more=""):
    return f"[[{key}]]\nvalue = '''{value}'''\nwhy = \"w\"\n{more}\n"


@pytest.fixture
def play(fakes, tmp_path):
    """Run the script of a job of one command at a site of these lines."""

    def run(text, python=PYTHON, **more):
        site = site_of(tmp_path, text)
        fakes.watch()
        job = example("command", folder=str(tmp_path))
        return fakes.play(render(job, site, python), **more)

    return run


# A node whose login shells alone have modules: /etc/profile.d is not read by bash.
MODULE = {"BASH_FUNC_module%%": '() { echo "$@" >> "$FAKES/module.txt"; }'}


def test_shell_lines_run_around_the_modules_and_reach_the_ranks(play, fakes):
    lines = (
        row("shell", "module --force purge", "first = true")
        + row("module", "mpi")
        + row("shell", 'export SEEN="$FROM_SITE and more" # a comment')
        + row("shell", "ulimit -c 7")
        + '[[env]]\nname = "FROM_SITE"\nvalue = "a b"\nwhy = "w"\n'
    )
    assert play(lines, **MODULE).returncode == 0
    said = (fakes.folder / "module.txt").read_text().splitlines()
    assert said == ["--force purge", "load mpi"]
    assert fakes.environment("srun")["SEEN"] == "a b and more"


def test_a_limit_of_a_shell_line_holds_for_ranks(play, fakes):
    fakes.answer("srun", act='ulimit -c > "$FAKES/limit"')
    assert play(row("shell", "ulimit -c 7")).returncode == 0
    assert (fakes.folder / "limit").read_text() == "7\n"


@pytest.mark.parametrize("line", ["false", "no-such-program", "cd /no/such/folder"])
def test_a_shell_line_that_fails_ends_the_job(line, play, fakes, tmp_path):
    assert play(row("shell", line)).returncode == 1
    assert fakes.calls("srun") == []


def test_a_line_may_branch(play, fakes):
    line = 'if [ "${SLURM_JOB_NUM_NODES:-1}" -gt 1 ]; then export NETWORK=1; fi'
    for nodes, seen in (("1", None), ("2", "1")):
        done = play(row("shell", line), SLURM_JOB_NUM_NODES=nodes)
        assert done.returncode == 0
        assert fakes.environment("srun").get("NETWORK") == seen


def test_a_container_starts_the_interpreter(play, fakes):
    """It gets each word as it is, and the ranks' command behind it."""
    container = fakes.add("apptainer")
    words = row("wrapper", f"{container} exec --bind '/a b' $HOME/x.sif")
    fakes.answer("srun", act='while [ "$1" != "$APPTAINER" ]; do shift; done; "$@"')
    done = play(words, python="python3", APPTAINER=str(container))
    assert done.returncode == 0, done.stderr
    (call,) = fakes.calls("apptainer")
    assert call[:4] == ["exec", "--bind", "/a b", "$HOME/x.sif"]
    assert call[4:7] == ["python3", "-m", "hpcsgd"]
    fakes.answer("srun", code=1)
    fakes.forget()
    assert play(words, python="python3").returncode == 1
    (call,) = fakes.calls("apptainer")
    assert call[-2:] == ["-m", "hpcsgd.comm.launchers"], "leftovers, from inside too"


def test_python_of_a_site_is_for_its_container():
    site = load_site(EVERYTHING)
    job = example("command", resources=Resources(tasks=4))
    assert "/opt/venv/bin/python3 -m hpcsgd" in render(job, site)
    assert f"{PYTHON} -m hpcsgd" in render(job, site, PYTHON)


def test_a_job_without_the_variables_of_its_sender_gives_ranks_those_of_the_script():
    job = example("command")
    site = load_site("generic-cpu")
    assert not any("--export" in line for line in directives(job, site))
    for value, srun in (("NONE", 1), ("PATH,HOME", 1), ("ALL", 0)):
        script = render(job, with_options(site, (), value, None), PYTHON)
        assert f"#SBATCH --export={value}\n" in script
        assert script.count(" --export=ALL ") == srun


def test_options_of_the_command_line(fakes, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    own = ["--sbatch=--reservation=a", "--sbatch=--mail-type=END", "--export", "NONE"]
    words = ["--site", "generic-cpu", "--tasks", "2", "--out", "a", "--exclusive", *own]
    wrapper = ["--wrapper", "singularity exec 'my image.sif'"]
    assert main(["jobs", "render", "train", *words, *wrapper, *REST]) == 0
    script = capsys.readouterr().out
    lines = re.findall(r"(?m)^#SBATCH (.*)$", script)
    asked = {"--reservation=a", "--mail-type=END", "--export=NONE", "--exclusive"}
    assert asked <= set(lines)
    assert "singularity exec 'my image.sif' \\\n" in script
    assert "# of the command line\n#SBATCH --mail-type=END\n" in script
    plain = ["--wrapper", "", "--export", "ALL", "--site", EVERYTHING]
    assert main(["jobs", "render", "train", *words[2:6], *plain, *REST]) == 0
    assert "exec" not in capsys.readouterr().out


def test_variables_of_sbatch_do_not_win_over_a_line_of_a_site(
    fakes, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SBATCH_RESERVATION", "other")
    monkeypatch.setenv("SBATCH_EXCLUSIVE", "user")
    fakes.watch()
    words = ["--site", "generic-cpu", "--out", "jobs/a", "--sbatch=--reservation=a"]
    assert main(["jobs", "submit", "train", *words, "--exclusive", *REST]) == 0
    seen = fakes.environment("sbatch")
    assert not {"SBATCH_RESERVATION", "SBATCH_EXCLUSIVE"} & set(seen)


@pytest.mark.parametrize("value, said", [
    ("--time=1", "a flag of the job, [defaults] or [launcher]"),
    ("--wrap=x", "a flag of the job"),
    ("--export=NONE", "a flag of the job"),
    ("-p x", "one long option of sbatch"),
    ("reservation=x", "one long option of sbatch"),
    ("--comment=a#b", "one long option of sbatch without #"),
    ("--comment=a b", "spaces in double quotes"),
    ("--comment=a --wrap=b", "one long option of sbatch"),
    ("--a\n#SBATCH --b", "printable"),
])  # fmt: skip
def test_options_of_sbatch_that_are_refused(value, said, capsys):
    words = ["--site", "generic-cpu", "--out", "a", f"--sbatch={value}"]
    assert main(["jobs", "render", "train", *words, *REST]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("text, said", [
    ('[launcher]\nexport = "A=1"', "NONE, ALL, or names"),
    ('[launcher]\ngpu_option = "gpus"', "gpus-per-node, gres"),
    ("[node]\nthreads_per_core = 0", "at least 1"),
    (row("wrapper", "apptainer 'x"), "close its quotes"),
    (row("shell", "a", 'first = "yes"'), "type bool"),
    (row("flag", "--a", "first = true"), "['first']"),
    (row("env", "x", 'source = "s"'), "has no text for ['name']"),
    (row("sbatch", "--nodes=2"), "would repeat an option"),
])  # fmt: skip
def test_mistakes_are_named(text, said, tmp_path):
    with pytest.raises(ConfigError) as caught:
        site_of(tmp_path, text)
    assert said in str(caught.value)


@pytest.mark.parametrize("cpus, per_core, threads", [
    (1, 1, 1), (16, 1, 16), (32, 2, 16), (2, 2, 1), (1, 2, 1), (3, 2, 1),
])  # fmt: skip
def test_compiled_kernels_use_the_cores_of_a_rank(cpus, per_core, threads, tmp_path):
    site = site_of(tmp_path, f"[node]\nthreads_per_core = {per_core}")
    assert threads_of(Resources(cpus=cpus), site) == threads


@pytest.mark.parametrize("template, command, threads", [
    ("train", REST, "4"),
    ("train", [*REST, "--threads", "2"], "2"),
    ("train", [*REST, "--set", "run.threads=3"], None),
    ("command", ["--", "tune", *REST[1:]], "4"),
    ("command", ["--", "evaluate", "run", "x.h5"], None),
    ("smoke", [], None),
])  # fmt: skip
def test_cpus_of_a_job_are_threads_of_its_ranks(template, command, threads, capsys):
    words = ["--site", "generic-cpu", "--cpus", "4", "--tasks", "2", "--out", "a"]
    assert main(["jobs", "render", template, *words, *command]) == 0
    script = capsys.readouterr().out
    assert re.findall(r"--threads (\d+)", script) == ([threads] if threads else [])
    assert "#SBATCH --cpus-per-task=4" in script and "--cpus-per-task=4 \\" in script
    assert "export OPENBLAS_NUM_THREADS=1" in script


def test_one_core_sets_no_threads(capsys):
    words = ["--site", "generic-cpu", "--tasks", "2", "--out", "a"]
    assert main(["jobs", "render", "train", *words, *REST]) == 0
    assert "--threads" not in capsys.readouterr().out


def test_comments_name_the_sources():
    script = render(example("command"), load_site(EVERYTHING), PYTHON)
    for page in ("reservations", "modules", "nccl", "binding", "containers"):
        assert re.search(rf"(?m)^# .*\(https://docs.example.org/{page}\)$", script)


@pytest.mark.parametrize("where", ["why", "value", "source"])
def test_no_line_of_a_site_can_begin_another(where):
    words = {"value": "--a=b", "why": "w", "source": "s"} | {where: "x\ntouch pwned"}
    with pytest.raises(ConfigError, match="printable"):
        ScriptLines(sbatch=(Reason(**words),))


def test_modules_are_found_where_the_shell_has_no_function(play, fakes, tmp_path):
    """The script reads what a login shell reads; here there is none of it."""
    text = render(example("command"), load_site(EVERYTHING), PYTHON)
    block = text[text.index("# Modules are") : text.index("# modules of a login")]
    home = tmp_path / "profile.d"
    home.mkdir()
    (home / "lmod.sh").write_text("module() { echo loaded $2; }\n")
    script = block.replace("/etc/profile.d", str(home)) + "module load x\n"
    done = subprocess.run(
        ["bash", "-c", script], capture_output=True, text=True, timeout=HANG
    )
    assert (done.stdout, done.returncode) == ("loaded x\n", 0), done.stderr


# The sites of the package.

PAGE = re.compile(r"https://\S+|docs/\S+")


def test_every_site_of_the_package_has_a_golden_script():
    found = {path.stem for path in (ROOT / "slurm/sites").glob("*.toml")}
    assert found == set(SITES)


@pytest.mark.parametrize("name", SITES)
def test_every_setting_of_a_site_has_a_source(name):
    """In the file, and in the script beside the setting."""
    site = load_site(name)
    lines = site.lines
    rows = (*lines.sbatch, *lines.commands, *lines.modules, *lines.wrapper)
    for row in (*rows, *site.flags, *site.env):
        assert PAGE.fullmatch(row.source), (row.name, row.value, row.source)
        page, _, anchor = row.source.partition("#")
        if not page.startswith("https://"):
            text = (ROOT / page).read_text().lower()
            heads = re.findall(r"(?m)^#+ (.*)$", text)
            assert anchor in [
                re.sub(r"[^a-z0-9 -]", "", h).replace(" ", "-") for h in heads
            ]
    script = (GOLDEN / f"train.{name}.sbatch").read_text()
    for row in rows if site.has_slurm else site.env:
        assert f"({row.source})" in script and row.value in script


@pytest.mark.parametrize("name", SITES)
def test_no_site_rules_a_transport_of_ucx_out(name):
    """UCX_TLS=rc without dc needs a connection of each pair of ranks."""
    assert "UCX_TLS" not in (ROOT / f"slurm/sites/{name}.toml").read_text()


@pytest.mark.parametrize("site, wanted, said", [
    ("frontier-cpu", {"partition": "batch", "nodes": 91, "walltime": "03:00:00"},
     "more than 02:00:00, the limit of partition batch on 91 nodes"),
    ("frontier-cpu", {"partition": "extended", "nodes": 65, "walltime": "03:00:00"},
     "65 nodes were requested, and site frontier-cpu allows at most 64"),
    ("lumi-c", {"partition": "small", "nodes": 5}, "at most 4"),
    ("lumi-c", {"partition": "debug", "walltime": "01:00:00"},
     "more than 00:30:00, the limit of partition debug at"),
    ("alps-gh200", {"partition": "debug", "nodes": 3}, "at most 2"),
    ("leonardo-booster", {"partition": "boost_usr_prod", "walltime": "2-00:00:00"},
     "more than 24:00:00"),
    ("leonardo-booster", {"qos": "boost_qos_dbg", "walltime": "01:00:00"},
     "the limit of qos boost_qos_dbg"),
    ("juwels-booster", {"nodes": 937}, "at most 936"),
    ("marenostrum5-acc", {"qos": "acc_debug", "walltime": "03:00:00"}, "02:00:00"),
])  # fmt: skip
def test_limits_of_centres(site, wanted, said):
    resources = Resources(**{"tasks": wanted.get("nodes", 1), **wanted})
    with pytest.raises(ConfigError) as caught:
        render(example("train", resources=resources), load_site(site), PYTHON)
    assert said in str(caught.value)


@pytest.mark.parametrize("wanted", [
    {"partition": "batch", "nodes": 92, "walltime": "06:00:00"},
    {"partition": "batch", "nodes": 184, "walltime": "12:00:00"},
    {"partition": "extended", "nodes": 64, "walltime": "24:00:00"},
    {"partition": "other", "nodes": 1, "walltime": "5-00"},
])  # fmt: skip
def test_larger_jobs_of_frontier_may_take_longer(wanted):
    resources = Resources(**{"tasks": wanted["nodes"], **wanted})
    job = example("train", resources=resources)
    assert render(job, load_site("frontier-cpu"), PYTHON)


@pytest.mark.parametrize("text, said", [
    ("[limits.partition]\na = 1", "write it as a table [limits.partition.a]"),
    ("[limits.partition.a]\nwall = '1'", "['wall']"),
    ("[limits.partition.a]\nnodes = -1", "must be at least 0"),
    ("[limits.partition.a]\nby_nodes = { x = '1' }", "numbers of nodes"),
    ("[limits.partition.a]\nby_nodes = { 64 = 1 }", "a time in quotes"),
])  # fmt: skip
def test_mistakes_in_limits_of_partitions(text, said, tmp_path):
    with pytest.raises(ConfigError) as caught:
        site_of(tmp_path, text)
    assert said in str(caught.value)


def test_nccl_is_forced_to_its_plugin_between_nodes_alone(fakes, tmp_path):
    """HPE: on one node the variable makes NCCL use the network."""
    site = load_site("perlmutter-gpu")
    fakes.watch()
    job = example("command", folder=str(tmp_path))
    for nodes, seen in (("1", None), ("2", "AWS Libfabric")):
        more = {"SLURM_JOB_NUM_NODES": nodes, **MODULE}
        assert fakes.play(render(job, site, PYTHON), **more).returncode == 0
        assert fakes.environment("srun").get("NCCL_NET") == seen

"""Nothing that a user writes becomes a command, a word more, or a line for Slurm."""

import re
import string
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hpcsgd.errors import ConfigError
from hpcsgd.jobs.job import Job, Step
from hpcsgd.jobs.resources import Resources
from hpcsgd.jobs.script import directives, render
from hpcsgd.jobs.sites import Reason, Site, load_site
from tests.jobs import examples
from tests.jobs.examples import PYTHON

NASTY = (
    "'\"`$(){}[]<>|&;*?!#~%\\ \t=-/:@^\u00e9\u2028\n\r\x00\x1b" + string.ascii_letters
)
# A command that names --ranks is refused for that, whatever else it says.
WORD = st.text(NASTY, max_size=12).filter(lambda word: "--ranks" not in word)
WORDS = st.lists(WORD, min_size=1, max_size=4)
FEW = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def is_plain(*words):
    return all(word.isprintable() for word in words)


@FEW
@given(words=WORDS)
@example(words=["$(touch pwned)", "`touch pwned`", "; touch pwned", "'; touch pwned"])
@example(words=["--", "-n", "", "a b", "\\", "!!", "${IFS}"])
@example(words=["--comm", "$(touch pwned)"])
@example(words=["{{ 7 * 7 }}", "{% raw %}", "#SBATCH --wrap=x"])
def test_words_arrive_as_they_are_or_are_refused(words, fakes, tmp_path):
    fakes.forget()
    make = {"folder": str(tmp_path), "command": ("evaluate", *words)}
    if not is_plain(*words):
        with pytest.raises(ConfigError, match="printable characters"):
            examples.example("command", **make)
        return
    job = examples.example("command", **make)
    done = fakes.play(render(job, load_site("generic-cpu"), PYTHON))
    assert done.returncode == 0, done.stderr
    (call,) = fakes.calls("srun")
    assert call[call.index("hpcsgd") + 1 :] == examples.by_mpi(["evaluate", *words])
    assert not (tmp_path / "pwned").exists()


@FEW
@given(words=WORDS, element=st.integers(0, 1))
def test_words_of_elements_and_steps_too(words, element, fakes, tmp_path):
    fakes.forget()
    if not is_plain(*words):
        return
    steps = (Step(("train", "a")), Step(("train", *words, "--out", words[0])))
    array = {"SLURM_ARRAY_JOB_ID": "40", "SLURM_ARRAY_TASK_ID": str(element)}
    for template in ("sweep", "scaling"):
        job = examples.example(template, folder=str(tmp_path), steps=steps)
        fakes.play(render(job, load_site("generic-cpu"), PYTHON), **array)
    said = [call[call.index("hpcsgd") + 1 :] for call in fakes.calls("srun")]
    expected = [examples.by_mpi(step.command) for step in steps]
    assert said == [expected[element], *expected]


@FEW
@given(folder=st.text(NASTY, min_size=1, max_size=16))
@example(folder="a\n#SBATCH --account=other")
@example(folder='x" --account=other "')
@example(folder="100% %j %%")
def test_the_folder_stays_one_value(folder, fakes, tmp_path):
    """As Slurm reads it: what is between the quotes, %% for a %."""
    fakes.forget()
    try:
        job = examples.example("train", folder=str(tmp_path), out=f"jobs/{folder}")
        text = render(job, load_site("generic-cpu"), PYTHON)
    except ConfigError:
        assert not is_plain(folder) or set(folder) & set("\"'\\#")
        return
    lines = [line for line in text.splitlines() if line.startswith("#SBATCH")]
    found = [re.fullmatch(r'#SBATCH --output="([^"]*)"', line) for line in lines]
    (output,) = [match[1] for match in found if match]
    where = output.replace("%%", "\0").replace("%j", "42").replace("\0", "%")
    assert Path(where) == job.path / "log" / "42.log"
    assert len(lines) == len(directives(job, load_site("generic-cpu")))
    assert fakes.play(text).returncode == 0
    assert (job.path / "state" / "42.jsonl").is_file()


@FEW
@given(value=st.text(NASTY, max_size=16))
def test_values_of_a_site_stay_values(value, fakes, tmp_path):
    """Also those that were not read from a file."""
    fakes.forget()
    fakes.watch()
    if not is_plain(value):
        with pytest.raises(ConfigError, match="printable"):
            Reason(value, "why", "HPCSGD_TRIED")
        return
    env = (Reason(value, "why", "HPCSGD_TRIED"),)
    site = Site("mine", "s", env=env, flags=(Reason(f"-{value}", "why"),))
    job = examples.example("train", folder=str(tmp_path))
    assert fakes.play(render(job, site, PYTHON)).returncode == 0
    assert fakes.environment("srun")["HPCSGD_TRIED"] == value
    assert f"-{value}" in fakes.calls("srun")[0]


@FEW
@given(text=st.text(NASTY, min_size=1, max_size=16))
@example(text="a b")
@example(text="x --wrap=y")
@example(text="x\n#SBATCH --wrap=y")
@example(text="-x")
def test_names_are_safe_or_refused(text):
    """Those that Slurm gets without quotes: a word each, on its own line."""
    for field in ("account", "partition", "qos", "constraint"):
        try:
            resources = Resources(**{field: text})
        except ConfigError:
            continue
        job = Job("train", "a", resources, ("train", "a"), out="o")
        (line,) = [d for d in directives(job, Site("s")) if d.startswith(f"--{field}")]
        assert re.fullmatch(r"[A-Za-z0-9_.+:()\[\]&|*,!=-]+", line)
    try:
        job = Job("train", text, Resources(), ("train", "a"), out="o")
    except ConfigError:
        return
    assert re.fullmatch(r"[A-Za-z0-9_.+-]+", job.name)


@pytest.mark.parametrize("where", ["why", "summary"])
def test_comments_of_a_site_cannot_end_their_line(where, tmp_path):
    path = tmp_path / "bad.toml"
    rows = {"why": "w", "summary": "s"} | {where: r"x\ntouch pwned"}
    path.write_text(
        f'summary = "{rows["summary"]}"\n'
        f'[[env]]\nname = "A"\nvalue = "1"\nwhy = "{rows["why"]}"\n'
    )
    with pytest.raises(ConfigError, match="printable"):
        load_site(str(path))


@pytest.mark.parametrize("where", ["why", "summary"])
def test_nor_can_those_of_a_site_made_by_hand(where):
    rows = {"why": "w", "summary": "s"} | {where: "x\ntouch pwned"}
    with pytest.raises(ConfigError, match="printable"):
        Site("s", rows["summary"], env=(Reason("1", rows["why"], "A"),))


@pytest.mark.parametrize("name", ["A B", "A;x", "1A", "A=x;B", "A\n"])
def test_variables_have_names_of_variables(name):
    with pytest.raises(ConfigError, match="name of a variable"):
        Reason("1", "w", name)

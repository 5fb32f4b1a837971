"""Help at the prompt: groups, common flags, defaults, examples; the nearest name."""

import argparse
import re
import shlex
import tomllib
from typing import get_type_hints

import pytest

from hpcsgd.cli.flags import FLAGS
from hpcsgd.cli.names import COMMANDS, GROUPS, LINE_UP
from hpcsgd.cli.parser import make_menu, make_parser
from hpcsgd.cli.template import explain, settings_of
from hpcsgd.cli.train import configuration
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError, did_you_mean, did_you_mean_file, nearest
from hpcsgd.settings import declarations
from tests.helpers.command_line import refuse

EXTENDING = ("sweep", "tune", "compare", "precision", "study strong", "study weak")
TYPED = re.compile(r"^  (?:-\w, )?(--[\w-]+)", re.MULTILINE)


def leaves(parser, words=()):
    """Yield (words, parser) of every command that has none below it."""
    menus = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    if not menus:
        yield " ".join(words), parser
    for name, below in menus[0].choices.items() if menus else ():
        yield from leaves(below, (*words, name))


PARSER = make_parser()
LEAVES = dict(leaves(PARSER))


def flags(page):
    return TYPED.findall(page)


def general(parser):
    return {flag for a in parser.general._group_actions for flag in a.option_strings}


# Groups of commands.


def test_every_command_is_in_one_group():
    names = [name for group in GROUPS.values() for name in group]
    assert sorted(names) == sorted(set(names)) == sorted(COMMANDS)
    assert list(GROUPS) == ["train", "data", "study", "cluster", "look"]


def test_the_menu_shows_the_groups_and_a_phrase_for_each_command():
    page = make_menu().format_help()
    places = [page.index(f"\n{group}:\n") for group in GROUPS]
    assert places == sorted(places)
    for name, phrase in COMMANDS.items():
        assert re.search(rf"(?m)^  {name} +{re.escape(phrase)}$", page), name


@pytest.mark.parametrize("words", [[], ["data"], ["study"], ["jobs", "submit"]])
def test_a_command_that_lacks_one_shows_its_help_on_standard_error(command, words):
    done = command(*words)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr == command(*words, "--help").stdout


# Common flags and all flags.


def test_train_shows_the_flags_that_most_people_use():
    parser = LEAVES["train"]
    shown = set(flags(parser.format_help())) - general(parser)
    assert 12 <= len(shown) <= 20
    assert shown == {flag.name for flag in FLAGS if flag.common}


@pytest.mark.parametrize("name", LEAVES)
def test_the_page_of_all_flags_has_every_flag_once(name):
    parser = LEAVES[name]
    known = {
        flag
        for action in parser._actions
        for flag in action.option_strings
        if flag.startswith("--") and action.help != argparse.SUPPRESS
    }
    shown = flags(parser.format_every_flag())
    assert sorted(shown) == sorted(known)
    assert ("--help-all" in known) == bool(parser.rare)


@pytest.mark.parametrize("name", EXTENDING)
def test_own_flags_come_before_those_of_train(name):
    parser = LEAVES[name]
    inherited = {f.name for f in FLAGS if f.setting in vars_of(parser)}
    shown = [
        flag for flag in flags(parser.format_help()) if flag not in general(parser)
    ]
    own = [flag for flag in shown if flag not in inherited]
    assert own and shown[: len(own)] == own
    assert {f.name for f in FLAGS if f.common} - set(shown) <= {"--out", "--seed"}, (
        "all common"
    )


def vars_of(parser):
    """Destinations of flags below the headings of train."""
    headings = {flag.group for flag in FLAGS}
    groups = [g for g in parser._action_groups if g.title in headings]
    return {action.dest for group in groups for action in group._group_actions}


@pytest.mark.parametrize("name", LEAVES)
def test_no_page_lists_many_names(name):
    page = LEAVES[name].format_every_flag()
    for choices in re.findall(r"\{([^}]*)\}", page):
        assert choices.count(",") < 8, choices
    assert sum(page.count(f" {method},") for method in LINE_UP) < 8
    assert max(map(len, page.splitlines()[:1])) <= 100, "the line of usage"


# Texts.


def test_every_flag_and_argument_has_a_whole_phrase():
    for name, parser in LEAVES.items():
        assert parser.description, name
        for action in parser._actions:
            text = action.help or ""
            if text == argparse.SUPPRESS:
                continue
            where = f"{name}: {action.option_strings or action.dest}: {text!r}"
            assert len(text.split()) >= 2, where
            assert not re.match(r"(of|and|the same|as|what|who) ", text), where
            assert not text.endswith("."), where


def test_every_setting_has_a_whole_phrase():
    for setting, text in settings_of(RunConfig).items():
        assert len(text.split()) >= 3, f"{setting}: {text!r}"
        assert not re.match(r"(of|and|or|the same|as|this|what to) ", text), setting


def test_a_setting_and_its_flag_have_one_text():
    """A setting has the text of its flag, unless its own is about more values, or
    lists more names than fit into braces.
    """
    texts = settings_of(RunConfig)
    flags = {f.setting: f for f in reversed(FLAGS) if f.is_setting}
    own = {s for s, flag in flags.items() if not texts[s].startswith(flag.help)}
    assert own == {
        *("polish.kind", "run.fall_back", "run.defaults", "run.memory"),
        "problem.family",
    }
    assert own == {f.setting for f in FLAGS if f.is_setting and f.own_help}


def test_choices_are_listed_where_the_text_does_not_name_them():
    assert explain("how", ("auto", "mpi")) == "how; one of auto, mpi"
    assert explain("how, or auto", ("auto",)) == "how, or auto"
    texts = settings_of(RunConfig)
    assert texts["run.comm"].endswith(
        "as the variables of the launcher indicate (auto)"
    )
    assert texts["update.clip"].endswith("; one of none, value, norm, percentile")


def test_choices_of_flags_are_those_of_settings():
    """Each flag takes all names that the declaration of its setting lists."""
    kinds = get_type_hints(RunConfig)
    for flag in FLAGS:
        choices = flag.options.get("choices")
        if choices and flag.setting != "agreement.method":
            section, key = flag.setting.split(".")
            known = declarations(kinds[section])[key].known
            assert list(choices) == list(known), flag.name


# Defaults.


def test_defaults_are_those_of_the_settings():
    page = " ".join(LEAVES["compare"].format_every_flag().split())
    assert "[32]" in page and "[0.1]" in page and "[logistic]" in page
    page = " ".join(LEAVES["data convert"].format_help().split())
    assert "MiB of memory for the conversion [512]" in page


def test_no_page_has_a_path_of_this_machine():
    for name, parser in LEAVES.items():
        assert "/bin/" not in parser.format_every_flag(), name


def test_the_defaults_of_train_are_those_of_fit_and_of_sgd():
    """`fit` of a flag is what a run without settings of SGD resolves to."""
    parser = make_parser("train")
    tables = configuration(parser.parse_args(["train", "--data", "rows.h5"])).tables()
    usual = RunConfig().tables()
    stated = {flag.setting: flag.fit for flag in FLAGS if flag.fit}
    for flag in FLAGS:
        if not flag.is_setting or flag.setting in ("data.path", "run.defaults"):
            continue
        section, key = flag.setting.split(".")
        found = tables[section].get(key)
        text = stated.pop(flag.setting, None)
        if text is None:
            assert found == usual[section].get(key), flag.name
        elif text == "on":
            assert found in (True, "auto"), flag.name
        else:
            assert tomllib.loads(f"x = {text!r}")["x"] == str(found) or float(
                text
            ) == float(found), flag.name
    assert not stated
    page = " ".join(LEAVES["train"].format_help().split())
    assert "[auto; for SGD 0.1]" in page and "[on; for SGD off]" in page


# Examples.


@pytest.mark.parametrize("name", LEAVES)
def test_every_command_ends_with_an_example_that_its_parser_takes(name):
    parser = LEAVES[name]
    program, *words = shlex.split(parser.example)
    assert program == "hpcsgd" and " ".join(words).startswith(name)
    assert parser.format_help().endswith(f"Example:\n  {parser.example}\n")
    assert PARSER.parse_args(words).run


# In an order in which each finds what it reads; others need Slurm or a network.
RUN = (
    *("data synth", "data inspect", "data verify", "data convert", "data list"),
    *("data card", "new", "train", "inspect", "verify", "evaluate", "predict"),
    *("report", "sweep", "compare", "precision", "tune", "study strong"),
    *("study weak", "study sweep", "study collect", "study point", "study predict"),
    *("jobs render train", "jobs smoke", "jobs new-site", "info", "completion"),
)


@pytest.mark.full
def test_examples_run_in_an_empty_folder(command, tmp_path):
    (tmp_path / "table.csv").write_text(
        "a,b,y\n" + "".join(f"{i},{i % 7},{i % 2}\n" for i in range(40))
    )
    for name in RUN:
        _, *words = shlex.split(LEAVES[name].example)
        done = command(*words)
        assert done.returncode == 0, f"{name}: {done.stderr}"
    left = set(LEAVES) - set(RUN)
    assert all(name.startswith("jobs ") or name == "data fetch" for name in left)


# The nearest name.


def test_nearest():
    assert nearest("tain", COMMANDS) == "train"
    assert nearest("Rows.H5", ["rows.h5"]) == "rows.h5"
    assert nearest("quite else", COMMANDS) == ""
    assert did_you_mean("--dta", ["--data"]) == " (did you mean --data?)"


def test_nearest_file(tmp_path):
    (tmp_path / "rows.h5").touch()
    hint = did_you_mean_file(tmp_path / "row.h5")
    assert hint == f" (did you mean {tmp_path / 'rows.h5'}?)"
    assert did_you_mean_file(tmp_path / "no" / "row.h5") == ""
    assert did_you_mean_file(tmp_path / "q") == ""


@pytest.mark.parametrize(
    "words, said",
    [
        ("tain", "no command 'tain' (did you mean train?)"),
        ("data convrt a b", "no action 'convrt' (did you mean convert?)"),
        ("jobs submit tran", "no template 'tran' (did you mean train?)"),
        ("train --dta rows.h5", "no flag --dta (did you mean --data?)"),
        ("train --dta=rows.h5", "no flag --dta (did you mean --data?)"),
        ("train --alpha 1", "no flag --alpha; take --l2"),
        ("train --max_iter 9", "no flag --max_iter; take --epochs"),
        ("train --family bernoulli", "'bernoulli' (did you mean logistic?)"),
        ("train --family logistc", "'logistc' (did you mean logistic?)"),
        ("train --method topkk", "'topkk' (did you mean topk?)"),
        ("train run.toml rows.h5", "(did you mean --data rows.h5?)"),
        ("evaluate a b c", "'c' is one argument too many"),
        ("train --batch x", "argument --batch"),
    ],
)
def test_the_parser_suggests_the_nearest(words, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        PARSER.parse_args(words.split())


@pytest.mark.parametrize(
    "words, said",
    [
        (["--data", "row.h5"], "row.h5 does not exist (did you mean rows.h5?)"),
        (["rum.toml"], "(did you mean run.toml?)"),
        (["rows.h5"], "rows.h5 is a data file (HDF5)"),
        (["rows.h5"], "give the data file by --data rows.h5"),
        (["rows.csv"], "rows.csv is a data file (CSV)"),
        (["run.toml"], "write batch = 32 without quotes"),
        (["--set", "schedule.bach=3"], "(did you mean batch?)"),
        (["--set", "shedule.batch=3"], "(did you mean schedule?)"),
        (["--set", "agreement.method=topkk"], "(did you mean topk?)"),
        (["--set", "problem.family=3"], 'write family = "3" in quotes'),
        (["--set", "run.profile=yes"], "write true or false"),
        (["--set", "problem.l2='1e-4'"], "write l2 = 0.0001 without quotes"),
    ],
)
def test_settings_and_files_suggest_the_nearest(command, tmp_path, words, said):
    (tmp_path / "rows.h5").write_bytes(b"\x89HDF\r\n\x1a\n")
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    (tmp_path / "run.toml").write_text('[schedule]\nbatch = "32"\n')
    data = [] if words[0] == "--data" or "." in words[0] else ["--data", "rows.h5"]
    refuse(command("train", *words, *data), 2, said)


@pytest.mark.parametrize(
    "text, flags, said",
    [
        ("y;x\n1;1,5\n", (), "write decimals with a point, as 1.5"),
        ("y,x\n1,\n", (), "--missing mean"),
        ("y,x\n1,2\n", ("--label-column", "Y2"), "(did you mean y?)"),
        ("y,x\na,2\n", ("--map-labels", "a=1"), "--label yes=1,no=0"),
        ("y,x\n1,east\n", (), "--categories x"),
    ],
)
def test_a_table_that_is_refused_names_the_flag_that_helps(
    command, tmp_path, text, flags, said
):
    (tmp_path / "t.csv").write_text(text)
    refuse(command("data", "convert", "t.csv", "t.h5", *flags), 2, said)

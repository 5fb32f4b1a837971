"""The pages of docs/reference say what the code has: names, keys, texts, versions."""

import ast
import configparser
import json
import re
from dataclasses import asdict, fields
from functools import cache
from math import ceil
from pathlib import Path

import h5py
import numpy as np
import pytest

import hpcsgd
from hpcsgd.agreements.codecs import CODECS
from hpcsgd.cli.flags import FLAGS
from hpcsgd.cli.template import settings_of
from hpcsgd.comm.nccl import PINNED, SAFER
from hpcsgd.config import METHODS, RunConfig, apply_settings
from hpcsgd.data.synthetic import write_synthetic
from hpcsgd.errors import ConfigError
from hpcsgd.glm import ADAPTIVE, FAMILIES, UPDATES, get_family
from hpcsgd.jobs.resources import Resources
from hpcsgd.jobs.sites import Launcher, Limits, NodeResources
from hpcsgd.precision import RECIPES
from hpcsgd.runs import checks
from hpcsgd.runs.checkpoint import NAME as CHECKPOINT
from hpcsgd.runs.folder import FILES
from hpcsgd.runs.machine import KIND, LEVEL, RANK
from hpcsgd.runs.result import Status
from hpcsgd.settings import refuse
from tests.helpers.codec_formulas import FORMULAS

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs" / "reference"
CARDS = sorted((PAGES / "methods").glob("*.md"))
# Programs whose variables the package names, and beginnings of such names.
FOREIGN = (
    "SLURM|PMI|PMIX|OMPI|MPICH|NCCL|UCX|CUDA|HYDRA|KVIKIO|MPIR|PALS|I_MPI|MPI|MV2|FI"
)
BEGINNINGS = {"HPCSGD_EXPECT", "OMPI_COMM_WORLD"}
ROWS_OF_A_CARD = ("Formula", "Sends", "Settings", "Refuses", "GPU", "Paper")


def page(name):
    return (PAGES / f"{name}.md").read_text()


def section(name, title):
    """Return the text of one section of a page, up to the next of its rank."""
    found = page(name).partition(f"\n## {title}\n")[2]
    assert found, f"docs/reference/{name}.md has no section {title}"
    return found.partition("\n## ")[0]


def in_backticks(text):
    return set(re.findall(r"`([^`]+)`", text))


@cache
def cards():
    """Return the text of each card by the name in its heading."""
    found = {}
    for path in CARDS:
        for name, text in re.findall(
            r"(?ms)^## `([\w-]+)`\n(.*?)(?=^## |\Z)", path.read_text()
        ):
            assert name not in found, f"two cards of {name}"
            found[name] = text
    return found


def test_every_method_and_codec_has_its_card_and_nothing_else():
    assert set(cards()) == {*METHODS, *CODECS}


def test_a_card_is_complete():
    """Its sentences; what is sent, set, refused and published; whether on GPUs."""
    offenders = []
    for name, card in cards().items():
        heads = re.findall(r"(?m)^\| (\w+) \| \S", card)
        offenders += [f"{name}: {row}" for row in set(ROWS_OF_A_CARD) - set(heads)]
        if not re.match(r"\n[A-Z`]", card):
            offenders.append(f"{name}: no sentence")
    assert not offenders, "cards lack:\n" + "\n".join(offenders)


def value_of(formula, **names):
    """Return what a formula of a card is for these values of its letters."""
    text = formula.partition(";")[0].partition(" in ")[0].partition(", by ")[0]
    text = re.sub(r"⌈([^⌉]*)⌉", r"ceil(\1)", text.replace("·", "*"))
    text = text.replace(")(", ")*(")
    text = re.sub(r"(\d|\b[A-Za-z]\b|\)) +(?=[\w(])", r"\1*", text)
    return eval(text, {"ceil": ceil, "min": min, **names})


@pytest.mark.parametrize(
    "name",
    [
        *("identity", "bf16", "fp16", "fp8", "topk", "randomk", "qsgd", "nuqsgd"),
        *("sign", "byte", "bytegrad", "powersgd"),
    ],
)
def test_a_card_has_the_formula_that_the_ledger_is_held_to(name):
    """By tests/traffic/test_codecs.py, where words divide by replicas and chunks."""
    words, replicas = 14400, 4
    sends = re.search(r"(?m)^\| Sends \| (.*) \|$", cards()[name])[1]
    if sends == "as qsgd":
        sends = re.search(r"(?m)^\| Sends \| (.*) \|$", cards()["qsgd"])[1]
    letters = {
        **{"D": words, "R": replicas, "chunk": 16, "r": 1, "n": 120, "m": 120, "t": 1},
        "bits": 4 if name == "qsgd" else 3,
        "k": round((0.2 if name == "randomk" else 0.1) * words),
    }
    parts = np.ones((replicas, words), np.float32)
    assert value_of(sends, **letters) == FORMULAS[name](name, parts, 4, 0)


def test_the_table_of_methods_has_all_of_them():
    table = section("methods", "Choose a method")
    links = re.findall(r"\[([\w, -]+)\]\(methods/\w+\.md#([\w-]+)\)", table)
    named = {name for text, _ in links for name in text.split(", ")}
    assert named == set(METHODS)
    assert {anchor for _, anchor in links} <= set(cards())


def refusals():
    """Return (setting, method, whether it is refused) for each cell of the matrix."""
    lines = re.findall(r"(?m)^\| .*", section("methods", "What a method refuses"))
    heads, *rows = [[cell.strip() for cell in x.split("|")[1:-1]] for x in lines]
    for setting, *cells in rows:
        for method, cell in zip(heads[1:], cells, strict=True):
            yield setting.strip("`"), method, cell == "×"


def test_a_method_refuses_what_the_matrix_says():
    """Of two replicas, before any data is read."""
    offenders = [
        f"{method}, {setting}"
        for setting, method, refuses in refusals()
        if is_refused(method, setting) is not refuses
    ]
    assert not offenders, "another answer than the page's:\n" + "\n".join(offenders)


def is_refused(method, setting):
    tables = {"agreement": {"method": method}, "grid": {"replicas": 2}}
    if method == "infinity":
        tables["run"] = {"out": "somewhere"}
    try:
        config = RunConfig.parse(apply_settings(tables, [setting]))
        refuse(checks.refusals(config))
    except ConfigError:
        return True
    return False


def test_an_update_is_on_the_page_of_updates():
    rules = section("methods/updates", "Rules")
    named = set(re.findall(r"(?m)^\| ([\w-]+) \|", rules)) - {"kind"}
    assert named == {*UPDATES, *ADAPTIVE, "coordinate"}


@pytest.mark.parametrize(
    "name", ["agreement", "codec", "accordion", "mirror", "update", "rate", "privacy"]
)
def test_a_setting_of_a_method_is_on_its_pages(name):
    """Each key of the sections that methods read, in backticks."""
    text = "".join(path.read_text() for path in CARDS)
    missing = set(RunConfig().tables()[name]) - in_backticks(text)
    shown = {key for key in missing if re.search(rf"`[^`]*\b{key}\b[^`]*`", text)}
    assert not missing - shown, f"[{name}] {sorted(missing - shown)}"


def test_a_setting_has_the_sentence_that_its_page_is_made_of():
    """docs/reference/settings.md and `hpcsgd new` are written from these."""
    lacking = [name for name, text in settings_of(RunConfig).items() if not text]
    assert not lacking, f"settings without a sentence: {lacking}"


def test_a_flag_has_the_help_that_its_page_is_made_of():
    """docs/reference/commands.md and `--help` are written from these."""
    assert not [flag.name for flag in FLAGS if not flag.help]


def test_a_family_is_in_the_table_with_its_curvature():
    rows = re.findall(r"(?m)^\| `([\w-]+)` \|.*\| ([^|]+) \|$", page("families"))
    said = dict(rows)
    assert set(said) == set(FAMILIES)
    for name, bound in said.items():
        number = float("inf") if bound == "none" else eval(bound)
        assert number == get_family(name).curvature, name


def test_recipes_are_in_their_table():
    rows = re.findall(r"(?m)^\| (\S+)(?: \(default\))? \| (.*) \|$", page("runs"))
    said = {name: row.split(" | ") for name, row in rows}
    names = list(asdict(RECIPES["fp32"]))
    assert said["recipe"] == names
    for name, recipe in RECIPES.items():
        assert said[name] == [getattr(recipe, field) for field in names], name


def names_in(folder, pattern, suffixes=(".py", ".c", ".h", ".sbatch", ".toml", "")):
    found = set()
    for path in (ROOT / folder).rglob("*"):
        if path.is_file() and path.suffix in suffixes and ".venv" not in path.parts:
            found |= set(re.findall(pattern, path.read_text(errors="ignore")))
    return found


def test_an_environment_variable_is_on_its_page():
    """Ours, wherever they are read, and those of others that the package names."""
    ours = {
        name
        for folder in ("hpcsgd", "benchmarks", ".ci")
        for name in names_in(folder, r"[\"']?(HPCSGD_[A-Z_]+)\b", (".py",))
    }
    others = names_in("hpcsgd", rf"[\"']((?:{FOREIGN})_[A-Z_]+[A-Z])[\"']", (".py",))
    others |= {*PINNED, *SAFER, "XDG_CONFIG_HOME"}
    text = page("environment")
    names = (ours | others) - BEGINNINGS
    missing = sorted(name for name in names if f"`{name}`" not in text)
    assert not missing, missing


def test_a_status_has_its_exit_code():
    rows = re.findall(r"(?m)^\| `(\w+)` \|.*\| (\d+) \|$", page("outputs"))
    said = {name: int(code) for name, code in rows}
    assert said == {status.value: status.exit_code for status in Status}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 4))
    return X, (X[:, 0] + 0.5 * rng.standard_normal(200) > 0).astype(float)


@pytest.mark.parametrize("wants", ["sgd", "fit"])
def test_the_keys_of_a_result_are_documented(data, wants):
    X, y = data
    result = hpcsgd.train({"run": {"defaults": wants}}, X=X, y=y)
    document = json.loads(result.json())
    text = section("outputs", "Result document")
    missing = {k for k in document if f"`{k}`" not in text}
    assert not missing
    records = {key for record in document["history"] for key in record}
    assert not {key for key in records if f"`{key}`" not in text}
    assert not {k for k in document.get("polish", {}) if f"`{k}`" not in text}


def test_keys_that_are_documented_are_in_the_code():
    """Each key of the documents is a text somewhere in the package."""
    known = {text for texts in literals().values() for text in texts}
    known |= {name.partition(".")[2] for name in settings_of(RunConfig)}
    names = {
        *(m.group(1) for m in re.finditer(r"^ {4}(\w+):", sources(), re.M)),
        *re.findall(r"\bdef (\w+)", sources()),
    }
    keys = in_backticks(section("outputs", "Result document"))
    keys |= in_backticks(section("outputs", "Studies"))
    keys = {key for key in keys if re.fullmatch(r"[a-z_0-9]+", key)}
    assert not keys - known - names, sorted(keys - known - names)


@cache
def sources():
    return "\n".join(p.read_text() for p in (ROOT / "hpcsgd").rglob("*.py"))


@cache
def literals():
    """Return every text of each file of the package, with `...` for what is put in."""
    found = {}
    for path in sorted((ROOT / "hpcsgd").rglob("*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text())))
        parts = {
            id(part)
            for node in nodes
            if isinstance(node, ast.JoinedStr)
            for part in ast.walk(node)
            if part is not node
        }
        found[path] = [text for node in nodes if (text := text_of(node, parts))]
    return found


def text_of(node, parts):
    if id(node) in parts:
        return ""
    if isinstance(node, ast.JoinedStr):
        values = node.values
        return "".join(
            v.value if isinstance(v, ast.Constant) else "..." for v in values
        )
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return re.sub(r"%[-.\d]*[sdgfr]", "...", node.value) if is_text else ""


def messages():
    rows = re.findall(r"(?m)^\| `([^`]+)` \| [^|]+\| [^|]+ \|$", page("messages"))
    assert len(rows) > 60
    return rows


def test_a_message_is_one_of_the_code():
    """All of its words, in texts of one file of the package."""
    files = [" ".join("\0".join(texts).split(" ")) for texts in literals().values()]
    offenders = [
        message
        for message in messages()
        if not any(all(part in text for part in parts(message)) for text in files)
    ]
    assert not offenders, "no file of the package has:\n" + "\n".join(offenders)


def parts(message):
    """The words between what is put in."""
    found = [part.strip(" ;:,") for part in message.split("...")]
    found = [part for part in found if len(part) > 2]
    assert found, message
    return found


def test_the_attributes_and_data_sets_of_a_store_are_documented(tmp_path):
    write_synthetic(tmp_path / "rows.h5", "susy", rows=100)
    text = section("formats", "Data: the HDF5 store")
    with h5py.File(tmp_path / "rows.h5") as file:
        attributes, names = set(file.attrs), []
        file.visit(names.append)
    known = in_backticks(text)
    # Of synthetic data alone: the weights that were planted.
    assert attributes - known <= {"true_weights"}, attributes - known
    sets = {f"/{name}" for name in names} - {"/checksums"}
    assert not {name for name in sets if name not in known and name.count("/") == 1}


def test_entries_of_a_run_folder_are_documented():
    text = section("formats", "Run folder")
    missing = [n for n in FILES if f"`{n}" not in text]
    assert not missing, missing


def test_the_name_of_a_checkpoint_is_documented():
    assert "NUMBER-exchange-EXCHANGE.h5" in section("formats", "Checkpoints")
    assert CHECKPOINT.fullmatch("000001-exchange-000000008.h5")


def test_keys_of_sites_and_machines_are_documented():
    site, machine = (
        section("formats", "Site files"),
        section("formats", "Machine files"),
    )
    for kind in (NodeResources, Limits, Launcher, Resources):
        for item in fields(kind):
            assert re.search(rf"\b{item.name}\b", site), f"{kind.__name__}.{item.name}"
    keys = {"rank": RANK, "levels": LEVEL, "kinds.KIND": KIND}
    names = {f"{table}.{key}" for table, own in keys.items() for key in own}
    assert names <= in_backticks(machine)


def test_versions_are_those_of_the_installation():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    rows = dict(re.findall(r"(?m)^\| ([\w]+) \| ≥ ([\d.]+) \|", page("support")))
    said = {f"{name} >= {version}" for name, version in rows.items()}
    assert said == set(config["options"]["install_requires"].split("\n")) - {""}
    extras = set(config["options.extras_require"]) - {"test", "dev"}
    assert extras <= in_backticks(section("support", "Requirements"))


def test_evidence_of_support_is_there():
    """The file that proves an entry of the matrix exists."""
    rows = re.findall(r"(?m)^\| [^|]+ \| [^|]+ \| (.*) \|$", page("support"))
    paths = {p for row in rows for p in re.findall(r"`([\w.-]+/[\w./-]+)`", row)}
    missing = sorted(path for path in paths if not (ROOT / path).exists())
    assert len(paths) > 15 and not missing, missing


def test_the_glossary_is_in_order_and_defines_our_own_terms():
    terms = re.findall(r"(?m)^(.+)\n: ", page("glossary"))
    assert terms == sorted(terms, key=str.lower) and len(terms) == len(set(terms))
    own = "replica member exchange step product agreement recipe ledger words"
    assert set(own.split()) <= set(terms) and len(terms) >= 60


def test_a_page_of_the_shelf_is_on_its_index():
    text = page("index")
    for path in PAGES.glob("*.md"):
        assert path.stem == "index" or re.search(rf"(?m)^{path.stem}$", text), path.name
    for path in CARDS:
        assert f"methods/{path.name}" in text

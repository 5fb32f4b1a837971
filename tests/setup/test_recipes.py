"""The recipes of docs/start/recipes have the versions and requirements of setup.cfg."""

import ast
import configparser
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

import hpcsgd
from tests.helpers.limits import HANG

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "docs" / "start" / "recipes"
SPACK, CONDA = RECIPES / "package.py", RECIPES / "recipe.yaml"
EASYBUILD = RECIPES / "hpcsgd-0.1.0-foss-2025b.eb"
APPTAINER, MODULE = RECIPES / "hpcsgd.def", RECIPES / "modulefile"
BUILD = {"setuptools", "wheel"}  # what pyproject.toml requires


def version_of(text):
    """Return a version as numbers that compare."""
    return tuple(int(part) for part in text.split("."))


def requirements(lines):
    """Return name -> lower bound, "" without one, of requirements of pip or conda."""
    found = {}
    for line in filter(None, map(str.strip, lines)):
        name, _, rest = re.fullmatch(r"([\w.-]+)(\[.*\])?\s*(.*)", line).groups()
        bound = re.search(r">=\s*([\d.]+)", rest)
        found[name.replace("-", "_").lower()] = bound[1] if bound else ""
    return found


def setup_cfg():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def needs():
    """Return name -> lower bound of what hpcsgd requires, and of Python."""
    options = setup_cfg()["options"]
    found = requirements(options["install_requires"].split("\n"))
    return found | {"python": options["python_requires"].removeprefix(">=").strip()}


def extras(*names):
    """Return name -> lower bound of the packages of extras."""
    texts = [setup_cfg()["options.extras_require"][name] for name in names]
    return requirements("\n".join(texts).split("\n"))


def build_needs():
    """Return name -> lower bound of what pyproject.toml requires for a build."""
    line = re.search(r"(?m)^requires = (\[.*\])", (ROOT / "pyproject.toml").read_text())
    return requirements(ast.literal_eval(line[1]))


def pythons_of_setup_cfg():
    """Return the versions of Python that setup.cfg names."""
    classifiers = setup_cfg()["metadata"]["classifiers"]
    return set(re.findall(r"Python :: (3\.\d+)", classifiers))


def calls_of_spack():
    """Return (function, first argument, keywords) of the calls in the class."""
    tree = ast.parse(SPACK.read_text())
    (package,) = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    for node in package.body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            keywords = {k.arg: ast.literal_eval(k.value) for k in node.value.keywords}
            (first,) = map(ast.literal_eval, node.value.args)
            yield node.value.func.id, first, keywords


def of_spack(wanted):
    """Return name -> lower bound of the dependencies whose keywords `wanted` takes."""
    specs = [
        spec
        for kind, spec, keywords in calls_of_spack()
        if kind == "depends_on" and spec != "c" and wanted(keywords)
    ]
    pairs = [re.fullmatch(r"([\w-]+)(?:@([\d.]+):)?", spec).groups() for spec in specs]
    return {
        name.removeprefix("py-").replace("-", "_"): bound or "" for name, bound in pairs
    }


def test_there_is_no_other_recipe():
    files = {path for path in RECIPES.iterdir() if path.name != "__pycache__"}
    assert files == {SPACK, EASYBUILD, CONDA, APPTAINER, MODULE}


@pytest.mark.parametrize("path", [SPACK, EASYBUILD, CONDA, APPTAINER])
def test_a_recipe_that_was_not_built_says_so_first(path):
    assert path.read_text().startswith("# Not built by us")


def test_spack():
    versions = [first for kind, first, _ in calls_of_spack() if kind == "version"]
    assert versions == [hpcsgd.__version__]
    assert of_spack(lambda k: "run" in k["type"] and "when" not in k) == needs()
    assert of_spack(lambda k: k["type"] == "build") == build_needs()
    wanted = extras("sklearn", "plot") | {"cupy": extras("cuda13")["cupy_cuda13x"]}
    assert of_spack(lambda k: "when" in k) == wanted
    variants = {first for kind, first, _ in calls_of_spack() if kind == "variant"}
    used = {k["when"].removeprefix("+") for _, _, k in calls_of_spack() if "when" in k}
    assert variants == used


def test_spack_imports_what_it_uses():
    tree = ast.parse(SPACK.read_text())
    imported = {
        alias.name
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert imported == {"PythonPackage", *(kind for kind, *_ in calls_of_spack())}


def test_easybuild():
    text = EASYBUILD.read_text()
    values = {"SOURCE_TAR_GZ": "%(name)s-%(version)s.tar.gz"}
    exec(compile(text, str(EASYBUILD), "exec"), values)
    assert values["name"] == "hpcsgd" and values["version"] == hpcsgd.__version__
    chain = values["toolchain"]
    name = f"hpcsgd-{values['version']}-{chain['name']}-{chain['version']}.eb"
    assert EASYBUILD.name == name
    # What a module is, or contains: the comment behind a dependency says so.
    held = {n.lower().replace("-", "_"): v for n, v in values["dependencies"]}
    for comment in re.findall(r"(?m)^    \('.*\),  # (.*)", text):
        held |= dict(re.findall(r"([\w-]+) (\d[\d.]*)(?:,|$)", comment))
    wanted = needs() | extras("sklearn") | {"setuptools": build_needs()["setuptools"]}
    bundles = {"python_bundle_pypi", "scipy_bundle"}
    assert set(held) - bundles == {n.replace("-", "_") for n in wanted}
    too_old = {
        name: held[name]
        for name, bound in wanted.items()
        if version_of(held[name]) < version_of(bound)
    }
    assert not too_old
    assert ".".join(held["python"].split(".")[:2]) in pythons_of_setup_cfg()


def test_conda():
    recipe = yaml.safe_load(CONDA.read_text())
    assert recipe["context"]["version"] == hpcsgd.__version__
    run = recipe["requirements"]["run"]
    assert requirements(run) == needs()
    host = requirements(recipe["requirements"]["host"])
    assert {name: host[name] for name in BUILD} == build_needs()
    assert requirements(recipe["requirements"]["run_constraints"]) == extras("sklearn")
    assert f'match(python, "<{needs()["python"]}")' in recipe["build"]["skip"]
    entry = setup_cfg()["options.entry_points"]["console_scripts"].strip()
    assert recipe["build"]["python"]["entry_points"] == [entry]
    assert (CONDA.parent / recipe["source"]["path"]).resolve() == ROOT


def sections():
    """Return name -> text of the sections of the definition; "" is its head."""
    parts = re.split(r"(?m)^%(\w+)\n", APPTAINER.read_text())
    return {"": parts[0], **dict(zip(parts[1::2], parts[2::2], strict=True))}


def test_apptainer_installs_the_checkout_with_extras_of_setup_cfg():
    parts = sections()
    image = re.search(r"(?m)^From: python:(3\.\d+)-", parts[""])
    assert image[1] in pythons_of_setup_cfg()
    installs = re.findall(r"pip install (.*)", parts["post"])
    assert installs == ['--no-cache-dir "/opt/source[{{ extras }}]"']
    named = re.findall(r"extras=([\w,]+)", APPTAINER.read_text())
    known = set(setup_cfg()["options.extras_require"])
    assert len(named) == 2 and {e for line in named for e in line.split(",")} <= known


def test_apptainer_copies_all_that_the_build_reads():
    pairs = [line.split() for line in sections()["files"].strip().splitlines()]
    assert all(target == f"/opt/source/{source}" for source, target in pairs)
    copied = {source for source, _ in pairs}
    assert all((ROOT / source).exists() for source in copied)
    folders = setup_cfg()["options"]["package_dir"].split("=")[1:]
    folders = {line.split()[0] for line in folders}
    files = {"setup.cfg", "setup.py", "pyproject.toml", "MANIFEST.in"}
    metadata = setup_cfg()["metadata"]
    files |= {metadata["license_files"], metadata["long_description"].split()[-1]}
    assert copied == folders | files


@pytest.mark.parametrize("name", ["post", "environment", "test", "runscript"])
def test_sections_of_apptainer_are_shell(name):
    done = subprocess.run(
        ["sh", "-n"], input=sections()[name], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_the_modulefile_sets_variables_that_the_documents_name():
    text = MODULE.read_text()
    assert text.startswith("#%Module1.0\n")
    assert set(re.findall(r"hpcsgd[ /](\d[\d.]*\d)", text)) == {hpcsgd.__version__}
    documented = (ROOT / "docs" / "reference" / "environment.md").read_text()
    names = re.findall(r"(?m)^setenv\s+(\w+)", text)
    assert len(names) == 2 and all(f"`{name}`" in documented for name in names)


STUBS = """
proc module-whatis {text} {}
foreach name {conflict prereq setenv prepend-path} {
    proc $name {args} "puts \\"$name \\$args\\""
}
set file [open [lindex $argv 0]]
set text [string map [list {set plugin  ""} {set plugin /sw/ofi/lib}] [read $file]]
eval $text
ModulesHelp
"""


def test_the_modulefile_runs(tmp_path):
    """Under Tcl, with what a module command defines."""
    tcl = shutil.which("tclsh")
    if tcl is None:
        pytest.skip("there is no tclsh here")
    script = tmp_path / "run.tcl"
    script.write_text(STUBS)
    command = [tcl, str(script), str(MODULE)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "conflict hpcsgd",
        "prereq openmpi",
        f"prepend-path PATH /sw/hpcsgd/{hpcsgd.__version__}/bin",
        "setenv HPCSGD_SITE generic-cpu",
        "setenv HPCSGD_CENTRAL_SITES /sw/hpcsgd/sites",
        "prepend-path LD_LIBRARY_PATH /sw/ofi/lib",
    ]
    assert "hpcsgd info" in done.stderr

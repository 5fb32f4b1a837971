"""`hpcsgd data` as a user runs it: results, refusals, kills and full disks."""

import signal
import time

import numpy as np
import pytest

from tests.helpers.command_line import only_json, refuse, start, values
from tests.helpers.limits import HANG

ROWS, COLS = 60_000, 100


@pytest.fixture(scope="module")
def arrays(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arrays")
    rng = np.random.default_rng(0)
    X = rng.normal(2, 3, size=(ROWS, COLS)).astype(np.float32)
    np.savez(folder / "a.npz", X=X, y=(X[:, 0] > 2) * 2.0 - 1)
    return folder / "a.npz"


def test_convert_inspect_verify_train(hpcsgd, tmp_path, arrays):
    more = ("--test-fraction", 0.1, "--standardize", "--element", "bf16", "--json")
    said = only_json(hpcsgd("data", "convert", arrays, "a.h5", *more))
    assert sum(part["rows"] for part in said["files"]) == ROWS
    seen = only_json(hpcsgd("data", "inspect", "a.h5", "--json"))
    assert seen["columns"] == COLS and seen["element"] == "bf16"
    assert set(seen["labels"]["histogram"]) == {"-1", "1"}
    X, _ = values(tmp_path / "a.h5")
    largest = np.linalg.norm(X.astype(float), axis=1).max()
    assert seen["row_norm"]["max"] == pytest.approx(largest)
    assert seen["suggested"]["family"] == "logistic"
    assert seen["suggested"]["rate"] == pytest.approx(1 / (0.25 * largest**2))
    good = only_json(hpcsgd("data", "verify", "a.h5", "--json"))
    assert good["has_checksums"] and not good["faults"]
    done = hpcsgd("train", "--data", "a.h5", "--epochs", 1, "--rate", 0.01)
    assert done.returncode == 0, done.stderr


def test_damage_is_found(hpcsgd, tmp_path, arrays):
    assert hpcsgd("data", "convert", arrays, "a.h5").returncode == 0
    path = tmp_path / "a.h5"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    done = hpcsgd("data", "verify", "a.h5")
    assert done.returncode == 1 and "1 faults" in done.stdout


def test_killed_and_resumed_is_as_undisturbed(tmp_path, arrays, hpcsgd):
    flags = ["--memory", 16, "--test-fraction", 0.2, "--standardize"]
    assert hpcsgd("data", "convert", arrays, "w.h5", *flags).returncode == 0
    begun = tmp_path / ".a.h5.parts"
    for _ in range(5):  # one that is done before the signal comes says nothing
        process = start(["convert", arrays, "a.h5", *flags, "--force"], tmp_path)
        while process.poll() is None and not _is_midway(tmp_path):
            time.sleep(0.001)
        process.kill()
        process.communicate()
        if not (tmp_path / "a.h5").exists():
            break
        (tmp_path / "a.h5").unlink()
    assert process.returncode == -signal.SIGKILL, "it was too fast to be killed"
    assert not (tmp_path / "a.h5").exists() and begun.exists()
    refuse(hpcsgd("data", "convert", arrays, "a.h5", "--resume"), 2, "test_fraction")
    done = hpcsgd("data", "convert", arrays, "a.h5", *flags, "--resume")
    assert done.returncode == 0, done.stderr
    for ending in (".h5", "-test.h5"):
        whole = values(tmp_path / f"w{ending}")
        for one, other in zip(values(tmp_path / f"a{ending}"), whole, strict=True):
            assert (one == other).all()
    assert not list(tmp_path.glob(".*"))


def _is_midway(folder):
    part = folder / ".a.h5.part"
    return part.exists() and part.stat().st_size > 2**20


def test_an_interrupt_leaves_what_can_be_gone_on_with(tmp_path, arrays, hpcsgd):
    flags = ["--memory", 16]
    for _ in range(5):  # one that is done before the signal comes says nothing
        process = start(["convert", arrays, "a.h5", *flags, "--force"], tmp_path)
        while process.poll() is None and not _is_midway(tmp_path):
            time.sleep(0.001)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate()
        if not (tmp_path / "a.h5").exists():
            break
        (tmp_path / "a.h5").unlink()
    assert process.returncode == 130 and not (tmp_path / "a.h5").exists(), said
    done = hpcsgd("data", "convert", arrays, "a.h5", *flags, "--resume")
    assert done.returncode == 0, done.stderr
    with np.load(arrays) as whole:
        assert (values(tmp_path / "a.h5")[0] == whole["X"]).all()


def test_a_full_disk_is_one_sentence(tmp_path, arrays):
    process = start(["convert", arrays, "a.h5"], tmp_path, limit=5 * 2**20)
    out, said = process.communicate(timeout=HANG)
    assert process.returncode == 2 and out == "", said
    assert len(said.strip().splitlines()) == 1 and "cannot be written" in said, said
    assert not (tmp_path / "a.h5").exists()


def test_wrong_input_is_one_sentence(hpcsgd, tmp_path, arrays):
    (tmp_path / "odd").write_text("neither\nnor\n")
    (tmp_path / "there.h5").write_text("")
    convert = ("data", "convert")
    refuse(hpcsgd(*convert, tmp_path, "a.h5"), 2, "is a folder")
    refuse(hpcsgd(*convert, "odd", "a.h5"), 2, "--format")
    refuse(hpcsgd(*convert, "none.npz", "a.h5"), 2, "does not exist")
    refuse(hpcsgd(*convert, arrays, "there.h5"), 2, "--force")
    refuse(hpcsgd(*convert, arrays, arrays, "--force"), 2, "the source itself")
    refuse(hpcsgd(*convert, arrays, "no/where.h5"), 2, "its folder is missing")
    refuse(hpcsgd(*convert, arrays, "."), 2, "it is a folder")
    refuse(hpcsgd(*convert, arrays, "a.h5", "--delimiter", ","), 2, "is not for npz")
    (tmp_path / "rows.h5").write_text("")
    refused = hpcsgd(*convert, "rows.h5", "a.h5", "--delimiter", ",")
    refuse(refused, 2, "the flags for them are: --x-name, --y-name")
    assert "--weight-name" not in refused.stderr
    refuse(hpcsgd("data", "card", "moon"), 2, "known: epsilon")
    refuse(hpcsgd("data", "inspect", "odd"), 2, "cannot be read as HDF5")


def test_the_catalogue_is_listed(hpcsgd):
    cards = only_json(hpcsgd("data", "list", "--json"))
    assert len(cards) == 12
    assert "CC BY 4.0" in hpcsgd("data", "card", "HIGGS").stdout


def test_synthetic_knobs(hpcsgd, tmp_path):
    flags = ("--shape", "synth", "--rows", 3000, "--cols", 40, "--out", "s.h5")
    done = hpcsgd("data", "synth", *flags, "--density", 0.2, "--balance", 0.3)
    assert done.returncode == 0, done.stderr
    seen = only_json(hpcsgd("data", "inspect", "s.h5", "--json"))
    assert seen["density"] == pytest.approx(0.2, abs=0.01)
    assert seen["labels"]["histogram"]["1"] == pytest.approx(900, abs=90)


TRAINED = """age,color,visits,years,w,income
30,red,3,1.5,1,yes
40,"blue",0,2.5,2,no
50,red,1,1.0,1,yes
20,green,2,0.5,1,no
"""


def test_names_and_levels_travel_from_a_text_to_its_model(hpcsgd, tmp_path):
    (tmp_path / "a.csv").write_text(TRAINED)
    flags = ("--label-column", "income", "--weight-column", "w", "--offset-column")
    flags += ("years", "--categories", "color", "--label", "yes=1,no=0")
    said = only_json(hpcsgd("data", "convert", "a.csv", "a.h5", *flags, "--json"))
    assert said["columns"] == 5 and said["categories"] == {"color": 3}
    names = ["age", "color=blue", "color=green", "color=red", "visits"]
    seen = only_json(hpcsgd("data", "inspect", "a.h5", "--json"))
    assert seen["column_names"] == names
    assert seen["categories"] == {"color": ["blue", "green", "red"]}
    assert seen["weights"]["max"] == 2 and seen["offsets"]["min"] == 0.5
    shown = hpcsgd("data", "inspect", "a.h5").stdout
    for line in (
        "names: age, color=blue, color=green, color=red, visits",
        "weights: 1 to 2, mean 1.25; ",
        "offsets: 0.5 to 2.5, mean 1.375; ",
        "         1  2  yes",
        "try: --family logistic (y has two labels)",
    ):
        assert line in shown, shown
    more = ("--data", "a.h5", "--epochs", 1, "--rate", 0.001, "--out", "run")
    assert hpcsgd("train", *more).returncode == 0
    model = only_json(hpcsgd("inspect", "run", "--json"))
    assert sorted(entry["name"] for entry in model["largest"]) == sorted(names)
    assert all(names[entry["column"]] == entry["name"] for entry in model["largest"])
    assert model["categories"] == {"color": ["blue", "green", "red"]}
    assert ", age] " in hpcsgd("inspect", "run").stdout
    like = ("--label-column", "income", "--weight-column", "w", "--offset-column")
    like += ("years", "--like", "a.h5")
    (tmp_path / "b.csv").write_text("".join(TRAINED.splitlines(True)[:3]))
    assert hpcsgd("data", "convert", "b.csv", "b.h5", *like).returncode == 0
    assert only_json(hpcsgd("evaluate", "run", "b.h5", "--json"))["rows"] == 2
    (tmp_path / "c.csv").write_text(TRAINED.replace("green", "pink"))
    done = hpcsgd("data", "convert", "c.csv", "c.h5", *like)
    refuse(done, 2, "line 5", "column 'color': 'pink' is no level of a.h5")
    assert not (tmp_path / "c.h5").exists()


def test_blanks_separate_the_columns_of_a_text_without_an_ending(hpcsgd, tmp_path):
    (tmp_path / "auto").write_text("18.0   8   307.0\n 15.0 8\t350.0 \n")
    said = only_json(hpcsgd("data", "convert", "auto", "a.h5", "--json"))
    assert said["columns"] == 2 and said["files"][0]["bytes"] < 2**14
    X, y = values(tmp_path / "a.h5")
    assert X.tolist() == [[8, 307], [8, 350]] and y.tolist() == [18, 15]


def test_text_labels_without_numbers_are_refused(hpcsgd, tmp_path):
    (tmp_path / "a.csv").write_text(TRAINED)
    convert = ("data", "convert", "a.csv", "a.h5", "--label-column", "income")
    refuse(hpcsgd(*convert, "--categories", "color"), 2, "'yes'", "--label TEXT=0")
    refuse(hpcsgd(*convert), 2, "line 2", "column 'color': 'red'", "--categories color")
    refuse(hpcsgd(*convert, "--label", "yes"), 2, "write it as yes=1,no=0")

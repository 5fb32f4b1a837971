"""Sealed files: what was written comes back; all else is refused in one sentence."""

import hashlib
import json
import pickle

import h5py
import numpy as np
import pytest

from hpcsgd.backends.task import Snapshot
from hpcsgd.errors import ConfigError, DataError
from hpcsgd.files import HEADER_BYTES, is_sealed, read_sealed, write_sealed
from hpcsgd.runs.checkpoint import CheckpointStore, read_checkpoint
from hpcsgd.runs.result import load_result
from tests.helpers.harness import config_for, make_problem, train_on

DOCUMENT = {"a": 1, "text": "é", "nothing": None, "not a number": float("inf")}
ARRAYS = {
    "weights": np.linspace(0.0, 1.0, 7).reshape(7, 1),
    "small": np.arange(3, dtype=np.float32),
    "scalar": np.asarray(2.5),
    "empty": np.empty((0, 2)),
}


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file.h5"
    write_sealed(path, "thing", 3, DOCUMENT, ARRAYS)
    return path


def seal(path, image, kind="thing", version=3):
    """As a hostile writer would: a header that agrees with whatever follows."""
    digest = hashlib.sha256(image).hexdigest()
    header = f"hpcsgd {kind} {version}\nbytes {len(image)}\nsha256 {digest}\n"
    path.write_bytes(header.encode().ljust(HEADER_BYTES) + image)


def refused(path, read=lambda path: read_sealed(path, "thing", 3)):
    """Refused by the one error, in one line that names the file."""
    with pytest.raises(DataError) as raised:
        read(path)
    said = str(raised.value)
    assert path.name in said and "\n" not in said
    return said


def test_what_was_written_comes_back(path):
    document, arrays = read_sealed(path, "thing", 3)
    assert document == DOCUMENT
    assert set(arrays) == set(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(arrays[name], array)
        assert arrays[name].dtype == array.dtype
    assert is_sealed(path, "thing") and not is_sealed(path, "other")


def test_every_hdf5_tool_reads_it(path):
    with h5py.File(path, "r") as file:
        np.testing.assert_array_equal(file["weights"], ARRAYS["weights"])


def test_nothing_else_is_left_and_others_may_read(path):
    assert [p.name for p in path.parent.iterdir()] == ["file.h5"]
    assert path.stat().st_mode & 0o400


def test_any_flipped_bit_is_found(path):
    whole = path.read_bytes()
    places = np.random.default_rng(0).integers(len(whole) * 8, size=200)
    text_ends = whole.index(b"\n ") + 1
    for place in [*places, *range(0, text_ends * 8, 7)]:
        content = bytearray(whole)
        content[place // 8] ^= 1 << (place % 8)
        path.write_bytes(content)
        refused(path)


def test_any_cut_is_found(path):
    whole = path.read_bytes()
    for length in [0, 1, 100, 511, 512, 513, len(whole) // 2, len(whole) - 1]:
        path.write_bytes(whole[:length])
        refused(path)
    path.write_bytes(whole + b"more")
    assert "bytes" in refused(path)


def test_other_kinds_and_versions_are_refused(path):
    assert "is not an other" in refused(path, lambda p: read_sealed(p, "other", 3))
    assert "version 3" in refused(path, lambda p: read_sealed(p, "thing", 4))
    path.write_bytes(pickle.dumps({"weights": [1, 2]}))
    refused(path)


class Bomb:
    """Runs code where a pickle of it is loaded."""

    def __reduce__(self):
        return (pytest.fail, ("a pickle was loaded",))


def image_of(fill, **options):
    with h5py.File("x", "w", driver="core", backing_store=False, **options) as file:
        file["document"] = np.frombuffer(b"{}", dtype=np.uint8)
        fill(file)
        file.flush()
        return file.id.get_file_image()


def opaque_pickle(file):
    file["weights"] = np.void(pickle.dumps(Bomb()))


def object_strings(file):
    file.create_dataset("weights", data=["a", "b"], dtype=h5py.string_dtype())


def claims_a_lot(file):
    """Contiguous and never allocated: a file of 2 kB that says 8 PB."""
    file.create_dataset("weights", (10**15,), dtype="f8")


def compressed_bomb(file):
    file.create_dataset("weights", data=np.zeros(10**7), compression="gzip")


def chunked_and_sparse(file):
    file.create_dataset("weights", (10**12,), dtype="f8", chunks=(1024,))


def outside(file):
    file.create_dataset("weights", (1,), dtype="f8", external=[("/etc/passwd", 0, 8)])


def external_link(file):
    file["weights"] = h5py.ExternalLink("/etc/other.h5", "/x")


def soft_link(file):
    file["weights"] = h5py.SoftLink("/document")


def loop_of_links(file):
    file["weights"] = h5py.SoftLink("/weights")


def group_that_holds_itself(file):
    group = file.create_group("weights")
    group["again"] = group


def virtual(file):
    layout = h5py.VirtualLayout(shape=(4,), dtype="f8")
    layout[:] = h5py.VirtualSource("/etc/other.h5", "x", shape=(4,))
    file.create_virtual_dataset("weights", layout)


def many_dimensions(file):
    file["weights"] = np.zeros((1,) * 9)


def foreign_bytes(file):
    file["weights"] = np.arange(3, dtype=">f8")


def references(file):
    file["weights"] = np.array([file["document"].ref], dtype=h5py.ref_dtype)


HOSTILE = [
    opaque_pickle,
    object_strings,
    claims_a_lot,
    compressed_bomb,
    chunked_and_sparse,
    outside,
    external_link,
    soft_link,
    loop_of_links,
    group_that_holds_itself,
    virtual,
    many_dimensions,
    foreign_bytes,
    references,
]


@pytest.mark.parametrize("fill", HOSTILE, ids=lambda fill: fill.__name__)
def test_hostile_arrays_are_refused(fill, tmp_path):
    path = tmp_path / "hostile.h5"
    seal(path, image_of(fill))
    assert "weights" in refused(path)


DOCUMENTS = [
    b"",
    b"\xff\xfe",
    b"[]",
    b"3",
    b"null",
    b"{",
    b"[" * 100_000,
    b'{"a":' * 100_000,
    pickle.dumps(Bomb()),
]


@pytest.mark.parametrize("text", DOCUMENTS, ids=range(len(DOCUMENTS)))
def test_hostile_documents_are_refused(text, tmp_path):
    def fill(file):
        del file["document"]
        file["document"] = np.frombuffer(text or b" ", dtype=np.uint8)

    path = tmp_path / "hostile.h5"
    seal(path, image_of(fill))
    refused(path)


def test_a_group_as_document_is_refused(tmp_path):
    def fill(file):
        del file["document"]
        file.create_group("document")

    path = tmp_path / "hostile.h5"
    seal(path, image_of(fill))
    refused(path)


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    problem = make_problem("softmax")
    config = config_for(problem, problem={"intercept": True}, run={"out": str(folder)})
    train_on(1, config, problem)
    return folder


JUNK = [None, -1, 2**70, 1.5, "x", [], {}, [{}], {"a": {"b": []}}, True, float("nan")]


def mutants(document, arrays, seed):
    """Files with a valid seal whose content a stranger has turned over."""
    rng = np.random.default_rng(seed)
    for _ in range(60):
        changed, kept = json.loads(json.dumps(document)), dict(arrays)
        for _ in range(rng.integers(1, 3)):
            if rng.random() < 0.6:
                key = rng.choice(list(changed))
                changed[key] = JUNK[rng.integers(len(JUNK))]
            else:
                name = rng.choice(list(kept))
                shape = tuple(rng.integers(0, 4, size=rng.integers(0, 4)))
                kept[name] = [
                    np.zeros(shape),
                    np.zeros(shape, dtype=np.int64),
                    np.full(shape, np.nan),
                ][rng.integers(3)]
        yield changed, kept


@pytest.mark.cases(2)
@pytest.mark.parametrize("seed", range(4))
def test_results_turned_over_are_refused_or_whole(seed, run_folder, tmp_path):
    document, arrays = read_sealed(run_folder / "result.h5", "result", 2)
    path = tmp_path / "result.h5"
    for changed, kept in mutants(document, arrays, seed):
        write_sealed(path, "result", 2, changed, kept)
        try:
            result = load_result(path)
        except DataError as error:
            assert "\n" not in str(error)
        else:
            assert result.weights.dtype.kind == "f" and result.weights.ndim in (1, 2)


@pytest.mark.cases(1)
@pytest.mark.parametrize("seed", range(4))
def test_checkpoints_turned_over_are_refused_or_used(seed, run_folder, tmp_path):
    """Whatever a sealed checkpoint says: a clean refusal or a run, never a crash."""
    problem = make_problem("softmax")
    path, checkpoint = CheckpointStore(run_folder, 2).newest()
    config = config_for(
        problem,
        problem={"intercept": True},
        run={"resume": str(tmp_path / "exchange.h5")},
    )
    outcomes = set()
    for changed, kept in mutants(checkpoint.document, checkpoint.arrays, seed):
        write_sealed(tmp_path / "exchange.h5", "checkpoint", 1, changed, kept)
        try:
            train_on(1, config, problem)
            outcomes.add("used")
        except ValueError as error:  # ConfigError and DataError are
            assert type(error).__module__ == "hpcsgd.errors", repr(error)
            assert "\n" not in str(error)
            outcomes.add("refused")
    assert "refused" in outcomes
    assert read_checkpoint(path).exchanges == checkpoint.exchanges


@pytest.mark.parametrize("key", ["config", "product", "schedule"])
def test_a_checkpoint_that_lacks_what_every_run_writes_is_refused(
    key, run_folder, tmp_path
):
    _, checkpoint = CheckpointStore(run_folder, 2).newest()
    document = json.loads(json.dumps(checkpoint.document))
    del (document["config"] if key == "schedule" else document)[key]
    path = tmp_path / "exchange.h5"
    write_sealed(path, "checkpoint", 1, document, checkpoint.arrays)
    problem = make_problem("softmax")
    run, model = {"resume": str(path)}, {"intercept": True}
    with pytest.raises((ConfigError, DataError)):
        train_on(1, config_for(problem, problem=model, run=run), problem)


def test_a_checkpoint_with_a_value_that_is_no_number_is_refused(run_folder, tmp_path):
    _, checkpoint = CheckpointStore(run_folder, 2).newest()
    for name in checkpoint.arrays:
        arrays = {k: a.copy() for k, a in checkpoint.arrays.items()}
        arrays[name].reshape(-1)[0] = np.nan
        path = tmp_path / "bad.h5"
        write_sealed(path, "checkpoint", 1, checkpoint.document, arrays)
        refused(path, read_checkpoint)


def test_only_so_many_are_kept_and_the_newest_survive(tmp_path, run_folder):
    _, checkpoint = CheckpointStore(run_folder, 2).newest()
    store = CheckpointStore(tmp_path, 2)
    for number in (5, 10, 15):
        store.write(Snapshot({**checkpoint.document, "exchanges": number}, {}))
    names = [path.name for path in store.paths()]
    last = ["000003-exchange-000000015.h5", "000002-exchange-000000010.h5"]
    assert names == last
    store.write(Snapshot({**checkpoint.document, "exchanges": 7}, {}))
    names = [path.name for path in store.paths()]
    assert names == ["000004-exchange-000000007.h5", last[0]]

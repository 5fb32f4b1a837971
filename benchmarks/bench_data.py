"""How fast text becomes arrays and a store, beside the readers that people have.

Everything runs on one core, in turns, so that all meet the same load; medians of the
wall time and of the time of the processor are kept. MB are 10⁶ bytes of the text.
`read` is what a conversion does (count, then parse in blocks); `whole` puts the blocks
together into one matrix, which is what the other readers return. The ratios compare it
with them by the time of the processor, which other programs disturb least.
HPCSGD_BENCH_MB is the size of a file (50).
"""

import importlib
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter, process_time

import numpy as np
from scipy.sparse import vstack

from benchmarks import text_files

REPEATS = 5  # after one to warm up
BUDGET = 64 * 2**20  # bytes of a block, as `data convert` has it
SLOW_BYTES = 2_000_000  # that the Python parser is given
MEGABYTES = int(os.environ.get("HPCSGD_BENCH_MB", "50"))
OTHERS = {"scikit-learn": "sklearn", "pyarrow": "pyarrow", "pandas": "pandas"}
Way = Callable[[], object]


def measure() -> dict:
    """Readers beside readers, then what a conversion is made of."""
    core = _one_core()
    missing = [name for name, module in OTHERS.items() if not _there(module)]
    for name in missing:
        print(f"{name} is not installed: its columns are left out; pip install {name}")
    with tempfile.TemporaryDirectory() as folder:
        return {
            "core": core,
            "missing": missing,
            "versions": {n: _there(m) for n, m in OTHERS.items() if n not in missing},
            "libsvm": _of_libsvm(Path(folder)),
            "csv": _of_csv(Path(folder)),
            "conversion": _of_conversion(Path(folder)),
            "python": _of_python(Path(folder)),
        }


def _one_core() -> int:
    """Everything below stays on one core, threads that others start included."""
    core = max(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {core})
    return core


def _there(module: str) -> str:
    """The version of a package, or nothing."""
    try:
        return str(importlib.import_module(module).__version__)
    except ImportError:
        return ""


def _of_libsvm(folder: Path) -> list[dict]:
    rows = []
    for name, row in text_files.LIBSVM.items():
        path = text_files.write(folder / name, row, MEGABYTES * 10**6)
        rows.append({"file": name, **_beside(path, _libsvm_ways(path))})
        path.unlink()
    for path in text_files.real_files():
        rows.append(
            {"file": f"{path.name} (real)", **_beside(path, _libsvm_ways(path))}
        )
    return rows


def _libsvm_ways(path: Path) -> dict[str, Way]:
    from hpcsgd.data.convert.libsvm import LibsvmSource

    ways = _own_ways(partial(LibsvmSource, path), vstack)
    if _there("sklearn"):
        from sklearn.datasets import load_svmlight_file

        ways["sklearn"] = partial(load_svmlight_file, str(path))
    return ways


def _of_csv(folder: Path) -> list[dict]:
    rows = []
    for name, row in text_files.CSV.items():
        path = text_files.write(folder / name, row, MEGABYTES * 10**6)
        rows.append({"file": name, **_beside(path, _csv_ways(path))})
        path.unlink()
    return rows


def _csv_ways(path: Path) -> dict[str, Way]:
    from hpcsgd.data.convert.csv import CsvOptions, CsvSource

    options = CsvOptions(label_column=0, delimiter=",", header=False)
    ways = _own_ways(partial(CsvSource, path, options), np.concatenate)
    if _there("pyarrow"):
        ways["pyarrow"] = _arrow_way(path)
    if _there("pandas"):
        import pandas

        ways["pandas"] = partial(pandas.read_csv, path, header=None)
        ways["pandas_exact"] = partial(
            pandas.read_csv, path, header=None, float_precision="round_trip"
        )
    return ways


def _arrow_way(path: Path) -> Way:
    import pyarrow
    from pyarrow import csv

    pyarrow.set_cpu_count(1)
    pyarrow.set_io_thread_count(1)
    options = csv.ReadOptions(use_threads=False, autogenerate_column_names=True)
    return partial(csv.read_csv, path, options)


def _own_ways(source: Callable, join: Callable) -> dict[str, Way]:
    def blocks():
        opened = source()
        outline = opened.outline(lambda position: None)
        return opened.blocks(outline, BUDGET)

    def read() -> None:
        for _ in blocks():
            pass

    def whole() -> tuple:
        parts = [(block.X, block.y) for block in blocks()]
        return join([X for X, _ in parts]), np.concatenate([y for _, y in parts])

    return {"read": read, "whole": whole}


def _beside(path: Path, ways: dict[str, Way]) -> dict:
    """MB/s of every way, and how many times as fast `whole` is as the others."""
    size = path.stat().st_size / 1e6
    times = _in_turns(ways)
    figures = {"megabytes": round(size, 1), **_rates(size, times)}
    for name in ways:
        if name not in ("read", "whole"):
            ratio = times[name][1] / times["whole"][1]
            figures[f"whole_over_{name}"] = round(ratio, 2)
    print(path.name, figures, flush=True)
    return figures


def _in_turns(ways: dict[str, Way]) -> dict[str, tuple[float, float]]:
    """Medians of (wall, processor) seconds; the first round only warms up."""
    times: dict[str, list] = {name: [] for name in ways}
    for turn in range(REPEATS + 1):
        for name, way in ways.items():
            wall, processor = perf_counter(), process_time()
            way()
            spent = perf_counter() - wall, process_time() - processor
            if turn:
                times[name].append(spent)
    return {
        name: tuple(median(column) for column in zip(*own, strict=True))
        for name, own in times.items()
    }


def _rates(size: float, times: dict[str, tuple[float, float]]) -> dict[str, int]:
    """MB/s by the wall and by the processor."""
    figures = {}
    for name, (wall, processor) in times.items():
        figures[f"{name}_MB_s"] = round(size / wall, 1)
        figures[f"{name}_MB_per_cpu_s"] = round(size / processor, 1)
    return figures


def _of_conversion(folder: Path) -> list[dict]:
    """Text to a store of each element type, and the store against its checksums."""
    from hpcsgd.data.convert.csv import CsvSource
    from hpcsgd.data.convert.libsvm import LibsvmSource

    kinds = {
        "epsilon": (text_files.epsilon, LibsvmSource),
        "rcv1": (text_files.rcv1, LibsvmSource),
        "higgs": (text_files.higgs, CsvSource),
    }
    rows = []
    for name, (row, source) in kinds.items():
        path = text_files.write(folder / name, row, MEGABYTES * 10**6)
        rows.append({"file": name, **_converted(path, partial(source, path))})
        print(rows[-1], flush=True)
        path.unlink()
    return rows


def _converted(path: Path, source: Callable) -> dict:
    from hpcsgd.data.checksums import block_sum
    from hpcsgd.data.store import verify_store

    stores = {e: path.with_name(f"{path.name}-{e}.h5") for e in ("fp32", "bf16")}
    ways: dict[str, Way] = {
        f"to_{element}": partial(_convert, source, store, element)
        for element, store in stores.items()
    }
    figures = _rates(path.stat().st_size / 1e6, _in_turns(ways))
    size = stores["fp32"].stat().st_size / 1e6
    held = np.fromfile(stores["fp32"], dtype=np.uint8)
    checks: dict[str, Way] = {
        "verify_fp32_store": partial(verify_store, stores["fp32"]),
        "checksum": partial(_checksums, block_sum, held),
    }
    figures |= {"store_megabytes": round(size, 1), **_rates(size, _in_turns(checks))}
    for store in stores.values():
        store.unlink()
    return figures


def _convert(source: Callable, store: Path, element: str) -> None:
    from hpcsgd.data.convert.pipeline import convert
    from hpcsgd.data.convert.transform import Recipe

    convert(source(), store, Recipe(element), _Silent(), force=True)


def _checksums(block_sum: Callable, held: np.ndarray) -> None:
    """Of tiles of a megabyte, as a store has them."""
    for start in range(0, len(held), 2**20):
        block_sum(held[start : start + 2**20])


class _Silent:
    def begin(self, what: str, size: int) -> None:
        """Nothing is shown."""

    def at(self, position: int) -> None:
        """Nothing is shown."""


def _of_python(folder: Path) -> list[dict]:
    """Both parsers on the same few lines."""
    from hpcsgd.data.convert import parsers
    from hpcsgd.data.convert.parsers import LineLayout

    rows, parsers_by_name = (
        [],
        {
            "compiled": (parsers.parse_libsvm, parsers.parse_csv),
            "python": (parsers.parse_libsvm_in_python, parsers.parse_csv_in_python),
        },
    )
    for name, row in (text_files.LIBSVM | text_files.CSV).items():
        text = text_files.write(folder / name, row, SLOW_BYTES).read_bytes()
        ways = {}
        for parser_name, (parse_libsvm, parse_csv) in parsers_by_name.items():
            if name in text_files.LIBSVM:
                ways[parser_name] = partial(parse_libsvm, text, 1)
            else:
                fields = text.split(b"\n", 1)[0].count(b",") + 1
                places = np.arange(-1, fields - 1, dtype=np.int32)
                layout = LineLayout(b",", places, fields - 1, 1, False)
                ways[parser_name] = partial(parse_csv, text, layout)
        rows.append({"file": name, **_rates(len(text) / 1e6, _in_turns(ways))})
        print(rows[-1], flush=True)
    return rows

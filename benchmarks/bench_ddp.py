"""Steps a second on two ranks: CA-SGD beside PyTorch DDP and a bare MPI loop.

Global batch 32, logistic, epsilon- and HIGGS-shaped rows, one thread a rank. Set-up,
losses and a warm-up are left out for everybody. hpcsgd runs each product with recipe
`c` and the s of STEPS that was fastest in one run before; of the bare loops the better
one counts. Interleaved, medians. HPCSGD_TORCH_PYTHON names an interpreter with PyTorch.

python -m benchmarks.bench_ddp [--rows N] [--repeats N] [--epochs N]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.peers.notebook import Notebook
from benchmarks.run import HERE, machine

RANKS, BATCH = 2, 32
SETS = {"epsilon": 8.0, "higgs": 0.05}  # shape -> rate
PRODUCTS = ("auto", "cached", "gather", "gram", "direct")
STEPS = (2, 4, 8, 16, 32, 64)
TARGETS = {"ddp": 60.0, "bare": 2.0}  # times as many steps a second
PATIENCE = 600  # seconds for one run
OUT = HERE / "results" / "bench_ddp.json"
Figures = dict[str, Any]
Way = Callable[[], Figures]


def measure() -> Figures:
    """Everything, as `make bench-ddp` has it."""
    return run(_arguments([]))


def run(asked: argparse.Namespace) -> Figures:
    """One part a set, written when it is done."""
    settings = {"ranks": RANKS, "batch": BATCH, "rows": asked.rows}
    settings |= {"repeats": asked.repeats, "epochs": asked.epochs, "steps": list(STEPS)}
    settings["torch"] = _torch_version()
    if not settings["torch"]:
        print(f"{_torch_python()} has no PyTorch: DDP is left out; make bench-peers")
    book = Notebook(Path(asked.out), machine(), settings, asked.fresh)
    for shape in SETS:
        part = book.problem(shape)
        if "ratios" not in part:
            with tempfile.TemporaryDirectory() as folder:
                part |= _measured(Path(folder), shape, asked, bool(settings["torch"]))
            book.save()
        print(in_words(shape, part), flush=True)
    return book.figures


def _measured(
    folder: Path, shape: str, asked: argparse.Namespace, has_torch: bool
) -> Figures:
    ways, chosen = _ways(folder, shape, asked, has_torch)
    runs: dict[str, list[Figures]] = {name: [] for name in ways}
    for _ in range(asked.repeats):
        for name, way in ways.items():
            runs[name].append(way())
    rows = {name: _row(own) | chosen.get(name, {}) for name, own in runs.items()}
    return {"methods": rows, "ratios": ratios(rows)}


def _ways(
    folder: Path, shape: str, asked: argparse.Namespace, has_torch: bool
) -> tuple[dict[str, Way], dict[str, Figures]]:
    """name -> one run of it, and the s that each product was given."""
    store, arrays = _data(folder, shape, asked.rows)
    ways, chosen = dict[str, Way](), dict[str, Figures]()
    for product in PRODUCTS:
        train = partial(_train, store, product, shape, asked.epochs)
        tried = {s: train(s)["us"] for s in STEPS}
        best = min(tried, key=lambda s: tried[s])
        chosen[f"hpcsgd {product}"] = {"s": best, "us_by_s": tried}
        ways[f"hpcsgd {product}"] = partial(train, best)
        print(f"{shape}: {product}: s = {best} is fastest", flush=True)
    count = asked.epochs * (asked.rows // BATCH)
    for kind in ("columns", "rows"):
        ways[f"bare {kind}"] = partial(_bare, kind, arrays, count, SETS[shape])
    if has_torch:
        ways["ddp"] = partial(_ddp, folder, arrays, count, SETS[shape])
    return ways, chosen


def _data(folder: Path, shape: str, rows: int) -> tuple[Path, Path]:
    """The same rows as a store and as arrays."""
    from hpcsgd.data.synthetic import make_synthetic, write_synthetic

    store, arrays = folder / "set.h5", folder / "set.npz"
    write_synthetic(store, shape, rows)
    parts = list(make_synthetic(shape, rows))
    X, y = (np.concatenate(own) for own in zip(*parts, strict=True))
    np.savez(arrays, X=X, y=y.astype(np.float32))
    return store, arrays


def _train(store: Path, product: str, shape: str, epochs: int, steps: int) -> Figures:
    """Training alone, as the run itself reports it."""
    said = _said(
        [sys.executable, "-m", "hpcsgd", "train", "--data", str(store), "--json"]
        + ["--products", product, "--precision", "c", "--batch", str(BATCH)]
        + ["--steps", str(steps), "--epochs", str(epochs), "--rate", str(SETS[shape])]
        + ["--ranks", str(RANKS), "--set", "run.evaluate_every=0", "--quiet"]
    )
    us = 1e6 * said["seconds_total"] / said["iterations"]
    return {"us": us, "loss": said["loss"], "product": said["products"]}


def _bare(kind: str, arrays: Path, count: int, rate: float) -> Figures:
    beside = Path(sys.executable).with_name("mpiexec")
    mpiexec = str(beside) if beside.exists() else "mpiexec"
    ours = [sys.executable, "-m", "benchmarks.peers.mpi_loop", kind, str(arrays)]
    numbers = [str(BATCH), str(count), str(rate)]
    return _said([mpiexec, "-n", str(RANKS), *ours, *numbers])


def _ddp(folder: Path, arrays: Path, count: int, rate: float) -> Figures:
    """All ranks at once; rank 0 speaks."""
    meeting = folder / "meeting"
    meeting.unlink(missing_ok=True)
    ours = [_torch_python(), "-m", "benchmarks.peers.ddp_torch"]
    numbers = [str(meeting), str(arrays), str(BATCH), str(count), str(rate)]
    others = [
        subprocess.Popen([*ours, str(rank), str(RANKS), *numbers], cwd=HERE.parent)
        for rank in range(1, RANKS)
    ]
    try:
        return _said([*ours, "0", str(RANKS), *numbers])
    finally:
        for other in others:
            _end(other)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Whoever does not leave by itself is killed."""
    try:
        process.wait(60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _said(command: list[str]) -> Figures:
    """What a program prints as one JSON document."""
    done = subprocess.run(
        command,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=HERE.parent,
        env=os.environ | {"HYDRA_LAUNCHER": "fork"},
        timeout=PATIENCE,
    )
    figures: Figures = json.loads(done.stdout)
    return figures


def _torch_python() -> str:
    beside = str(HERE.parent / ".venv-bench" / "bin" / "python")
    return os.environ.get("HPCSGD_TORCH_PYTHON", beside)


def _torch_version() -> str:
    ask = [_torch_python(), "-c", "import torch; print(torch.__version__)"]
    try:
        return subprocess.run(ask, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def _row(runs: list[Figures]) -> Figures:
    us = median(one["us"] for one in runs)
    return {"us": us, "steps_per_second": 1e6 / us} | {
        "runs": [one["us"] for one in runs],
        **{key: runs[-1][key] for key in ("loss", "product") if key in runs[-1]},
    }


def ratios(rows: Figures) -> Figures:
    """The fastest of ours over the fastest of each kind, and what is aimed at."""
    ours = _fastest(rows, "hpcsgd")
    found: Figures = {"best": ours}
    for kind, target in TARGETS.items():
        other = _fastest(rows, kind)
        if ours and other:
            times = rows[other]["us"] / rows[ours]["us"]
            found[kind] = {"beside": other, "times": times, "target": target}
            found[kind]["met"] = times >= target
    return found


def _fastest(rows: Figures, kind: str) -> str | None:
    own = [name for name in rows if name.split()[0] == kind]
    return min(own, key=lambda name: rows[name]["us"], default=None)


def in_words(shape: str, part: Figures) -> str:
    """A table, and the ratios below."""
    lines = [f"\n{shape}: steps a second, {RANKS} ranks, b = {BATCH}"]
    for name, row in sorted(part["methods"].items(), key=lambda item: item[1]["us"]):
        more = f"  s {row['s']}, {row['product']}" if "s" in row else ""
        lines.append(
            f"{name:16s} {row['steps_per_second']:10.0f} {row['us']:8.1f} µs"
            f"  loss {row['loss']:.5f}{more}"
        )
    for kind in TARGETS:
        if kind in part["ratios"]:
            one, best = part["ratios"][kind], part["ratios"]["best"]
            product = part["methods"][best].get("product", "")
            plain = "plain SGD, " if product == "direct" else ""
            lines.append(
                f"{best} ({plain}{product}) / {one['beside']}: {one['times']:.2f}"
                f" (target {one['target']:g}: {'met' if one['met'] else 'not met'})"
            )
    return "\n".join(lines)


def _arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=8, help="of each hpcsgd run")
    parser.add_argument("--fresh", action="store_true", help="replace earlier figures")
    parser.add_argument("--out", default=str(OUT))
    return parser.parse_args(given)


if __name__ == "__main__":
    run(_arguments(None))
    sys.exit(0)

"""The Gram of long exchanges by warpgroups, beside our plain kernel and cuBLAS.

First in a process of its own, beside float64: what a kernel does that breaks a rule of
the GPU is the end of all that its process has there.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.every_kernel import ALONE
from benchmarks.gpu.figure import Figure
from benchmarks.gpu.gram import NEAR, over_sets, rows_of
from benchmarks.gpu.rows import OurGram
from benchmarks.gpu.sanitizer import ROOT
from hpcsgd.backends.cuda.gram import CublasGram, WgmmaGram, has_wgmma

ALONE_COMMAND = [sys.executable, "-m", "benchmarks.gpu.every_kernel", *ALONE]
LIMIT = 120.0  # seconds
NAME = "gram large wgmma"


def large(bench: Bench) -> Sequence[Figure]:
    """One where there is such a kernel for the GPU, else none."""
    rows = rows_of(bench, *bench.sizes.large)
    ours = OurGram(rows, bench.sizes.batch)
    if not has_wgmma(ours.products):
        return []
    failure = refused()
    if failure:
        return [Figure(NAME, "", failure=failure)]
    ways: dict[str, Any] = {"ours": ours.products}
    ways |= {"wgmma": WgmmaGram(ours.products), "cublas": CublasGram(ours.products)}
    actions = {name: _action(ours, way) for name, way in ways.items()}
    _check(ours, actions)
    measured = {n: over_sets(bench, rows, action) for n, action in actions.items()}
    times = bench.clock.measure(measured)
    took = {name: each.median for name, each in times.items()}
    done = 2 * ours.tiles.words * rows.width
    details = {
        "rows": rows.count,
        "columns": rows.width,
        "us": {name: each.us for name, each in times.items()},
        "share_of_bf16": done / took["wgmma"] / bench.bf16[0],
        "over_cublas": took["cublas"] / took["wgmma"],
    }
    says = (
        f"our plain kernel's time over its; {details['share_of_bf16']:.2f} of the bf16"
        f" rate, cuBLAS's time over its {details['over_cublas']:.2f}"
    )
    ratio = took["ours"] / took["wgmma"]
    return [Figure(NAME, says, reached=ratio, unit="x", details=details)]


def refused() -> str:
    """Why it has no figure, in words; nothing where it is as in float64."""
    try:
        done = subprocess.run(
            *(ALONE_COMMAND,),
            **{"capture_output": True, "text": True, "timeout": LIMIT, "cwd": ROOT},
        )
    except subprocess.TimeoutExpired:
        return f"not done in {LIMIT:g} s by itself"
    last = (done.stdout + done.stderr).strip().splitlines()[-3:]
    said = f"by itself it ended with {done.returncode}: {' | '.join(last)}"
    return said[:2000] if done.returncode else ""


def _action(ours: OurGram, way: Any) -> Callable[[Any], None]:
    rows = ours.rows
    return lambda numbers: way.both(numbers, rows.weights, ours.out, rows.out)


def _check(ours: OurGram, actions: dict[str, Callable[[Any], None]]) -> None:
    """All make the same tiles and margins; a wrong one has no figure."""
    found = {}
    for name, action in actions.items():
        action(ours.rows.sets[0])
        fetch = ours.device.fetch
        found[name] = np.concatenate([fetch(ours.out), fetch(ours.rows.out)])
    size = np.abs(found["ours"]).max()
    for name, values in found.items():
        off = np.abs(values - found["ours"]).max() / size
        if not off <= NEAR:
            raise ArithmeticError(f"{name} and ours differ by {off:.3g}: not timed")

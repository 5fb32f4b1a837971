"""One GPU: kernels beside cuBLAS and a copy, exchanges, and runs beside plain SGD.

Every figure is the median of turns that everybody takes in one run; times are of whole
launches, waited for. What is compared with is named: a copy of device memory, bf16 by
cuBLAS on square matrices, rows taken by CuPy and multiplied by cuBLAS, plain SGD in
FP32 by CuPy as one writes it first, and our own plain SGD in FP32, a graph a step.
Figures with a latency are models: what was measured, and so much for every sum.

python -m benchmarks.bench_gpu   (as `make gpu`; writes results/gpu-NAME.json)
"""

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.peers.problems import Kind, make_of
from benchmarks.run import HERE, machine
from hpcsgd.api import train
from hpcsgd.backends.cuda import CudaDevice
from hpcsgd.backends.device_buffers import Order
from hpcsgd.backends.device_exchange import DeviceExchange
from hpcsgd.backends.device_layer import load_cupy
from hpcsgd.backends.device_matrix import put_matrix
from hpcsgd.errors import ConfigError
from hpcsgd.families import get_family
from hpcsgd.precision import RECIPES
from hpcsgd.schedule import uniform_blocks
from hpcsgd.storage import encode
from hpcsgd.updates import make_update, unroll

TURNS, LEAST = 11, 0.01  # of everybody, seconds of each
BATCH, STEPS, ROWS, EPOCHS = 32, 16, 20000, 10
GRAMS = ((32, 16, 2000), (32, 64, 8000))  # batch, steps, columns
SHAPES = {  # family, rate
    "epsilon": ("logistic", 8.0),
    "susy": ("logistic", 1.0),
    "higgs": ("logistic", 1.0),
    "synth": ("logistic", 0.05),
    "poisson-synth": ("poisson", 0.2),
}
LATENCIES = (12e-6, 30e-6)  # seconds of a sum over ranks
Way = Callable[[], Any]


def measure() -> dict:
    """All figures of this GPU."""
    cupy, device = load_cupy(), CudaDevice()
    copy, rate = copy_bandwidth(cupy, device), bf16_rate(cupy, device)
    return {
        "gpu": cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        "copy_GB_s": copy / 1e9,
        "bf16_TF_s": rate / 1e12,
        "gram": [gram(cupy, device, *shape, rate) for shape in GRAMS],
        "rows": rows(cupy, device, copy),
        "exchange_us": 1e6 * exchange_seconds(device, "c", BATCH, STEPS, 2000),
        "runs": [run(cupy, device, name) for name in SHAPES],
    }


def turns(device: CudaDevice, ways: dict[str, Way]) -> dict[str, float]:
    """name -> seconds of one call, everybody in every turn."""
    counts, found = {}, {name: [] for name in ways}
    for name, way in ways.items():
        way()
        device.cupy.cuda.Device().synchronize()
        counts[name] = max(int(LEAST / max(_timed(device, way, 3), 1e-7)), 1)
    for _ in range(TURNS):
        for name, way in ways.items():
            found[name].append(_timed(device, way, counts[name]))
    return {name: statistics.median(taken) for name, taken in found.items()}


def _timed(device: CudaDevice, way: Way, count: int) -> float:
    device.cupy.cuda.Device().synchronize()
    began = time.perf_counter()
    for _ in range(count):
        way()
    device.cupy.cuda.Device().synchronize()
    return (time.perf_counter() - began) / count


def copy_bandwidth(cupy: Any, device: CudaDevice) -> float:
    """Bytes read and written a second, by a copy of 1 GiB."""
    source = cupy.zeros(2**28, dtype=cupy.float32)
    target = cupy.empty_like(source)
    (seconds,) = turns(device, {"copy": lambda: cupy.copyto(target, source)}).values()
    return 2 * source.nbytes / seconds


def bf16_rate(cupy: Any, device: CudaDevice) -> float:
    """Multiply-adds, counted twice, of square matrices in bf16 with sums in fp32."""
    n = 8192
    left = cupy.zeros((n, n), dtype=cupy.uint16)
    out = cupy.empty((n, n), dtype=cupy.float32)
    (seconds,) = turns(device, {"gemm": lambda: gemm(cupy, left, out)}).values()
    return 2 * n**3 / seconds


def gemm(cupy: Any, rows: Any, out: Any) -> None:
    """out ← rows rowsᵀ by cuBLAS: rows as bf16 bits, out in fp32."""
    from cupy.cuda import cublas, runtime

    m, d = rows.shape
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    handle = cupy.cuda.device.get_cublas_handle()
    cublas.gemmEx(
        *(handle, cublas.CUBLAS_OP_T, cublas.CUBLAS_OP_N, m, m, d, one.ctypes.data),
        *(rows.data.ptr, runtime.CUDA_R_16BF, d, rows.data.ptr, runtime.CUDA_R_16BF, d),
        *(zero.ctypes.data, out.data.ptr, runtime.CUDA_R_32F, m),
        *(cublas.CUBLAS_COMPUTE_32F, -1),
    )


def exchange(
    device: CudaDevice, recipe: str, batch: int, steps: int, columns: int, rows: int
) -> tuple[DeviceExchange, Any, Any]:
    """An exchange on drawn rows, its weights, and the stored matrix."""
    rng, precision = np.random.default_rng(0), RECIPES[recipe]
    X = rng.normal(size=(rows, columns)).astype(np.float32) / np.sqrt(columns)
    targets = (rng.random((rows, 1)) < 0.5).astype(np.float32)
    blocks = uniform_blocks(batch, steps)
    matrix = put_matrix(device, encode(X, precision.matrix))
    order = Order(device, targets, None, None)
    made = DeviceExchange(
        device, matrix, order, blocks, get_family("logistic"), precision
    )
    order.seek(rng.permutation(rows), 0, blocks.rows)
    update = make_update("sgd", 0.0)
    made.coefficients.load(unroll(update, [0.1] * steps, blocks.sizes, 0.0))
    return made, device.zeros((columns, 1), np.float32), matrix


def gram(
    cupy: Any, device: CudaDevice, batch: int, steps: int, columns: int, rate: float
) -> dict:
    """One launch of ours beside taking rows, cuBLAS and a product with w."""
    made, weights, matrix = exchange(device, "c", batch, steps, columns, 20000)
    made.sample()
    m = made.blocks.rows
    out = cupy.empty((m, m), dtype=cupy.float32)

    def theirs() -> None:
        rows = cupy.take(matrix.values, made.sampled.numbers, axis=0)
        gemm(cupy, rows, out)
        wide = (rows.astype(cupy.uint32) << 16).view(cupy.float32)
        cupy.dot(wide[:, :columns], weights)

    found = turns(device, {"ours": lambda: made.products(weights), "theirs": theirs})
    flops = 2 * made.tiles * 64 * 64 * columns
    return {
        "rows": m,
        "columns": columns,
        "us": {name: 1e6 * seconds for name, seconds in found.items()},
        "ratio": found["theirs"] / found["ours"],
        "share_of_bf16": flops / found["ours"] / rate,
    }


def rows(cupy: Any, device: CudaDevice, copy: float) -> dict:
    """Margins and update of 65536 rows, as shares of a copy's bandwidth."""
    made, weights, matrix = exchange(device, "c", 65536, 1, 2000, 200_000)
    made.sample()
    found = turns(
        device,
        {
            "margin": lambda: made.products(weights),
            "update": lambda: made.descend(weights),
        },
    )
    size = made.blocks.rows * matrix.width * 2
    return {name: size / seconds / copy for name, seconds in found.items()}


def exchange_seconds(
    device: CudaDevice, recipe: str, batch: int, steps: int, columns: int
) -> float:
    """Of one graph launch after another, from the same rows."""
    made, weights, _ = exchange(device, recipe, batch, steps, columns, 20000)

    def again() -> None:
        device.fill(made.sampled.order.position, np.zeros(1, np.int64))
        made.at_once(weights, None)

    def fill() -> None:
        device.fill(made.sampled.order.position, np.zeros(1, np.int64))

    found = turns(device, {"both": again, "fill": fill})
    return max(found["both"] - found["fill"], 0.0)


def run(cupy: Any, device: CudaDevice, name: str) -> dict:
    """CA-SGD in recipe c beside plain SGD: seconds of training and losses."""
    family, rate = SHAPES[name]
    X, y = make_of(Kind(name, family), ROWS)
    common = {
        "problem": {"family": family},
        "rate": {"value": rate},
        "run": {"device": "cuda", "evaluate_every": 0},
    }
    ways = {
        "ca": {"precision": {"recipe": "c"}, "products": {"kind": "gram"}},
        "plain": {"precision": {"recipe": "fp32"}, "products": {"kind": "direct"}},
    }
    schedule = {"batch": BATCH, "steps": STEPS, "epochs": EPOCHS}
    taken: dict[str, list[float]] = {"ca": [], "plain": [], "naive": []}
    losses = {}
    for _ in range(3):
        for way, own in ways.items():
            result = train({**common, **own, "schedule": schedule}, X=X, y=y)
            taken[way].append(result.report["seconds_total"])
            losses[way] = result.loss
        taken["naive"].append(naive(cupy, X, y, family, rate))
    seconds = {way: statistics.median(each) for way, each in taken.items()}
    steps = EPOCHS * -(-ROWS // BATCH)
    return {
        "shape": name,
        "seconds": seconds,
        "against_naive": seconds["naive"] / seconds["ca"],
        "against_plain": seconds["plain"] / seconds["ca"],
        "loss_gap": losses["ca"] / losses["plain"] - 1,
        "with_latency": {
            f"{1e6 * latency:g}us": (seconds["plain"] + steps * latency)
            / (seconds["ca"] + steps / STEPS * latency)
            for latency in LATENCIES
        },
    }


def naive(cupy: Any, X: Any, y: Any, family: str, rate: float) -> float:
    """Plain SGD in FP32 as one writes it with CuPy: a few calls a step."""
    rows, targets = cupy.asarray(X), cupy.asarray(y, dtype=cupy.float32)
    link = {"logistic": lambda t: 1 / (1 + cupy.exp(-t)), "poisson": cupy.exp}[family]
    order = cupy.asarray(np.random.default_rng(0).permutation(len(X)))
    weights = cupy.zeros(X.shape[1], dtype=cupy.float32)

    def epoch() -> None:
        for first in range(0, len(X), BATCH):
            part = order[first : first + BATCH]
            own = rows[part]
            residuals = link(own @ weights) - targets[part]
            weights[...] -= rate / len(part) * (own.T @ residuals)

    epoch()
    cupy.cuda.Device().synchronize()
    began = time.perf_counter()
    for _ in range(EPOCHS):
        epoch()
    cupy.cuda.Device().synchronize()
    return time.perf_counter() - began


def main() -> int:
    """Write the results of this GPU, under its name."""
    try:
        figures = measure()
    except ConfigError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    name = figures["gpu"].lower().replace(" ", "-")
    out = HERE / "results" / f"gpu-{name}.json"
    document = {"machine": machine(), "figures": figures}
    out.write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps(figures, indent=2))
    print(f"wrote {out.relative_to(HERE.parent)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

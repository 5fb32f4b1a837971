"""Text files as the well-known sets have them, made on the spot for benchmarks."""

from collections.abc import Callable
from pathlib import Path

import numpy as np

BLOCK = 8_000_000  # bytes that are drawn; a file repeats them
REAL = Path(__file__).parents[2] / "shared" / "data"


def epsilon(rng: np.random.Generator) -> str:
    """Dense LIBSVM: 2000 columns of 8 digits."""
    return _libsvm_dense(rng, 2000, "%d:%.8g")


def digits(rng: np.random.Generator) -> str:
    """Dense LIBSVM: 500 columns, every value with the 17 digits of a float64."""
    return _libsvm_dense(rng, 500, "%d:%.17g")


def rcv1(rng: np.random.Generator) -> str:
    """Sparse LIBSVM: 47236 columns, 74 of them in a row, of about 17 digits."""
    columns = np.sort(rng.choice(47236, 74, replace=False)) + 1
    pairs = zip(columns, rng.random(74) * 0.2, strict=True)
    return f"{_sign(rng)} " + " ".join(f"{c}:{v:.17g}" for c, v in pairs)


def a9a(rng: np.random.Generator) -> str:
    """Sparse LIBSVM: 123 columns, 14 ones in a row."""
    columns = np.sort(rng.choice(123, 14, replace=False)) + 1
    return f"{_sign(rng)} " + " ".join(f"{c}:1" for c in columns) + " "


def higgs(rng: np.random.Generator) -> str:
    """CSV, label first: 28 columns of float32 with 19 digits each."""
    row = np.r_[rng.integers(0, 2), rng.standard_normal(28).astype(np.float32)]
    return ",".join(f"{value:.18e}" for value in row)


def exact(rng: np.random.Generator) -> str:
    """CSV, label first: 28 columns, the shortest digits that give the float64."""
    row = [rng.integers(0, 2), *rng.standard_normal(28).tolist()]
    return ",".join(map(str, row))


def short(rng: np.random.Generator) -> str:
    """CSV, label first: 90 columns with 5 digits."""
    row = [rng.integers(1922, 2011), *rng.standard_normal(90)]
    return ",".join(f"{value:.5g}" for value in row)


LIBSVM = {"epsilon": epsilon, "digits": digits, "rcv1": rcv1, "a9a": a9a}
CSV = {"higgs": higgs, "exact": exact, "short": short}


def write(path: Path, row: Callable[[np.random.Generator], str], size: int) -> Path:
    """At least `size` bytes of such rows, the first 8 MB of them again and again."""
    rng, lines, held = np.random.default_rng(0), list[str](), 0
    while held < min(BLOCK, size):
        lines.append(row(rng) + "\n")
        held += len(lines[-1])
    block = "".join(lines).encode()
    path.write_bytes(block * -(-size // len(block)))
    return path


def real_files() -> list[Path]:
    """LIBSVM files beside the checkout, where there are any."""
    return sorted(REAL.glob("*.txt"))


def _libsvm_dense(rng: np.random.Generator, cols: int, pair: str) -> str:
    values = rng.standard_normal(cols) / np.sqrt(cols)
    pairs = (pair % (number, value) for number, value in enumerate(values, 1))
    return f"{_sign(rng)} " + " ".join(pairs)


def _sign(rng: np.random.Generator) -> str:
    return "+1" if rng.integers(2) else "-1"

"""One GPU: every figure beside its target, into results/gpu-NAME.json.

Each part is measured on its own: one that fails leaves its sentence and the others go
on, and the file is written after every one, since a loan of a GPU may end. Exits with 0
if all targets are met, 1 if one is missed or could not be measured, 2 without a GPU.

python -m benchmarks.bench_gpu [--minutes 8] [--only NAME ...] [--out FILE]
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import (
    bandwidth,
    ddp,
    every_kernel,
    exchanges,
    gram,
    gram_wgmma,
    sanitizer,
    sgd,
)
from benchmarks.gpu.bench import Bench, ceilings
from benchmarks.gpu.figure import Figure, table, write
from benchmarks.gpu.sizes import Sizes
from benchmarks.run import HERE, machine
from hpcsgd.backends.cuda import CudaDevice
from hpcsgd.errors import ConfigError

MINUTES = 8.0
Part = Callable[[Bench], Sequence[Figure]]


def kernels(_: Bench) -> Sequence[Figure]:
    """Results of every kernel beside float64."""
    says = "of the tests' kernels are not as in float64 on this GPU"
    found = every_kernel.wrong(every_kernel.proved())
    return [Figure("kernels", says, 0, True, float(found))]


def parts(sizes: Sizes) -> dict[str, Part]:
    """name -> what measures it, what matters most first."""
    return {
        "kernels": kernels,
        "ceilings": ceilings,
        "gram-small": gram.small,
        "exchange": exchanges.one_exchange,
        "gram-large": gram.large,
        "bandwidth": bandwidth.margins_and_update,
        "ddp": ddp.steps,
        **{case.shape: sgd.of_case(case) for case in sizes.cases},
        **{name: sanitizer.tool_named(name) for name in sanitizer.TOOLS},
        # Last: a kernel that no GPU has run may end the process that asks for it.
        "gram-wgmma": gram_wgmma.large,
    }


class Session:
    """Figures so far, and the file that they are in."""

    def __init__(self, bench: Bench, out: Path | None, minutes: float) -> None:
        self.bench, self.figures = bench, list[Figure]()
        name = bench.name.lower().replace(" ", "-")
        self.out = out or HERE / "results" / f"gpu-{name}.json"
        self.end = time.monotonic() + 60 * minutes
        self.minutes = minutes
        self.facts: dict[str, Any] = {
            **machine(),
            "gpu": bench.name,
            "arch": bench.device.arch,
            "processors": bench.device.multiprocessors,
            "cupy": getattr(bench.cupy, "__version__", ""),
            "runtime": bench.cupy.cuda.runtime.runtimeGetVersion(),
            "state_before": bench.state(),
            "seconds": {},
        }

    def measure(self, name: str, part: Part) -> None:
        """One part, whatever becomes of it."""
        began = time.monotonic()
        if began > self.end:
            why = f"left out: {self.minutes:g} minutes are over; use --only {name}"
            found: Sequence[Figure] = [Figure(name, "", failure=why)]
        else:
            found = self._tried(name, part)
        self.facts["seconds"][name] = time.monotonic() - began
        self.facts["state_after"] = self.bench.state()
        self.figures += found
        write(self.out, self.facts, self.figures)
        for figure in found:
            print(figure.line, file=sys.stderr, flush=True)

    def _tried(self, name: str, part: Part) -> Sequence[Figure]:
        try:
            return part(self.bench)
        except Exception as error:  # the rest goes on
            lines = str(error).strip().splitlines() or [""]
            why = f"{type(error).__name__}: {lines[0]}"
            return [Figure(name, "", failure=why[:2000])]


def main(given: Sequence[str] | None = None, sizes: Sizes | None = None) -> int:
    """Measure what was named; write and print it."""
    sizes = sizes or Sizes()
    known = parts(sizes)
    options = _parser(known).parse_args(given)
    try:
        session = Session(Bench(CudaDevice(), sizes), options.out, options.minutes)
    except ConfigError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    for name in options.only or known:
        session.measure(name, known[name])
    print(table(session.figures))
    missed = [figure.name for figure in session.figures if not figure.is_met]
    print(f"wrote {session.out}; {len(missed)} of {len(session.figures)} not met")
    return 1 if missed else 0


def _parser(known: dict[str, Part]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--minutes", type=float, default=MINUTES, help="no part begins after so many"
    )
    parser.add_argument(
        "--only",
        nargs="+",
        metavar="NAME",
        choices=known,
        help=f"of: {', '.join(known)}",
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="instead of results/")
    return parser


if __name__ == "__main__":
    sys.exit(main())

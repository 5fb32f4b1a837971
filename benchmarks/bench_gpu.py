"""One GPU: every figure beside its target, into results/gpu-NAME.json.

Each part is measured on its own: one that fails, hangs or ends its process leaves its
sentence and the others go on, and the file is written after every one, since a loan of
a GPU may end. Exits with 0 if all targets are met, 1 if one is missed or could not be
measured, 2 without a GPU.

python -m benchmarks.bench_gpu [--minutes 8] [--only NAME ...] [--out FILE]
"""

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
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
from benchmarks.gpu.worker import LIMIT, NO_GPU, Told, apart, own_line, tell
from benchmarks.run import HERE, machine
from hpcsgd.backends.cuda.device import CudaDevice
from hpcsgd.errors import ConfigError

MINUTES = 8.0
LONGER = 40.0  # than its own limit: a sanitizer's answer is waited for
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
        # Late: a kernel that no GPU has run may end its worker.
        "gram-wgmma": gram_wgmma.large,
        **{name: sanitizer.tool_named(name) for name in sanitizer.TOOLS},
    }


class Measured:
    """Figures so far, and the file that they are in."""

    def __init__(self, out: Path | None) -> None:
        self.out, self.figures = out, list[Figure]()
        self.facts: dict[str, Any] = {}

    def add(self, told: Told) -> None:
        """Facts of the machine, or figures of one part."""
        if "facts" in told:  # of a second worker, too: the first says what was before
            self.facts = {**told["facts"], "seconds": {}, **self.facts}
            return
        name, failure = told["name"], told.get("failure", "")
        alone = [{"name": name, "says": "", "failure": failure}]
        found = [Figure(**one) for one in told.get("figures", alone)]
        self.figures += found
        self.facts.setdefault("seconds", {})[name] = told.get("seconds")
        self.facts["state_after"] = told.get("state", "")
        write(self.path, self.facts, self.figures)
        for figure in found:
            print(figure.line, file=sys.stderr, flush=True)

    @property
    def path(self) -> Path:
        """Named after the GPU where nobody names it."""
        name = str(self.facts.get("gpu", "lost")).lower().replace(" ", "-")
        return self.out or HERE / "results" / f"gpu-{name}.json"

    def summary(self) -> int:
        """Print the table; the exit code."""
        missed = [figure.name for figure in self.figures if not figure.is_met]
        print(table(self.figures))
        print(f"wrote {self.path}; {len(missed)} of {len(self.figures)} not met")
        return 1 if missed else 0


def measured(names: Sequence[str], minutes: float, sizes: Sizes) -> Iterator[Told]:
    """What there is to tell of these parts, measured one after the other."""
    end = time.monotonic() + 60 * minutes
    bench, known = Bench(CudaDevice(), sizes), parts(sizes)
    yield {"facts": _facts(bench)}
    for name in names:
        began = time.monotonic()
        bench.left = end - began
        found = _tried(bench, name, known[name])
        is_lost = any(figure.failure for figure in found) and bench.is_lost
        yield {
            "name": name,
            "figures": [asdict(figure) for figure in found],
            "seconds": time.monotonic() - began,
            "state": bench.state(),
            "lost": is_lost,
        }
        if is_lost:
            return


def _tried(bench: Bench, name: str, part: Part) -> Sequence[Figure]:
    """One part, whatever becomes of it."""
    if bench.left < 0:
        why = f"left out: the minutes are over; use --only {name}"
        return [Figure(name, "", failure=why)]
    try:
        return part(bench)
    except Exception as error:  # the rest goes on
        lines = str(error).strip().splitlines() or [""]
        why = f"{type(error).__name__}: {lines[0]}"
        return [Figure(name, "", failure=why[:2000])]


def _facts(bench: Bench) -> dict[str, Any]:
    return {
        **machine(),
        "gpu": bench.name,
        "arch": bench.device.arch,
        "processors": bench.device.multiprocessors,
        "cupy": getattr(bench.cupy, "__version__", ""),
        "runtime": bench.cupy.cuda.runtime.runtimeGetVersion(),
        "state_before": bench.state(),
    }


def main(given: Sequence[str] | None = None, sizes: Sizes | None = None) -> int:
    """Measure what was named; write and print it.

    In a worker of its own but with `sizes`, which tests have.
    """
    options = _parser(parts(sizes or Sizes())).parse_args(given)
    minutes = options.minutes
    if options.since:
        minutes -= (time.time() - options.since) / 60
    here = (options.only or list(parts(sizes or Sizes()))), minutes
    try:
        if options.worker:
            return _work(measured(*here, Sizes()))
        found = Measured(options.out)
        for told in measured(*here, sizes) if sizes else apart(*here, time_limit):
            found.add(told)
    except ConfigError as error:
        print(f"bench: {error}", file=sys.stderr)
        return NO_GPU
    return found.summary() if found.facts else NO_GPU


def _work(told: Iterator[Told]) -> int:
    with own_line() as line:
        for one in told:
            tell(one, line)
    return 0


def time_limit(name: str) -> float:
    """Seconds after which nothing is to be expected of a part."""
    return sanitizer.LIMIT + LONGER if name in sanitizer.TOOLS else LIMIT


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
    parser.add_argument(
        "--since", type=float, help="the Unix time from which minutes are counted"
    )
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())

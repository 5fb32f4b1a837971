"""Run the benchmarks and keep what they measured, with the machine they ran on.

python -m benchmarks.run [NAME ...]      # all of benchmarks/bench_*.py but those APART
python -m benchmarks.run bench_cpu --suffix amx     # beside those of another machine
"""

import argparse
import importlib
import os
import platform
import sys
from pathlib import Path

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

HERE = Path(__file__).parent
# What other targets of make run: bench-data, bench-peers, bench-fit, bench-ddp, ...
TEXT = ("bench_data", "bench_convert", "bench_store", "bench_stream")
APART = (*TEXT, "bench_peers", "bench_ddp", "bench_gpu", "bench_model")
APART = (
    *APART,
    "bench_fit",
    "bench_streamed_fit",  # two files of 10 GB
    "bench_gpu_counts",  # counts, no times: they change with kernels alone
    "bench_files",  # counts, by strace
)
sys.path.insert(0, str(HERE.parent))

from benchmarks.lines import in_lines  # noqa: E402 - found once the path is set


def main() -> int:
    """Run what was named; write one JSON file a benchmark."""
    names = sorted(path.stem for path in HERE.glob("bench_*.py"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=f"of: {', '.join(names)}")
    parser.add_argument("--suffix", help="of the file, for figures of another machine")
    given = parser.parse_args()
    chosen = given.names or [n for n in names if n not in APART]
    for name in chosen:
        if name not in names:
            parser.error(f"no benchmark {name}; known: {', '.join(names)}")
        figures = importlib.import_module(f"benchmarks.{name}").measure()
        file = f"{name}-{given.suffix}" if given.suffix else name
        out = HERE / "results" / f"{file}.json"
        out.parent.mkdir(exist_ok=True)
        document = {"machine": machine(), "figures": figures}
        out.write_text(in_lines(document) + "\n")
        print(f"wrote {out.relative_to(HERE.parent)}", flush=True)
    return 0


def machine() -> dict:
    """Where the figures were measured."""
    import numpy

    from hpcsgd.cli.info import cpu_facts

    return {
        **cpu_facts(),
        "python": platform.python_version(),
        "numpy": numpy.__version__,
        "blas_threads": os.environ["OPENBLAS_NUM_THREADS"],
    }


if __name__ == "__main__":
    sys.exit(main())

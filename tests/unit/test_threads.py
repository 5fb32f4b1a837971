"""Kernels whose work is shared give the bits of one thread, whatever their number."""

import logging
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from hpcsgd.api import train
from hpcsgd.backends import compiled_calls
from hpcsgd.config import RunConfig
from hpcsgd.errors import ConfigError
from hpcsgd.glm.unrolling import blocks_of
from tests.helpers.cpu import SIZES, kernels, sampled, sets_here
from tests.helpers.harness import config_for, make_problem, train_on
from tests.helpers.limits import HANG

__all__ = ["kernels"]  # a fixture
compiled = pytest.mark.skipif(not sets_here(), reason=compiled_calls.why())
COUNTS = (2, 3, 5)
STORED = ("fp32", "bf16")


@pytest.fixture(autouse=True)
def one_thread_afterwards(request):
    """In the set of kernels that the test used."""
    if "kernels" in request.fixturenames:
        request.getfixturevalue("kernels")
    compiled_calls._say.cache_clear()
    yield
    compiled_calls.use(1)


def same_for_any_number(work):
    """`work` gives the same bytes on one thread and on several, in tiny parts."""
    compiled_calls.use(1)
    alone = work()
    for count in COUNTS:
        compiled_calls.use(count, grain=1)
        for _ in range(3):
            assert work() == alone


@pytest.mark.parametrize("storage", STORED)
@pytest.mark.parametrize("d", [1, 31, 33, 100, 1025, 2051, 4200])
def test_margins_and_updates(kernels, d, storage):
    for m in (1, 5, 8, 37):
        matrix, _, rows = sampled(40, d, m, storage, spare=d % 3)
        rng = np.random.default_rng(d)
        w = rng.normal(size=(d, 1)).astype(np.float32)
        r = rng.normal(size=(m, 1)).astype(np.float32)

        def margins(matrix=matrix, rows=rows, w=w, m=m):
            out = np.full((m, 1), np.nan, dtype=np.float32)
            compiled_calls.margins(matrix, rows, w, out)
            return out.tobytes()

        def update(matrix=matrix, rows=rows, w=w, r=r):
            moved = w.copy()
            compiled_calls.update(matrix, rows, r, moved)
            return moved.tobytes()

        same_for_any_number(margins)
        same_for_any_number(update)


@pytest.mark.parametrize("storage", STORED)
@pytest.mark.parametrize("K", [1, 3, 10])
@pytest.mark.parametrize("d", [1, 33, 1025, 2051])
def test_several_columns(kernels, d, K, storage):
    for m in (1, 7, 37):
        matrix, _, rows = sampled(40, d, m, storage, spare=d % 3)
        rng = np.random.default_rng(d)
        w = rng.normal(size=(d, K)).astype(np.float32)

        def both(matrix=matrix, rows=rows, w=w, m=m):
            out, moved = np.full((m, K), np.nan, dtype=np.float32), w.copy()
            compiled_calls.margins_columns(matrix, rows, w, out)
            compiled_calls.update_columns(matrix, rows, out, moved)
            return out.tobytes() + moved.tobytes()

        same_for_any_number(both)


@pytest.mark.parametrize("storage", STORED)
@pytest.mark.parametrize("sizes", SIZES, ids=lambda s: f"{len(s)}x{s[0]}")
@pytest.mark.parametrize("d", [1, 33, 1031, 2100])
def test_the_strict_gram(kernels, d, sizes, storage):
    blocks = blocks_of(sizes)
    matrix, _, rows = sampled(30, d, blocks.rows, storage, spare=d % 2)
    starts = np.array(blocks.starts)

    def gram(way):
        out = np.full(blocks.gram_words + 9, np.float32(7))
        way(matrix, rows, starts, out[: blocks.gram_words])
        return out.tobytes()

    same_for_any_number(lambda: gram(compiled_calls.strict_gram))
    if storage == "bf16" and compiled_calls.has_pairs():
        room = compiled_calls.KernelScratch()
        same_for_any_number(
            lambda: gram(lambda *given: compiled_calls.strict_gram_pairs(*given, room))
        )


def test_the_loss(kernels):
    rng = np.random.default_rng(0)
    block = rng.normal(size=(53, 37)).astype(np.float32)
    w = rng.normal(size=37)

    def scores():
        out = np.full(53, np.nan)
        compiled_calls.exact_scores(block, w, out)
        return out.tobytes()

    same_for_any_number(scores)


def config_of(problem, kind, family, recipe, count):
    return config_for(
        problem,
        problem={"family": family, "l2": 0.01, "intercept": True},
        schedule={"batch": 12, "steps": 4, "epochs": 2},
        update={"kind": "nesterov", "momentum": 0.5},
        precision={"recipe": recipe},
        products={"kind": kind},
        run={"threads": count},
    )


KINDS = ["direct", "gram", "gather", "gather-once", "cached"]


@pytest.mark.cases(4)
@compiled
@pytest.mark.parametrize("recipe", ["fp32", "c"])
@pytest.mark.parametrize("family", ["logistic", "softmax"])
@pytest.mark.parametrize("kind", KINDS)
def test_whole_runs(kind, family, recipe, monkeypatch):
    """One rank, and two members that share the threads of one process."""
    problem, use = make_problem(family, n=96, d=300), compiled_calls.use
    monkeypatch.setattr(compiled_calls, "use", lambda count, grain=1: use(count, grain))
    found = []
    for count in (1, *COUNTS):
        config = config_of(problem, kind, family, recipe, count)
        one = train(config, X=problem.X, y=problem.y)
        two = train_on(2, config, problem)
        found.append([(r.weights.tobytes(), r.loss) for r in (one, two)])
    assert all(one == found[0] for one in found)


@compiled
def test_a_run_uses_what_it_asks_for(monkeypatch):
    problem, asked, use = make_problem("logistic", n=24, d=5), [], compiled_calls.use
    monkeypatch.setattr(
        compiled_calls, "use", lambda *given: (asked.append(given), use(*given))
    )
    train(config_of(problem, "direct", "logistic", "fp32", 3), X=problem.X, y=problem.y)
    assert asked == [(3,)]


def test_less_than_one_is_refused():
    with pytest.raises(ConfigError, match="threads = 0 must be at least 1"):
        RunConfig.parse({"run": {"threads": 0}})


@pytest.mark.parametrize(
    "cores, says",
    [
        ([(0, 1, 2), (0,), (0, 1, 2)], 1),
        ([(0, 1), (0,), (2, 3)], 0),
        ([(0, 1), (0,), (1, 2)], 1),
        ([(0, 1, 2, 3), (0, 1), (0, 1, 2, 3)], 0),
    ],
)
def test_too_many_are_said_once(cores, says, caplog):
    """By the first rank of a node, of the cores that its ranks may use between them."""
    places = list(zip(("one", "two", "one"), cores, strict=True))
    with caplog.at_level(logging.WARNING, logger="hpcsgd"):
        for rank in (0, 2, 0):  # and again, for a second run
            compiled_calls.warn(2, places, rank)
    assert len(caplog.records) == says
    assert not says or "2 threads each share 3 cores of node one" in caplog.text


@compiled
def test_a_run_says_so(caplog, monkeypatch):
    monkeypatch.setattr(compiled_calls, "place", lambda: ("here", (0, 1, 2)))
    problem = make_problem("logistic", n=24, d=5)
    with caplog.at_level(logging.WARNING, logger="hpcsgd"):
        train_on(2, config_of(problem, "direct", "logistic", "fp32", 1), problem)
        assert "threads each share" not in caplog.text
        train_on(2, config_of(problem, "direct", "logistic", "fp32", 2), problem)
    assert caplog.text.count("2 ranks with 2 threads each share 3 cores") == 1


def work_of(d=700, m=64):
    """A Gram, as bytes, by a call that is shared."""
    blocks = blocks_of((m // 4,) * 4)
    matrix, _, rows = sampled(m, d, m, "fp32")
    starts = np.array(blocks.starts)

    def gram():
        out = np.empty(blocks.gram_words, dtype=np.float32)
        compiled_calls.strict_gram(matrix, rows, starts, out)
        return out.tobytes()

    return gram


def helpers():
    """Threads of kernels in this process, by their name."""
    found = 0
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # one that is gone meanwhile
            found += (task / "comm").read_text() == "hpcsgd-kernels\n"
    return found


def comes_to(count):
    """True once there are so many: the system takes a moment to name and to end one."""
    end = time.monotonic() + 20
    while helpers() != count and time.monotonic() < end:
        time.sleep(0.01)
    return helpers() == count


needs_proc = pytest.mark.skipif(
    not os.path.isdir("/proc/self/task"), reason="no /proc here"
)


@compiled
@needs_proc
def test_threads_are_made_when_wanted_and_leave_when_not():
    gram = work_of()
    compiled_calls.use(4, grain=1)
    assert comes_to(0)
    gram()
    assert comes_to(3)
    compiled_calls.use(2, grain=1)
    assert comes_to(0)
    gram()
    assert comes_to(1)
    compiled_calls.use(1)
    assert comes_to(0)


@compiled
@needs_proc
def test_small_calls_stay_with_their_thread():
    small, large = work_of(d=20, m=8), work_of(d=2000, m=256)
    compiled_calls.use(4)
    assert comes_to(0)
    small()
    assert helpers() == 0
    large()
    assert comes_to(3)


@compiled
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_has_threads_of_its_own():
    """A fork keeps none of them; the child makes new ones, the parent keeps its own."""
    code = """if True:
    import os, threading
    from hpcsgd.backends import compiled_calls as blas_threads
    from tests.unit.test_threads import comes_to, work_of
    gram = work_of()
    alone = gram()
    blas_threads.use(3, grain=1)
    assert gram() == alone
    for _ in range(20):
        child = os.fork()
        if child == 0:
            ok = all(gram() == alone for _ in range(50))
            ok = ok and (not os.path.isdir("/proc/self/task") or comes_to(2))
            os._exit(0 if ok else 7)
        assert gram() == alone
        assert os.waitpid(child, 0)[1] == 0
    child = os.fork()
    if child == 0:
        assert gram() == alone
        raise SystemExit(0)  # an orderly end joins what it started
    assert os.waitpid(child, 0)[1] == 0
    print("done")
    """
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG
    )
    assert done.stdout == "done\n", done.stderr
    assert done.returncode == 0


@compiled
def test_callers_meet():
    """Several threads of Python call at once: each gets its own sums."""
    works = [work_of(d) for d in (300, 500, 700)]
    compiled_calls.use(1)
    alone = [gram() for gram in works]
    compiled_calls.use(3, grain=1)
    wrong = []

    def call(gram, wanted):
        wrong.extend(1 for _ in range(200) if gram() != wanted)

    callers = [
        threading.Thread(target=call, args=pair)
        for pair in zip(works, alone, strict=True)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(HANG)
    assert not any(caller.is_alive() for caller in callers) and not wrong

"""What a study expects on the wire: by the formula, by hand, by the ledger."""

import pytest

from hpcsgd.config import RunConfig
from hpcsgd.studies.folder import expected_traffic
from hpcsgd.studies.plan import METHODS, StudyAxes, StudyPlan
from tests.helpers.harness import train_on
from tests.helpers.problems import make_problem

ROWS, COLUMNS, BATCH, STEPS, EPOCHS = 53, 7, 4, 3, 2
FIGURES = ("calls", "words", "bytes")
OFTEN = ("sgd", "casgd", "local", "hybrid", "ddp")  # under all settings


def run(method, ranks, base=None, steps=STEPS, emulated=False, grids=(), recipe="fp64"):
    """The document of a run as a study would have it, on ranks that are threads."""
    problem = make_problem("logistic", n=ROWS, d=COLUMNS)
    base = {"schedule": {"epochs": EPOCHS}, **(base or {})}
    plan = StudyPlan(
        "strong",
        (1,) if emulated else (ranks,),
        emulated=(ranks,) if emulated else (),
        base=base,
        axes=StudyAxes(
            methods=(method,),
            steps=(steps,),
            batch=(BATCH,),
            grids=grids,
            precision=(recipe,),
        ),
    )
    point = next(p for p in plan.settings() if p.ranks == ranks)
    config = RunConfig.parse(point.tables())
    return train_on(point.launched, config, problem).as_dict()


def sent(report):
    """Products and agreements as the ledger has them."""
    ledger = report["ledger"]
    return {
        figure: ledger["products"][figure] + ledger["agreement"][figure]
        for figure in FIGURES
    }


def steps_of(rows, batch):
    """The batch sizes of an epoch."""
    return [batch] * (rows // batch) + [rows % batch] * bool(rows % batch)


def gram(sizes):
    """Pairs of rows of different batches, counted one by one, and the margins."""
    pairs = sum(a * b for i, a in enumerate(sizes) for b in sizes[:i])
    return pairs + sum(sizes)


def exchanges(rows, batch, steps=STEPS):
    sizes = steps_of(rows, batch)
    return [sizes[i : i + steps] for i in range(0, len(sizes), steps)]


@pytest.mark.parametrize("emulated", [False, True])
def test_sgd(emulated):
    """A sum of b words in every step, whatever goes through the loop at once."""
    report = run("sgd", 2, emulated=emulated)
    by_hand = {"calls": 14 * EPOCHS, "words": ROWS * EPOCHS, "bytes": 8 * ROWS * EPOCHS}
    assert sent(report) == expected_traffic(report) == by_hand


@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize("ranks", [2, 3])
def test_casgd(emulated, ranks):
    """One sum of G and z in s steps."""
    off = {"run": {"gap_every": 0}}
    report = run("casgd", ranks, off, emulated=emulated)
    found = exchanges(ROWS, BATCH)
    words = EPOCHS * sum(map(gram, found))
    by_hand = {"calls": EPOCHS * len(found), "words": words, "bytes": 8 * words}
    assert sent(report) == expected_traffic(report) == by_hand


@pytest.mark.parametrize("emulated", [False, True])
@pytest.mark.parametrize("period", [1, 2])
def test_local(emulated, period):
    """d words every s x period steps, and at the end; never a word between."""
    base = {"schedule": {"epochs": EPOCHS, "period": period}}
    report = run("local", 2, base, emulated=emulated)
    count = -(-len(exchanges(27, BATCH // 2)) * EPOCHS // period)
    by_hand = {"calls": count, "words": 7 * count, "bytes": 8 * 7 * count}
    assert sent(report) == expected_traffic(report) == by_hand


@pytest.mark.parametrize("emulated", [False, True])
def test_hybrid(emulated):
    """Both: a sum in s steps among members, their columns among replicas."""
    off = {"run": {"gap_every": 0}}
    report = run("hybrid", 4, off, emulated=emulated)
    found = exchanges(27, BATCH // 2)
    calls, columns = EPOCHS * len(found), 4  # of seven, rank 0 holds four
    words = EPOCHS * sum(map(gram, found)) + columns * calls
    by_hand = {"calls": 2 * calls, "words": words, "bytes": 8 * words}
    assert sent(report) == expected_traffic(report) == by_hand


@pytest.mark.parametrize(
    "base",
    [
        {"run": {"gap_every": 2}},
        {"run": {"reproducible": True}},
        {"products": {"kind": "cached"}},
        {"products": {"kind": "gather"}},
        {"products": {"kind": "gather-once"}},
        {"products": {"kind": "gram", "look_ahead": "on"}},
        {"update": {"kind": "nesterov"}, "problem": {"intercept": True}},
    ],
)
@pytest.mark.parametrize("method", OFTEN)
def test_every_method_under_every_setting(method, base):
    """What the ledger counts is what the formula says, the monitor's words too."""
    report = run(method, 4, base, grids=((2, 2),) if method == "hybrid" else ())
    assert sent(report) == expected_traffic(report)
    assert sent(report)["calls"] > 0


# One is on disk, and batches of one row can neither grow nor be halved.
NOT_HERE = {"infinity", "accordion-batch", "wavelet"}


@pytest.mark.cases(3)
@pytest.mark.parametrize("method", sorted({*METHODS} - NOT_HERE))
def test_every_method_by_formula_or_none(method):
    """A formula is right, or there is none: it is never off by a word."""
    report = run(method, 4, grids=((2, 2),) if method == "hybrid" else ())
    expected = expected_traffic(report)
    assert expected in (None, sent(report))
    assert sent(report)["calls"] > 0
    if method in (*OFTEN, "postlocal", "zero1", "zero2", "zero3", "bytescheduler"):
        assert expected


def test_emulated_members_are_not_watched():
    """What they hold is made up: no monitor looks, and none of its words travel."""
    base = {"run": {"gap_every": 2}}
    alone, real = (run("casgd", 2, base, emulated=made_up) for made_up in (True, False))
    assert sent(alone) == expected_traffic(alone)
    assert sent(real) == expected_traffic(real)
    assert sent(alone)["words"] < sent(real)["words"]


@pytest.mark.parametrize("recipe", ["fp32", "c", "d"])
@pytest.mark.parametrize("method", OFTEN)
def test_every_recipe(method, recipe):
    report = run(method, 4, recipe=recipe)
    assert sent(report) == expected_traffic(report)


@pytest.mark.parametrize(
    "change",
    [
        {"status": "diverged"},
        {"resumes": 1},
        {"events": [{"event": "fall-back"}]},
        {"sparse": True, "grid": {"replicas": 2, "members": 2}},
        {"sparse": True, "products": "gather"},
    ],
)
def test_where_no_formula_holds_none_is_given(change):
    report = run("casgd", 2)
    assert expected_traffic(report) is not None
    assert expected_traffic({**report, **change}) is None


def test_a_ledger_that_says_too_much_is_not_what_is_expected():
    """The comparison can fail."""
    report = run("casgd", 2)
    report["ledger"]["products"]["words"] += 1
    assert sent(report) != expected_traffic(report)

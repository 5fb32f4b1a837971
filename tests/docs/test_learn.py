"""What the pages of docs/learn state about the code and about measurements."""

import re
from pathlib import Path

import numpy as np
import pytest

from benchmarks.bench_headline import SHAPES
from hpcsgd.comm.network_model import NETWORKS
from hpcsgd.config import METHODS
from hpcsgd.formats import FORMATS, get_format
from hpcsgd.glm.unrolling import MOST_ROWS
from hpcsgd.glm.updates import HeavyBall, Nesterov, NesterovClassic, Sgd
from hpcsgd.precision import FIELDS, RECIPES
from hpcsgd.products import PRODUCTS
from hpcsgd.products.cost import CACHE_BUDGET, Machine
from hpcsgd.runs.machine import load_hardware
from hpcsgd.runs.settle import ASSUMED, BUDGET, EACH, NARROW, ON_CORES, STAGED
from hpcsgd.studies.predict import PredictedRun, parse_ranks, predict
from tests.helpers.figures import figures_of, hold, part, tenths, text_of

LEARN = Path(__file__).parents[2] / "docs" / "learn"
PAGES = sorted(path.stem for path in LEARN.glob("*.md"))


def rows_of(page):
    """The cells of every row of every table of a page."""
    lines = re.findall(r"(?m)^\| (.*) \|$", text_of(f"learn/{page}"))
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)] for line in lines]


def first_cells(page, column=0):
    """The names in backticks of one column of the tables of a page."""
    cells = [row[column] for row in rows_of(page) if len(row) > column]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def waiting():
    cell = figures_of("bench_headline")["problems"]["epsilon"]["many"]
    sgd, casgd = cell["us_of_all"]["direct 32"], cell["us_of_all"]["gram 8"]
    assert cell["members"] == 64
    plain = f"Plain SGD on 64 ranks takes {sgd:.0f} µs for a step"
    yield f"{plain}, and computes for only 7 µs of this time"
    message = 6 * 50 + 1e6 * 2 * 63 / 64 * 4 * 32 / 1.25e9
    assert round(sgd - message) == 7
    yield f"CA-SGD on 64 ranks takes {casgd:.0f} µs for a step"
    words = 32**2 * 28 + 8 * 32
    assert 890 < words / 32 < 910
    long = 1e6 * 2 * 63 / 64 * 4 * words / 1.25e9 + 6 * 50
    yield f"takes only {long / message:.1f} times as long as the message for one SGD"
    yield "has 900 times as many bytes as a message for one SGD step"


def products():
    problems = figures_of("bench_headline")["problems"]
    columns = {shape.name: shape.columns for shape in SHAPES}
    for shape, title in (("epsilon", "epsilon"), ("higgs", "HIGGS")):
        found = problems[shape]["lan"]["rows"]
        names = ("direct", "gram", "cached", "gather-once")
        times = [found[name]["us"] for name in names]
        cells = [f"{us:.0f}" if us >= 10 else f"{us:.1f}" for us in times]
        yield f"| {title} | {columns[shape]} | {' | '.join(cells)} |"
    fast = problems["epsilon"]["hpc"]["rows"]
    direct, cached, gram = (fast[n]["us"] for n in ("direct", "cached", "gram"))
    yield f"plain SGD takes {direct:.0f} µs for a step"
    yield f"{cached:.0f} µs with `--products cached` and {gram:.0f} µs with `gram`"
    model = figures_of("bench_model")
    yield f"In {model['choices']} cases with 1 to 4 ranks"
    near = part(model["choices_within_10_percent"])
    yield f"of the fastest choice in {near} of the cases"
    yield f"of {model['settings']} predicted times was {part(model['median_error'])}"


def grid():
    asked = PredictedRun(rows=400_000, columns=2000)
    ranks = parse_ranks("8..2048")
    points = predict(load_hardware("perlmutter-a100"), asked, ranks).points
    for name, seconds in (
        ("plain SGD", [p.sgd for p in points]),
        ("CA-SGD", [p.best.seconds for p in points]),
    ):
        least, most = 1e6 * min(seconds), 1e6 * max(seconds)
        yield f"{least:.0f} to {most:.0f} µs with {name}"


def precision():
    for recipe, words in (
        ("c", "`c` is within"),
        ("d", "`d` within"),
        ("bf16", "with recipe `bf16` is within"),
    ):
        gaps = [
            abs(row["gap_percent"])
            for row in figures_of("bench_recipes")
            if row["recipe"] == recipe
        ]
        yield f"{words} {np.ceil(1000 * max(gaps)) / 1000:.3f} %"


def optimum():
    rows = [row for row in figures_of("bench_optima") if row.get("columns") == "scaled"]
    ways = {row["way"]: row for row in rows}
    sgd = ways["sgd, s = 8"]
    assert sgd["passes"] is None
    yield f"| SGD, s = 8, best of four rates | never: {tenths(sgd['gap'], 0)} after"
    for way, title in (
        ("svrg, s = 1", "SVRG, s = 1"),
        ("svrg, s = 8", "SVRG, s = 8"),
        ("l-bfgs", "one epoch of SGD, then refinement"),
    ):
        yield f"| {title} | {ways[way]['passes']} | {ways[way]['messages']} |"


@pytest.mark.parametrize(
    ("page", "made"),
    [
        ("sgd", waiting),
        ("products", products),
        ("grid", grid),
        ("precision", precision),
        ("optimum", optimum),
    ],
)
@pytest.mark.cases("all")
def test_figures_of_a_page_are_those_of_the_results(page, made):
    hold(f"learn/{page}", made)


def test_every_method_is_in_the_table_of_agreements():
    assert set(METHODS) - first_cells("agreements", 1) == set()


def test_every_product_is_in_the_table_of_products():
    assert set(PRODUCTS) <= first_cells("products")


def test_every_field_and_recipe_is_in_the_page_of_precision():
    assert set(FIELDS) <= first_cells("precision", 1)
    assert set(RECIPES) <= first_cells("precision")
    text = " ".join(text_of("learn/precision").split())
    assert all(name in text for name in FORMATS)
    raised = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    for name in ("fp32", "fp16", "bf16"):
        exponent = int(np.log2(get_format(name).unit_roundoff))
        assert f"2{str(exponent).translate(raised)} for {name}" in text


def test_the_updates_of_the_page_are_those_of_the_code():
    """M, u and q of the table, with numbers for η, λ, μ, h and b."""
    eta, lam, mu, b = 0.3, 0.2, 0.9, 8
    names = {"η": eta, "λ": lam, "μ": mu, "h": eta / b, "b": b}
    kinds = {
        "sgd": Sgd(),
        "momentum": HeavyBall(mu),
        "nesterov": Nesterov(mu),
        "nesterov-classic": NesterovClassic(mu),
    }
    seen = set()
    for cells in rows_of("s-steps"):
        name = re.match(r"`([\w-]+)`", cells[0])
        if len(cells) != 5 or not name or name[1] not in kinds:
            continue
        update = kinds[name[1]]
        seen.add(name[1])
        matrix, gain, probe = (number(cell, names) for cell in cells[2:])
        np.testing.assert_allclose(np.atleast_2d(matrix), update.transition(eta, lam))
        np.testing.assert_allclose(np.atleast_1d(gain), update.gain(eta, b))
        np.testing.assert_allclose(np.atleast_1d(probe), update.probe())
    assert seen == set(kinds)


def number(cell, names):
    """The value of a formula in which a product is written without a sign."""
    text = cell.replace("−", "-").replace("²", "**2")
    text = re.sub(r"([ηλμh])(?=[ηλμ(])", r"\1*", text)
    text = re.sub(r"([ηλμh)])(?=[ηλμ])", r"\1*", text)
    return np.array(eval(text, {}, names), dtype=float)


def test_the_constants_of_the_page_are_those_of_the_model():
    rows = {cells[0]: cells[2:] for cells in rows_of("products") if len(cells) == 4}
    host, device = Machine(), ASSUMED

    def power(value):
        head, exponent = f"{value:.1e}".split("e")
        raised = str(int(exponent)).translate(str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹"))
        return f"{head.removesuffix('.0')}·10{raised}".removeprefix("1·")

    assert rows["α"] == [
        f"{1e6 * host.latency:g} µs",
        f"{1e6 * device.latency:g} µs; {1e6 * STAGED['latency']:g} µs through the host",
    ]
    assert rows["β"] == [
        f"{1e9 * host.per_byte:g} ns",
        f"{1e9 * device.per_byte:g} ns; {1e9 * STAGED['per_byte']:g} ns through the"
        " host",
    ]
    assert rows["F"] == [
        f"{power(host.gram)} fp32",
        f"{power(device.gram)} fp32, {power(ON_CORES)} in 16 and 8 bits",
    ]
    assert rows["read, again"] == [
        f"{power(m.read)}, {power(m.again)}" for m in (host, device)
    ]
    assert rows["plain"] == [power(host.plain), power(device.plain)]
    assert rows["inner, link"] == [
        f"{power(host.inner)}, {1e9 * host.link:g} ns",
        f"{power(device.inner)}, {1e12 * device.link:g} ps",
    ]
    assert rows["c₀, c₁"] == [
        f"{1e6 * m.overheads.exchange:g} µs, {1e6 * m.overheads.step:g} µs"
        for m in (host, device)
    ]
    assert rows["c₂, c₃"] == [
        f"{host.overheads.alone:g}, {host.overheads.turn:g}",
        f"{1e6 * NARROW:g} to {1e6 * EACH:g} µs, {1e6 * device.overheads.turn:g} µs",
    ]
    text = " ".join(text_of("learn/products").split())
    assert f"at most {CACHE_BUDGET >> 20} MiB ({BUDGET >> 30} GiB on a GPU)" in text
    assert f"at most {MOST_ROWS} rows" in text


def test_the_network_of_the_example_is_the_one_of_the_package():
    text = text_of("learn/sgd")
    lan = NETWORKS["lan"]
    assert f"alpha={lan.alpha * 1e6:.0f}e-6, bandwidth={lan.bandwidth / 1e9}e9" in text


def test_no_sentence_is_long():
    """At most 30 words from one full stop to the next, tables and code aside."""
    offenders = []
    for page in PAGES:
        text = text_of(f"learn/{page}")
        text = re.sub(r"```.*?```|\$\$.*?\$\$", " ", text, flags=re.S)
        lines = [one for one in text.splitlines() if not re.match(r"\||#|!\[", one)]
        paragraphs = re.split(r"\n\s*\n|\n(?=[*\d] ?)", "\n".join(lines))
        for words in paragraphs:
            for sentence in re.split(r"(?<=[.:?;])\s", " ".join(words.split())):
                if len(sentence.split()) > 30:
                    offenders.append(f"{page}: {sentence}")
    assert not offenders, "\n".join(offenders)

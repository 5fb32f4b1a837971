"""Tables of times and memory in docs: made anew from the files of benchmarks/results.

A measurement that is taken again changes its file, and this names the page to mend.
What the prose says of a table, where it is a ratio of two figures, is held here too.
"""

import json
import re

import pytest

from benchmarks import fit_table
from benchmarks import headline as tables_of_products
from benchmarks.bench_methods import RESULT
from benchmarks.methods_file import known
from hpcsgd.config import METHODS
from tests.helpers import methods_table
from tests.helpers.figures import (
    ROOT,
    figures_of,
    hold,
    name_of,
    names_its_file,
    part,
    table,
    tenths,
    text_of,
    two_digits,
)


def gpu_counts():
    found = figures_of("bench_gpu_counts")
    of = {(row["gpu"], row["kernel"]): row for row in found if "gpu" in row}
    gpus = ("H100 SXM", "H200")
    kernels = [name for gpu, name in of if gpu == "H200" and name != "exchange"]

    def said(gpu, kernel):
        row = of[gpu, kernel]
        return f"{row['predicted_us']:.1f}"

    yield table(
        ["counted, not measured", *(f"{gpu}: at least µs" for gpu in gpus)]
        + ["binds (H200)"],
        *(
            [name, *(said(gpu, name) for gpu in gpus), of["H200", name]["binds"]]
            for name in kernels
        ),
    )
    parts = [of[gpu, "exchange"]["us"] for gpu in gpus]
    yield table(
        ["one exchange, 512 × 2000", *parts[0], "all of it"],
        *(
            [
                *(gpu, *(f"{us:.1f}" for us in own.values())),
                f"{of[gpu, 'exchange']['predicted_us']:.1f}",
            ]
            for gpu, own in zip(gpus, parts, strict=True)
        ),
    )
    one = of["H200", "exchange"]
    assert all(of[gpu, "exchange"]["predicted_us"] < 35 for gpu in gpus)
    yield (
        f"predicted to be {one['over_graph_steps']:.1f}x as fast as 16 plain steps in"
        f" fp32 in a CUDA graph, and {one['over_plain_steps']:.1f}x as fast as one"
        " launch that takes all 16 plain steps"
    )
    yield (
        f"predicted to be {one['with 12 us a sum']:.1f}x as fast as these 16 steps if"
        f" each sum takes 12 µs, and {one['with 30 us a sum']:.1f}x as fast if each sum"
        " takes 30 µs"
    )
    yield f"at most {part(of['H200', 'gram large']['share_of_bf16'])} of 790 TF/s"
    for name in ("margin tall", "update tall", "margin wide", "update wide"):
        assert of["H200", name]["binds"] == "memory"
    assert one["us"]["recurrence"] == max(one["us"].values())
    slow, fast = (of["H200", f"recurrence{c}, 1024 rows"] for c in ("", ", cluster"))
    assert fast["predicted_us"] < slow["predicted_us"]
    slow, fast = (of["H200", f"recurrence{c}"] for c in (", cluster", ""))
    assert fast["predicted_us"] < slow["predicted_us"]


def wide():
    found = figures_of("bench_wide")

    def cells(row):
        ours, theirs = row["hpcsgd"], row["peer"]
        is_text = row["rows of"] == "text"
        return [
            f"text, C = {row['C']:g}" if is_text else "digits, softmax",
            f"{ours['cpu_seconds']:.2f}",
            row["beside"],
            f"{theirs['cpu_seconds']:.2f}",
            tenths(theirs["above"], 0),
            f"{ours['nonzeros']}, {theirs['nonzeros']}",
            tenths(row["gap"], 0),
        ]

    titles = ["data", "seconds of hpcsgd", "solver", "seconds of the solver"]
    titles += ["F of the solver, above", "non-zero weights", "gap of hpcsgd"]
    yield table(titles, *map(cells, found))
    assert all(row["hpcsgd"]["above"] == 0.0 and row["ratio"] < 3.0 for row in found)


def headline():
    """What the prose says of the tables that `python -m benchmarks.headline` writes."""
    problems = figures_of("bench_headline")["problems"]
    lan = {shape: cells["lan"]["rows"] for shape, cells in problems.items()}
    hpc = {shape: cells["hpc"]["rows"] for shape, cells in problems.items()}

    def times(of, product):
        ratios = [rows[product]["speedup"] for rows in of.values()]
        return f"{two_digits(min(ratios))} to {two_digits(max(ratios))}"

    yield (
        "On the emulated LAN, the speed of CA-SGD relative to plain SGD is"
        f" {times(lan, 'gram')} with `--products gram`, {times(lan, 'cached')} with"
        " `cached` and"
        f" {times(lan, 'gather-once')} with `gather-once`"
    )
    yield (
        "On a network with 5 µs per message, the speed of CA-SGD relative to plain"
        " SGD is"
        f" {times(hpc, 'gram')} with `--products gram`, {times(hpc, 'cached')} with"
        " `cached` and"
        f" {times(hpc, 'gather-once')} with `gather-once`"
    )
    gaps = [
        abs(rows[product]["loss_gap_percent"])
        for rows in (*lan.values(), *hpc.values())
        for product in ("gram", "cached", "gather-once")
    ]
    yield f"within {max(gaps):.3f} % of the loss of plain SGD"
    many = problems["epsilon"]["many"]
    alone = many["one_rank"]["direct"]["us"] / COLUMNS_OF_EPSILON
    plain, best = (
        round(us / alone, -2)
        for us in (
            min(many["rows"]["direct"]["us"], many["gradient_sum_us"]),
            min(
                many["rows"][product]["us"]
                for product in ("gram", "cached", "gather-once")
            ),
        )
    )
    yield (
        "64 ranks on an emulated LAN are faster than one rank with more than about"
        f" {plain:.0f} columns (plain SGD) or {best:.0f} columns (CA-SGD)"
    )
    choosing = known(RESULT)["figures"]["epsilon"]["lan"]["rows"]
    seconds, name = min(
        (row["to_target"]["seconds"], name)
        for name, row in choosing.items()
        if name.startswith("casgd")
    )
    there = choosing["sgd"]["to_target"]["seconds"] / seconds
    gram, cached, gathered = (
        two_digits(lan["epsilon"][product]["speedup"])
        for product in ("gram", "cached", "gather-once")
    )
    one_epoch = _of_network("lan", 32, 8)["speedup"]
    yield table(
        ["measurement", "times plain SGD"],
        ["`gram`, ten epochs", gram],
        ["`cached`, ten epochs", cached],
        ["`gather-once`, ten epochs", gathered],
        ["`gram` with s = 8, one epoch", two_digits(one_epoch)],
        [f"{name} in [choosing a method](choosing.md)", f"{there:.2f}"],
    )
    of_epsilon = problems["epsilon"]
    slow, fast = (of_epsilon[name]["rows"]["direct"]["us"] for name in ("lan", "hpc"))
    assert 19 < slow - 50 < 23 and 19 < fast - 5 < 23  # latencies are 50 and 5 µs
    yield (
        f"a step of plain SGD takes {slow:.0f} µs on an emulated LAN (50 µs per"
        f" message) and {fast:.0f} µs with 5 µs per message. About 20 µs of a step of"
        " plain SGD"
    )
    one_rank = many["one_rank"]
    yield (
        f"takes {one_rank['direct']['us']:.0f} µs on one rank, and"
        f" {one_rank['auto']['us']:.1f} µs with `--products auto --steps auto`"
    )


COLUMNS_OF_EPSILON = 2000


def _of_network(network, batch, steps):
    wanted = network, batch, steps
    (row,) = (
        row
        for row in figures_of("bench_network")
        if (row["network"], row["batch"], row["steps"]) == wanted
    )
    return row


def network():
    rows = []
    for batch, steps in ((8, 8), (16, 4), (16, 8), (32, 4), (32, 8)):
        cells = [_of_network(name, batch, steps) for name in ("none", "lan", "cloud")]
        rows.append(
            [f"{batch}, {steps}"]
            + [
                f"{cell['sgd_us_per_step']:.0f} / {cell['ca_sgd_us_per_step']:.0f}"
                f" ({two_digits(cell['speedup'], 2)}×)"
                for cell in cells
            ]
        )
    yield table(["b, s", "no network", "lan (50 µs)", "cloud (200 µs)"], *rows)


def ddp():
    """Steps a second, and how many times those of DDP they are."""
    found = figures_of("bench_ddp")["problems"]
    products = ("direct", "gram", "cached", "gather", "auto")
    rows = []
    for shape, title in (("epsilon", "epsilon"), ("higgs", "HIGGS")):
        methods = found[shape]["methods"]
        ddp = methods["ddp"]["steps_per_second"]
        of = [methods[f"hpcsgd {product}"] for product in products]
        per_second = [row["steps_per_second"] for row in of]
        others = [
            methods[name]["steps_per_second"] for name in ("bare columns", "bare rows")
        ]
        rows += [
            [f"{title}: steps a second", *(f"{n:.0f}" for n in (*per_second, *others))],
            [None, *(f"{row['product']}, s = {row['s']}" for row in of), None, None],
            [
                "times DDP",
                *(two_digits(n / ddp) for n in (*per_second, *others)),
            ],
        ]
        rows[-3].append(f"{ddp:.0f}")
        rows[-2].append(None)
        rows[-1].append("1")
    heads = [f"`{product}`" for product in products]
    yield table(["", *heads, "bare, columns", "bare, rows", "DDP"], *rows)


def exchange():
    """What Python adds to a short exchange, and the numerical monitor."""
    found = figures_of("bench_exchange")

    def range_of(key):
        return f"{min(r[key] for r in found):.0f} to {max(r[key] for r in found):.0f}"

    yield f"Python adds {range_of('overhead_us')} µs to the time of the BLAS calls"
    yield f"adds {range_of('looks_us')} µs to the average exchange"


def peers():
    """Seconds to the target; `never` where a run of five did not get there."""
    problems = figures_of("bench_peers")["problems"]
    ours = "hpcsgd fp32", "hpcsgd c", "NumPy SGD", "PyTorch SGD"
    rows = []
    for name in (
        *("epsilon", "poisson-synth", "synth", "synth-linear", "a9a", "higgs", "susy"),
    ):
        methods = problems[name]["methods"]
        seconds = {
            method: row["seconds"] for method, row in methods.items() if row["reached"]
        }
        first = min(seconds, key=seconds.get)

        def said(method, seconds=seconds, first=first):
            if method not in seconds:
                return "never"
            text = _three_digits(seconds[method])
            return f"**{text}**" if method == first else text

        other = min((m for m in seconds if m not in ours), key=seconds.get)
        title = other.replace("(CSR)", "on CSR")
        rows.append([name, *map(said, ours), f"{said(other)} ({title})"])
    heads = "hpcsgd fp32", "hpcsgd c", "NumPy SGD", "PyTorch SGD", "best other"
    yield table(["set", *heads], *rows)


def _three_digits(seconds):
    return f"{seconds:.4f}" if seconds < 0.1 else f"{seconds:.3f}"


def peers_of_ddp():
    """What is said of DDP."""
    found = figures_of("bench_ddp")["problems"]
    times = [
        two_digits(
            found[shape]["methods"]["ddp"]["us"]
            / found[shape]["methods"]["hpcsgd auto"]["us"]
        )
        for shape in ("epsilon", "higgs")
    ]
    chosen = [found[shape]["methods"]["hpcsgd auto"]["product"] for shape in found]
    assert chosen == ["direct", "gather-once"]
    for at, (shape, product) in enumerate(
        (("epsilon", "plain SGD"), ("HIGGS", "`gather-once`"))
    ):
        yield (
            f"On {shape}, hpcsgd with `--products auto`, which chooses {product}, takes"
            f" {times[at]} times as many steps per second as PyTorch DDP."
        )


PAGES = [
    ("trust/kernels", gpu_counts),
    ("howto/sparse-penalties", wide),
    *(("trust/benchmarks", made) for made in (headline, network, exchange)),
]


# Pages whose figures are made by a target of make.
BY_MAKE = [("trust/benchmarks", made) for made in (ddp, peers, peers_of_ddp)]


@pytest.mark.parametrize("page, made", [*PAGES, *BY_MAKE], ids=name_of)
def test_a_page_has_the_figures_of_the_file(page, made):
    hold(page, made)


@pytest.mark.parametrize("page, made", PAGES, ids=name_of)
def test_a_page_says_how_its_figures_are_made(page, made):
    names_its_file(page, made)


def test_the_table_of_fits_is_that_of_the_figures():
    figures = figures_of("bench_fit")
    page = (ROOT / "docs/trust/benchmarks.md").read_text()
    for name, lines in fit_table.TABLES.items():
        assert "\n".join(lines(figures_of(name))) in page, name
    ms = {(row["problem"], row["method"]): row["cpu_ms"] for row in figures}
    first = [name for name, method in ms if method == "hpcsgd, SGD first"]
    ratios = [ms[n, "hpcsgd, SGD first"] / ms[n, "hpcsgd"] for n in first]
    text = " ".join(page.split())
    assert f"{min(ratios):.2g} to {max(ratios):.2g} times as long" in text


def test_the_tables_of_products_are_those_of_the_figures():
    """Another measurement is another page: python -m benchmarks.headline."""
    made, document = (
        tables_of_products,
        json.loads(tables_of_products.RESULT.read_text()),
    )
    text = made.PAGE.read_text()
    written = made.page_with(text, made.performance(document), made.BEGIN, made.END)
    assert written == text


def test_the_picture_of_products_has_the_figures_of_the_file():
    """Each bar is labelled with the microseconds of a step."""
    problems = figures_of("bench_headline")["problems"]
    text = tables_of_products.PICTURE.read_text()
    drawn = re.findall(r"font-size: 6\.5px[^>]*>([\d.]+)</text>", text)
    assert drawn == [
        two_digits(cells[network]["rows"][product]["us"])
        for network in ("lan", "hpc")
        for cells in problems.values()
        for product in ("direct", "gram", "cached", "gather-once")
    ]


def test_a_product_has_its_own_column_of_time_messages_words_and_bytes():
    """Of each of the four, on the page of benchmarks."""
    text = text_of("trust/benchmarks")
    for product in ("direct", "gram", "cached", "gather-once"):
        assert re.search(rf"(?m)^\| .*`{product}`, (fp32|c) \|", text), product
    for what in ("µs per step", "messages", "thousand words", "MiB kept"):
        assert what in text, what
    assert "20000 rows" in text and "10 epochs" in text


def test_the_bits_of_entropy_codes_are_those_of_the_figures():
    page = " ".join((ROOT / "docs/reference/methods/codecs.md").read_text().split())
    bits = {
        (r["codec"], r["entropy"]): r["bits_a_word"]
        for r in figures_of("bench_entropy")
    }
    elias, huffman = (
        [bits[codec, code] for codec in ("qsgd", "nuqsgd")]
        for code in ("elias", "huffman")
    )
    assert (
        f"{elias[0]:.1f} with elias and {huffman[0]:.1f} with huffman for `qsgd`,"
        f" and {elias[1]:.1f} and {huffman[1]:.1f} for `nuqsgd`"
    ) in page


def test_the_calls_of_a_rank_are_those_of_the_figures():
    page = (ROOT / "docs/howto/start-at-scale.md").read_text()
    for row in figures_of("bench_files"):
        assert f"| `{row['command']}` | {row['calls']} |" in page


def test_the_table_of_methods_has_the_settings_that_they_read():
    """And the papers of their sections: python -m tests.helpers.methods_table."""
    assert methods_table.PAGE.read_text() == methods_table.page_with_table()
    papers = methods_table.papers_of_pages()
    assert all(papers[name] != "none" for name in METHODS)

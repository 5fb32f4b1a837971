"""Figures in the cards of docs/reference/methods: made from benchmarks/results.

A measurement that is taken again changes its file, and a test of this file then names
the page to mend.
"""

import pytest

from tests.helpers.figures import (
    by_method,
    close,
    figures_of,
    hold,
    less,
    more,
    name_of,
    names_its_file,
    part,
    table,
    tenths,
)

GRADIENTS, CODECS, AVERAGES, SHARDED, UPDATES = (
    f"reference/methods/{name}"
    for name in ("gradients", "codecs", "averages", "sharded", "updates")
)


def buckets():
    fast, slow = (figures_of("bench_buckets")[n]["rows"] for n in ("lan", "125 MB/s"))
    one, two, *_ = (row["ms_an_exchange"] for row in fast)
    assert two == min(row["ms_an_exchange"] for row in fast)
    yield (
        "At 1.25 GB/s and 50 µs latency, a step with two buckets took"
        f" {less(two, one)} less time than a step with one bucket"
    )
    one, _, *rest = (row["ms_an_exchange"] for row in slow)
    assert rest[1] == min(rest) < one
    yield (
        "At 125 MB/s and 50 µs latency, a step with eight buckets took"
        f" {less(rest[1], one)} less time than a step with one bucket"
    )


def overlap():
    lan, wide = (
        {
            name: row["ms_an_exchange"]
            for name, row in by_method(figures_of("bench_overlap")[network]).items()
        }
        for network in ("lan", "125 MB/s")
    )
    assert abs(lan["scheduled"] / lan["ddp"] - 1) < 0.02
    gain = less(wide["scheduled"], wide["ddp"])
    yield f"| Measured | {gain} less time than ddp at 125 MB/s, no gain at 1.25 GB/s"
    late, sums = (
        less(wide["late"], wide["ddp"]),
        more(wide["ticktock"], wide["ddp of 2"]),
    )
    yield (
        f"delayed: {late} less time than ddp at 125 MB/s; exact-sum: {sums} more time"
        " than ddp of two batches"
    )
    turns = less(wide["tick_tock"], wide["two fits"])
    yield f"two models in {turns} less time than two fits one after the other"


def search():
    for network, row in figures_of("bench_search").items():
        both = [row[kind] for kind in ("grid", "bayesian")]
        near = " | ".join(str(one["until_near"] or "never") for one in both)
        above = (100 * (one["beside_the_best"] - 1) for one in both)
        yield f"| {network} | {near} | {' | '.join(f'{x:.1f} %' for x in above)} |"


def growing():
    base = figures_of("bench_accordion")["eta 0.25"]["ways"]
    grown, small = (
        base[name][-1] for name in ("growing batch x 4", "gradient batch x 1")
    )
    yield (
        f"growing from 75 to 300 rows: gap {tenths(grown[0], 2)} for"
        f" {1e3 * grown[1]:.0f} kB, batches of 75: {tenths(small[0], 2)} for"
        f" {1e3 * small[1]:.0f} kB"
    )


def accordion():
    base = figures_of("bench_accordion")["eta 0.25"]["ways"]
    wrapped, alone = (base[n][-1] for n in ("accordion of topk", "topk share=0.1"))
    yield (
        f"topk with accordion after 80 epochs: gap {tenths(wrapped[0], 2)} for"
        f" {1e3 * wrapped[1]:.0f} kB, share 0.1 alone {tenths(alone[0], 2)} for"
        f" {1e3 * alone[1]:.0f} kB"
    )


def floors_of_qadam():
    found = figures_of("bench_floors")["qadam"]
    yield (
        f"gap {close(found['bytegrad'])} after 2000 steps with 100 warm-up steps,"
        f" {close(found['one warm step'])} with one"
    )


def floors_of_codecs():
    found = figures_of("bench_floors")["codecs"]
    assert max(found["identity"]) < 1e-15
    for name in ("bf16", "fp16", "fp8", "byte", "bytegrad"):
        first, second = map(close, found[name])
        yield f"| Measured | floor {first} with feedback, {second} without |"
    for name in ("sign", "powersgd"):
        first, second = map(close, found[name])
        yield f"at the rate 1/(4L): floor {first} with feedback, {second} without |"
    for name in ("qsgd", "nuqsgd"):
        yield f"| Measured | floor {close(found[name][0])} (4 bits) |"


def floors_of_sparse():
    found = figures_of("bench_floors")["sparse"]
    whole = close(found["identity"][0])
    yield f"this gap is {whole} at the learning rate 1/(4L)"
    for name in ("topk", "randomk", "threshold"):
        first, second = map(close, found[name])
        yield f"| Measured | floor {first} with feedback, {second} without |"
    yield f"| Measured | floor {close(found['wangni'][0])} (budget 0.2) |"
    first, second = map(close, found["dgc"])
    yield f"| Measured | floor {first}, with `masking` {second} |"


def variances():
    row = next(
        row
        for row in figures_of("bench_variances")
        if (row["gradient"], row["norm"], row["bits"]) == ("normal", "max", 4)
    )
    yield f"variance at 4 bits {row['alq']:.2g}, with nuqsgd {row['nuqsgd']:.2g} "
    yield f"variance at 4 bits {row['amq']:.2g}, with alq {row['alq']:.2g} "


def charged(name):
    last = figures_of("bench_bagua")["epsilon"]["rows"][name]["curve"][-1]
    return f"{1e3 * last['charged']:.0f} ms", f"{last['loss']:.4f}", last["bytes"]


def bagua():
    """Of the codec that has the name of the paper."""
    ours, ddp = charged("bagua"), charged("ddp")
    yield f"{ours[0]} of network time for 256 exchanges, where ddp needs {ddp[0]}"
    assert 0.3 < ours[2] / ddp[2] < 0.35
    yield "a third of the bytes of ddp"


def bagua_of_averages():
    late, pairs, low, ddp = map(
        charged, ("async-average", "decentralized, pairs", "decentralized-low", "ddp")
    )
    network = "of network time for 256 exchanges, where ddp needs"
    yield f"{late[0]} {network} {ddp[0]}; last loss {late[1]}, with ddp {ddp[1]}"
    loss = f"last loss {pairs[1]}, with ddp {ddp[1]}"
    yield f"pairs: {pairs[0]} {network} {ddp[0]}; {loss}"
    yield f"{low[0]} {network} {ddp[0]}; in total half of the bytes of ddp"
    assert abs(low[2] / ddp[2] - 0.5) < 0.01


def averages():
    rows = figures_of("bench_averages")["epsilon"]["rows"]
    slow, every = (rows[name]["to_target"] for name in ("slowmo", "every exchange"))
    assert rows["local"]["to_target"] is None
    yield (
        f"{slow['exchanges']} exchanges and {slow['messages']} messages to the loss for"
        f" which averaging after each exchange needs {every['exchanges']} exchanges"
        f" and {every['messages']} messages"
    )


def floors_of_averages():
    gaps = list(map(close, figures_of("bench_floors")["averages"].values()))
    yield (
        f"{gaps[1]} for τ = 4 and {gaps[3]} for τ = 16, and {gaps[4]} for τ = 4 at a"
        " tenth of the learning rate"
    )


def floors_of_mixed():
    found = figures_of("bench_floors")
    pairs = close(found["mixed"]["decentralized, shift_one"][1])
    yield f"the relative gap to the minimum of the objective was {pairs}"
    rows, alike = map(close, found["anybatch"]["slow"])
    yield (
        f"the objective was {rows} with `weighted = true`, and {alike} with"
        " `weighted = false`"
    )


def anybatch():
    slow, even = (
        {
            name: row["seconds"]
            for name, row in by_method(figures_of("bench_anybatch")[case]).items()
        }
        for case in ("one slower", "none slower")
    )
    yield (
        f"{slow['ddp'] / slow['ring, by rows']:.1f} times as fast as ddp if one"
        " replica has a third of the speed of the others;"
        f" {more(even['full, by rows'], even['ddp'])} to"
        f" {more(even['ring, alike'], even['ddp'])} slower than ddp if all replicas are"
        " equally fast"
    )


def zero():
    found = {
        row["method"]: row
        for row in figures_of("bench_zero")
        if (row["update"], row["sparse"]) == ("adam", False)
    }
    methods = ("ddp", "zero1", "zero2", "offload", "zero3")
    titles = {
        "computed": "computed, tiles included",
        "steps": "measured, steps",
        "look": "measured, an evaluation of the loss",
    }
    yield table(
        ["", *methods],
        *(
            [title, *(f"{found[m][key]:.2f}" for m in methods)]
            for key, title in titles.items()
        ),
    )


def slices():
    fast, slow = (
        {
            name: row["ms_an_exchange"]
            for name, row in by_method(figures_of("bench_slices")[network]).items()
        }
        for network in ("lan", "125 MB/s")
    )
    stages = sorted(fast[f"zero{stage}"] for stage in (1, 2, 3))
    yield (
        f"at 1.25 GB/s, `zero1` to `zero3` took {more(stages[0], fast['ddp'])} to"
        f" {more(stages[2], fast['ddp'])} longer than `ddp`"
    )
    yield (
        f"at 125 MB/s, `zero3` took {less(slow['zero3'], slow['ddp'])} less time than"
        f" `ddp`, `zero1` {more(slow['zero1'], slow['ddp'])} more and `zero2`"
        f" {more(slow['zero2'], slow['ddp'])} more"
    )
    saved = fast["offload"] - fast["offload, late"]
    yield (
        f"a step one late saved {saved:.2f} ms of an exchange of"
        f" {fast['offload']:.0f} ms at 1.25 GB/s"
    )


def infinity():
    found = figures_of("bench_infinity")
    memory, way = (
        found["memory"],
        found["overlap"]["ways"]["past the page cache, synced"],
    )
    columns = memory["columns"]
    read, written = memory["bytes_read_a_step"], memory["bytes_written_a_step"]
    assert [read, written] == memory["formula"] == [16 * columns, 12 * columns]
    yield (
        f"{columns / 1e6:.0f} million columns with w"
        f" {memory['weights_over_budget']:.0f} times the budget of"
        f" {memory['tile_mib']:.0f} MiB: {memory['grew_mib']:.1f} MiB more than a small"
        f" run, {memory['step_seconds']:.2f} s a step"
    )
    assert part(way["step_over_sum"]) == "50 %"
    yield (
        "that bypassed the page cache (`direct = true`), a step of `infinity` took"
        f" {1e3 * way['step_seconds']:.0f} ms, half of the sum of its times for"
        " computation, reads and writes"
    )


def supporting():
    last = {n: run["loss"][-1] for n, run in figures_of("bench_supporting").items()}
    for near, to in (("momentum, 8 bits", "momentum"), ("adam, 8 bits", "adam")):
        assert abs(last[near] - last[to]) < 1e-5
    yield (
        "With optimizer states in 8 bits (`bits = 8`), the final losses of momentum and"
        " adam differ by less than 10⁻⁵ (absolute) from their final losses with 32 bits"
    )


PAGES = [
    *((GRADIENTS, made) for made in (buckets, overlap, search, floors_of_qadam)),
    *((CODECS, made) for made in (accordion, floors_of_codecs, variances)),
    *((AVERAGES, made) for made in (averages, anybatch, floors_of_averages)),
    *((SHARDED, made) for made in (zero, slices, infinity)),
    (UPDATES, supporting),
]
# Figures of a benchmark that another page names the command of.
BESIDE = [
    *((GRADIENTS, growing), (CODECS, floors_of_sparse), (CODECS, bagua)),
    *((AVERAGES, bagua_of_averages), (AVERAGES, floors_of_mixed)),
]


@pytest.mark.parametrize("page, made", [*PAGES, *BESIDE], ids=name_of)
def test_a_page_has_the_figures_of_the_file(page, made):
    hold(page, made)


@pytest.mark.parametrize("page, made", PAGES, ids=name_of)
def test_a_page_says_how_its_figures_are_made(page, made):
    names_its_file(page, made)

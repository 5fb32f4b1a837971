"""Tables of times and memory in docs: made anew from the files of benchmarks/results.

A measurement that is taken again changes its file, and this names the page to mend.
What the prose says of a table, where it is a ratio of two figures, is held here too.
"""

import json
import re

import pytest

from benchmarks import headline as tables_of_products
from benchmarks.bench_methods import RESULT
from benchmarks.methods_file import known
from tests.helpers.figures import (
    by_method,
    figures_of,
    hold,
    less,
    more,
    name_of,
    names_its_file,
    part,
    table,
    tenths,
    text_of,
    two_digits,
)


def buckets():
    fast, slow = (figures_of("bench_buckets")[n]["rows"] for n in ("lan", "125 MB/s"))
    ms = [[f"{row['ms_an_exchange']:.2f}" for row in rows] for rows in (fast, slow)]
    transfer = [[f"{row['transfer_ms']:.2f}" for row in rows] for rows in (fast, slow)]
    hidden = [[part(row["hidden_share"]) for row in rows] for rows in (fast, slow)]
    yield table(
        ["buckets", *(str(row["buckets"]) for row in fast)],
        ["1.25 GB/s: ms of transfer", *transfer[0]],
        ["hidden", *hidden[0]],
        ["ms an exchange", *ms[0]],
        ["125 MB/s: ms of transfer", *transfer[1]],
        ["hidden", *hidden[1]],
        ["ms an exchange", *ms[1]],
    )
    one, two, *_ = (row["ms_an_exchange"] for row in fast)
    assert two == min(row["ms_an_exchange"] for row in fast)
    yield f"Two buckets were best on the fast network ({less(two, one)} below one)"
    one, _, *rest = (row["ms_an_exchange"] for row in slow)
    assert rest[1] == min(rest) < one
    yield f"on the slow one eight were ({less(rest[1], one)} below one)"
    yield f"four to sixteen differ by {more(max(rest), min(rest))}"


def overlap():
    fast, slow = (
        by_method(figures_of("bench_overlap")[name]) for name in ("lan", "125 MB/s")
    )

    def said(row):
        hidden = f"{part(row['hidden_share'])} of {row['transfer_ms']:.2f} ms"
        return f"{row['ms_an_exchange']:.2f}, {hidden}"

    titles = {
        "ddp": "ddp",
        "scheduled": "bytescheduler",
        "scheduled, waits": "bytescheduler that waits at the end of a step",
        "late": "wavelet, delayed (other steps than ddp's)",
        "ddp of 2": "ddp of two batches (an exchange is both)",
        "ticktock": "wavelet, exact-sum (the same steps)",
        "two fits": "two fits, one after the other (an exchange of each)",
        "tick_tock": "two fits by `tick_tock`",
    }
    yield table(
        ["", "1.25 GB/s (`lan`)", "125 MB/s"],
        *([t, said(fast[name]), said(slow[name])] for name, t in titles.items()),
    )
    ms = [{n: row["ms_an_exchange"] for n, row in f.items()} for f in (fast, slow)]
    lan, wide = ms
    yield f"bytescheduler took {less(wide['scheduled'], wide['ddp'])} less than ddp"
    yield f"wavelet delayed {less(wide['late'], wide['ddp'])} less"
    yield f"`tick_tock` {less(wide['tick_tock'], wide['two fits'])} less than its two"
    assert all(abs(m["scheduled, waits"] / m["ddp"] - 1) < 0.01 for m in ms)
    yield (
        f"({more(lan['scheduled'], lan['ddp'], 1)} more and"
        f" {less(lan['scheduled, waits'], lan['ddp'], 1)} less)"
    )
    yield f"wavelet delayed took {less(lan['late'], lan['ddp'])} less"
    yield f"`tick_tock` took {less(lan['tick_tock'], lan['two fits'])} less"
    yield (
        f"`ddp` of two batches ({more(lan['ticktock'], lan['ddp of 2'])} and"
        f" {more(wide['ticktock'], wide['ddp of 2'])} slower above)"
    )
    two = figures_of("bench_buckets")["lan"]["rows"][1]
    left = (1 - two["hidden_share"]) * two["transfer_ms"]
    yield f"leaves {left:.1f} ms of an exchange of {two['ms_an_exchange']:.0f}"


def slices():
    names = ("ddp", "zero1", "zero2", "zero3", "offload", "offload, late", "infinity")
    rows, found = [], []
    for title, network in (
        ("1.25 GB/s (`lan`)", "lan"),
        ("125 MB/s", "125 MB/s"),
    ):
        cell = by_method(figures_of("bench_slices")[network])
        of = [cell[name] for name in names]
        host = [part(row["hidden_host_share"]) for row in of[4:6]]
        rows += [
            [f"{title}: ms an exchange", *(f"{r['ms_an_exchange']:.2f}" for r in of)],
            ["hidden share of the transfers", *(part(r["hidden_share"]) for r in of)],
            ["hidden share of the host's steps", *[None] * 4, *host, None],
        ]
        found.append({name: cell[name]["ms_an_exchange"] for name in names})
    yield table(["", *names[:5], "offload, one late", "infinity"], *rows)
    fast, slow = found
    slices = sorted(fast[name] for name in names[1:4])
    yield (
        f"slices took {more(slices[0], fast['ddp'])} to"
        f" {more(slices[2], fast['ddp'])} longer"
    )
    yield (
        f"took {less(slow['zero3'], slow['ddp'])} less than ddp, zero1 and zero2"
        f" {more(slow['zero1'], slow['ddp'])} and {more(slow['zero2'], slow['ddp'])}"
    )
    saved = [f"{m['offload'] - m['offload, late']:.2f} ms" for m in found]
    yield f"saved {saved[0]} of offload's exchange on the fast network"
    yield f"({saved[1].replace('-', '−')} on the slow one"


def zero():
    found = figures_of("bench_zero")
    rows, methods = [], ("ddp", "zero1", "zero2", "offload", "zero3")
    for name in ("sgd", "momentum", "adagrad", "adam", "adam, sparse rows"):
        update, _, sparse = name.partition(", ")
        case = update, bool(sparse)
        mine = {
            row["method"]: row
            for row in found
            if (row["update"], row["sparse"]) == case
        }
        for title, key in (
            ("computed, tiles included", "computed"),
            ("measured, steps", "steps"),
            ("measured, a look at the loss", "look"),
        ):
            said = [f"{mine[m][key]:.2f}" if m in mine else None for m in methods]
            rows.append([name if key == "computed" else None, title, *said])
    yield table(["", "", *methods], *rows)


def infinity():
    fast, slow = (by_method(cell) for cell in figures_of("bench_slices").values())
    hid = [
        part(m[n]["hidden_share"]) for n in ("infinity", "zero3") for m in (fast, slow)
    ]
    yield (
        f"{hid[0]} hid behind the work at 1.25 GB/s and {hid[1]} at 125 MB/s, where"
        f" zero3 hid {hid[2]} and {hid[3]}"
    )
    found = figures_of("bench_infinity")
    memory, ways = found["memory"], found["overlap"]["ways"]
    sums = found["checksums"]
    yield (
        f"made at {sums['checksum_gb_per_second']:.1f} GB/s, where the drive took"
        f" {sums['writing_gb_per_second']:.1f} GB/s"
    )
    with_, without = (sums[f"step_seconds{end}"] for end in ("", "_without"))
    yield f"{1e3 * with_:.0f} ms with them and {1e3 * without:.0f} ms without"
    columns = memory["columns"]
    read, written = memory["bytes_read_a_step"], memory["bytes_written_a_step"]
    assert [read, written] == memory["formula"] == [16 * columns, 12 * columns]
    losses = " to ".join(f"{loss:.4f}" for loss in memory["losses"])
    yield table(
        ["", ""],
        [
            "columns; w; w, m and v",
            f"{columns / 1e6:.0f} million; {memory['weights_mib']:.0f} MiB;"
            f" {memory['states_mib']:.0f} MiB",
        ],
        [
            "`tile`",
            f"{memory['tile_mib']:.0f} MiB: w is"
            f" {memory['weights_over_budget']:.0f} times the budget",
        ],
        [
            "highest resident set (VmHWM) less that after a run of 1000 columns",
            f"{memory['grew_mib']:.1f} MiB, in {memory['tiles']} tiles",
        ],
        [
            "read and written in a step",
            f"{read:,} and {written:,} bytes: 16D and 12D".replace(",", " "),
        ],
        [
            "a step",
            f"{memory['step_seconds']:.2f} s, {memory['waiting_seconds']:.2f} s of it"
            " waiting for the drive",
        ],
        ["F", f"{losses} in four steps"],
    )
    keys = ("step", "compute", "reading", "writing", "flushing")
    rows = []
    for title, name in (
        ("past the page cache, `sync`", "past the page cache, synced"),
        ("page cache, `sync`", "page cache, synced"),
        ("page cache, no `sync`", "page cache, not synced"),
    ):
        way = ways[name]
        ms = [f"{1e3 * way[f'{key}_seconds']:.0f}" for key in keys]
        over = way["step_over_bound"], way["step_over_sum"]
        rows.append([title, *ms, *(f"{ratio:.2f}" for ratio in over)])
    heads = ("step", "compute", "reading", "writing", "flush")
    yield table(["files", *heads, "step / longest", "step / sum"], *rows)
    yield f"waited for alone, {rows[1][5]} ms of {rows[1][1]}"
    yield f"nothing from `direct` here ({rows[1][1]} ms against {rows[0][1]})"


def anybatch():
    cases = [
        by_method(figures_of("bench_anybatch")[name])
        for name in ("one slower", "none slower", "one slower, sorted")
    ]

    def said(row):
        if row["seconds"] is None:
            return f"never (ends at {tenths(row['gap_at_end'], 1)})"
        return f"{row['seconds']:.3f}"

    titles = {
        "ddp": "ddp",
        "ddp, accumulate 4": "ddp, accumulate = 4",
        "full, by rows": "anybatch, full, by rows",
        "ring, by rows": "anybatch, ring, by rows",
        "ring, alike": "anybatch, ring, alike",
    }
    yield table(
        [
            *("", "one replica 3 times slower", "none slower"),
            "one slower, rows sorted by margin",
        ],
        *([title, *(said(c[name]) for c in cases)] for name, title in titles.items()),
    )
    slow, none, spread = (
        {name: row["seconds"] for name, row in case.items()} for case in cases
    )
    yield f"it is {slow['ddp'] / slow['ring, by rows']:.1f} times as fast as ddp"
    shares = [row["share_of_slow"] for row in cases[0].values()]
    assert {part(share) for share in shares if share} == {"13 %"}
    yield "13 % of the rows are its"
    yield (
        f"it takes {more(none['full, by rows'], none['ddp'])} to"
        f" {more(none['ring, alike'], none['ddp'])} longer"
    )
    yield f"there {spread['ddp'] / spread['ring, alike']:.1f} times as fast as ddp"


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
        + ["binds (H200)", "floor (H200)", "next limit"],
        *(
            [
                *(name, *(said(gpu, name) for gpu in gpus)),
                of["H200", name]["binds"],
                f"{of['H200', name]['floor_us']:.1f}",
                _next(of["H200", name]),
            ]
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
    yield f"it is {one['over_graph_steps']:.1f}x of a graph of them"
    yield f"{one['over_plain_steps']:.1f}x of one launch that takes them all"
    yield f"{one['with 12 us a sum']:.1f}x with 12 µs a sum"
    yield f"{one['with 30 us a sum']:.1f}x with 30 µs"
    yield f"{part(of['H200', 'gram large']['share_of_bf16'])} of 790 TF/s at most"
    for name in ("margin tall", "update tall", "margin wide", "update wide"):
        assert of["H200", name]["binds"] == "memory"
    assert one["us"]["recurrence"] == max(one["us"].values())
    slow, fast = (of["H200", f"recurrence{c}, 1024 rows"] for c in ("", ", cluster"))
    assert fast["predicted_us"] < slow["predicted_us"]
    slow, fast = (of["H200", f"recurrence{c}"] for c in (", cluster", ""))
    assert fast["predicted_us"] < slow["predicted_us"]
    own = [row for row in found if row.get("arch") == "sm_90"]
    yield table(
        ["sm_90", "registers", "shared memory", "blocks at once", "warps", "by"],
        *(
            [row["kernel"], *(str(row[key]) for key in ("registers", "shared"))]
            + [str(row["resident_blocks"]), str(row["resident_warps"]), row["least"]]
            for row in own
        ),
    )


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

    titles = ["rows of", "hpcsgd", "peer", "its seconds", "its F above"]
    titles += ["weights not 0", "gap of hpcsgd"]
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
        f"Behind the LAN `gram` is {times(lan, 'gram')} times as fast as plain SGD,"
        f" `cached` {times(lan, 'cached')} and `gather-once`"
        f" {times(lan, 'gather-once')} times"
    )
    yield (
        f"at 5 µs a message `gram` is {times(hpc, 'gram')} times as fast,"
        f" `cached` {times(hpc, 'cached')} and `gather-once`"
        f" {times(hpc, 'gather-once')} times"
    )
    gaps = [
        abs(rows[product]["loss_gap_percent"])
        for rows in (*lan.values(), *hpc.values())
        for product in ("gram", "cached", "gather-once")
    ]
    yield f"within {max(gaps):.3f} % of that of plain SGD"
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
        f"64 members that sum in every step beat one rank from about {plain:.0f}"
        f" columns on, and CA-SGD from about {best:.0f}"
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
    yield (
        f"behind the LAN that is {gram} (`gram`), {cached} (`cached`) and {gathered}"
        f" (`gather-once`) above, {two_digits(one_epoch)} for one epoch of `gram` with"
        f" s = 8, and {there:.2f} ({name}) in [choosing.md](choosing.md)"
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


def peers_of_readme():
    """What README.md says of DDP."""
    found = figures_of("bench_ddp")["problems"]
    times = {
        product: [
            two_digits(
                found[shape]["methods"]["ddp"]["us"]
                / found[shape]["methods"][f"hpcsgd {product}"]["us"]
            )
            for shape in ("epsilon", "higgs")
        ]
        for product in ("auto", "gram")
    }
    chosen = [found[shape]["methods"]["hpcsgd auto"]["product"] for shape in found]
    assert chosen == ["direct", "gather-once"]
    yield (
        "`auto` makes {} and {} times the steps a second of PyTorch DDP".format(
            *times["auto"]
        )
    )
    yield (
        "(by plain SGD on epsilon, by `gather-once` on HIGGS), CA-SGD by `gram` {} and"
        " {} times".format(*times["gram"])
    )


def _next(row):
    limit, us = sorted(row["us"].items(), key=lambda one: -one[1])[1]
    return f"{limit}, {us:.1f}"


PAGES = [
    *(("methods", buckets), ("overlap", overlap), ("zero", slices), ("zero", zero)),
    *(("infinity", infinity), ("anybatch", anybatch), ("gpu", gpu_counts)),
    ("howto/sparse-penalties", wide),
    *(("performance", headline), ("performance", network)),
]


# Pages whose figures are made by a target of make.
BY_MAKE = [("performance", ddp), ("../README", peers_of_readme)]


@pytest.mark.parametrize("page, made", [*PAGES, *BY_MAKE], ids=name_of)
def test_a_page_has_the_figures_of_the_file(page, made):
    hold(page, made)


@pytest.mark.parametrize("page, made", PAGES, ids=name_of)
def test_a_page_says_how_its_figures_are_made(page, made):
    names_its_file(page, made)


def test_the_tables_of_products_are_those_of_the_figures():
    """Another measurement is another page: python -m benchmarks.headline."""
    made, document = (
        tables_of_products,
        json.loads(tables_of_products.RESULT.read_text()),
    )
    for page, tables in ((made.README, made.readme), (made.PAGE, made.performance)):
        text = page.read_text()
        written = made.page_with(text, tables(document), made.BEGIN, made.END)
        assert written == text, page.name


def test_the_picture_of_products_has_the_figures_of_the_file():
    """Each bar is labelled with how many times as fast as plain SGD the product is."""
    problems = figures_of("bench_headline")["problems"]
    drawn = re.findall(r">([\d.]+)×</text>", tables_of_products.PICTURE.read_text())
    assert drawn == [
        two_digits(cells[network]["rows"][product]["speedup"])
        for network in ("lan", "hpc")
        for cells in problems.values()
        for product in ("gram", "cached", "gather-once")
    ]


def test_a_product_has_its_own_column_of_time_messages_words_and_bytes():
    """Of each of the four, in the README and on the page of performance."""
    for page in ("../README", "performance"):
        text = text_of(page)
        for product in ("direct", "gram", "cached", "gather-once"):
            assert re.search(rf"(?m)^\| .*`{product}`, (fp32|c) \|", text), product
        for what in ("µs a step", "messages", "thousand words", "MiB held"):
            assert what in text, what
        assert "20000 rows" in text and "10 epochs" in text

"""Tables of times and memory in docs: made anew from the files of benchmarks/results.

A measurement that is taken again changes its file, and this names the page to mend.
What the prose says of a table, where it is a ratio of two figures, is held here too.
"""

import pytest

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


def _next(row):
    limit, us = sorted(row["us"].items(), key=lambda one: -one[1])[1]
    return f"{limit}, {us:.1f}"


PAGES = [
    *(("methods", buckets), ("overlap", overlap), ("zero", slices), ("zero", zero)),
    *(("infinity", infinity), ("anybatch", anybatch), ("gpu", gpu_counts)),
    ("penalties", wide),
]


@pytest.mark.parametrize("page, made", PAGES, ids=name_of)
def test_a_page_has_the_figures_of_the_file(page, made):
    hold(page, made)


@pytest.mark.parametrize("page, made", PAGES, ids=name_of)
def test_a_page_says_how_its_figures_are_made(page, made):
    names_its_file(page, made)

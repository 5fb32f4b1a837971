"""Tables of where methods end in docs, made anew from the files of figures."""

import pytest

from tests.helpers.figures import (
    close,
    figures_of,
    hold,
    name_of,
    names_its_file,
    part,
    spaced,
    table,
    tenths,
)


def accordion():
    cases = figures_of("bench_accordion")
    base, lower, fast = (
        cases[name]["ways"] for name in ("eta 0.25", "eta 0.05", "ten times the rate")
    )
    rows = []
    for title, name, ways, at_rate in (
        ("identity", "identity", base, fast),
        ("topk, share 0.5", "topk share=0.5", base, fast),
        ("topk, share 0.1", "topk share=0.1", base, fast),
        ("accordion of both, eta 0.25", "accordion of topk", base, fast),
        ("accordion of both, eta 0.05", "accordion of topk", lower, None),
        ("powersgd, rank 3", "powersgd rank=3", base, fast),
        ("powersgd, rank 1", "powersgd rank=1", base, fast),
        ("accordion of both, eta 0.25", "accordion of powersgd", base, fast),
        ("accordion of both, eta 0.05", "accordion of powersgd", lower, None),
        ("qsgd, 8 bits", "qsgd bits=8", base, fast),
        ("qsgd, 3 bits", "qsgd bits=3", base, fast),
        ("accordion of both, eta 0.25", "accordion of qsgd", base, fast),
        ("accordion of both, eta 0.05", "accordion of qsgd", lower, None),
    ):
        _, early, _, late = ways[name]
        low = "accordion" in title
        rows.append(
            [
                title,
                f"{early[0]:.3f}, {1e3 * early[1]:.0f}",
                f"{tenths(late[0], 2)}, {1e3 * late[1]:.0f}",
                part(late[2], 1) if low else None,
                tenths(at_rate[name][-1][0], 1) if at_rate else None,
            ]
        )
    heads = "codec", "at 1/(20 L): gap, kB after 20 epochs", "after 80", "low in 80"
    yield table([*heads, "at 1/(2 L): gap after 80"], *rows)
    grown = [
        ("batches of 75", "gradient batch x 1"),
        ("300, at four times the rate", "gradient batch x 4"),
        ("growing from 75 to 300", "growing batch x 4"),
    ]
    yield table(
        ["", "gap, kB after 80 epochs at 1/(20 L)", "at 1/(2 L)"],
        *(
            [
                title,
                f"{tenths(base[name][-1][0], 2)}, {1e3 * base[name][-1][1]:.0f}",
                f"{tenths(fast[name][-1][0], 1)}, {1e3 * fast[name][-1][1]:.0f}",
            ]
            for title, name in grown
        ),
    )


def bagua():
    found = figures_of("bench_bagua")
    near, rows = found["epsilon"], []
    for name, row in near["rows"].items():
        last, there = row["curve"][-1], row["to_target"]
        other = found["epsilon sorted"]["rows"][name]["curve"][-1]
        charged = last["charged"] and name != "ddp, leaders of 2"
        rows.append(
            [
                *(name, f"{row['rate']:g}"),
                *(f"{last['loss']:.4f}", f"{other['loss']:.4f}"),
                f"{there['exchanges']} exchanges" if there else "never",
                spaced(there["bytes"]) if there else None,
                *(str(last["messages"]), spaced(last["bytes"])),
                f"{1e3 * last['charged']:.0f} ms" if charged else None,
            ]
        )
    heads = "method", "rate", "last loss", "sorted rows", "near after", "bytes by then"
    yield table([*heads, "messages in all", "bytes in all", "charged"], *rows)
    yield f"({near['target']:.4f} or less)"
    hidden = found["hidden"]
    yield f"4 buckets {part(hidden['ddp'])}, decentralized"
    yield f"decentralized-low {part(hidden['decentralized-low'])} of a quarter"


def averages():
    titles = {
        "every exchange": "average, τ = 1",
        "local": "average",
        "postlocal": "postlocal, 1 epoch",
        "hierarchical": "hierarchical, pairs after 2",
        "fedavg": "fedavg, half of them",
        "slowmo": "slowmo, β = 0.5",
        "slowmo sharded": "slowmo in parts",
    }
    rows, unit = [], " exchanges"
    for name, row in figures_of("bench_averages")["epsilon"]["rows"].items():
        there, loss = row["to_target"], f"{row['curve'][-1]['loss']:.4f}"
        rest = ["never", *[None] * 3]
        if there:
            sent = str(there["messages"]), spaced(there["words"])
            rest = [f"{there['exchanges']}{unit}", *sent, f"{there['seconds']:.2f}"]
            unit = ""
        rows.append([titles[name], loss, *rest])
    heads = "method", "last loss", "near after", "messages", "words", "seconds"
    yield table(heads, *rows)


def floors(kind):
    return figures_of("bench_floors")[kind]


def floors_of_codecs():
    titles = {
        "sign": "sign, at a quarter of that rate",
        "powersgd": "powersgd, rank 1, at a quarter",
        "qsgd": "qsgd, 4 bits",
        "nuqsgd": "nuqsgd, 4 bits",
        "alq": "alq, 4 bits, `adapt = 1`",
        "amq": "amq, 4 bits, `adapt = 1`",
    }
    rows = []
    for name, gaps in floors("codecs").items():
        said = [close(gap) for gap in gaps]
        rows.append([titles.get(name, name), *([None] * (2 - len(said))), *said])
    yield table(["codec", "with feedback", "without"], *rows)
    rows = []
    for name, (title, sends, twin) in {
        "identity": ("identity", "11", None),
        "topk": ("topk", "2", "no feedback"),
        "threshold": ("threshold, by share", "2", "no feedback"),
        "randomk": ("randomk", "2", "no feedback (unbiased)"),
        "wangni": ("wangni, budget 0.2", "by dice", "another m"),
        "dgc": ("dgc, m = 0.9", "2", "masking"),
    }.items():
        gap, *of_twin = map(close, floors("sparse")[name])
        other = "not unbiased" if name == "wangni" else None
        rows.append([title, sends, gap, twin, *(of_twin or [other])])
    heads = "codec", "sends of 11 words", "gap", "broken twin", "its gap"
    yield table(heads, *rows)


def variances():
    kinds = "nuqsgd", "alq", "alq, one law", "amq", "amq, with a zero"
    rows = [
        [
            row["gradient"],
            row["norm"],
            str(row["bits"]),
            *(f"{row[k]:.2g}" for k in kinds),
        ]
        for row in figures_of("bench_variances")
    ]
    yield table(["gradient", "norm", "bits", *kinds], *rows)


def floors_of_averages():
    heads = "1", "4", "8", "16", "4 at a tenth of the rate"
    yield table(["τ", *heads], ["gap", *map(close, floors("averages").values())])


def floors_of_mixed():
    mixed, twins = floors("mixed"), floors("twins")
    same, (moves, weights) = twins["the same pairs"][1], twins["weights in bytes"]
    said = {
        "decentralized, shift_one": f"{close(same)} at 1/(4L): the same pairs always",
        "decentralized-low": f"{close(weights)} against {close(moves)} at 1/(16L):"
        " weights in bytes, not moves",
    }
    yield table(
        ["", "1/L", "1/(4L)", "1/(40L)", "its broken twin"],
        *([n, *map(close, gaps), said.get(n)] for n, gaps in mixed.items()),
    )
    qadam = floors("qadam")
    assert qadam["identity"] < 1e-15
    yield f"ends at {close(qadam['bytegrad'])} after 2000 steps"
    yield f"at {close(qadam['one warm step'])} after one warm step"


def floors_of_anybatch():
    sorted_rows = "rows sorted by margin,"
    titles = {
        "slow": f"{sorted_rows} one replica at a third of the speed, η falling",
        "dice": f"{sorted_rows} 0 to 30 rows by dice, η falling",
        "alike": "the same 30 rows on all, 2, 2, 2 and 30 of them drawn a round, η = 1",
    }
    found = floors("anybatch")
    yield table(
        ["", "by rows", "alike"],
        *([title, *map(close, found[name])] for name, title in titles.items()),
    )


def supporting():
    found = figures_of("bench_supporting")
    rows = [
        [name, f"{run['rate']:g}", *(f"{run['loss'][at]:.5f}" for at in (1, 4, 8))]
        for name, run in found.items()
    ]
    assert {f"{run['loss'][0]:.5f}" for run in found.values()} == {"0.69315"}
    yield table(["", "rate", "after 1 epoch", "4", "8"], *rows)
    last = {name: run["loss"][-1] for name, run in found.items()}
    for near, to in (
        ("matrix in int8", "sgd"),
        ("momentum, 8 bits", "momentum"),
        ("adam, 8 bits", "adam"),
    ):
        assert abs(last[near] - last[to]) < 1e-5


def own_rates():
    found = figures_of("bench_own_rates")
    cells = [(r, k) for r in ("adam", "adagrad", "normalise") for k in (0, 2, 4)]
    rows = [
        [name, f"{shape['first']:.3f}", *(f"{shape[r][k][1]:.3f}" for r, k in cells)]
        for name, shape in found.items()
    ]
    heads = [f"{r} {found['susy'][r][k][0]:g}" for r, k in cells]
    yield table(["", "at first", *heads], *rows)
    for shape in found.values():
        runs = [run for name in shape if name != "first" for run in shape[name]]
        assert all(loss < shape["first"] for _, loss, _ in runs)
        assert {status for *_, status in runs} == {"completed"}
    yield "None of them ends above where it began."


PAGES = [
    ("howto/compare", own_rates),
    ("updates", supporting),
    *(("methods", accordion), ("bagua", bagua), ("averages", averages)),
    *(("methods", floors_of_codecs), ("averages", floors_of_averages)),
    ("methods", variances),
    *(("bagua", floors_of_mixed), ("anybatch", floors_of_anybatch)),
]


@pytest.mark.parametrize("page, made", PAGES, ids=name_of)
def test_a_page_has_the_figures_of_the_file(page, made):
    hold(page, made)


@pytest.mark.parametrize("page, made", PAGES, ids=name_of)
def test_a_page_says_how_its_figures_are_made(page, made):
    names_its_file(page, made)

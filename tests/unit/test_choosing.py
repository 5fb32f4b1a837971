"""Tables and picture of docs/trust/choosing.md come from the file of figures."""

import re

import pytest

from benchmarks import choosing
from benchmarks.bench_methods import RESULT
from benchmarks.methods_file import known
from benchmarks.methods_shapes import SHAPES


def line(seconds, messages=10, size=100, status="completed", met=True):
    point = {"seconds": seconds, "messages": messages, "bytes": size}
    return {
        "status": status,
        "to_target": point if met else None,
        "gap_to_best_sgd": 0.01,
        "rate": 0.5,
        "messages": messages,
        "bytes": size,
    }


def document(load=1.0, **rows):
    """One shape on one network."""
    refused = {"status": "refused", "reason": "no grid", "to_target": None}
    own = {"sgd": line(2.0), "hybrid": refused, **rows}
    cell = {"ranks": 2, "cores": 2, "load": load, "repeats": 3, "rows": own}
    machine = {"cores": 2, "model": "a processor"}
    return {"machine": machine, "figures": {"susy": {"lan": cell}}}


def section(made, title):
    """The lines below a heading that begins so."""
    return made.split(f"### {title}")[1].split("###")[0]


def test_the_first_is_whoever_met_the_target_soonest():
    rows = {"ddp": line(0.5), "local": line(0.05), "topk": line(0.01, met=False)}
    made = choosing.tables(document(**rows))
    firsts = section(made, "First at the target")
    assert "local 50 ms, ddp 0.50 s, sgd 2.00 s; sgd 2.00 s" in firsts
    assert "topk" not in firsts
    reached = section(made, "Who reaches the target")
    assert "| none: reached on all | sgd, ddp, local |" in reached
    assert "| susy | topk |" in reached and "hybrid" not in reached


@pytest.mark.parametrize(
    "mine, said",
    [
        (1.0, "sooner than plain SGD in 1 of 1 pairs of data shape and network."),
        (4.0, "in 0 of 1 pairs of data shape and network, but not on susy (LAN)."),
    ],
)
def test_where_ca_sgd_loses_is_said(mine, said):
    rows = {"casgd": line(9.0), "casgd s=2": line(mine), "local": line(0.5)}
    made = section(choosing.tables(document(**rows)), "CA-SGD beside plain SGD")
    assert said in made
    assert f"casgd s=2 {2 / mine:.2f}x |" in made


def test_what_sends_less_is_compared_with_bf16():
    rows = {"bf16": line(1.0), "topk": line(0.5), "sign": line(1.5), "local": line(0.1)}
    made = section(choosing.tables(document(**rows)), "Methods that send less")
    assert "topk 2.0x" in made and "sign" not in made and "local" not in made


def test_only_the_best_three_are_named():
    rows = {name: line(0.5) for name in ("topk", "sign", "dgc", "qsgd", "byte")}
    made = section(choosing.tables(document(bf16=line(1.0), **rows)), "Methods that")
    assert "and 2 more" in made and made.count("2.0x") == 3


def test_seconds_of_a_machine_that_others_used_are_left_out():
    made = choosing.tables(document(load=9.0, ddp=line(0.5, 7, 77)))
    assert "In 1 of 1 cells other programs used the cores" in made
    assert "0.50 s" not in made and "2.00 s" not in made
    assert "First at" not in made and "CA-SGD beside" not in made
    assert choosing.ratios(document(load=9.0))["lan"] == {}
    assert "| susy | ddp 7, sgd 10 | ddp 77, sgd 100 |" in made
    assert "other programs" not in choosing.tables(document(ddp=line(0.5)))


def test_fewest_are_sorted_by_what_was_sent():
    rows = {"ddp": line(1.0, 20, 5), "local": line(1.0, 3, 900)}
    made = section(choosing.tables(document(**rows)), "Fewest messages")
    assert "| susy | local 3, sgd 10, ddp 20 | ddp 5, sgd 100, local 900 |" in made


def test_compressors_are_methods_with_a_codec_that_is_not_dense():
    found = set(choosing.compressors())
    assert {"topk", "sign", "fp16", "powersgd", "qsgd"} <= found
    assert not found & {"ddp", "bf16", "local", "slowmo"}


def test_the_page_has_the_tables_of_the_figures():
    """Another measurement is another page: python -m benchmarks.choosing."""
    text = choosing.PAGE.read_text()
    found = known(RESULT)
    assert choosing.page_with(text, choosing.tables(found)) == text
    assert all(f"| {shape} | " in text for shape in SHAPES)


def test_the_picture_has_the_figures():
    """Each cell is labelled with the time to the target over that of sgd."""
    found = choosing.ratios(known(RESULT))
    names = list(dict.fromkeys(name for rows in found.values() for name in rows))
    drawn = re.findall(r">([\d.]+×|—)</text>", choosing.PICTURE.read_text())
    assert drawn == [
        choosing.label(ratio)
        for rows in found.values()
        for name in names
        for ratio in rows.get(name, [None] * len(SHAPES))
    ]


def test_the_page_draws_from_the_figures_what_it_concludes():
    """The ratios of CA-SGD, and the network cells in which averages were first."""
    cells = {
        place: cell
        for place, cell in choosing.cells_of(known(RESULT)).items()
        if choosing.is_quiet(cell)
    }
    ratio = {
        place: choosing.there(cell, "sgd")
        / choosing.ranked(cell, "seconds", choosing.ca_sgd(cell))[0][0]
        for place, cell in cells.items()
    }
    text = " ".join(choosing.PAGE.read_text().split())
    wins = sum(value > 1 for value in ratio.values())
    assert f"in {wins} of {len(ratio)} cells" in text
    wan = [value for (_, network), value in ratio.items() if network == "wan"]
    assert f"for all shapes on the WAN ({min(wan):.2f} to {max(wan):.2f} times)" in text
    lan = {
        shape: value for (shape, network), value in ratio.items() if network == "lan"
    }
    assert (
        f"few columns ({lan['susy']:.2f}) and with sparse rows ({lan['rcv1']:.2f})"
        in text
    )
    lost = [lan[shape] for shape in ("epsilon", "softmax", "wide")]
    assert f"({min(lost):.2f} to {max(lost):.2f})" in text
    first = {
        place: choosing.ranked(cell, "seconds")[0][1] for place, cell in cells.items()
    }
    averages = {"local", "slowmo", "async-average"}
    assert all(first[place] in averages for place in cells if place[1] != "none")
    assert sum(first[place] == "sgd" for place in cells if place[1] == "none") == 4


def test_only_what_is_between_the_marks_changes():
    text = f"before\n{choosing.BEGIN}\nold\n{choosing.END}\nafter\n"
    made = choosing.page_with(text, "new")
    assert made.startswith("before\n") and made.endswith("after\n")
    assert "old" not in made and "\n\nnew\n\n" in made
    assert choosing.page_with(made, "new") == made

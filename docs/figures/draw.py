"""Draw every picture of the documentation.

python docs/figures/draw.py            # write them all
python docs/figures/draw.py --check    # report those that are not as drawn now

Figures are read from benchmarks/results; the predictions are computed by hpcsgd.
"""

import argparse
import ast
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]

from canvas import Axes, Picture, power  # noqa: E402

from hpcsgd.comm.communicator import sum_bytes  # noqa: E402
from hpcsgd.comm.network_model import NETWORKS  # noqa: E402
from hpcsgd.runs.machine import load_hardware  # noqa: E402
from hpcsgd.studies.predict import PredictedRun, parse_ranks, predict  # noqa: E402

BATCH = 32  # rows of a batch in all measurements that are drawn


def results(name: str) -> Any:
    """Return the figures of a benchmark."""
    path = ROOT / "benchmarks" / "results" / f"{name}.json"
    return json.loads(path.read_text())["figures"]


def gram_words(steps: int) -> int:
    """b² s (s − 1) / 2."""
    return BATCH**2 * steps * (steps - 1) // 2


# Drawn pictures.


def grid() -> Picture:
    """Two replicas of three members."""
    picture = Picture(
        720,
        318,
        "A grid of two replicas with three members each",
        "The rows of the data are dealt to two replicas, the columns to three members"
        " of each replica. Members of one replica add up partial products once in an"
        " exchange. Replicas combine weights or gradients, column block by column"
        " block.",
    )
    left, top, cell, tall, gap = 96, 92, 92, 78, 10
    hues = ("blue", "orange")
    picture.text(left + 1.5 * cell + gap, 28, "columns of the data", "small", "middle")
    for member in range(3):
        x = left + member * (cell + gap)
        picture.rect(x, 42, cell, 20, "f-green mid", 3)
        middle = x + cell / 2
        picture.text(middle, 56, f"w{'⁰¹²'[member]}", "", "middle")
        for replica in range(2):
            y = top + replica * (tall + 40)
            picture.rect(x, y, cell, tall, f"f-{hues[replica]} pale", 4)
            rank = 3 * replica + member
            picture.text(middle, y + 34, f"rank {rank}", "", "middle")
            words = f"member {member}"
            picture.text(middle, y + 52, words, "small muted", "middle")
        ends = [(middle, top + tall + 4), (middle, top + tall + 36)]
        picture.line(ends, "s-grey", "both")
    picture.turned(left - 64, top + tall + 20, "rows of the data", "small")
    for replica in range(2):
        y = top + replica * (tall + 40) + tall / 2
        kind = f"small t-{hues[replica]}"
        picture.turned(left - 14, y, f"replica {replica}", kind)
        for member in range(2):
            x = left + (member + 1) * (cell + gap) - gap
            picture.line([(x - 14, y - 22), (x + gap + 14, y - 22)], "s-grey", "both")
    x = left + 3 * (cell + gap) + 22
    notes = (
        ("Members of a replica", "head"),
        ("add up partial products,", "small"),
        ("once in an exchange of s steps.", "small"),
        ("The iterates stay those of SGD.", "small"),
        ("", ""),
        ("Replicas", "head"),
        ("combine weights or gradients.", "small"),
        ("The agreement says when and how.", "small"),
    )
    for line, (words, kind) in enumerate(notes):
        picture.text(x, 56 + 18 * line, words, kind)
    grids = (
        ("1 × C", "members only: CA-SGD, SGD"),
        ("R × 1", "replicas only: DDP, local SGD"),
        ("R × C", "both: HybridSGD"),
    )
    for line, (name, words) in enumerate(grids):
        y = top + tall + 74 + 20 * line
        picture.text(x, y, name, "head")
        picture.text(x + 48, y, words, "small")
    return picture


def gram() -> Picture:
    """The packed Gram of four steps, and the recurrence through it."""
    picture = Picture(
        720,
        352,
        "The Gram matrix of four batches and the recurrence through it",
        "Four batches of rows make a Gram matrix of four by four blocks. Only the six"
        " blocks strictly below the diagonal are computed and sent, together with the"
        " four blocks of z. Step j reads row j of the blocks and the residuals of the"
        " steps before it.",
    )
    left, top, cell = 150, 62, 54
    picture.text(left, 30, "G = Y Yᵀ, in blocks of b × b", "head")
    names = "₀₁₂₃"
    for row in range(4):
        y = top + row * cell
        words = f"step {row}"
        picture.text(left - 92, y + cell / 2 + 4, words, "small muted")
        for column in range(4):
            x = left + column * cell
            below = column < row
            kind = "f-blue mid" if below else "f-grey pale"
            picture.rect(x + 1.5, y + 1.5, cell - 3, cell - 3, kind, 3)
            if below:
                words = f"G{names[row]}{names[column]}"
                place = (x + cell / 2, y + cell / 2 + 4)
                picture.text(*place, words, "", "middle")
        x = left - 38
        picture.rect(x, y + 1.5, 26, cell - 3, "f-green mid", 3)
        picture.text(x + 13, y + cell / 2 + 4, f"z{names[row]}", "", "middle")
    picture.text(left - 25, top - 8, "z = Y w", "small", "middle")
    bottom = top + 4 * cell
    picture.rect(left - 38, bottom + 15, 12, 12, "f-green mid", 2)
    picture.rect(left - 22, bottom + 15, 12, 12, "f-blue mid", 2)
    picture.text(left - 4, bottom + 25, "sent once for s steps", "small")
    picture.rect(left - 22, bottom + 37, 12, 12, "f-grey pale", 2)
    picture.text(left - 4, bottom + 47, "not computed, not sent", "small")
    x = left + 4 * cell + 46
    picture.text(x, 30, "Then, without a message", "head")
    lines = (
        ("t₀ = z₀", "r₀ = residual(t₀, y₀)"),
        ("t₁ = z₁ − h G₁₀ r₀", "r₁ = residual(t₁, y₁)"),
        ("t₂ = z₂ − h (G₂₀ r₀ + G₂₁ r₁)", "r₂ = …"),
        ("t₃ = z₃ − h (G₃₀ r₀ + G₃₁ r₁ + G₃₂ r₂)", "r₃ = …"),
    )
    for row, (score, residual) in enumerate(lines):
        y = top + row * cell + 22
        picture.text(x, y, score)
        picture.text(x + 14, y + 18, residual, "small muted")
    picture.text(x, bottom + 25, "w ← w − h (Y₀ᵀ r₀ + Y₁ᵀ r₁ + Y₂ᵀ r₂ + Y₃ᵀ r₃)")
    return picture


def timeline() -> Picture:
    """Eight steps of SGD and of CA-SGD, to scale."""
    cell = results("bench_headline")["problems"]["epsilon"]["many"]
    steps, members = 8, cell["members"]
    times = (
        ("SGD: eight steps, eight messages", cell["us_of_all"]["direct 32"], 1, BATCH),
        (
            "CA-SGD: the same eight steps, one message",
            steps * cell["us_of_all"][f"gram {steps}"],
            steps,
            gram_words(steps) + steps * BATCH,
        ),
    )
    lan = NETWORKS["lan"]
    hops = (members - 1).bit_length()
    spans = []
    for head, whole, each, words in times:
        message = lan.alpha * hops + sum_bytes(4 * words, members) / lan.bandwidth
        spans.append((head, whole, 1e6 * message, steps // each))
    longest = max(whole * count for _, whole, _, count in spans)
    picture = Picture(
        720,
        330,
        "Eight steps of SGD and of CA-SGD on a time line",
        "Two ranks of 64 behind a local network. "
        + " ".join(
            f"{head}: {whole * count:.0f} µs, of which {message * count:.0f} µs are"
            " spent waiting for messages."
            for head, whole, message, count in spans
        ),
    )
    left, width = 62, 600
    scale = width / longest
    for number, (head, whole, message, count) in enumerate(spans):
        top = 50 + 128 * number
        picture.text(left, top - 14, head, "head")
        total, waits = whole * count, message * count
        for lane in range(2):
            picture.text(
                left - 10, top + 21 + 36 * lane, f"rank {lane}", "small", "end"
            )
        for step in range(count):
            start, work = left + step * whole * scale, (whole - message) * scale
            before = work if count > 1 else work / 2
            for lane in range(2):
                y = top + 4 + 36 * lane
                picture.rect(start, y, max(before, 1.5), 26, "f-blue")
                if count == 1:
                    picture.rect(
                        start + before + message * scale, y, before, 26, "f-blue"
                    )
            x = start + before
            picture.rect(x, top + 4, message * scale, 62, "f-orange pale")
            if count > 1:
                words, middle = "sum", x + message * scale / 2
                picture.text(middle, top + 39, words, "small t-orange", "middle")
            else:
                middle = x + message * scale / 2
                picture.text(middle, top + 39, "one sum", "small t-orange", "middle")
        words = f"{total:.0f} µs, {waits:.0f} µs of them waiting"
        place = left + total * scale
        if place > 500:
            picture.text(place, top + 84, words, "small", "end")
        else:
            picture.text(place + 10, top + 39, words, "small")
    base = 292
    picture.line([(left, base), (left + width, base)], "axis thin")
    for mark in range(0, 2500, 500):
        x = left + mark * scale
        picture.line([(x, base), (x, base + 4)], "axis thin")
        words = f"{mark} µs" if mark else "0"
        picture.text(x, base + 17, words, "small muted", "middle")
    picture.rect(left + 420, 236, 12, 12, "f-blue")
    picture.text(left + 438, 246, "computing", "small")
    picture.rect(left + 508, 236, 12, 12, "f-orange pale")
    picture.text(left + 526, 246, "waiting for a sum", "small")
    return picture


def layers() -> Picture:
    """The folders of the package on their floors."""
    tree = ast.parse((ROOT / "tests" / "architecture" / "test_layers.py").read_text())
    floors = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "FLOORS"
    )
    unknown = set(floors) ^ set(FOLDERS)
    assert not unknown, f"mend FOLDERS in {Path(__file__).name}: {sorted(unknown)}"
    levels = sorted(set(floors.values()), reverse=True)
    high, left, width = 31, 52, 616
    picture = Picture(
        720,
        56 + high * len(levels),
        "The layers of the package",
        "A layer imports from lower layers only. From the top: "
        + "; ".join(
            ", ".join(name for name in floors if floors[name] == level)
            for level in levels
        )
        + ".",
    )
    picture.text(left, 28, "A layer imports from lower layers only", "head")
    hues = {"shell": "grey", "use": "orange", "run": "purple", "core": "blue"}
    for number, level in enumerate(levels):
        names = [name for name in floors if floors[name] == level]
        y, each = 42 + high * number, width / len(names)
        picture.text(left - 12, y + 18, str(level), "small muted", "end")
        for place, name in enumerate(names):
            kind, words = FOLDERS[name]
            x = left + place * each
            picture.rect(x, y, each - 4, high - 4, f"f-{hues[kind]} pale", 4)
            picture.text(x + 10, y + 18, name)
            column = 64 if len(names) > 2 else 92
            picture.text(x + column, y + 18, words, "small muted")
    return picture


# Name -> part of the house, and what is there.
FOLDERS = {
    "__main__": ("shell", "python -m hpcsgd"),
    "cli": ("shell", "arguments in, documents out, exit codes"),
    "studies": ("use", "compare, scale, predict, verify"),
    "estimators": ("use", "fit, scikit-learn, sweeps"),
    "jobs": ("use", "Slurm: scripts, submit, status"),
    "api": ("use", "train: one call"),
    "tuning": ("run", "pilots, error bound, tuner"),
    "runs": ("run", "one run, from a configuration to a result"),
    "config": ("run", "every setting in one value"),
    "solvers": ("run", "objective, L-BFGS, Newton, coordinate descent"),
    "agreements": ("core", "how replicas agree; codecs"),
    "products": ("core", "s steps after one synchronisation, and their cost"),
    "backends": ("core", "arithmetic of one exchange: NumPy, compiled, CUDA"),
    "data": ("core", "rows: formats, shards, order"),
    "comm": ("core", "collectives, ledger, watchdog"),
    "glm": ("core", "losses, penalties, updates, the recurrence"),
    "precision": ("core", "nine number formats of an exchange; recipes"),
    "formats": ("core", "number formats"),
    "settings": ("core", "default, help, checks"),
    "files": ("core", "files that appear whole"),
    "errors": ("core", "the errors that a user can meet"),
}


# Curves.

STEPS = (1, 2, 4, 8, 16, 32, 64)


def words() -> Picture:
    """Messages and words of a step against s: formulas and the ledger."""
    columns, members = 2000, 2
    rows = results("bench_methods")["epsilon"]["lan"]["rows"]
    names = results("bench_methods")["epsilon"]["lan"]["columns"]["row"]
    counted = {}
    for name, steps in (("sgd", 1), ("casgd s=2", 2), ("casgd", 8), ("casgd s=32", 32)):
        row = dict(zip(names, rows[name], strict=False))
        counted[steps] = tuple(
            row[what] / row["iterations"] for what in ("messages", "words")
        )
    ways = {
        "direct": ("grey", lambda s: 1.0, lambda s: float(BATCH)),
        "gather": (
            "gold",
            lambda s: 1 / s,
            lambda s: float(BATCH * columns // members),
        ),
        "gram": ("blue", lambda s: 1 / s, lambda s: gram_words(s) / s + BATCH),
        "cached": ("green", lambda s: 1 / s, lambda s: float(BATCH)),
    }
    picture = Picture(
        720,
        336,
        "Messages and words of a step against s",
        f"Batches of {BATCH} rows, {columns} columns on {members} members. More steps"
        " per exchange divide the messages by s. The words of a step grow with s for"
        " gram and stay as they are for direct, gather and cached. Dots are counts of"
        " the ledger and lie on the formulas.",
    )
    x = [(s, str(s)) for s in STEPS]
    many = Axes(picture, (66, 52, 260, 222), (1, 64), (5, 2000), (True, True))
    sent = Axes(picture, (406, 52, 230, 222), (1, 64), (20, 1e5), (True, True))
    axis = "s, steps of an exchange"
    heads = "Messages of 1000 steps", "Words that a member sends in a step"
    many.frame(x, [(10**k, str(10**k)) for k in (1, 2, 3)], (axis, ""), heads[0])
    ticks = [(100, "100"), (1000, "1000"), (1e4, "10 000"), (1e5, "100 000")]
    sent.frame(x, ticks, (axis, ""), heads[1])
    for name, (colour, messages, size) in ways.items():
        if name in ("direct", "gram"):
            kind = f"s-{colour}"
            many.curve(STEPS, [1000 * messages(s) for s in STEPS], kind)
        kind = f"s-{colour}" + (" dashed" if name == "cached" else "")
        sent.curve(STEPS, [size(s) for s in STEPS], kind)
    many.label(64, 1000, "direct", "t-grey", (-6, -9), "end")
    many.label(4, 250, "all others", "t-blue", (10, -4))
    sent.label(2, ways["gather"][2](2), "gather", "t-gold", (0, -7))
    sent.label(8, ways["gram"][2](8), "gram", "t-blue", (10, 10))
    sent.label(64, BATCH, "direct,", "t-grey", (6, -4))
    sent.label(64, BATCH, "cached", "t-green", (6, 11))
    for steps, (messages, size) in counted.items():
        kind = "grey" if steps == 1 else "blue"
        note = f"ledger, s = {steps}"
        many.dot(steps, 1000 * messages, f"hollow s-{kind}", 4.5, note)
        sent.dot(steps, size, f"hollow s-{kind}", 4.5, note)
    place = "Lines: formulas, b = 32, d = 2000, C = 2. Circles: counted by the ledger."
    picture.text(66, 328, place, "small muted")
    return picture


def loss() -> Picture:
    """The loss of four methods against steps, seconds and bytes."""
    cell = results("bench_methods")["rcv1"]["lan"]
    names = cell["columns"]["row"]
    shown = {
        "sgd": ("SGD", "blue", "thick"),
        "casgd": ("CA-SGD, s = 8", "blue", ""),
        "ddp": ("DDP", "orange", ""),
        "local": ("local SGD", "green", ""),
    }
    picture = Picture(
        720,
        346,
        "The loss of four methods against steps, seconds and bytes",
        "Rows like those of rcv1 on two ranks behind an emulated local network. Against"
        " steps SGD and CA-SGD have one curve. Against seconds CA-SGD is first. Against"
        " bytes SGD is first and DDP last.",
    )
    box, y = (52, 190), (0.4, 0.7)
    panels = (
        ("Steps", 58, (0, 400), False, [(k, str(k)) for k in (0, 200, 400)]),
        (
            "Seconds",
            290,
            (0, 0.14),
            False,
            [(k / 100, f"0.{k:02}") for k in (0, 5, 10)],
        ),
        (
            "Bytes that a rank sends",
            522,
            (5e3, 1e8),
            True,
            [(1e4, "10 kB"), (1e6, "1 MB"), (1e8, "100 MB")],
        ),
    )
    axes = []
    for head, left, ends, logarithmic, ticks in panels:
        axes.append(
            Axes(picture, (left, box[0], 164, 222), ends, y, (logarithmic, False))
        )
        levels = [(k / 10, f"0.{k}") for k in (4, 5, 6, 7)]
        axes[-1].frame(ticks, levels, ("", "" if axes[:-1] else "loss"), head)
    by_steps, by_time, by_bytes = axes
    for name, (_, colour, kind) in shown.items():
        row = dict(zip(names, cell["rows"][name], strict=False))
        curve, last = row["curve"], len(row["curve"]) - 1
        losses = [point[3] for point in curve]
        style = f"s-{colour} {kind}".strip()
        steps = [row["iterations"] * k / last for k in range(last + 1)]
        by_steps.curve(steps, losses, style)
        by_time.curve([point[0] for point in curve], losses, style)
        by_bytes.curve([point[2] for point in curve][1:], losses[1:], style)
    by_steps.label(130, 0.45, "all four", "small", (10, -2))
    x = 58.0
    for label, colour, kind in shown.values():
        picture.line([(x, 318), (x + 22, 318)], f"s-{colour} {kind}".strip())
        picture.text(x + 29, 322, label, "small")
        x += 50 + 6.4 * len(label)
    picture.text(696, 322, "bench_methods.json: rcv1, lan", "small muted", "end")
    return picture


def roofline() -> Picture:
    """The Gram and one pass over the rows under the roofs of two processors."""
    picture = Picture(
        720,
        350,
        "Roofline of the Gram and of a pass over the rows",
        "Measured on one core of two processors. A pass over the rows, which plain SGD"
        " makes, lies on the roof of the memory. The Gram of CA-SGD does 13 to 700"
        " operations a byte and lies near the roof of the arithmetic, or of the matrix"
        " unit.",
    )
    machines = (
        ("bench_cpu", "AMD EPYC, AVX-512", 62),
        ("bench_cpu-amx", "Intel Xeon, AMX", 402),
    )
    for name, head, left in machines:
        figures = results(name)
        ends = ((0.2, 2000), (3, 6000))
        axes = Axes(picture, (left, 52, 270, 222), *ends, (True, True))
        x = [(0.5, "0.5"), (1, "1"), (10, "10"), (100, "100"), (1000, "1000")]
        y = [(10**k, str(10**k)) for k in (1, 2, 3)]
        titles = ("operations a byte", "Gflop/s" if name == "bench_cpu" else "")
        axes.frame(x, y, titles, head)
        read, top = figures["read_GB_s"], figures["sgemm_GF_s"]
        roof = [(3.0 / read, 3.0), (top / read, top), (2000, top)]
        roof[0] = (max(roof[0][0], 0.2), max(3.0, 0.2 * read))
        axes.curve(*zip(*roof, strict=True), "s-grey")
        note = f"BLAS, fp32: {top:.0f}"
        axes.label(0.22, top, note, "small t-grey", (0, -7))
        note = f"memory: {read:.0f} GB/s"
        axes.label(2.2, 0.75 * read, note, "small t-grey", (0, 4))
        tiles = figures["tiles_GF_s"]
        if tiles:
            edge = [(top / read, top), (tiles / read, tiles), (2000, tiles)]
            axes.curve(*zip(*edge, strict=True), "s-grey dashed")
            words = f"AMX tiles: {tiles:.0f}"
            axes.label(tiles / read, tiles, words, "small t-grey", (-6, -7), "end")
        for row in figures["rows"]:
            for kind, colour, intensity in (
                ("fp32", "blue", 0.5),
                ("bf16", "orange", 1),
            ):
                speed = row["margins"][kind]["fp32_GB_s"] / 2
                note = f"scores, {row['columns']} columns, {kind}"
                axes.dot(intensity, speed, f"hollow s-{colour}", 4.5, note)
        for row in figures["gram"]:
            rows = row["batch"] * row["steps"]
            entries = (rows**2 - row["steps"] * row["batch"] ** 2) / 2
            work = 2 * entries * row["columns"]
            for kind, colour, size in (("fp32", "blue", 4), ("bf16", "orange", 2)):
                bytes_moved = rows * row["columns"] * size + 4 * entries
                note = (
                    f"Gram, b = {row['batch']}, s = {row['steps']},"
                    f" {row['columns']} columns, {kind}"
                )
                speed = row[kind]["GF_s"]
                axes.dot(work / bytes_moved, speed, f"f-{colour}", 4.5, note)
    marks = (
        ("f-blue", "Gram, fp32 rows"),
        ("f-orange", "Gram, bf16 rows"),
        ("hollow s-blue", "scores, fp32"),
        ("hollow s-orange", "scores, bf16"),
    )
    x = 62.0
    for kind, text in marks:
        picture.dot(x + 4, 334, kind, 4.5)
        picture.text(x + 14, 338, text, "small")
        x += 36 + 6.2 * len(text)
    return picture


def formats() -> Picture:
    """Measured error and bound of each field in bf16."""
    case = results("bench_precision")[1]
    assert (case["part"], case["size"]) == ("ratio", "m 256, d 512")
    what = {
        "matrix": "the data",
        "margin": "z, stored",
        "margin_sum": "z, summed",
        "gram_sum": "G, summed over columns",
        "gram_wire": "G, summed over members",
        "inner": "the correction of the scores",
        "residual": "link and residual",
        "gradient_sum": "Yᵀr, summed over rows",
        "weights": "the weights",
    }
    picture = Picture(
        720,
        402,
        "Error and bound of the nine number formats",
        "One field in bf16, the other eight in fp64; error of an exchange relative to"
        " its update, median of drawn exchanges of 256 rows and 512 columns on four"
        " members. "
        + " ".join(
            f"{name}: error {value['error']:.1e}, bound"
            f" {value['error'] * value['ratio']:.1e}."
            for name, value in case["fields"].items()
        ),
    )
    axes = Axes(picture, (272, 46, 410, 288), (3e-5, 30), (9, 0), (True, False))
    x = [(10.0**k, power(k)) for k in range(-4, 2)]
    axes.frame(x, [], ("error of an exchange, relative to its update", ""), "")
    for value, _ in x:
        axes.curve([value, value], [0, 9], "rule thin")
    for number, (name, value) in enumerate(case["fields"].items()):
        y, error = number + 0.5, value["error"]
        bound = error * value["ratio"]
        any_machine = value["ratio_any"] and error * value["ratio_any"]
        picture.text(24, axes.at(1, y)[1] + 4, f"T{number + 1}", "small muted")
        picture.text(50, axes.at(1, y)[1] + 4, name)
        picture.text(142, axes.at(1, y)[1] + 4, what[name], "small muted")
        if any_machine:
            axes.curve([bound, any_machine], [y, y], "s-orange thin dashed")
            axes.dot(any_machine, y, "hollow s-orange", 4, f"{any_machine:.1e}")
        else:
            words = "no bound for any order"
            axes.label(bound, y, words, "small t-orange", (10, 4))
        axes.curve([error, bound], [y, y], "s-blue")
        axes.dot(error, y, "f-blue", 5, f"{error:.1e}")
        axes.dot(bound, y, "hollow s-blue", 5, f"{bound:.1e}")
    marks = (
        ("f-blue", "measured", 272),
        ("hollow s-blue", "bound, sums as here", 358),
        ("hollow s-orange", "bound, sums in any order", 506),
    )
    for kind, text, x_mark in marks:
        picture.dot(x_mark, 22, kind, 5)
        picture.text(x_mark + 11, 26, text, "small")
    words = "One field in bf16, eight in fp64; m = 256, d = 512, C = 4."
    picture.text(24, 390, f"{words} Source: bench_precision.json.", "small muted")
    return picture


def scaling() -> Picture:
    """Predicted seconds of a step against ranks."""
    hardware = load_hardware("perlmutter-a100")
    asked = PredictedRun(rows=400_000, columns=2000)
    points = predict(hardware, asked, parse_ranks("1..2048")).points
    picture = Picture(
        720,
        346,
        "Predicted time of a step against the number of GPUs",
        "Predicted by the cost model for nodes of four A100 with Slingshot, 400 000"
        " rows of 2000 columns, batches of 32. "
        + " ".join(
            f"{p.ranks} ranks: SGD {1e6 * p.sgd:.0f} µs, CA-SGD"
            f" {1e6 * p.best.seconds:.0f} µs."
            for p in points
        ),
    )
    axes = Axes(picture, (66, 52, 520, 230), (1, 2048), (3, 200), (True, True))
    x = [(p.ranks, str(p.ranks)) for p in points]
    y = [(5, "5"), (10, "10"), (20, "20"), (50, "50"), (100, "100"), (200, "200")]
    names = ("ranks, one GPU each", "µs of a step")
    axes.frame(x, y, names, "Predicted, not measured: A100, Slingshot 11")
    ranks = [p.ranks for p in points]
    sgd, casgd = (
        [1e6 * value for value in values]
        for values in (
            [p.sgd for p in points],
            [p.best.seconds for p in points],
        )
    )
    axes.curve(ranks, sgd, "s-grey")
    axes.curve(ranks, casgd, "s-blue")
    for p, slow, fast in zip(points, sgd, casgd, strict=True):
        axes.dot(p.ranks, slow, "f-grey", 3.5, f"{slow:.0f} µs")
        note = f"{p.best.product}, s = {p.best.steps}: {fast:.0f} µs"
        axes.dot(p.ranks, fast, "f-blue", 3.5, note)
        if p.ranks in (4, 64, 1024):
            middle = (slow * fast) ** 0.5
            ends = [slow / 1.12, fast * 1.12]
            axes.curve([p.ranks, p.ranks], ends, "rule thin")
            axes.label(p.ranks, middle, f"{p.speed_up:.1f}×", "", (5, 4))
    axes.label(ranks[-1], sgd[-1], "SGD", "t-grey", (8, 4))
    last = points[-1].best
    axes.label(ranks[-1], casgd[-1], "CA-SGD:", "t-blue", (8, 4))
    words = f"{last.product}, s = {last.steps}"
    axes.label(ranks[-1], casgd[-1], words, "small t-blue", (8, 19))
    words = "400 000 × 2000 rows in fp32, b = 32, ten epochs; the fastest product and s"
    note = f"{words} at each point (hpcsgd study predict)."
    picture.text(66, 334, note, "small muted")
    return picture


def pareto() -> Picture:
    """Bytes and seconds that methods take to one loss."""
    cell = results("bench_methods")["rcv1"]["lan"]
    names = cell["columns"]["row"]
    reached = {}
    for name, values in cell["rows"].items():
        row = dict(zip(names, values, strict=False))
        if row.get("to_target"):
            goal = dict(
                zip(cell["columns"]["to_target"], row["to_target"], strict=True)
            )
            reached[name] = goal["bytes"], goal["seconds"]
    front = sorted(
        place
        for place in reached.values()
        if not any(
            other != place and other[0] <= place[0] and other[1] <= place[1]
            for other in reached.values()
        )
    )
    picture = Picture(
        720,
        412,
        "Bytes and seconds that each method takes to the same loss",
        f"{len(reached)} methods on rows like those of rcv1, two ranks behind an"
        " emulated local network, until the loss is within half a per cent of the best"
        " one of SGD. On the front: "
        + ", ".join(name for name, place in reached.items() if place in front)
        + ".",
    )
    axes = Axes(picture, (66, 44, 560, 296), (2e4, 3e8), (0.008, 1.2), (True, True))
    x = [(1e5, "100 kB"), (1e6, "1 MB"), (1e7, "10 MB"), (1e8, "100 MB")]
    y = [(0.01, "0.01"), (0.03, "0.03"), (0.1, "0.1"), (0.3, "0.3"), (1, "1")]
    axes.frame(x, y, ("bytes that a rank sends", "seconds"), "")
    corner = []
    for number, (bytes_sent, seconds) in enumerate(front):
        if number:
            corner.append((bytes_sent, front[number - 1][1]))
        corner.append((bytes_sent, seconds))
    axes.curve(*zip(*corner, strict=True), "s-grey dashed thin")
    for name, place in reached.items():
        kind = METHOD_KINDS.get(name, "orange")
        style = f"f-{kind}" if place in front else f"hollow s-{kind}"
        axes.dot(*place, style, 5 if place in front else 4, name)
    for name, (shift, anchor) in METHOD_LABELS.items():
        kind = METHOD_KINDS.get(name, "orange")
        words = METHOD_NAMES.get(name, name)
        style = f"small t-{kind}"
        axes.label(*reached[name], words, style, shift, anchor)
    x_mark = 66.0
    for kind, text in (
        ("blue", "the iterates of SGD"),
        ("orange", "gradients in every step"),
        ("green", "averages of weights"),
        ("purple", "weights of neighbours"),
    ):
        picture.dot(x_mark + 4, 22, f"hollow s-{kind}", 4.5)
        picture.text(x_mark + 14, 26, text, "small")
        x_mark += 34 + 6.1 * len(text)
    words = (
        "To a loss 0.5 % above the best of SGD; filled: no method is better in both."
    )
    note = f"{words} bench_methods.json: rcv1, lan."
    picture.text(66, 400, note, "small muted")
    return picture


METHOD_KINDS = {
    **dict.fromkeys(("sgd", "casgd", "casgd s=2", "casgd s=32"), "blue"),
    **dict.fromkeys(
        ("local", "postlocal", "hierarchical", "slowmo", "async-average"), "green"
    ),
    **dict.fromkeys(("decentralized", "decentralized-low"), "purple"),
}
METHOD_NAMES = {
    "sgd": "SGD",
    "casgd": "CA-SGD, s = 8",
    "casgd s=2": "CA-SGD, s = 2",
    "casgd s=32": "CA-SGD, s = 32",
    "local": "local SGD",
}
METHOD_LABELS: dict[str, tuple[tuple[float, float], str]] = {
    "sgd": ((0, -10), "middle"),
    "casgd s=2": ((0, -9), "middle"),
    "casgd": ((8, 4), "start"),
    "postlocal": ((-8, 0), "end"),
    "bytescheduler": ((8, 13), "start"),
    "accordion-batch": ((8, 3), "start"),
    "nuqsgd": ((8, 3), "start"),
    "byte": ((-8, 4), "end"),
    "casgd s=32": ((8, 4), "start"),
    "slowmo": ((8, 4), "start"),
    "local": ((8, 4), "start"),
    "ddp": ((9, -2), "start"),
    "fp8": ((-8, 4), "end"),
    "topk": ((-8, 4), "end"),
    "dgc": ((8, 12), "start"),
    "sign": ((0, -9), "middle"),
    "qsgd": ((-8, 4), "end"),
    "zero1": ((9, 0), "start"),
    "decentralized-low": ((6, -8), "start"),
}


PICTURES: dict[str, Callable[[], Picture]] = {
    "grid": grid,
    "gram": gram,
    "timeline": timeline,
    "words": words,
    "loss": loss,
    "roofline": roofline,
    "formats": formats,
    "scaling": scaling,
    "pareto": pareto,
    "layers": layers,
}


def main(arguments: list[str] | None = None) -> int:
    """Write the pictures, or compare them with those that are there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args(arguments).check
    stale = []
    for name, draw in PICTURES.items():
        path, text = HERE / f"{name}.svg", draw().svg()
        if check and (not path.exists() or path.read_text() != text):
            stale.append(path.name)
        elif not check:
            path.write_text(text)
    for name in stale:
        print(f"{name} is not as drawn now: run python docs/figures/draw.py")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())

"""
The grid: members times replicas
================================

Four ranks form a grid of R replicas with C members each. Members split the columns and
sum products; replicas split the rows and average weights. The grid decides what is
sent.
"""

import json
import shlex
import subprocess
import sys
import tempfile

import matplotlib.pyplot as plt

# %%
# All three grids see eight rows in a step, and take eight steps between all-reduces.
out, grids = tempfile.mkdtemp(), {"1x4": 8, "2x2": 4, "4x1": 2}


def run(command):
    words = [sys.executable, "-m", "hpcsgd", *shlex.split(command)]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout


run(f"data synth --shape epsilon --rows 512 --cols 400 --out {out}/e.h5")
settings = " ".join(
    f"--setting '{grid}: grid={grid} batch={batch}'" for grid, batch in grids.items()
)
shared = f"--data {out}/e.h5 --ranks 4 --rate 8 --steps 8 --epochs 4 --products auto"
report = json.loads(run(f"compare {shared} --repeats 1 --json --quiet {settings}"))

# %%
# The ledger keeps the sums of members and the averages of replicas apart.
rows = {row["name"]: row for row in report["settings"]}
plt.style.use("tableau-colorblind10")
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
bottom = [0.0] * len(rows)
parts = {"products": "sums of members", "agreement": "averages of replicas"}
looks = (("#0072b2", ""), ("#e69f00", "///"))
for (purpose, label), (colour, hatch) in zip(parts.items(), looks, strict=True):
    words = [row["ledger"][purpose]["words"] / 1e3 for row in rows.values()]
    left.bar(list(rows), words, bottom=bottom, label=label, color=colour, hatch=hatch)
    bottom = [a + b for a, b in zip(bottom, words, strict=True)]
left.set(xlabel="grid, replicas x members", ylabel="thousand words sent by a rank")
left.legend()
for style, (name, row) in zip(("-o", "--s", ":^"), rows.items(), strict=True):
    right.plot([record["loss"] for record in row["history"]], style, label=name)
right.set(xlabel="epochs", ylabel="loss, all rows")
right.legend(title="grid")
least = min(rows, key=lambda name: rows[name]["words"])
most = max(rows, key=lambda name: rows[name]["words"])
fewer = rows[most]["words"] / rows[least]["words"]
print(
    f"With as many rows a step, {least} sends {fewer:.1f} times fewer words than"
    f" {most}."
)
plt.show()

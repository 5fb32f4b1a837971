"""
Compressed gradients: loss against bytes
========================================

A codec sends a gradient in fewer bytes and adds what it left out to the next gradient
(error feedback). Five methods train on two replicas, over the same rows.
"""

import json
import shlex
import subprocess
import sys
import tempfile

import matplotlib.pyplot as plt

# %%
# One comparison runs all methods in turns.
out, methods = tempfile.mkdtemp(), ("ddp", "fp8", "sign", "topk", "qsgd")


def run(command):
    words = [sys.executable, "-m", "hpcsgd", *shlex.split(command)]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout


run(f"data synth --shape epsilon --rows 512 --cols 200 --out {out}/e.h5")
shared = f"--data {out}/e.h5 --ranks 2 --rate 8 --batch 16 --epochs 5 --repeats 1"
flags = f"{shared} --methods {','.join(methods)} --json --quiet"
report = json.loads(run(f"compare {flags}"))

# %%
# The horizontal axis counts the bytes that a ring all-reduce moves for each rank.
rows = {row["name"]: row for row in report["settings"]}
figure, axis = plt.subplots(figsize=(7.5, 5), layout="constrained")
colours = ("#0072b2", "#d55e00", "#007a5a", "#a8487f", "#9a6700")
for (name, row), colour, mark in zip(rows.items(), colours, "os^Dv", strict=True):
    losses = [record["loss"] for record in row["history"]][1:]
    share = row["wire_bytes"] / (len(losses) * 1e3)
    x = [share * (k + 1) for k in range(len(losses))]
    axis.plot(x, losses, mark + "-", color=colour, label=name, markersize=4)
axis.set(xscale="log", xlabel="kilobytes sent by a rank", ylabel="loss, all rows")
axis.legend(title="method")

dense = rows["ddp"]
least = min(rows.values(), key=lambda row: row["wire_bytes"])
fewer = dense["wire_bytes"] / least["wire_bytes"]
print(
    f"The method '{least['name']}' sends {fewer:.0f} times fewer bytes than ddp and"
    f" ends with a loss of {least['loss']:.4f}, where ddp ends with"
    f" {dense['loss']:.4f}."
)
plt.show()

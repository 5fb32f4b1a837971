"""
Local SGD and SlowMo: fewer all-reduces between replicas
========================================================

Replicas hold rows of their own. ``ddp`` sums gradients in every step. ``local`` takes
eight steps and then averages the weights; ``slowmo`` adds a slow momentum to these
averages.
"""

import json
import shlex
import subprocess
import sys
import tempfile

import matplotlib.pyplot as plt

# %%
# Three methods train on two replicas, over the same rows.
out, methods = tempfile.mkdtemp(), ("ddp", "local", "slowmo")


def run(command):
    words = [sys.executable, "-m", "hpcsgd", *shlex.split(command)]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout


run(f"data synth --shape epsilon --rows 1024 --cols 100 --out {out}/e.h5")
shared = f"--data {out}/e.h5 --ranks 2 --rate 2 --batch 8 --epochs 4 --repeats 1"
flags = f"{shared} --period 8 --methods {','.join(methods)} --json --quiet"
report = json.loads(run(f"compare {flags}"))

# %%
# The same losses, over the passes and over the messages.
rows = {row["name"]: row for row in report["settings"]}
plt.style.use("tableau-colorblind10")
figure, axes = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
for axis, over in zip(axes, ("epoch", "messages"), strict=True):
    for style, (name, row) in zip(("-o", "--s", ":^"), rows.items(), strict=True):
        x = [record[over] for record in row["history"]]
        axis.plot(x, [record["loss"] for record in row["history"]], style, label=name)
    axis.set_ylabel("loss, all rows")
axes[0].set_xlabel("epochs")
axes[0].legend()
axes[1].set_xscale("symlog", linthresh=10)
axes[1].set_xlabel("all-reduces of a rank")

calls = {name: row["synchronisations"] for name, row in rows.items()}
gap = rows["local"]["loss"] / rows["ddp"]["loss"] - 1
print(
    f"Local SGD needs {calls['local']} all-reduces instead of {calls['ddp']} and ends"
    f" with a loss {100 * gap:+.2f} % from that of ddp; SlowMo, with as many, ends at"
    f" {rows['slowmo']['loss']:.4f} instead of {rows['ddp']['loss']:.4f}."
)
plt.show()

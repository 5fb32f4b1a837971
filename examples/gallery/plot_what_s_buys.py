"""
What s buys: messages, words and seconds
========================================

A larger s needs fewer all-reduces and sends a larger Gram matrix in each. On a network
with a high latency there is a best s. Here two ranks run behind an emulated network.
"""

import json
import shlex
import subprocess
import sys
import tempfile

import matplotlib.pyplot as plt

# %%
# One comparison trains seven settings in turns, on the same two ranks.
out, sizes = tempfile.mkdtemp(), (1, 2, 4, 8, 16, 32, 64)


def run(command):
    words = [sys.executable, "-m", "hpcsgd", *shlex.split(command)]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout


run(f"data synth --shape epsilon --rows 1024 --cols 100 --out {out}/e.h5")
settings = "--setting 's1: products=direct' " + " ".join(
    f"--setting 's{s}: products=gram steps={s}'" for s in sizes[1:]
)
shared = f"--data {out}/e.h5 --ranks 2 --rate 8 --batch 4 --epochs 2 --repeats 1"
network = "--network alpha=1e-3,bandwidth=5e6"
report = json.loads(run(f"compare {shared} {network} --json --quiet {settings}"))

# %%
# The ledger counts every all-reduce and every word (number) that a rank sends.
rows = report["settings"]
messages = [row["synchronisations"] for row in rows]
words = [row["words"] for row in rows]
seconds = [row["seconds"] for row in rows]
plt.style.use("tableau-colorblind10")
figure, axes = plt.subplots(1, 3, figsize=(11, 4), layout="constrained")
curves = {"all-reduces": messages, "words sent by a rank": words, "seconds": seconds}
for axis, (name, values) in zip(axes, curves.items(), strict=True):
    axis.loglog(sizes, values, "o-")
    axis.set_xticks(sizes, sizes)
    axis.set_xticks([], minor=True)
    axis.set(xlabel="s, steps for each all-reduce", title=name)
best = min(range(len(sizes)), key=lambda k: seconds[k])
axes[2].plot(sizes[best], seconds[best], "o", ms=14, mfc="none", color="#d55e00")
gain, fewer = seconds[0] / seconds[best], messages[0] / messages[best]
print(
    f"With s = {sizes[best]} a run needs {fewer:.0f} times fewer all-reduces than SGD,"
    f" sends {words[best] / words[0]:.1f} times the words, and takes {1 / gain:.2f} of"
    " the time on a network with a latency of 1 ms and 5 MB/s."
)
plt.show()

"""
CA-SGD takes the steps of SGD
=============================

CA-SGD takes s steps with one all-reduce. It approximates nothing: for every s the
iterates are those of SGD up to rounding. Here two ranks train in double precision.
"""

import json
import shlex
import subprocess
import sys
import tempfile

import matplotlib.pyplot as plt

import hpcsgd

# %%
# Make 1200 rows shaped as the data set epsilon, and compare four values of s.
out = tempfile.mkdtemp()


def run(command):
    words = [sys.executable, "-m", "hpcsgd", *shlex.split(command)]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout


run(f"data synth --shape epsilon --rows 1200 --cols 100 --out {out}/e.h5")
names = {"SGD": "products=direct"} | {f"s{s}": f"steps={s}" for s in (2, 8, 32)}
settings = " ".join(f"--setting '{name}: {keys}'" for name, keys in names.items())
shared = f"--data {out}/e.h5 --ranks 2 --rate 8 --batch 8 --epochs 4 --repeats 1"
flags = f"{shared} --products gram --precision fp64 --out {out} --json --quiet"
report = json.loads(run(f"compare {flags} {settings}"))

# %%
# Compare losses after every epoch, and the weights at the end.
plt.style.use("tableau-colorblind10")
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
sgd = hpcsgd.load_result(f"{out}/sgd-1")
gaps = {}
for width, row in zip((9, 6, 3, 1), report["settings"], strict=True):
    name = row["name"].replace("s", "s = ")
    result = hpcsgd.load_result(f"{out}/{row['name'].lower()}-1")
    losses = [record["loss"] for record in result.history]
    left.plot(losses, lw=width, label=f"{name}: {row['synchronisations']} all-reduces")
    if result.config != sgd.config:
        gaps[name] = abs(result.weights - sgd.weights).max()
left.set(xlabel="epochs", ylabel="loss, all rows", title="the curves cover each other")
left.set_xticks(range(5))
left.legend()
right.bar(list(gaps), list(gaps.values()))
right.axhline(2**-52, color="0.3", ls="--", label="rounding unit, 2.2e-16")
right.set(yscale="log", ylim=(1e-17, 1e-10), title="weights beside those of SGD")
right.set_ylabel("largest difference")
right.legend()

difference = max(gaps.values())
print(f"The weights differ from those of SGD by at most {difference:.0e}, for every s.")
plt.show()

"""
Number formats: bytes against loss
==================================

A recipe names the number formats of a run. Recipe ``c`` keeps the data in bf16 and
sums in fp32; ``bf16`` keeps everything in bf16. Two ranks train with each recipe.
"""

import json
import shlex
import subprocess
import sys
import tempfile

import matplotlib.pyplot as plt

# %%
# One comparison trains all recipes from the same start, over the same rows.
out, recipes = tempfile.mkdtemp(), ("fp64", "fp32", "c", "d", "bf16")


def run(command):
    words = [sys.executable, "-m", "hpcsgd", *shlex.split(command)]
    return subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout


run(f"data synth --shape epsilon --rows 1024 --cols 100 --out {out}/e.h5")
settings = " ".join(f"--setting '{name}: precision={name}'" for name in recipes)
shared = f"--data {out}/e.h5 --ranks 2 --rate 8 --batch 8 --steps 8 --products gram"
flags = f"{shared} --epochs 8 --repeats 1 --no-fall-back --json --quiet"
report = json.loads(run(f"compare {flags} {settings}"))

# %%
# Left: what a rank sends. Right: how far the final loss is from that of fp64.
rows = {row["name"]: row for row in report["settings"]}
exact = rows["fp64"]["loss"]
gaps = {name: abs(rows[name]["loss"] / exact - 1) for name in recipes[1:]}
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
left.bar(list(rows), [row["bytes"] / 1e3 for row in rows.values()], color="#0072b2")
left.set(xlabel="recipe", ylabel="kilobytes sent by a rank")
right.bar(list(gaps), [100 * gap for gap in gaps.values()], color="#d55e00")
right.axhline(0.5, color="0.4", ls="--", label="0.5 %, a usual tolerance")
right.set(yscale="log", xlabel="recipe", ylabel="loss against fp64, relative, in %")
right.legend()

saved = 1 - rows["d"]["bytes"] / rows["fp32"]["bytes"]
print(
    f"Recipe c ends {100 * gaps['c']:.4f} % from the loss of fp64, and recipe d"
    f" {100 * gaps['d']:.4f} % with {100 * saved:.0f} % fewer bytes than fp32; pure"
    f" bf16 ends {100 * gaps['bf16']:.2f} % away."
)
plt.show()

"""
A scaling study from Python
===========================

``hpcsgd.studies.strong`` trains every method on every number of ranks, each run in a
process of its own, and returns medians, speed-ups and the counted traffic.
"""

import subprocess
import sys
import tempfile

import matplotlib.pyplot as plt

from hpcsgd import studies

# %%
# SGD and CA-SGD on one and on two ranks; the emulated network has 0.5 ms latency.
out = tempfile.mkdtemp()
shape = f"--shape epsilon --rows 1600 --cols 400 --out {out}/e.h5"
program = [sys.executable, "-m", "hpcsgd", "data", "synth", *shape.split()]
subprocess.run(program, check=True, stdout=subprocess.DEVNULL)
config = {
    "schedule": {"batch": 8, "epochs": 1, "steps": 16},
    "rate": {"value": 8.0},
    "run": {"network": "alpha=5e-4,bandwidth=1e9"},
}
found = studies.strong(
    f"{out}/e.h5", ranks=[1, 2], out=f"{out}/study", config=config, repeats=1
)

# %%
# ``plot`` draws seconds over ranks; the frame has all columns of the study.
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
found.plot(ax=left)
left.set_title("time of training")
table = found.to_frame()
two = table[table["ranks"] == 2].set_index("method")
right.bar(two.index, two["calls"], color=["#0072b2", "#d55e00"][: len(two)])
right.set(ylabel="all-reduces of a rank", title="what two ranks wait for")

fewer = two["calls"]["sgd"] / two["calls"]["casgd"]
print(
    f"On two ranks CA-SGD needs {fewer:.0f} times fewer all-reduces and is"
    f" {two['gain']['casgd']:.1f} times faster than SGD; both end with a loss of"
    f" {two['loss']['casgd']:.4f}."
)
plt.show()

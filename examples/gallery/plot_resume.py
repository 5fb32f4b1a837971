"""
Resume after a kill
===================

A run that is killed continues from its last checkpoint. It ends with the same bits as
a run that was never interrupted.
"""

import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt

import hpcsgd

# %%
# Start a run that writes a checkpoint every 200 exchanges, and kill it.
out = Path(tempfile.mkdtemp())


def start(command):
    words = [sys.executable, "-m", "hpcsgd", *shlex.split(command), "--json"]
    return subprocess.Popen(words, stdout=subprocess.DEVNULL)


start(f"data synth --shape epsilon --rows 8000 --cols 400 --out {out}/e.h5").wait()
flags = "--rate 0.5 --batch 2 --epochs 12 --precision fp64 --checkpoint-every 200"
train = f"train --data {out}/e.h5 {flags} --quiet --out {out}"
run = start(f"{train}/killed")
history = out / "killed" / "history.jsonl"
while not history.exists() or history.read_text().count("\n") < 5:
    time.sleep(0.005)
run.kill()
run.wait()
last = history.read_text().count("\n") - 1

# %%
# The same command with ``--resume auto`` continues. Another run is never interrupted.
start(f"{train}/killed --resume auto").wait()
start(f"{train}/whole").wait()
killed, whole = hpcsgd.load_result(out / "killed"), hpcsgd.load_result(out / "whole")

# %%
# The wide grey curve is the uninterrupted run.
figure, axis = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
whole.plot(ax=axis).lines[-1].set(color="0.8", linewidth=9, label="never interrupted")
losses = [record["loss"] for record in killed.history]
epochs = range(len(losses))
axis.plot(epochs[: last + 1], losses[: last + 1], "o-", c="#0072b2", label="killed")
axis.plot(epochs[last:], losses[last:], "s--", c="#d55e00", label="resumed")
axis.axvline(last, color="0.4", ls=":")
axis.legend()
same = killed.weights_sha256 == whole.weights_sha256
bits = f"{killed.weights.size} weights have {'the same' if same else 'other'} bits"
print(f"A run that was killed in epoch {last + 1} resumed; its {bits} as a whole run.")
plt.show()

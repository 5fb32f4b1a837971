"""
Train on a file that does not fit into memory
=============================================

With block sampling a run reads its HDF5 file window by window while it trains. A limit
on the memory changes neither the order of the rows nor the bits of the result.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile

import matplotlib.pyplot as plt

# %%
# Measure the peak memory of a command, and read the document that it prints.
out, sizes = tempfile.mkdtemp(), (20_000, 60_000, 100_000)


def run(command):
    words = [sys.executable, "-m", "hpcsgd", *shlex.split(command), "--json"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE)
    document = json.load(process.stdout)
    _, code, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(code)
    return document, used.ru_maxrss / 1024


# %%
# Three files of 200 columns. Each is trained on twice: held, and with a limit.
limit, held, streamed, files, equal = 130, [], [], [], []
for rows in sizes:
    path = f"{out}/{rows}.h5"
    run(f"data synth --shape epsilon --rows {rows} --cols 200 --out {path}")
    files.append(os.path.getsize(path) / 2**20)
    flags = f"--data {path} --sampling blocks --set sampling.block=256 --rate 8 --quiet"
    whole, peak = run(f"train {flags}")
    held.append(peak)
    part, peak = run(f"train {flags} --memory {limit}MiB")
    streamed.append(peak)
    equal.append(whole["weights_sha256"] == part["weights_sha256"])

# %%
# The memory of the first grows with the file. The other one stays below its limit.
figure, axis = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
axis.plot(files, held, "s--", color="#d55e00", label="no limit: the file is held")
axis.plot(files, streamed, "o-", color="#0072b2", label="with a limit: streamed")
axis.axhline(limit, color="0.4", ls=":", label=f"limit, {limit} MiB")
axis.set(xlabel="size of the file in MiB", ylabel="peak memory in MiB", ylim=(0, None))
axis.legend()
bits, streams = all(equal), max(streamed) < limit < held[-1]
print(
    f"For a file of {files[-1]:.0f} MiB the run takes {held[-1]:.0f} MiB without a"
    f" limit and {streamed[-1]:.0f} MiB with one of {limit} MiB; the weights have"
    f" {'the same' if bits else 'other'} bits."
)
plt.show()

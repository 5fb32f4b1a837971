"""
64 models with one Gram matrix
==============================

A sweep trains a model for every penalty and every learning rate together. All models
share the rows, the Gram matrix and the messages, so that 64 models need the messages
of one.
"""

import time

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.preprocessing import StandardScaler

import hpcsgd

# %%
# Digits 0 to 4 against 5 to 9; a fifth of the rows is held out and judges the models.
X, y = load_digits(return_X_y=True)
X, y = StandardScaler().fit_transform(X), (y >= 5).astype(float)
config = {
    "schedule": {"epochs": 10, "batch": 16},
    "sampling": {"hold_out": 0.2},
}
penalties, rates = np.geomspace(1e-4, 1.0, 8), np.geomspace(0.003, 0.4, 8)

# %%
# One call trains 64 models. Another one trains a single model, for the comparison.
began = time.perf_counter()
found = hpcsgd.sweep(config, l2=penalties, rate=rates, X=X, y=y)
together = time.perf_counter() - began
best = found.models[found.best]
single = {**config, "problem": {"l2": best.l2}, "rate": {"value": best.rate}}
alone = hpcsgd.train(single, X=X, y=y)

# %%
# A map of the held-out losses, and the best model in it.
held = found.mean_held.reshape(8, 8)
figure, axis = plt.subplots(figsize=(7.5, 5), layout="constrained")
image = axis.pcolormesh(rates, penalties, held, cmap="viridis_r", shading="nearest")
axis.plot(best.rate, best.l2, "o", ms=14, mfc="none", mew=2, color="#d55e00")
axis.set(xscale="log", yscale="log", xlabel="learning rate", ylabel="ridge penalty l2")
axis.set_title("the ring marks the best model")
figure.colorbar(image, label="mean loss, held-out rows")

weights, models = found.result(found.best).weights, len(found)
difference = np.abs(weights - alone.weights).max()
print(
    f"{models} models were trained together in {together:.2f} s; the best has l2 ="
    f" {best.l2:.2g} and rate {best.rate:.2g}, a held-out loss of {held.min():.3f},"
    f" and weights within {difference:.0e} of those of a run of its own."
)
plt.show()

"""
A family of your own: log-cosh
==============================

The loss log cosh(t - y) is a square near zero and a line far away, so that outliers
count less. A family is a short class; penalties, solvers and certificates then work
with it.
"""

import matplotlib.pyplot as plt
import numpy as np

import hpcsgd
from hpcsgd.glm import Family, register


# %%
# A family returns the loss, the residual (its derivative) and the mean for scores t.
class LogCosh(Family):
    name, targets, curvature = "logcosh", "real", 1.0

    def loss(self, t, y):
        return np.logaddexp(t - y, y - t) - t.dtype.type(np.log(2))

    def residual(self, t, y, out=None):
        return np.tanh(np.subtract(t, y, out=out), out=out)

    def mean(self, t):
        return t


register("logcosh", LogCosh)

# %%
# A line with 60 points, of which ten are far too high. Least squares follows them.
rng = np.random.default_rng(0)
x = np.sort(rng.uniform(0, 10, 60))
y = 1.0 + 0.5 * x + 0.3 * rng.normal(size=60)
y[rng.choice(np.flatnonzero(x > 5), 10, replace=False)] += 8.0
plt.style.use("tableau-colorblind10")
figure, axis = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
axis.plot(x, y, "o", color="0.5", ms=4, label="data")
axis.plot(x, 1.0 + 0.5 * x, color="0.75", lw=6, zorder=0, label="truth")
slopes = {}
for family, style in (("gaussian", "--"), ("logcosh", "-")):
    found = hpcsgd.fit(x[:, None], family, y, alpha=0.0)
    slopes[family] = float(found.weights[0])
    axis.plot(x, slopes[family] * x + found.intercept, style, label=family)
axis.set(xlabel="x", ylabel="y")
axis.legend(title="family")
squares, robust = slopes["gaussian"], slopes["logcosh"]
print(f"The true slope is 0.5; squares find {squares:.2f} and log-cosh {robust:.2f}.")
plt.show()

"""
A first fit
===========

A logistic regression is fitted to rows of a known model, and its probabilities are
compared with the share of ones among rows of the same probability.
"""

import matplotlib.pyplot as plt
import numpy as np

import hpcsgd

# %%
# 4000 rows of ten columns are drawn. The label is 1 with the probability of the model.

rng = np.random.default_rng(0)
X = rng.normal(size=(4000, 10))
weights = rng.normal(size=10)
y = rng.random(4000) < 1 / (1 + np.exp(-X @ weights))

model = hpcsgd.LogisticRegression(alpha=1e-4, random_state=0).fit(X[:3000], y[:3000])
print(f"accuracy on the other 1000 rows: {model.score(X[3000:], y[3000:]):.3f}")

# %%
# The rows that were not used for the fit are sorted by their predicted probability and
# divided into ten bins.

order = np.argsort(model.predict_proba(X[3000:])[:, 1])
predicted = model.predict_proba(X[3000:])[order, 1].reshape(10, -1).mean(axis=1)
observed = y[3000:][order].reshape(10, -1).mean(axis=1)

figure, axes = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
axes[0].plot(weights, model.coef_.ravel(), "o")
axes[0].axline((0, 0), slope=1, color="grey", linewidth=1)
axes[0].set(xlabel="weight of the model", ylabel="fitted weight")
axes[1].plot(predicted, observed, "o-")
axes[1].axline((0, 0), slope=1, color="grey", linewidth=1)
axes[1].set(xlabel="predicted probability", ylabel="share of ones")
plt.show()

# %%
# Both pictures follow the diagonal: the fit finds the weights that made the labels, and
# its probabilities agree with the observed shares.

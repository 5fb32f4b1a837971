"""
Logistic regression beside scikit-learn
=======================================

Both libraries minimise the same function when ``alpha`` is 1/(C·n). Their coefficients
are then equal up to the tolerances of the solvers.
"""

import matplotlib.pyplot as plt
import numpy as np
import sklearn.linear_model
from sklearn.datasets import load_digits
from sklearn.preprocessing import StandardScaler

import hpcsgd

# %%
# Digits 0 to 4 against 5 to 9: 1797 images of 64 pixels.
X, y = load_digits(return_X_y=True)
X, y = StandardScaler().fit_transform(X), y >= 5
alphas = np.geomspace(1e-3, 1.0, 7)

# %%
# One fit of each library for every penalty.
differences, pairs = [], []
for alpha in alphas:
    ours = hpcsgd.LogisticRegression(alpha=alpha).fit(X, y)
    C = 1 / (alpha * len(y))
    theirs = sklearn.linear_model.LogisticRegression(C=C, tol=1e-10, max_iter=10_000)
    theirs.fit(X, y)
    pairs.append((theirs.coef_[0], ours.coef_[0]))
    differences.append(np.abs(ours.coef_ - theirs.coef_).max())

# %%
# Left: the coefficients for three penalties. Right: the largest difference for each.
plt.style.use("tableau-colorblind10")
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
for number, mark in ((0, "o"), (3, "s"), (6, "^")):
    left.plot(*pairs[number], mark, ms=4, label=f"alpha = {alphas[number]:.3g}")
left.axline((0, 0), slope=1, color="0.6", zorder=0)
left.set(xlabel="coefficients of scikit-learn", ylabel="coefficients of hpcsgd")
left.legend()
right.loglog(alphas, differences, "o-")
right.set(xlabel="penalty alpha", ylabel="largest difference of coefficients")

worst = max(differences)
print(
    f"All points lie on the diagonal: over {len(alphas)} penalties the coefficients of"
    f" the two libraries differ by at most {worst:.1e}."
)
plt.show()

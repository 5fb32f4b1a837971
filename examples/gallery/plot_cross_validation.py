"""
Choose a penalty by cross-validation
====================================

``GLM_CV`` trains a model for every penalty and every fold together, compares them on
the rows that they have not seen, and fits the best penalty to all rows.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_classification

from hpcsgd import GLM_CV

# %%
# 400 rows and 120 columns, of which 8 matter: without a penalty a model fits the noise.
X, y = make_classification(
    400, 120, n_informative=8, n_redundant=0, flip_y=0.1, random_state=0
)
X_test, y_test = X[200:], y[200:]
alphas = np.geomspace(1e-4, 10.0, 11)
model = GLM_CV(family="logistic", alphas=alphas, cv=5).fit(X[:200], y[:200])

# %%
# The mean over the folds has a minimum between too weak and too strong a penalty.
held = model.cv_results_["held"]
mean = model.cv_results_["mean_held"]
figure, axis = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
axis.plot(alphas, held, ":", color="0.55")
axis.plot(alphas, mean, "o-", color="#0072b2", label="mean of five folds")
axis.plot([], [], ":", color="0.55", label="single folds")
chosen = f"chosen: {model.alpha_:.2g}"
axis.axvline(model.alpha_, color="#d55e00", ls="--", label=chosen)
axis.axhline(np.log(2), color="#007a5a", ls="-.", label="guessing, log 2")
axis.set(xscale="log", yscale="log", xlabel="ridge penalty alpha")
axis.set_ylabel("mean loss, held-out rows")
axis.legend()

accuracy = model.score(X_test, y_test)
print(
    f"The penalty {model.alpha_:.2g} has the least held-out loss, {mean.min():.3f};"
    f" the weakest one has {mean[0]:.3f}. The chosen model classifies"
    f" {100 * accuracy:.0f} % of the 200 test rows correctly."
)
plt.show()

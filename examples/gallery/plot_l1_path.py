"""
A path of l1 penalties
======================

``path`` fits one model for every penalty, from the largest to the smallest. Each model
starts at the one before it and ends with a certified duality gap.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

import hpcsgd

# %%
# Ten measurements of 442 patients; the target is the progress of their illness.
data = load_diabetes(as_frame=True)
found = hpcsgd.path(data.data, data.target, n_alphas=40, tol=1e-9)

# %%
# At the largest penalty all coefficients are zero. They enter one after the other.
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.5), layout="constrained")
found.plot(ax=left)
left.set_title("coefficients")
models = found.to_frame()
right.step(models.index, models["nonzeros"], where="mid", color="#0072b2")
right.set(xscale="log", xlabel="penalty alpha (weaker to the right)")
right.set_ylabel("coefficients that are not zero")
right.invert_xaxis()

coefficients = found.to_frame("coefficients")
first = (coefficients != 0).sum().idxmax()
gap = np.max(found.gaps / found.losses)
print(
    f"The column '{first}' enters first and {models['nonzeros'].iloc[-1]} of 10"
    f" columns are in the last model; every objective is within {gap:.0e} of its"
    " optimum, relative, by its duality gap."
)
plt.show()

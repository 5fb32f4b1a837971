"""
A first fit
===========

Fit a logistic regression to a table with named columns, and look at its coefficients
and at its loss. ``fit`` chooses the learning rate from the data and goes on to the
optimum.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_breast_cancer
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from hpcsgd import LogisticRegression

# %%
# The data are 569 tumours with 30 measurements each. A quarter of them is for the test.
X, y = load_breast_cancer(return_X_y=True, as_frame=True)
parts = train_test_split(X, y, random_state=0, stratify=y)
X_train, X_test, y_train, y_test = parts

# %%
# The estimator is used as one of scikit-learn. ``set_output`` keeps the column names.
scaler = StandardScaler().set_output(transform="pandas")
model = make_pipeline(scaler, LogisticRegression(alpha=1e-2)).fit(X_train, y_train)
fitted = model[-1]

# %%
# ``plot`` draws with matplotlib. ``to_frame`` returns the same numbers as a table.
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 5), layout="constrained")
fitted.plot(ax=left)
left.set_title("coefficients of standardised columns")
fitted.plot("history", ax=right)
right.set_title("loss on the training rows")

largest = fitted.to_frame()["coefficient"].abs().idxmax()
accuracy = model.score(X_test, y_test)
print(
    f"After {fitted.n_iter_[0]} passes the model is at its optimum; it classifies"
    f" {100 * accuracy:.1f} % of the test rows correctly, and the column '{largest}'"
    " has the largest coefficient."
)
plt.show()

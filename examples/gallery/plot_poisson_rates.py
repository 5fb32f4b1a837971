"""
Poisson rates with exposure
===========================

Counts of claims depend on a rate and on how long each policy was watched. The exposure
is given to ``fit``, so that the model learns the rate for one year.
"""

import matplotlib.pyplot as plt
import numpy as np

from hpcsgd import PoissonRegressor

# %%
# Simulate 8000 policies. Young drivers have new contracts, watched for a shorter time.
rng = np.random.default_rng(0)
age = rng.uniform(18, 80, 8000)
exposure = rng.uniform(0.1, 0.3 + 1.7 * (age - 18) / 62)


def true_rate(age):
    return 0.15 + 0.5 * np.exp(-(age - 18) / 8) + 0.3 * ((age - 18) / 62) ** 4


claims = rng.poisson(true_rate(age) * exposure)


# %%
# Smooth functions of the age are columns: powers of the age between -1 and 1.
def columns(age):
    x = (age - 49) / 31
    return np.stack([x**k for k in range(1, 7)], axis=1)


model = PoissonRegressor(alpha=1e-6).fit(columns(age), claims, exposure=exposure)
naive = PoissonRegressor(alpha=1e-6).fit(columns(age), claims)

# %%
# Compare the rates of one year with the truth and with the data in groups of ages.
grid, groups = np.linspace(18, 80, 200), np.arange(18, 81, 5)
place = np.digitize(age, groups)
sums = [np.bincount(place, values)[1:] for values in (claims, exposure)]
observed = sums[0] / sums[1]
rate = model.predict(columns(grid), exposure=np.ones(200))
figure, axis = plt.subplots(figsize=(7.5, 4.5), layout="constrained")
axis.plot(grid, true_rate(grid), color="0.5", lw=5, alpha=0.6, label="true rate")
axis.plot(grid, rate, color="#0072b2", label="fitted with exposure")
counts = naive.predict(columns(grid))
axis.plot(grid, counts, "--", color="#d55e00", label="fitted without exposure")
axis.plot(groups + 2.5, observed, "s", color="#007a5a", label="claims / years, by age")
axis.set(xlabel="age in years", ylabel="claims a year", ylim=(0, None))
axis.legend()

error = np.abs(rate / true_rate(grid) - 1).mean()
wrong = np.abs(counts / true_rate(grid) - 1).mean()
print(
    f"With the exposure the rates are {100 * error:.1f} % from the truth on average;"
    f" without it they are {100 * wrong:.1f} % away."
)
plt.show()

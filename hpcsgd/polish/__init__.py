"""From where the steps ended to the optimum: L-BFGS with gradients of all rows."""

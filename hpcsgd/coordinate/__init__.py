"""Coordinate forms with s-step unrolling: one message for s exact block steps.

All forms are one problem, with a matrix M of N items (rows) whose columns the ranks
share, and one unknown x_i for every item:

    min over x of  ‖v‖² / (2 σ) + Σ_i ψ_i(x_i),     v = v₀ + σ Mᵀx

    form    items                x   v              σ         ψ
    primal  columns of the data  w   residuals / n  1/n       l1|x| + (l2/2)x², bounds
    dual    rows of it, times y  α   w              1/(λ n)   α²/(2c) − e α, α ≥ 0
    newton  as primal, of a quadratic model: times the roots of its curvatures; again
            in every epoch, and of K classes an item for every column and class

Every rank holds x whole and its part of v. The unrolling over s blocks of a message
follows "Avoiding synchronization in first-order methods for sparse convex
optimization", arXiv 1712.06047.
"""

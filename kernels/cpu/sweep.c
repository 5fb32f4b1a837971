/* Sweeps of coordinate descent over the columns of a quadratic model, on one process.

   With H_i the curvature of row i in its K scores, δ_i = D_i + s the change of the scores
   and r_i the residuals, all with the row's weight c_i,

       Q(x) = σ Σ_i (r_i·δ_i + δ_i·H_i δ_i / 2) + Σ_j ψ(x_j),   ψ(x) = l1|x| + (l2/2) x²

   within bounds. D = A (x − x₀) is changed where a column has values alone. The change s of
   the intercept, which makes Q least for every x, is kept apart: a step δ of item (j, k)
   adds −δ S⁺ b to it, where b = Σ_i a_ij H_i e_k and S = Σ_i H_i. */

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
#define INLINE static inline

typedef struct {
    int64_t height, classes;
    const int64_t *columns;     /* of the matrix, by the number that x gives them */
    const int64_t *edges;       /* of the columns within rows and values; dense: unused */
    const int32_t *rows;        /* of every value; NULL: dense columns of `height` values */
    const void *values;
    const double *h;            /* H_i, (n,); of classes c_i p_ik, (n, K) */
    const double *shares;       /* of classes p_ik, (n, K) */
    double *v;                  /* r + H D, (n,); of classes r alone, (n, K) */
    double *moves;              /* of classes D, (n, K) */
    double *mixed;              /* of classes Σ_k p_ik D_ik, (n,) */
    double *shift;              /* s, (K,) */
    const double *bends;        /* b of every item, (items, K); zeros: no intercept */
    const double *means;        /* S⁺ b, (items, K) */
    const double *curvatures;   /* ∂²Q of every item over σ, without the ridge, (items,) */
    double *x;
    const double *lower, *upper; /* NULL: no bounds */
    double scale, l1, l2;
} quadratic;

/* argmin over x of g (x − x₀) + (L/2)(x − x₀)² + ψ(x). */
INLINE double step(const quadratic *q, int64_t item, double before, double slope)
{
    double curvature = q->scale * q->curvatures[item], total = curvature + q->l2, end;
    if (total == 0.0)
        end = q->l1 > 0.0 ? 0.0 : before;
    else {
        end = curvature * before - slope;
        if (end > 0.0)
            end = end > q->l1 ? (end - q->l1) / total : 0.0;
        else
            end = end < -q->l1 ? (end + q->l1) / total : 0.0;
    }
    if (q->lower && end < q->lower[item])
        end = q->lower[item];
    if (q->upper && end > q->upper[item])
        end = q->upper[item];
    return end;
}

#define VALUE float
#define NAME(stem) stem##_f32
#include "sweep_body.h"
#undef VALUE
#undef NAME

#define VALUE double
#define NAME(stem) stem##_f64
#include "sweep_body.h"

/* out[item] ← Σ_i a_ij² h_ik of every item (j, k), for `count` columns. */
EXPORT void hpcsgd_curvatures_f32(const quadratic *q, const double *h, int64_t count,
                                  double *out)
{
    curvatures_f32(q, h, count, out);
}

EXPORT void hpcsgd_curvatures_f64(const quadratic *q, const double *h, int64_t count,
                                  double *out)
{
    curvatures_f64(q, h, count, out);
}

/* One exact minimum over each item of `order`, one after the other. Returns the largest
   move of an item times its curvature: the subgradient that it took away. */
EXPORT double hpcsgd_sweep_f32(const quadratic *q, const int64_t *order, int64_t count)
{
    return sweep_f32(q, order, count);
}

EXPORT double hpcsgd_sweep_f64(const quadratic *q, const int64_t *order, int64_t count)
{
    return sweep_f64(q, order, count);
}

/* Sweeps of coordinate descent over the columns of a quadratic model, on one process.

   With H_i the curvature of row i in its K scores, δ_i = D_i + s the change of the scores
   and r_i the residuals, all with the row's weight c_i,

       Q(x) = σ Σ_i (r_i·δ_i + δ_i·H_i δ_i / 2) + Σ_j ψ(x_j),   ψ(x) = l1|x| + (l2/2) x²

   within bounds. D = A (x − x₀) is changed where a column has values alone. The change s of
   the intercept, which makes Q least for every x, is kept apart: a step δ of item (j, k)
   adds −δ S⁺ b to it, where b = Σ_i a_ij H_i e_k and S = Σ_i H_i.

   Most weights stay at 0. A sweep over all items finds those that do not; sweeps over
   these alone follow, until they hardly move, and then all items are looked at again.
   Every KEPT such sweeps their last points are combined into another, which is taken if Q
   is smaller there (Anderson acceleration: Bertrand and Massias, 2021, AISTATS). */

#include <string.h>

#include "lanes.h"

#define EIGHT 8
#define KEPT 5 /* sweeps whose moves are combined */

typedef double eight __attribute__((vector_size(8 * EIGHT)));
typedef float eight_floats __attribute__((vector_size(4 * EIGHT)));

typedef struct {
    int64_t height, classes;
    const int64_t *columns;     /* of the matrix, by the number that x gives them */
    const int64_t *edges;       /* of the columns within rows and values; dense: unused */
    const int32_t *rows;        /* of every value; NULL: dense columns of `height` values */
    const void *values;
    const double *h;            /* H_i, (n,); of classes c_i p_ik, (n, K) */
    const double *shares;       /* of classes p_ik, (n, K) */
    const double *residuals;    /* r, (n, K) */
    double *v;                  /* r + H D, (n,); of classes r alone, (n, K) */
    double *moves;              /* of classes D, (n, K) */
    double *mixed;              /* of classes Σ_k p_ik D_ik, (n,) */
    double *shift;              /* s, (K,) */
    const double *bends;        /* b of every item, (items, K); zeros: no intercept */
    const double *means;        /* S⁺ b, (items, K) */
    const double *curvatures;   /* ∂²Q of every item over σ, without the ridge, (items,) */
    double *x;
    const double *lower, *upper; /* NULL: no bounds */
    int64_t *active;            /* scratch: items that are not 0, (items,) */
    double *kept;               /* scratch: points, (KEPT + 1, items), and their v */
    double scale, l1, l2;
    double uniform;             /* H_i of one score a row, if all are equal; else 0 */
    double still;               /* the share of the largest move at which sweeps end */
    double farthest;            /* the largest move of an item times its curvature */
    int64_t steps, sweeps, is_still; /* what `descend` has done; whether it is over */
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

INLINE double magnitude(double value) { return value < 0.0 ? -value : value; }

INLINE eight load_eight_f64(const double *from)
{
    eight v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE eight load_eight_f32(const float *from)
{
    eight_floats v;
    memcpy(&v, from, sizeof v);
    return __builtin_convertvector(v, eight);
}

INLINE void store_eight(double *to, eight v) { memcpy(to, &v, sizeof v); }

INLINE double total_of(eight v)
{
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

/* Q of one score a row, at the point that x and v are of: Σ δ (r + v + h s) / 2, plus ψ
   of `count` items. */
static double model_value(const quadratic *q, const int64_t *items, int64_t count)
{
    double rows = 0.0, penalty = 0.0, s = q->shift[0];
    for (int64_t i = 0; i < q->height; i++) {
        double h = q->h[i], r = q->residuals[i];
        double change = h > 0.0 ? (q->v[i] - r) / h + s : 0.0;
        rows += change * (r + q->v[i] + h * s);
    }
    for (int64_t t = 0; t < count; t++) {
        double x = q->x[items[t]];
        penalty += q->l1 * magnitude(x) + 0.5 * q->l2 * x * x;
    }
    return 0.5 * q->scale * rows + penalty;
}

/* Solve (A + ε tr A) z = 1 for a symmetric matrix, by elimination with pivots on the
   diagonal. Moves that follow each other are much alike: without ε A would be singular
   to rounding. 0 where A is 0. */
static int solve_ones(double a[KEPT][KEPT], double z[KEPT])
{
    int64_t order[KEPT];
    double trace = 0.0;
    for (int64_t i = 0; i < KEPT; i++)
        trace += a[i][i];
    for (int64_t i = 0; i < KEPT; i++) {
        z[i] = 1.0;
        order[i] = i;
        a[i][i] += 1e-14 * trace;
    }
    for (int64_t k = 0; k < KEPT; k++) {
        int64_t best = k;
        for (int64_t i = k + 1; i < KEPT; i++)
            if (a[order[i]][order[i]] > a[order[best]][order[best]])
                best = i;
        int64_t p = order[best];
        order[best] = order[k];
        order[k] = p;
        if (!(a[p][p] > 0.0))
            return 0;
        for (int64_t i = k + 1; i < KEPT; i++) {
            int64_t row = order[i];
            double factor = a[row][p] / a[p][p];
            for (int64_t j = k; j < KEPT; j++)
                a[row][order[j]] -= factor * a[p][order[j]];
            z[row] -= factor * z[p];
        }
    }
    for (int64_t k = KEPT - 1; k >= 0; k--) {
        int64_t p = order[k];
        for (int64_t j = k + 1; j < KEPT; j++)
            z[p] -= a[p][order[j]] * z[order[j]];
        z[p] /= a[p][p];
    }
    return 1;
}

/* The factors, whose sum is 1, of the combination of the last KEPT points whose next
   moves are least. `points` are KEPT + 1 rows of `count` numbers and one more, oldest
   first. 0: there is none. */
static int combination(const double *points, int64_t count, double z[KEPT])
{
    double a[KEPT][KEPT], sum = 0.0;
    int64_t stride = count + 1;
    for (int64_t k = 0; k < KEPT; k++)
        for (int64_t l = 0; l <= k; l++) {
            double product = 0.0;
            for (int64_t t = 0; t < count; t++)
                product += (points[(k + 1) * stride + t] - points[k * stride + t]) *
                           (points[(l + 1) * stride + t] - points[l * stride + t]);
            a[k][l] = a[l][k] = product;
        }
    if (!solve_ones(a, z))
        return 0;
    for (int64_t k = 0; k < KEPT; k++)
        sum += z[k];
    if (sum == 0.0)
        return 0;
    for (int64_t k = 0; k < KEPT; k++)
        z[k] /= sum;
    return 1;
}

/* The first of KEPT + 1 rows of `count` numbers becomes the combination of the others:
   the last one, and multiples of small differences to it. */
static void combine(double *rows, int64_t count, const double z[KEPT])
{
    const double *last = rows + KEPT * count;
    for (int64_t t = 0; t < count; t++) {
        double away = 0.0;
        for (int64_t k = 1; k < KEPT; k++)
            away += z[k - 1] * (rows[k * count + t] - last[t]);
        rows[t] = last[t] + away;
    }
}

/* The point number `number` of those that are combined: x of the active items, then the
   intercept, and v. */
static void keep(const quadratic *q, int64_t count, int64_t number)
{
    double *x = q->kept + number * (count + 1);
    for (int64_t t = 0; t < count; t++)
        x[t] = q->x[q->active[t]];
    x[count] = q->shift[0];
    memcpy(q->kept + (KEPT + 1) * (count + 1) + number * q->height, q->v,
           q->height * sizeof *q->v);
}

/* Go to a point that was kept. */
static void take(quadratic *q, int64_t count, int64_t number)
{
    const double *x = q->kept + number * (count + 1);
    for (int64_t t = 0; t < count; t++)
        q->x[q->active[t]] = x[t];
    q->shift[0] = x[count];
    memcpy(q->v, q->kept + (KEPT + 1) * (count + 1) + number * q->height,
           q->height * sizeof *q->v);
}

/* Go to the combination of the kept points and the present one if Q is smaller there.
   The intercept and v are affine in x: they are combined with it. */
static void extrapolate(quadratic *q, int64_t count)
{
    double z[KEPT];
    keep(q, count, KEPT);
    if (!combination(q->kept, count, z))
        return;
    double value = model_value(q, q->active, count);
    combine(q->kept, count + 1, z);
    combine(q->kept + (KEPT + 1) * (count + 1), q->height, z);
    take(q, count, 0);
    if (!(model_value(q, q->active, count) < value))
        take(q, count, KEPT);
}

#define VALUE float
#define NAME(stem) stem##_f32
#include "sweep_body.h"
#undef VALUE
#undef NAME

#define VALUE double
#define NAME(stem) stem##_f64
#include "sweep_body.h"

#define COLUMNS(KIND, VALUE)                                                           \
    EXPORT void hpcsgd_column_moments_##KIND(                                          \
        const VALUE *values, const int64_t *edges, const int32_t *rows,                \
        int64_t height, int64_t classes, const int64_t *columns, int64_t count,        \
        const double *h, double *first, double *second)                                \
    {                                                                                  \
        quadratic q = {.height = height, .classes = classes, .columns = columns,       \
                       .edges = edges, .rows = rows, .values = values, .h = h};        \
        column_moments_##KIND(&q, count, first, second);                               \
    }                                                                                  \
    EXPORT void hpcsgd_add_columns_##KIND(                                             \
        const VALUE *values, const int64_t *edges, const int32_t *rows,                \
        int64_t height, const int64_t *columns, int64_t count, const double *factors,  \
        double *out)                                                                   \
    {                                                                                  \
        quadratic q = {.height = height, .classes = 1, .columns = columns,             \
                       .edges = edges, .rows = rows, .values = values, .v = out};      \
        for (int64_t j = 0; j < count; j++)                                            \
            add_one_##KIND(&q, j, factors[j]);                                         \
    }                                                                                  \
    EXPORT void hpcsgd_gather_columns_##KIND(const VALUE *from, int64_t stride,        \
                                             int64_t height, const int64_t *columns,   \
                                             int64_t count, VALUE *out)                \
    {                                                                                  \
        for (int64_t i = 0; i < height; i += EIGHT)                                    \
            for (int64_t j = 0; j < count; j++)                                        \
                gather_##KIND(from + i * stride + columns[j], stride,                  \
                              height - i < EIGHT ? height - i : EIGHT,                 \
                              out + columns[j] * height + i);                          \
    }

/* first[j, k] ← Σ_i a_ij h_ik and second[j, k] ← Σ_i a_ij² h_ik of `count` columns; and
   out ← out + Σ_j factors_j a_j; and out[columns_j, i] ← a[i, columns_j], eight rows at
   a time, so that every line of both matrices is in the cache once. */
COLUMNS(f32, float)
COLUMNS(f64, double)

/* Exact minima over one item of `order` after the other, sweep after sweep: until the
   moves of a sweep over all are at most `still` times the largest, or `most` sweeps. */
EXPORT void hpcsgd_descend_f32(quadratic *q, const int64_t *order, int64_t count,
                               int64_t most)
{
    descend_f32(q, order, count, most);
}

EXPORT void hpcsgd_descend_f64(quadratic *q, const int64_t *order, int64_t count,
                               int64_t most)
{
    descend_f64(q, order, count, most);
}

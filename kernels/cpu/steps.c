/* The s steps of an exchange in one call: no interpreter between them. */

#include "csr.h"
#include "exponential.h"
#include "walk.h"

#include <math.h>

/* Their numbers, which kernels/cuda/families.cuh has too: 6 is probit there. */
enum {
    LOGISTIC,
    GAUSSIAN,
    POISSON,
    GAMMA,
    SQUARED_HINGE,
    HUBER,
    TWEEDIE = 7,
    NEGATIVE_BINOMIAL
};

/* Half the exponent range: where exponentials are clipped if a parameter of the family
   takes the place of the bound. */
#define EXP_BOUND_f32 44.3614195558364998f
#define EXP_BOUND_f64 354.89135644669199

/* Residuals of the families with an exponential, eight at a time; how many it did. The
   last few stand in lanes of their own, so that a row has the same bits anywhere. */
INLINE int64_t residual_lanes_f32(int64_t family, const float *targets, float setting,
                                  int64_t count, float *scores)
{
    const lanes ones = all_of(1.0f), top = all_of(setting), none = {0};
    const lanes bound = all_of(EXP_BOUND_f32);
    const lanes up = all_of(2.0f - setting), down = all_of(1.0f - setting);
    if (family == GAUSSIAN || family == SQUARED_HINGE || family == HUBER)
        return 0;
    for (int64_t i = 0; i < count; i += LANES) {
        int64_t rest = count - i;
        int is_whole = rest >= LANES;
        lanes t = is_whole ? load_f32(scores + i) : tail_f32(scores + i, rest);
        lanes y = is_whole ? load_f32(targets + i) : tail_f32(targets + i, rest);
        lanes r;
        if (family == LOGISTIC) { /* the exponential of what is never positive */
            lanes size = (lanes)((whole)t & 0x7fffffff);
            lanes e = exp_lanes(-size);
            r = pick(t < none, e, ones) / (ones + e) - y;
        } else if (family == POISSON) {
            r = exp_lanes(lesser(top, t)) - y;
        } else if (family == TWEEDIE) {
            r = exp_lanes(lesser(bound, up * t)) -
                exp_lanes(lesser(bound, down * t)) * y;
        } else if (family == NEGATIVE_BINOMIAL) {
            lanes mean = exp_lanes(lesser(bound, t));
            r = (mean - y) / (ones + top * mean);
        } else {
            r = ones - exp_lanes(lesser(top, -t)) * y;
        }
        if (is_whole)
            store_f32(scores + i, r);
        else
            store_tail_f32(scores + i, r, rest);
    }
    return count;
}

/* In double the library's exponential is exact enough to be worth its time. */
INLINE int64_t residual_lanes_f64(int64_t family, const double *targets, double setting,
                                  int64_t count, double *scores)
{
    (void)family, (void)targets, (void)setting, (void)count, (void)scores;
    return 0;
}

#define BODY "steps_body.h"
#include "reals.h"

#undef BODY
#define BODY "many_body.h"
#include "reals.h"

EXPORT void hpcsgd_round_bf16(float *values, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        values[i] = round_bf16(values[i]);
}

/* q · x: where scores are read. */
INLINE void read_at(const walk *plan, const int64_t states, const float *weights,
                    int64_t cols, float *point)
{
    for (int64_t k = 0; k < cols; k++) {
        float sum = 0;
        for (int64_t a = 0; a < states; a++)
            sum += (float)plan->probe[a] * weights[k * states + a];
        point[k] = sum;
    }
}

/* Two states have loops of their own, which the compiler takes many columns at a time
   through. */
INLINE const float *point_of(const walk *plan, const float *weights, int64_t cols,
                             float *point)
{
    if (plan->states == 1)
        return weights;
    if (plan->states == 2)
        read_at(plan, 2, weights, cols, point);
    else
        read_at(plan, plan->states, weights, cols, point);
    return point;
}

/* x ← M x + u g. */
INLINE void mix_some(const walk *plan, const int64_t states, int64_t step,
                     const float *gradient, int64_t cols, float *weights)
{
    float carry[64], gain[8], next[8];
    for (int64_t a = 0; a < states * states; a++)
        carry[a] = (float)plan->carry[step * states * states + a];
    for (int64_t a = 0; a < states; a++)
        gain[a] = (float)plan->gain[step * states + a];
    for (int64_t k = 0; k < cols; k++) {
        float *x = weights + k * states;
        for (int64_t a = 0; a < states; a++) {
            next[a] = gain[a] * gradient[k];
            for (int64_t b = 0; b < states; b++)
                next[a] += carry[a * states + b] * x[b];
        }
        for (int64_t a = 0; a < states; a++)
            x[a] = next[a];
    }
}

INLINE void mix(const walk *plan, int64_t step, const float *gradient, int64_t cols,
                float *weights)
{
    if (plan->states == 2)
        mix_some(plan, 2, step, gradient, cols, weights);
    else
        mix_some(plan, plan->states, step, gradient, cols, weights);
}

INLINE void scores_to_residuals(const walk *plan, int64_t step, const float *targets,
                                const float *sample_weights, const float *offsets,
                                double *intercept, float *residuals)
{
    double start = 0;
    if (intercept)
        for (int64_t a = 0; a < plan->states; a++)
            start += plan->probe[a] * intercept[a];
    int64_t first = plan->starts[step], last = plan->starts[step + 1];
    for (int64_t i = first; i < last; i++) {
        float t = plan->rounds ? round_bf16(residuals[i]) : residuals[i];
        t += offsets ? offsets[i] : 0.0f;
        residuals[i] = t + (float)start;
    }
    residuals_f32(plan->family, targets + first, (float)plan->setting, last - first,
                  residuals + first);
    for (int64_t i = first; sample_weights && i < last; i++)
        residuals[i] *= sample_weights[i];
    if (intercept) {
        plan_f32 own = {0, plan->states, 0, 0, plan->starts, 0, 0,
                        plan->free, plan->push, plan->probe};
        advance_f32(&own, step, residuals, intercept);
    }
}

EXPORT void hpcsgd_stand(place *at, const void *matrix, int64_t stride,
                         const int64_t *rows, int64_t cols, float *weights,
                         const float *targets, const float *sample_weights,
                         const float *offsets, double *intercept, float *residuals,
                         float *scratch)
{
    *at = (place){matrix, stride, rows, cols, weights, targets, sample_weights, offsets,
                  intercept, residuals, scratch};
}

/* read: margins of batch j. take: its residuals from the margins that stand in their
   place, and the update. walk: all steps. between: a step's end, and the next one's
   beginning, with a sum of margins over members before and after it. */
#define WALK(KIND, TYPE)                                                               \
    void hpcsgd_margins_##KIND##_before(const TYPE *, int64_t, const int64_t *,        \
                                        const int64_t *, int64_t, int64_t,             \
                                        const float *, float *);                       \
    void hpcsgd_update_##KIND##_before(const TYPE *, int64_t, const int64_t *,         \
                                       const int64_t *, int64_t, int64_t,              \
                                       const float *, float *);                        \
    INLINE void read_##KIND(const walk *plan, const place *at, int64_t j, float *out)  \
    {                                                                                  \
        int64_t first = plan->starts[j], count = plan->starts[j + 1] - first;          \
        const float *point = point_of(plan, at->weights, at->cols, at->scratch);       \
        hpcsgd_margins_##KIND##_before((const TYPE *)at->matrix, at->stride,           \
                                       at->rows + first, after(plan, at, j), count,    \
                                       at->cols, point, out);                          \
    }                                                                                  \
    INLINE void take_##KIND(const walk *plan, const place *at, int64_t j)              \
    {                                                                                  \
        int64_t first = plan->starts[j], count = plan->starts[j + 1] - first;          \
        int64_t cols = at->cols;                                                       \
        float *factors = at->residuals + first, *target = at->weights;                 \
        scores_to_residuals(plan, j, at->targets, at->sample_weights, at->offsets,     \
                            at->intercept, at->residuals);                             \
        if (plan->states == 1) {                                                       \
            float *scaled = at->scratch + 2 * cols, carry = (float)plan->carry[j];     \
            for (int64_t i = 0; i < count; i++)                                        \
                scaled[i] = (float)plan->gain[j] * factors[i];                         \
            for (int64_t k = 0; carry != 1.0f && k < cols; k++)                        \
                at->weights[k] *= carry;                                               \
            factors = scaled;                                                          \
        } else {                                                                       \
            target = at->scratch + cols;                                               \
            memset(target, 0, (size_t)cols * sizeof *target);                          \
        }                                                                              \
        hpcsgd_update_##KIND##_before((const TYPE *)at->matrix, at->stride,            \
                                      at->rows + first, after(plan, at, j), count,     \
                                      cols, factors, target);                          \
        if (plan->states > 1)                                                          \
            mix(plan, j, target, cols, at->weights);                                   \
    }                                                                                  \
    EXPORT void hpcsgd_walk_##KIND(const walk *plan, const place *at)                  \
    {                                                                                  \
        for (int64_t j = 0; j < plan->steps; j++) {                                    \
            read_##KIND(plan, at, j, at->residuals + plan->starts[j]);                 \
            take_##KIND(plan, at, j);                                                  \
        }                                                                              \
    }

/* Only dense rows are summed between two steps: of CSR rows each step is an exchange. */
#define BETWEEN(KIND)                                                                  \
    EXPORT void hpcsgd_between_##KIND(const walk *plan, const place *at, int64_t j,    \
                                      const float *summed, float *out)                 \
    {                                                                                  \
        if (j >= 0) {                                                                  \
            int64_t first = plan->starts[j], count = plan->starts[j + 1] - first;      \
            memcpy(at->residuals + first, summed, (size_t)count * sizeof *summed);     \
            take_##KIND(plan, at, j);                                                  \
        }                                                                              \
        if (j + 1 < plan->steps)                                                       \
            read_##KIND(plan, at, j + 1, out);                                         \
    }

WALK(f32, float)
WALK(bf16, uint16_t)
WALK(csr_f32_i32, csr_rows)
WALK(csr_f32_i64, csr_rows)
WALK(csr_bf16_i32, csr_rows)
WALK(csr_bf16_i64, csr_rows)
BETWEEN(f32)
BETWEEN(bf16)

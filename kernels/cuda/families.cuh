/* From scores to residuals r = dl/dt, family by family, what an intercept makes of them,
   and where an entry of the Gram lies. */
#ifndef HPCSGD_FAMILIES_CUH
#define HPCSGD_FAMILIES_CUH

#include "device.cuh"

/* Their numbers, those of kernels/cpu/steps.c first. */
#define LOGISTIC 0
#define GAUSSIAN 1
#define POISSON 2
#define GAMMA 3
#define SQUARED_HINGE 4
#define HUBER 5
#define PROBIT 6
#define TWEEDIE 7
#define NEGATIVE_BINOMIAL 8

/* Half the exponent range: where exponentials are clipped if a parameter of the family
   takes the place of the bound. */
#define EXP_BOUND 44.3614195558364998f

#ifndef FAMILY
#define FAMILY LOGISTIC
#endif

/* What is no number stands second, and stays. */
INLINE float lesser(float bound, float value) { return bound < value ? bound : value; }
INLINE float greater(float bound, float value) { return bound > value ? bound : value; }

/* exp(-x^2 / 2) / sqrt(2 pi). The digits that x^2 loses are made up for: where x is large
   they are what the exponential multiplies. */
INLINE float normal_density(float x)
{
    float square = x * x, lost = fmaf(x, x, -square);
    return 0.398942280f * expf(-0.5f * square) * fmaf(-0.5f, lost, 1.0f);
}

/* phi(x) / Phi(-x) with no quotient of tiny numbers.

   Of |x| it is |x| and a polynomial in (1 - 0.35 |x|) / (1 + 0.35 |x|), whose terms are
   small, off by at most 6e-8 of the whole; below 0 it follows from Phi(x) + Phi(-x) = 1.
   Beyond 1e6 nothing changes but |x|. */
INLINE float hazard(float x)
{
    float size = fabsf(x), held = lesser(1e6f, size);
    float along = (1.0f - 0.35f * held) / (1.0f + 0.35f * held);
    float sum = 8.815670689e-4f;
    sum = fmaf(sum, along, -1.595677374e-3f);
    sum = fmaf(sum, along, -3.463118317e-3f);
    sum = fmaf(sum, along, 8.495576949e-3f);
    sum = fmaf(sum, along, 9.563058156e-3f);
    sum = fmaf(sum, along, -3.174988179e-2f);
    sum = fmaf(sum, along, -3.805619153e-2f);
    sum = fmaf(sum, along, 1.302707616e-1f);
    sum = fmaf(sum, along, 4.300292724e-1f);
    sum = fmaf(sum, along, 2.935092167e-1f);
    float there = size + sum;
    if (x < 0.0f) {
        float density = normal_density(held);
        return density / (1.0f - density / there);
    }
    return there;
}

/* `setting`: the family's parameter, which is delta of huber, the power of tweedie or the
   dispersion; the bound of exponents of the others. */
template <int NUMBER> INLINE float residual_of(float t, float y, float setting)
{
    if (NUMBER == LOGISTIC) { /* the exponential of what is never positive */
        float e = expf(-fabsf(t));
        return (t < 0.0f ? e : 1.0f) / (1.0f + e) - y;
    }
    if (NUMBER == GAUSSIAN)
        return t - y;
    if (NUMBER == POISSON)
        return expf(lesser(setting, t)) - y;
    if (NUMBER == GAMMA)
        return 1.0f - expf(lesser(setting, -t)) * y;
    if (NUMBER == SQUARED_HINGE)
        return lesser(0.0f, fmaf(t, y, -1.0f)) * y;
    if (NUMBER == HUBER)
        return greater(-setting, lesser(setting, t - y));
    if (NUMBER == TWEEDIE)
        return expf(lesser(EXP_BOUND, (2.0f - setting) * t)) -
               expf(lesser(EXP_BOUND, (1.0f - setting) * t)) * y;
    if (NUMBER == NEGATIVE_BINOMIAL) {
        float mean = expf(lesser(EXP_BOUND, t));
        return (mean - y) / fmaf(setting, mean, 1.0f);
    }
    float side = fmaf(-2.0f, y, 1.0f); /* PROBIT: 1 for y = 0, -1 for y = 1 */
    return side * hazard(side * t);
}

/* q . beta of one class, as it is added to scores. */
INLINE float start_of(const double *intercept, const float *probe, int states, int classes)
{
    double start = 0.0;
#pragma unroll 1
    for (int a = 0; a < states; a++)
        start += (double)probe[a] * intercept[a * classes];
    return (float)start;
}

/* beta <- M beta + u sum(r) of one class; `carry` and `push` are those of the step. */
INLINE void advance_intercept(double *intercept, const float *carry, const float *push,
                              int states, int classes, double total)
{
    double before[MOST_STATES];
#pragma unroll
    for (int a = 0; a < MOST_STATES; a++)
        before[a] = a < states ? intercept[a * classes] : 0.0;
#pragma unroll 1
    for (int a = 0; a < states; a++) {
        double next = (double)push[a] * total;
#pragma unroll
        for (int b = 0; b < MOST_STATES; b++)
            if (b < states)
                next += (double)carry[a * states + b] * before[b];
        intercept[a * classes] = next;
    }
}

/* Entry (row, col) of the Gram in tiles of 2^shift rows; `across` of them to a row of the
   map. */
INLINE const float *entry_of(const float *gram, const int *map, int across, int shift,
                             int row, int col)
{
    u32 i = (u32)row, k = (u32)col, last = (1u << shift) - 1;
    s64 tile = __ldg(map + (i >> shift) * (u32)across + (k >> shift));
    return gram + (tile << 2 * shift) + ((i & last) << shift) + (k & last);
}

/* Coefficient of batch i in the scores of batch j > i. */
INLINE u32 couple_place(u32 j, u32 i) { return j * (j - 1) / 2 + i; }

#endif

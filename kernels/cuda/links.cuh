/* r = ∂ℓ/∂t of a family. FAMILY is one of their numbers, those of kernels/cpu/steps.c. */
#ifndef HPCSGD_LINKS_CUH
#define HPCSGD_LINKS_CUH

#include "device.cuh"

#define LOGISTIC 0
#define GAUSSIAN 1
#define POISSON 2
#define GAMMA 3
#define SQUARED_HINGE 4
#define HUBER 5

#ifndef FAMILY
#define FAMILY LOGISTIC
#endif

/* What is no number stands second, and stays. */
INLINE float lesser(float bound, float value) { return bound < value ? bound : value; }
INLINE float greater(float bound, float value) { return bound > value ? bound : value; }

/* `setting`: δ of huber; the bound of exponents for poisson and gamma. */
INLINE float residual(float t, float y, float setting)
{
#if FAMILY == LOGISTIC /* the exponential of what is never positive */
    float e = expf(t < 0.0f ? t : -t);
    return (t < 0.0f ? e : 1.0f) / (1.0f + e) - y;
#elif FAMILY == GAUSSIAN
    return t - y;
#elif FAMILY == POISSON
    return expf(lesser(setting, t)) - y;
#elif FAMILY == GAMMA
    return 1.0f - expf(lesser(setting, -t)) * y;
#elif FAMILY == SQUARED_HINGE
    return lesser(0.0f, fmaf(t, y, -1.0f)) * y;
#else
    return greater(-setting, lesser(setting, t - y));
#endif
}

#endif

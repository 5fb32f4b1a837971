/* What plain steps have in common: margins of a batch become residuals. */
#ifndef HPCSGD_STEPS_CUH
#define HPCSGD_STEPS_CUH

#include "families.cuh"

/* Of the sampled rows; weights and offsets may be NULL. `rounds`: margins are bf16. */
struct Sample {
    const float *targets, *weights, *offsets;
    float setting;
    int rounds;
};

INLINE float residual_of_row(const Sample &sample, int row, float margin, float start)
{
    float t = sample.rounds ? float_of_bf16(bf16_of_float(margin)) : margin;
    if (sample.offsets)
        t += sample.offsets[row];
    float r = residual_of<FAMILY>(t + start, sample.targets[row], sample.setting);
    return sample.weights ? r * sample.weights[row] : r;
}

/* β ← free β + push Σ r, in double as an intercept is; by one thread. */
INLINE void advance(double *intercept, float free, float push, const float *residuals,
                    int count)
{
    double total = 0.0;
    for (int i = 0; i < count; i++)
        total += (double)residuals[i];
    *intercept = (double)free * *intercept + (double)push * total;
}

#endif

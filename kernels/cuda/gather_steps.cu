/* s plain steps on rows that lie one behind the other, all columns, by one block.

   w ← carry_j w + gain_j Y_jᵀ r_j, r_j = ∂ℓ(Y_j w). A warp has a row of the margins, a
   thread the columns of one 32-bit word of a row: no sum has two owners. `stride` in
   elements, a multiple of 16 bytes. grid = 1, block = 512, shared = 16 + 4 tall bytes;
   `tall` is the largest batch. The intercept has `push` for `gain`; offsets, sample
   weights and intercept may be NULL. */
#include "elements.cuh"
#include "steps.cuh"

#define IN_WORD (4 / (int)sizeof(element)) /* elements of a word */
#define THREADS 512 /* of 1024, some would have no register for a value */

/* Margins of `count` rows become residuals in shared memory. */
INLINE void settle(const element *block, s64 stride, int start, int count, int cols,
                   const float *weights, const Sample &sample, float intercept,
                   float *residuals)
{
    int lane = threadIdx.x & 31;
    for (int row = threadIdx.x >> 5; row < count; row += THREADS / 32) {
        float sum = row_times(block + (start + row) * stride, weights, cols);
        if (lane == 0)
            residuals[row] = residual_of_row(sample, start + row, sum, intercept);
    }
}

/* The values of a word. */
INLINE void load_word(const element *from, float (&to)[IN_WORD])
{
    u32 word = __ldg((const u32 *)from);
#pragma unroll
    for (int i = 0; i < IN_WORD; i++) {
#if ELEMENT == FP32
        to[i] = __uint_as_float(word);
#else
        const int bits = 8 * (int)sizeof(element);
        to[i] = value_of((element)(word >> bits * i & ((1u << bits) - 1u)));
#endif
    }
}

INLINE void take(const element *batch, s64 stride, int count, int cols,
                 const float *residuals, float carry, float gain, float *weights)
{
    for (int k = threadIdx.x * IN_WORD; k < cols; k += THREADS * IN_WORD) {
        float sums[IN_WORD];
#pragma unroll
        for (int i = 0; i < IN_WORD; i++)
            sums[i] = 0.0f;
#pragma unroll 4
        for (int row = 0; row < count; row++) {
            float values[IN_WORD], factor = gain * residuals[row];
            load_word(batch + row * stride + k, values);
#pragma unroll
            for (int i = 0; i < IN_WORD; i++)
                sums[i] = fmaf(values[i], factor, sums[i]);
        }
#pragma unroll
        for (int i = 0; i < IN_WORD; i++)
            if (k + i < cols)
                weights[k + i] = fmaf(carry, weights[k + i], sums[i]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
gather_steps(const element *__restrict__ block, s64 stride,
             const int *__restrict__ starts, int steps, int cols,
             const float *__restrict__ targets, const float *__restrict__ sample_weights,
             const float *__restrict__ offsets, float setting, int rounds,
             const float *__restrict__ carry, const float *__restrict__ gain,
             const float *__restrict__ push, const float *__restrict__ free,
             double *intercept, float *weights, float *residuals)
{
    SHARED_MEMORY(memory);
    double *own_intercept = (double *)memory;
    float *own = (float *)(memory + 16);
    const Sample sample = {targets, sample_weights, offsets, setting, rounds};
    if (threadIdx.x == 0)
        *own_intercept = intercept ? *intercept : 0.0;
    __syncthreads();
    for (int j = 0; j < steps; j++) {
        int start = starts[j], count = starts[j + 1] - start;
        settle(block, stride, start, count, cols, weights, sample,
               (float)*own_intercept, own);
        __syncthreads();
        if (threadIdx.x == 0 && intercept)
            advance(own_intercept, free[j], push[j], own, count);
        for (int i = threadIdx.x; i < count; i += THREADS)
            residuals[start + i] = own[i];
        take(block + start * stride, stride, count, cols, own, carry[j], gain[j],
             weights);
        __syncthreads();
    }
    if (threadIdx.x == 0 && intercept)
        *intercept = *own_intercept;
}
LAUNCHABLE(gather_steps)

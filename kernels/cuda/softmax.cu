/* The s steps of an exchange in one launch, K scores a row: softmax. One block.

   As recurrence.cu, with r_j = softmax(t_j) - onehot(label), as kernels/cpu/softmax_body.h.
   z is rows x (read x K), factors rows x (states x K), intercept states x K, residuals rows x K. Scores
   become residuals in their place, in device memory: K has no limit. A thread has one
   class of one row and adds up the columns of a batch in ascending order; a row's scores
   become residuals by one warp. block = 1024, shared = 2 rows bytes. */
#include "families.cuh"

#define THREADS 1024
#define WARPS (THREADS / 32)

INLINE float largest_of_warp(float value)
{
    for (int mask = 16; mask; mask >>= 1)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, mask));
    return value;
}

/* Scores of all rows by what is known before the first step. */
INLINE void begin(const float *z, const float *offsets, const int *starts, int steps,
                  int read, int classes, const float *lead, float *scores, u16 *batch_of)
{
#pragma unroll 1
    for (int j = threadIdx.x >> 5; j < steps; j += WARPS)
#pragma unroll 1
        for (int row = starts[j] + (threadIdx.x & 31); row < starts[j + 1]; row += 32)
            batch_of[row] = (u16)j;
    __syncthreads();
#pragma unroll 1
    for (int e = threadIdx.x; e < starts[steps] * classes; e += THREADS) {
        int row = (u32)e / classes, c = (u32)e % classes;
        const float *from = z + (s64)row * read * classes + c;
        float sum = offsets ? offsets[row] : 0.0f;
#pragma unroll 1
        for (int a = 0; a < read; a++)
            sum = fmaf(lead[batch_of[row] * read + a], from[a * classes], sum);
        scores[e] = sum;
    }
}

/* One row by one warp: softmax(t + beta) - onehot(label), times its weight. */
INLINE void settle(float *t, int classes, int label, float weight,
                   const double *intercept, const float *probe, int states)
{
    int lane = threadIdx.x & 31;
    float top = __uint_as_float(0xff800000u), sum = 0.0f;
#pragma unroll 1
    for (int c = lane; c < classes; c += 32) {
        if (intercept)
            t[c] += start_of(intercept + c, probe, states, classes);
        top = fmaxf(top, t[c]);
    }
    top = largest_of_warp(top);
#pragma unroll 1
    for (int c = lane; c < classes; c += 32)
        sum += t[c] = expf(t[c] - top);
    sum = sum_of_warp(sum);
#pragma unroll 1
    for (int c = lane; c < classes; c += 32)
        t[c] = (t[c] / sum - (c == label ? 1.0f : 0.0f)) * weight;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
softmax(const float *__restrict__ gram, const int *__restrict__ map, int across,
        int shift, const float *__restrict__ z, const float *__restrict__ labels,
        const float *__restrict__ sample_weights, const float *__restrict__ offsets,
        double *intercept, const int *__restrict__ starts, int steps, int states,
        int read, int classes, const float *__restrict__ lead,
        const float *__restrict__ couple, const float *__restrict__ carry,
        const float *__restrict__ push, const float *__restrict__ probe,
        const float *__restrict__ gain, float *residuals, float *__restrict__ factors)
{
    SHARED_MEMORY(memory);
    u16 *batch_of = (u16 *)memory;
    int all = starts[steps] * classes;
    begin(z, offsets, starts, steps, read, classes, lead, residuals, batch_of);
    __syncthreads();
#pragma unroll 1
    for (int j = 0; j < steps; j++) {
        int first = starts[j], last = starts[j + 1];
#pragma unroll 1
        for (int row = first + (threadIdx.x >> 5); row < last; row += WARPS)
            settle(residuals + (s64)row * classes, classes, (int)labels[row],
                   sample_weights ? sample_weights[row] : 1.0f, intercept, probe, states);
        __syncthreads();
#pragma unroll 1
        for (int e = first * classes + threadIdx.x; e < last * classes; e += THREADS) {
            float *to = factors + (s64)(e / classes) * states * classes + e % classes;
#pragma unroll 1
            for (int a = 0; a < states; a++)
                to[a * classes] = gain[j * states + a] * residuals[e];
        }
#pragma unroll 1
        for (int c = threadIdx.x; intercept && c < classes; c += THREADS) {
            double total = 0.0;
#pragma unroll 1
            for (int row = first; row < last; row++)
                total += residuals[row * classes + c];
            advance_intercept(intercept + c, carry + j * states * states,
                              push + j * states, states, classes, total);
        }
#pragma unroll 1
        for (int e = last * classes + threadIdx.x; e < all; e += THREADS) {
            int row = (u32)e / classes, c = (u32)e % classes;
            float sum = 0.0f;
#pragma unroll 4
            for (int col = first; col < last; col++)
                sum = fmaf(__ldg(entry_of(gram, map, across, shift, row, col)),
                           residuals[col * classes + c], sum);
            float share = __ldg(couple + couple_place(batch_of[row], j));
            residuals[e] = fmaf(share, sum, residuals[e]);
        }
        __syncthreads();
    }
}
LAUNCHABLE(softmax)

/* s plain steps in one launch: w ← carry_j w + gain_j Y_jᵀ r_j, r_j = ∂ℓ(Y_j w).

   A block owns columns, and with them their weights: per step all blocks meet once, to
   add their parts of the margins, in one order. They have to run at once: grid <=
   processors, block = 256, shared = 16 + 4096 room + 4 * (32 * (8 chunks + 1) + tall)
   bytes. `tall` is the largest batch, `partials` holds 2 * tall * grid floats; `room`
   chunks of a thread stay in shared memory between margin and update, those behind come
   from memory again; `ahead`: the next batch has room in the cache of the GPU beside
   this one. The two `counters` are 0 before and after. The intercept has `push` for
   `gain`; offsets, sample weights and intercept may be NULL. */
#include "elements.cuh"
#include "steps.cuh"

#define WIDE (8 * IN_CHUNK) /* columns that a block has before it at once */
#define PITCH (WIDE + 1)
#define AT_ONCE 32 /* rows that are read at once, eight threads each */

/* The columns of a block, and rows of a batch. */
struct Slice {
    const element *matrix;
    s64 stride;
    const s64 *rows;
    int first, last, count;
};

/* What a thread has read of a batch: the same thread reads the same chunks again. */
struct Kept {
    uint4 *chunks;  /* those of all threads side by side, row by row */
    int room, wide; /* chunks of a thread; those of one row among them */
};

INLINE const element *place_of(const Slice &slice, int row, int col)
{
    return slice.matrix + slice.rows[row] * slice.stride + col;
}

/* No block goes on before all have come; what was written before is seen behind. */
INLINE void meet(u32 *came, u32 wanted)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        atomicAdd(came, 1u);
        while (load_acquire(came) < wanted)
            spin();
        __threadfence();
    }
    __syncthreads();
}

/* The last one out, when none waits any more, makes the counters 0 again. */
INLINE void part(u32 *counters)
{
    if (threadIdx.x != 0)
        return;
    if (atomicAdd(counters + 1, 1u) == gridDim.x - 1) {
        atomicExch(counters, 0u);
        atomicExch(counters + 1, 0u);
    }
}

/* The sum of eight neighbours, the same in each. */
INLINE float sum_of_eight(float value)
{
    for (int mask = 4; mask; mask >>= 1)
        value += __shfl_xor_sync(0xffffffffu, value, mask);
    return value;
}

/* This block's part of the margins, beside those of the others. */
INLINE void read(const Slice &slice, const float *weights, float *partials,
                 const Kept &kept)
{
    int lane = threadIdx.x & 7;
    for (int base = 0; base < slice.count; base += AT_ONCE) {
        int row = base + (threadIdx.x >> 3), col = slice.first + lane * IN_CHUNK;
        float sum = 0.0f;
        int place = base / AT_ONCE * kept.wide;
        for (; row < slice.count && col < slice.last; col += WIDE, place++) {
            float chunk[IN_CHUNK];
            uint4 words = __ldg((const uint4 *)place_of(slice, row, col));
            if (place < kept.room)
                kept.chunks[place * 256 + threadIdx.x] = words;
            spread(words, chunk);
#pragma unroll
            for (int i = 0; i < IN_CHUNK; i++)
                if (col + i < slice.last)
                    sum = fmaf(chunk[i], weights[col + i], sum);
        }
        sum = sum_of_eight(sum);
        if (lane == 0 && row < slice.count)
            partials[(s64)row * gridDim.x + blockIdx.x] = sum;
    }
}

/* The rows of the next batch come from memory while the blocks meet. */
INLINE void ask(const Slice &slice)
{
    for (int row = threadIdx.x >> 3; row < slice.count; row += AT_ONCE)
        for (int col = slice.first + (threadIdx.x & 7) * IN_CHUNK; col < slice.last;
             col += WIDE)
            fetch_ahead(place_of(slice, row, col));
}

/* Residuals of a batch from everyone's parts; each block has all of them. */
INLINE void settle(const Sample &sample, int start, int count, float intercept,
                   const float *partials, float *residuals)
{
    int lane = threadIdx.x & 7, blocks = gridDim.x;
    for (int base = 0; base < count; base += AT_ONCE) {
        int row = base + (threadIdx.x >> 3);
        float sum = 0.0f;
        for (int b = lane; row < count && b < blocks; b += 8)
            sum += __ldcg(partials + (s64)row * blocks + b);
        sum = sum_of_eight(sum);
        if (lane == 0 && row < count)
            residuals[row] = residual_of_row(sample, start + row, sum, intercept);
    }
}

/* Own weights ← carry w + gain Yᵀ r. */
INLINE void take(const Slice &slice, const float *residuals, float carry, float gain,
                 float *parts, float *weights, const Kept &kept)
{
    int own = threadIdx.x >> 3, chunk = (threadIdx.x & 7) * IN_CHUNK;
    for (int base = slice.first; base < slice.last; base += WIDE) {
        float sums[IN_CHUNK];
#pragma unroll
        for (int i = 0; i < IN_CHUNK; i++)
            sums[i] = 0.0f;
        int count = base + chunk < slice.last ? slice.count : 0;
        int place = (base - slice.first) / WIDE;
#pragma unroll 1 /* of more, some have no register on some GPUs */
        for (int row = own; row < count; row += AT_ONCE, place += kept.wide) {
            float values[IN_CHUNK], factor = gain * residuals[row];
            /* No branch: a load from wherever it is. */
            const uint4 *at = place < kept.room
                                  ? kept.chunks + place * 256 + threadIdx.x
                                  : (const uint4 *)place_of(slice, row, base + chunk);
            spread(*at, values);
#pragma unroll
            for (int i = 0; i < IN_CHUNK; i++)
                sums[i] = fmaf(values[i], factor, sums[i]);
        }
#pragma unroll
        for (int i = 0; i < IN_CHUNK; i++)
            parts[own * PITCH + chunk + i] = sums[i];
        __syncthreads();
        int col = base + threadIdx.x;
        if (threadIdx.x < WIDE && col < slice.last) {
            float sum = 0.0f;
            for (int i = 0; i < AT_ONCE; i++)
                sum += parts[i * PITCH + threadIdx.x];
            weights[col] = fmaf(carry, weights[col], sum);
        }
        __syncthreads();
    }
}

extern "C" __global__ void __launch_bounds__(256, 2)
direct_steps(const element *__restrict__ matrix, s64 stride,
             const s64 *__restrict__ rows, const int *__restrict__ starts, int steps,
             int cols, const float *__restrict__ targets,
             const float *__restrict__ sample_weights, const float *__restrict__ offsets,
             float setting, int rounds, const float *__restrict__ carry,
             const float *__restrict__ gain, const float *__restrict__ push,
             const float *__restrict__ free, double *intercept, float *weights,
             float *residuals, float *partials, int tall, int room, int ahead,
             u32 *counters)
{
    SHARED_MEMORY(memory);
    double *own_intercept = (double *)memory;
    float *parts = (float *)(memory + 16 + 4096 * room), *own = parts + AT_ONCE * PITCH;
    int pieces = (cols + WIDE - 1) / WIDE, each = (pieces + gridDim.x - 1) / gridDim.x;
    const Kept kept = {(uint4 *)(memory + 16), room, each};
    int first = min((int)blockIdx.x * each * WIDE, cols);
    int last = min(first + each * WIDE, cols);
    const Sample sample = {targets, sample_weights, offsets, setting, rounds};
    if (threadIdx.x == 0)
        *own_intercept = intercept ? *intercept : 0.0;
    for (int j = 0; j < steps; j++) {
        int start = starts[j], count = starts[j + 1] - start;
        float *sums = partials + (s64)(j & 1) * tall * gridDim.x;
        const Slice slice = {matrix, stride, rows + start, first, last, count};
        read(slice, weights, sums, kept);
        if (ahead && j + 1 < steps) {
            int next = starts[j + 2] - start - count;
            ask({matrix, stride, rows + start + count, first, last, next});
        }
        meet(counters, (u32)(j + 1) * gridDim.x);
        settle(sample, start, count, (float)*own_intercept, sums, own);
        __syncthreads();
        if (threadIdx.x == 0 && intercept)
            advance(own_intercept, free[j], push[j], own, count);
        for (int i = threadIdx.x; blockIdx.x == 0 && i < count; i += 256)
            residuals[start + i] = own[i];
        take(slice, own, carry[j], gain[j], parts, weights, kept);
    }
    if (threadIdx.x == 0 && blockIdx.x == 0 && intercept)
        *intercept = *own_intercept;
    part(counters);
}
LAUNCHABLE(direct_steps)

/* w = carry w + gain Yᵀ r (K = 1) for rows that are named by number.

   A block has 8 chunks of columns, and one of `splits` parts of the rows, `per_split` of
   them; with more than one, each leaves its sums in `workspace` (splits x cols) and the
   last that comes adds them in ascending order: a sum has one order, and needs no atomics.
   `tickets` (one for 8 chunks) are zeros, before and after. `factors` are r times what
   stands before it. grid = (ceil(cols / (8 chunks)), splits), block = 256,
   shared = 4 * 32 * (8 * chunk + 1) bytes. */
#include "elements.cuh"

#define WIDE (8 * IN_CHUNK) /* columns of a block */
#define PITCH (WIDE + 1)
#define DOWN 32 /* rows that are read side by side */
#define DEEP 4  /* of them one thread's, under way at once */

/* A thread's chunk of every row of its own, times the row's factor. */
INLINE void add_rows(const element *column, s64 stride, const s64 *rows,
                     const float *factors, int first, int end, float (&sums)[IN_CHUNK])
{
#pragma unroll 1
    for (int row = first; row < end; row += DEEP * DOWN) {
        uint4 words[DEEP];
        float factor[DEEP];
#pragma unroll
        for (int t = 0; t < DEEP; t++)
            if (row + t * DOWN < end) {
                int at = row + t * DOWN;
                factor[t] = load_now(factors + at);
                words[t] = load_now((const uint4 *)(column + rows[at] * stride));
            }
#pragma unroll
        for (int t = 0; t < DEEP; t++)
            if (row + t * DOWN < end) {
                float values[IN_CHUNK];
                spread(words[t], values);
#pragma unroll
                for (int i = 0; i < IN_CHUNK; i++)
                    sums[i] = fmaf(values[i], factor[t], sums[i]);
            }
    }
}

extern "C" __global__ void __launch_bounds__(256)
update(const element *__restrict__ matrix, s64 stride, const s64 *__restrict__ rows,
       int count, int cols, const float *__restrict__ factors,
       const float *__restrict__ carry, float *__restrict__ weights, int per_split,
       float *workspace, u32 *tickets)
{
    SHARED_MEMORY(memory);
    float *parts = (float *)memory;
    int chunk = (threadIdx.x & 7) * IN_CHUNK, own = threadIdx.x >> 3;
    int col = blockIdx.x * WIDE + chunk, place = blockIdx.x * WIDE + threadIdx.x;
    int first = blockIdx.y * per_split, splits = gridDim.y;
    float sums[IN_CHUNK];
#pragma unroll
    for (int i = 0; i < IN_CHUNK; i++)
        sums[i] = 0.0f;
    if (col < cols)
        add_rows(matrix + col, stride, rows, factors, first + own,
                 min(first + per_split, count), sums);
#pragma unroll
    for (int i = 0; i < IN_CHUNK; i++)
        parts[own * PITCH + chunk + i] = sums[i];
    __syncthreads();
    bool is_mine = threadIdx.x < WIDE && place < cols;
    float sum = 0.0f;
    if (is_mine)
        for (int i = 0; i < DOWN; i++)
            sum += parts[i * PITCH + threadIdx.x];
    if (splits > 1) {
        if (is_mine)
            workspace[(s64)blockIdx.y * cols + place] = sum;
        if (!is_last(tickets + blockIdx.x, splits, (u32 *)memory))
            return;
        sum = 0.0f;
        if (is_mine)
            for (int part = 0; part < splits; part++)
                sum += __ldcg(workspace + (s64)part * cols + place);
        if (threadIdx.x == 0)
            tickets[blockIdx.x] = 0;
    }
    if (is_mine)
        weights[place] = fmaf(*carry, weights[place], sum);
}
LAUNCHABLE(update)

/* w = carry w + gain Yᵀ r (K = 1) for rows that are named by number.

   A block has 8 chunks of columns and all rows: the sum has one order and needs no
   atomics. `factors` are r times what stands before it. grid = ceil(cols / (8 chunks)),
   block = 256, shared = 4 * 32 * (8 * chunk + 1) bytes. */
#include "elements.cuh"

#define WIDE (8 * IN_CHUNK) /* columns of a block */
#define PITCH (WIDE + 1)

extern "C" __global__ void __launch_bounds__(256)
update(const element *__restrict__ matrix, s64 stride, const s64 *__restrict__ rows,
       int count, int cols, const float *__restrict__ factors,
       const float *__restrict__ carry, float *__restrict__ weights)
{
    SHARED_MEMORY(memory);
    float *parts = (float *)memory;
    int chunk = (threadIdx.x & 7) * IN_CHUNK, own = threadIdx.x >> 3;
    int col = blockIdx.x * WIDE + chunk;
    float sums[IN_CHUNK];
#pragma unroll
    for (int i = 0; i < IN_CHUNK; i++)
        sums[i] = 0.0f;
    if (col < cols)
#pragma unroll 4
        for (int row = own; row < count; row += 32) {
            float values[IN_CHUNK], factor = factors[row];
            load_chunk(matrix + rows[row] * stride + col, values);
#pragma unroll
            for (int i = 0; i < IN_CHUNK; i++)
                sums[i] = fmaf(values[i], factor, sums[i]);
        }
#pragma unroll
    for (int i = 0; i < IN_CHUNK; i++)
        parts[own * PITCH + chunk + i] = sums[i];
    __syncthreads();
    int place = blockIdx.x * WIDE + threadIdx.x;
    if (threadIdx.x < WIDE && place < cols) {
        float sum = 0.0f;
        for (int i = 0; i < 32; i++)
            sum += parts[i * PITCH + threadIdx.x];
        weights[place] = fmaf(*carry, weights[place], sum);
    }
}
LAUNCHABLE(update)

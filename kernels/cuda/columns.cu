/* Z = Y W and W = carry W + Yᵀ F for K > 1 columns of weights, rows named by number.

   Weights are cols x K, margins and factors count x K, row-major. Sums have an order that
   depends on the sizes alone. */
#include "elements.cuh"

/* ---- margins: a warp has TALL rows and GROUP columns of weights --------------------- */

#define TALL 2
#define GROUP 16
#define TILE (32 * IN_CHUNK)
#define PITCH (TILE + 4)

/* Weights of TILE rows from `base` on, turned; zeros behind the last. */
INLINE void turn_weights(const float *weights, int base, int cols, int first, int wide,
                         float *tile)
{
    for (int at = threadIdx.x; at < TILE * GROUP; at += 256) {
        int k = at / GROUP, c = at % GROUP;
        bool is_there = base + k < cols && first + c < wide;
        s64 from = (s64)(base + k) * wide + first + c;
        tile[c * PITCH + k] = is_there ? weights[from] : 0.0f;
    }
}

/* A chunk of a row; zeros behind the last column. */
INLINE void load_part(const element *row, int k, int cols, float (&to)[IN_CHUNK])
{
    load_chunk(row + k, to);
#pragma unroll
    for (int i = 0; i < IN_CHUNK; i++)
        to[i] = k + i < cols ? to[i] : 0.0f;
}

INLINE void multiply(const float (&chunk)[TALL][IN_CHUNK], const float *tile, int many,
                     float (&sums)[TALL][GROUP])
{
#pragma unroll
    for (int c = 0; c < GROUP; c++) {
        if (c >= many)
            continue;
#pragma unroll
        for (int q = 0; q < IN_CHUNK; q += 4) {
            float4 w = *(const float4 *)(tile + c * PITCH + q);
#pragma unroll
            for (int t = 0; t < TALL; t++) {
                sums[t][c] = fmaf(chunk[t][q], w.x, sums[t][c]);
                sums[t][c] = fmaf(chunk[t][q + 1], w.y, sums[t][c]);
                sums[t][c] = fmaf(chunk[t][q + 2], w.z, sums[t][c]);
                sums[t][c] = fmaf(chunk[t][q + 3], w.w, sums[t][c]);
            }
        }
    }
}

/* grid = (ceil(rows / 16), ceil(K / 16)), block = 256, shared = 64 * (32 chunks + 4). */
extern "C" __global__ void __launch_bounds__(256)
margins_columns(const element *__restrict__ matrix, s64 stride,
                const s64 *__restrict__ rows, int count, int cols, int wide,
                const float *__restrict__ weights, float *__restrict__ margins)
{
    SHARED_MEMORY(memory);
    float *tile = (float *)memory;
    int lane = threadIdx.x & 31, row = (blockIdx.x * 8 + (threadIdx.x >> 5)) * TALL;
    int first = blockIdx.y * GROUP, many = min(wide - first, GROUP), k = lane * IN_CHUNK;
    const element *from[TALL];
    float sums[TALL][GROUP], chunk[TALL][IN_CHUNK];
#pragma unroll
    for (int t = 0; t < TALL; t++) {
        from[t] = matrix + rows[min(row + t, count - 1)] * stride;
#pragma unroll
        for (int c = 0; c < GROUP; c++)
            sums[t][c] = 0.0f;
    }
    for (int base = 0; base < cols; base += TILE) {
        __syncthreads();
        turn_weights(weights, base, cols, first, wide, tile);
        __syncthreads();
        if (base + k >= cols)
            continue;
#pragma unroll
        for (int t = 0; t < TALL; t++)
            load_part(from[t], base + k, cols, chunk[t]);
        multiply(chunk, tile + k, many, sums);
    }
#pragma unroll
    for (int t = 0; t < TALL; t++)
#pragma unroll
        for (int c = 0; c < GROUP; c++) {
            float sum = c < many ? sum_of_warp(sums[t][c]) : 0.0f;
            if (lane == c && c < many && row + t < count)
                margins[(row + t) * wide + first + c] = sum;
        }
}
LAUNCHABLE(margins_columns)

/* ---- update: a block has STRIP columns of the matrix, all rows, all weights ---------- */

#define STRIP 32
#define ROWS 32  /* of a tile */
#define EIGHT 8  /* columns of weights of a warp */
#define WARPS 8
#define ACROSS (STRIP / IN_CHUNK)

/* Tiles of rows from `base` on and of their factors; zeros behind the last row. */
INLINE void load_tiles(const element *matrix, s64 stride, const s64 *rows, int count,
                       int base, int col, int cols, float *tile)
{
    for (int at = threadIdx.x; at < ROWS * ACROSS; at += 256) {
        int row = at / ACROSS, k = at % ACROSS * IN_CHUNK;
        float chunk[IN_CHUNK];
        bool is_there = base + row < count && col + k < cols;
        if (is_there)
            load_chunk(matrix + rows[base + row] * stride + col + k, chunk);
#pragma unroll
        for (int i = 0; i < IN_CHUNK; i++)
            tile[row * (STRIP + 1) + k + i] = is_there ? chunk[i] : 0.0f;
    }
}

INLINE void load_factors(const float *factors, int count, int base, int wide, int room,
                         float *tile)
{
    for (int at = threadIdx.x; at < ROWS * room; at += 256) {
        int row = at / room, c = at % room;
        bool is_there = base + row < count && c < wide;
        tile[at] = is_there ? factors[(base + row) * wide + c] : 0.0f;
    }
}

/* The states of class c of one row of weights, all read before one is written. */
INLINE void step(const float *parts, int k, int c, int classes, int states, int groups,
                 int splits, const float *carry, float *weights)
{
    float before[MOST_STATES];
#pragma unroll
    for (int a = 0; a < MOST_STATES; a++)
        before[a] = a < states ? weights[a * classes + c] : 0.0f;
    for (int a = 0; a < states; a++) {
        float sum = 0.0f;
        for (int i = 0; i < splits; i++)
            sum += parts[(i * groups * EIGHT + a * classes + c) * STRIP + k];
#pragma unroll
        for (int b = 0; b < MOST_STATES; b++)
            if (b < states)
                sum = fmaf(carry[a * states + b], before[b], sum);
        weights[a * classes + c] = sum;
    }
}

/* grid = ceil(cols / 32), block = 256, wide <= 64,
   shared = 4 * (32 * 33 + 32 * 64 + 8 * 32 * 8). */
extern "C" __global__ void __launch_bounds__(256)
update_columns(const element *__restrict__ matrix, s64 stride,
               const s64 *__restrict__ rows, int count, int cols, int wide, int states,
               const float *__restrict__ factors, const float *__restrict__ carry,
               float *__restrict__ weights)
{
    SHARED_MEMORY(memory);
    float *tile = (float *)memory, *scaled = tile + ROWS * (STRIP + 1);
    float *parts = scaled + ROWS * WARPS * EIGHT;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, col = blockIdx.x * STRIP;
    /* Warps share the columns of weights; what is left of them shares the rows. */
    int groups = (wide + EIGHT - 1) / EIGHT, splits = WARPS / groups;
    int group = warp % groups, split = warp / groups, room = groups * EIGHT;
    float sums[EIGHT] = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    for (int base = 0; base < count; base += ROWS) {
        __syncthreads();
        load_tiles(matrix, stride, rows, count, base, col, cols, tile);
        load_factors(factors, count, base, wide, room, scaled);
        __syncthreads();
        for (int row = split; split < splits && row < ROWS; row += splits) {
            float value = tile[row * (STRIP + 1) + lane];
#pragma unroll
            for (int c = 0; c < EIGHT; c++)
                sums[c] = fmaf(value, scaled[row * room + group * EIGHT + c], sums[c]);
        }
    }
#pragma unroll
    for (int c = 0; c < EIGHT; c++)
        parts[(warp * EIGHT + c) * STRIP + lane] = sums[c];
    __syncthreads();
    int classes = wide / states;
    for (int at = threadIdx.x; at < STRIP * classes; at += 256) {
        int k = at / classes, c = at % classes;
        if (col + k < cols)
            step(parts, k, c, classes, states, groups, splits, carry,
                 weights + (s64)(col + k) * wide);
    }
}
LAUNCHABLE(update_columns)

/* ---- blend: the point at which plain steps read scores ------------------------------- */

/* out = the states of every weight times `probe`: cols x K. grid = ceil(cols K / 256),
   block = 256. */
extern "C" __global__ void __launch_bounds__(256)
blend(const float *__restrict__ weights, int count, int states, int classes,
      const float *__restrict__ probe, float *__restrict__ out)
{
    int at = blockIdx.x * 256 + threadIdx.x;
    if (at >= count)
        return;
    const float *from = weights + (s64)(at / classes) * states * classes + at % classes;
    float sum = 0.0f;
    for (int a = 0; a < states; a++)
        sum = fmaf(probe[a], from[a * classes], sum);
    out[at] = sum;
}
LAUNCHABLE(blend)

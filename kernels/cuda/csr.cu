/* Products of CSR rows that are named by number: margins, update, and the packed Gram.

   Row i holds data[indptr[i]] .. under ascending columns `indices` (COLUMN64: of 64
   bits), both checked when they were read. No atomics: every sum has one owner and one
   order, which depends on sizes alone. Weights are cols x wide, margins and factors
   count x wide, row-major; `across`, a power of two up to 32, says how many lanes share
   an entry, each with columns of weights of its own. Kernels of one column of weights
   are the same text with wide = across = 1. Of a tile of columns, which begins at column
   `base`, weights are those of the tile alone. */
#include "elements.cuh"

#if defined(COLUMN64)
typedef s64 column;
#else
typedef int column;
#endif
#ifndef TB
#define TB 64 /* side of a tile of the Gram */
#endif

/* The first place in [from, to) whose column is `wanted` or lies behind it. */
INLINE s64 first_from(const column *indices, s64 from, s64 to, s64 wanted)
{
    while (from < to) {
        s64 middle = from + (to - from) / 2;
        if (indices[middle] < wanted)
            from = middle + 1;
        else
            to = middle;
    }
    return from;
}

/* Columns `first` .. first + across - 1 of Z = Y W: one warp a row. Rows have entries in
   `cols` columns from `base` on, or, if that is 0, in as many as they like. */
INLINE void row_times_weights(const s64 *indptr, const column *indices,
                              const element *data, const s64 *rows, int count, s64 base,
                              s64 cols, int wide, int first, int across,
                              const float *weights, float *margins)
{
    int lane = threadIdx.x & 31, row = blockIdx.x * 8 + (threadIdx.x >> 5);
    if (row >= count)
        return;
    int c = first + lane % across;
    const float *from = weights + min(c, wide - 1);
    s64 begin = indptr[rows[row]], last = indptr[rows[row] + 1];
    if (cols) {
        begin = first_from(indices, begin, last, base);
        last = first_from(indices, begin, last, base + cols);
    }
    float sum = 0.0f;
#pragma unroll 4
    for (s64 k = begin + lane / across; k < last; k += 32 / across)
        sum = fmaf(value_of(data[k]), __ldg(from + ((s64)indices[k] - base) * wide), sum);
    for (int mask = 16; mask >= across; mask >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    if (lane < across && c < wide)
        margins[(s64)row * wide + c] = sum;
}

/* z = Y w. grid = ceil(rows / 8), block = 256. */
extern "C" __global__ void __launch_bounds__(256)
csr_margin(const s64 *__restrict__ indptr, const column *__restrict__ indices,
           const element *__restrict__ data, const s64 *__restrict__ rows, int count,
           s64 base, s64 cols, const float *__restrict__ weights,
           float *__restrict__ margins)
{
    row_times_weights(indptr, indices, data, rows, count, base, cols, 1, 0, 1, weights,
                      margins);
}
LAUNCHABLE(csr_margin)

/* Z = Y W. grid = (ceil(rows / 8), ceil(wide / across)), block = 256. */
extern "C" __global__ void __launch_bounds__(256)
csr_margins_columns(const s64 *__restrict__ indptr, const column *__restrict__ indices,
                    const element *__restrict__ data, const s64 *__restrict__ rows,
                    int count, s64 base, s64 cols, int wide, int across,
                    const float *__restrict__ weights, float *__restrict__ margins)
{
    row_times_weights(indptr, indices, data, rows, count, base, cols, wide,
                      blockIdx.y * across, across, weights, margins);
}
LAUNCHABLE(csr_margins_columns)

/* Bit l: what lane l says. */
INLINE u32 votes_of_warp(bool said)
{
    u32 votes = (u32)said << (threadIdx.x & 31);
    for (int mask = 16; mask; mask >>= 1)
        votes |= __shfl_xor_sync(0xffffffffu, votes, mask);
    return votes;
}

/* sums += what 32 rows, one a lane, have between `from` and `to`; lanes take entries. A
   factor of one column of weights is at hand, those of many are behind `factors`. */
INLINE void add_rows(const column *indices, const element *data, s64 from, s64 to,
                     float factor, const float *factors, int wide, int across, s64 first,
                     float *sums)
{
    int lane = threadIdx.x & 31;
    u32 some = votes_of_warp(from < to);
    for (int row = 0; row < 32; row++) {
        if (!(some >> row & 1))
            continue;
        s64 begin = __shfl_sync(0xffffffffu, from, row);
        s64 end = __shfl_sync(0xffffffffu, to, row);
        float by = __shfl_sync(0xffffffffu, factor, row);
        for (s64 k = begin + lane / across; k < end; k += 32 / across) {
            float value = value_of(data[k]), *at = sums + (int)(indices[k] - first) * wide;
#pragma unroll 1
            for (int c = lane % across; c < wide; c += across)
                at[c] = fmaf(value, wide == 1 ? by : factors[row * wide + c], at[c]);
        }
        __syncwarp();
    }
}

/* The states of class c of one column, all read before one is written. `sums` are those
   of the first of `warps` warps, `words` from one to the next. */
INLINE void step(const float *sums, int warps, int words, int c, int classes, int states,
                 const float *carry, float *weights)
{
    float before[MOST_STATES];
#pragma unroll
    for (int a = 0; a < MOST_STATES; a++)
        before[a] = a < states ? weights[a * classes + c] : 0.0f;
#pragma unroll 1
    for (int a = 0; a < states; a++) {
        float sum = 0.0f;
#pragma unroll 4
        for (int warp = 0; warp < warps; warp++)
            sum += sums[warp * words + a * classes + c];
#pragma unroll
        for (int b = 0; b < MOST_STATES; b++)
            if (b < states)
                sum = fmaf(carry[a * states + b], before[b], sum);
        weights[a * classes + c] = sum;
    }
}

/* A block owns `span` columns: its warps share the rows, look for these columns in each,
   and keep sums of their own, which are added in the order of warps. */
INLINE void update_span(const s64 *indptr, const column *indices, const element *data,
                        const s64 *rows, int count, s64 base, s64 cols, int span,
                        int wide, int states, int across, const float *factors,
                        const float *carry, float *weights, float *parts)
{
    int lane = threadIdx.x & 31, warps = blockDim.x >> 5, words = span * wide;
    float *sums = parts + (threadIdx.x >> 5) * words;
    s64 first = base + (s64)blockIdx.x * span, behind = min(first + span, base + cols);
    for (int k = lane; k < words; k += 32)
        sums[k] = 0.0f;
    __syncwarp();
    for (int some = threadIdx.x & ~31; some < count; some += blockDim.x) {
        s64 from = 0, to = 0;
        float factor = 0.0f;
        if (some + lane < count) {
            s64 row = rows[some + lane], last = indptr[row + 1];
            from = first_from(indices, indptr[row], last, first);
            to = first_from(indices, from, last, behind);
            factor = wide == 1 ? factors[some + lane] : 0.0f;
        }
        add_rows(indices, data, from, to, factor, factors + (s64)some * wide, wide,
                 across, first, sums);
    }
    __syncthreads();
    int classes = wide / states;
    for (int at = threadIdx.x; at < (int)(behind - first) * classes; at += blockDim.x) {
        int k = at / classes;
        step(parts + k * wide, warps, words, at % classes, classes, states, carry,
             weights + (first - base + k) * wide);
    }
}

/* w = carry w + Yᵀ f. grid = ceil(cols / span), block = 32 warps,
   shared = 4 * span * warps bytes. */
extern "C" __global__ void __launch_bounds__(512)
csr_update(const s64 *__restrict__ indptr, const column *__restrict__ indices,
           const element *__restrict__ data, const s64 *__restrict__ rows, int count,
           s64 base, s64 cols, int span, const float *__restrict__ factors,
           const float *__restrict__ carry, float *__restrict__ weights)
{
    SHARED_MEMORY(memory);
    update_span(indptr, indices, data, rows, count, base, cols, span, 1, 1, 1, factors,
                carry, weights, (float *)memory);
}
LAUNCHABLE(csr_update)

/* W = W carryᵀ + Yᵀ F, the states of an update among its columns; carry is states x
   states. As csr_update, with `wide` times the shared memory. */
extern "C" __global__ void __launch_bounds__(512)
csr_update_columns(const s64 *__restrict__ indptr, const column *__restrict__ indices,
                   const element *__restrict__ data, const s64 *__restrict__ rows,
                   int count, s64 base, s64 cols, int span, int wide, int states,
                   int across, const float *__restrict__ factors,
                   const float *__restrict__ carry, float *__restrict__ weights)
{
    SHARED_MEMORY(memory);
    update_span(indptr, indices, data, rows, count, base, cols, span, wide, states,
                across, factors, carry, weights, (float *)memory);
}
LAUNCHABLE(csr_update_columns)

/* Two rows, merged. One chain of long rows would drift, since squares have one sign: what
   an addition loses is carried to the next. Only a row that moves on is read: what lanes
   read of their rows lies apart. */
INLINE float product_of(const column *indices, const element *data, s64 a, s64 last_a,
                        s64 b, s64 last_b)
{
    float sum = 0.0f, lost = 0.0f;
    if (a >= last_a || b >= last_b)
        return sum;
    column left = __ldg(indices + a), right = __ldg(indices + b);
    for (;;) {
        bool moves_a = left <= right, moves_b = right <= left;
        if (moves_a && moves_b) {
            float more = fmaf(value_of(__ldg(data + a)), value_of(__ldg(data + b)), lost);
            float next = sum + more;
            lost = more - (next - sum);
            sum = next;
        }
        if ((moves_a && ++a == last_a) || (moves_b && ++b == last_b))
            return sum;
        if (moves_a)
            left = __ldg(indices + a);
        if (moves_b)
            right = __ldg(indices + b);
    }
}

/* Tiles TB x TB of Y Yᵀ, one behind the other; `tiles` has I << 16 | J of each. An entry
   is that of rows i of I and k of J where the batch of i comes after that of k, else 0.
   One entry a thread. grid = (tiles, TB * TB / 256), block = 256. */
extern "C" __global__ void __launch_bounds__(256)
csr_gram(const s64 *__restrict__ indptr, const column *__restrict__ indices,
         const element *__restrict__ data, const s64 *__restrict__ rows, int count,
         const int *__restrict__ batches, const u32 *__restrict__ tiles,
         float *__restrict__ gram)
{
    u32 tile = tiles[blockIdx.x];
    int at = blockIdx.y * 256 + threadIdx.x;
    int i = (int)(tile >> 16) * TB + at / TB, k = (int)(tile & 0xffffu) * TB + at % TB;
    float sum = 0.0f;
    if (i < count && k < count && batches[i] > batches[k])
        sum = product_of(indices, data, indptr[rows[i]], indptr[rows[i] + 1],
                         indptr[rows[k]], indptr[rows[k] + 1]);
    gram[(s64)blockIdx.x * (TB * TB) + at] = sum;
}
LAUNCHABLE(csr_gram)

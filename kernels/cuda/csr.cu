/* Products of CSR rows that are named by number: margins, update, and the packed Gram.

   Row i holds data[indptr[i]] .. under ascending columns `indices` (COLUMN64: of 64
   bits), both checked when they were read. No atomics: every sum has one owner and one
   order. ELEMENT is FP32 or BF16. */
#include "elements.cuh"

#if defined(COLUMN64)
typedef s64 column;
#else
typedef int column;
#endif
#ifndef TB
#define TB 64 /* side of a tile of the Gram */
#endif

/* z = Y w: one warp a row. grid = ceil(rows / 8), block = 256. */
extern "C" __global__ void __launch_bounds__(256)
csr_margin(const s64 *__restrict__ indptr, const column *__restrict__ indices,
           const element *__restrict__ data, const s64 *__restrict__ rows, int count,
           const float *__restrict__ weights, float *__restrict__ margins)
{
    int lane = threadIdx.x & 31, row = blockIdx.x * 8 + (threadIdx.x >> 5);
    if (row >= count)
        return;
    s64 last = indptr[rows[row] + 1];
    float sum = 0.0f;
#pragma unroll 4
    for (s64 k = indptr[rows[row]] + lane; k < last; k += 32)
        sum = fmaf(value_of(data[k]), __ldg(weights + indices[k]), sum);
    sum = sum_of_warp(sum);
    if (lane == 0)
        margins[row] = sum;
}
LAUNCHABLE(csr_margin)

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

/* Bit l: what lane l says. */
INLINE u32 votes_of_warp(bool said)
{
    u32 votes = (u32)said << (threadIdx.x & 31);
    for (int mask = 16; mask; mask >>= 1)
        votes |= __shfl_xor_sync(0xffffffffu, votes, mask);
    return votes;
}

/* sums += what 32 rows, one a lane, have between `from` and `to`; lanes take entries. */
INLINE void add_rows(const column *indices, const element *data, s64 from, s64 to,
                     float factor, s64 first, float *sums)
{
    u32 some = votes_of_warp(from < to);
    for (int row = 0; row < 32; row++) {
        if (!(some >> row & 1))
            continue;
        s64 begin = __shfl_sync(0xffffffffu, from, row);
        s64 end = __shfl_sync(0xffffffffu, to, row);
        float by = __shfl_sync(0xffffffffu, factor, row);
        for (s64 k = begin + (threadIdx.x & 31); k < end; k += 32) {
            float *at = sums + (indices[k] - first);
            *at = fmaf(value_of(data[k]), by, *at);
        }
        __syncwarp();
    }
}

/* w = carry w + Yᵀ f: a warp owns `span` columns and looks for them in every row.
   grid = ceil(cols / (4 span)), block = 128, shared = 16 * span bytes. */
extern "C" __global__ void __launch_bounds__(128)
csr_update(const s64 *__restrict__ indptr, const column *__restrict__ indices,
           const element *__restrict__ data, const s64 *__restrict__ rows, int count,
           s64 cols, int span, const float *__restrict__ factors,
           const float *__restrict__ carry, float *__restrict__ weights)
{
    SHARED_MEMORY(memory);
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float *sums = (float *)memory + warp * span;
    s64 first = ((s64)blockIdx.x * 4 + warp) * span, behind = min(first + span, cols);
    for (int k = lane; k < span; k += 32)
        sums[k] = 0.0f;
    __syncwarp();
    for (int base = 0; base < count; base += 32) {
        s64 from = 0, to = 0;
        float factor = 0.0f;
        if (base + lane < count) {
            s64 row = rows[base + lane], last = indptr[row + 1];
            from = first_from(indices, indptr[row], last, first);
            to = first_from(indices, from, last, behind);
            factor = factors[base + lane];
        }
        add_rows(indices, data, from, to, factor, first, sums);
    }
    for (s64 k = lane; first + k < behind; k += 32)
        weights[first + k] = fmaf(*carry, weights[first + k], sums[k]);
}
LAUNCHABLE(csr_update)

/* Two rows, merged. One chain of long rows would drift, since squares have one sign: what
   an addition loses is carried to the next. */
INLINE float product_of(const column *indices, const element *data, s64 a, s64 last_a,
                        s64 b, s64 last_b)
{
    float sum = 0.0f, lost = 0.0f;
    while (a < last_a && b < last_b) {
        column left = __ldg(indices + a), right = __ldg(indices + b);
        if (left == right) {
            float more = fmaf(value_of(__ldg(data + a)), value_of(__ldg(data + b)), lost);
            float next = sum + more;
            lost = more - (next - sum);
            sum = next;
        }
        a += left <= right;
        b += right <= left;
    }
    return sum;
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

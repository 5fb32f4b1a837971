/* Tiles of G = Y Yᵀ, and z = Y w, for rows that are named by number, in one launch.

   `tiles` has (I << 16) | J, J <= I: rows I TB .. of Y by rows J TB .., packed one
   after another in G; what lies behind row `m` is zero. The columns are split in
   `splits` parts of `per_split` (a multiple of a chunk); with more than one, each
   leaves its sums in `workspace` (splits x ntiles tiles) and the last that comes adds
   them in ascending order, so the bits never depend on who that is. `tickets` are
   zeros, before and after. `stride` in elements; it and `matrix` are multiples of 16
   bytes. What lies behind `cols` in a row may be read, not used. Without weights there
   are no margins.

   grid = ntiles splits + (weights ? ceil(m / (TB / 16)) : 0), block = 2 TB,
   shared = STAGES 16384 bytes. */
#include "elements.cuh"

#ifndef TB
#define TB 64
#endif
#ifndef STAGES
#define STAGES 3
#endif
#if ELEMENT == FP32 && !defined(TF32) && !defined(FFMA)
#define FFMA 1 /* rounded to tf32 where that is asked for, not otherwise */
#endif
#define THREADS (2 * TB)
/* As many blocks at once as shared memory allows: a compiler that guesses their number
   leaves values without a register for more. Sums of 8 bits are two sets, and those one
   by one need all registers. */
#if ELEMENT == E4M3 || ELEMENT == E5M2 || defined(FFMA)
#define BOUNDS THREADS
#else
#define BOUNDS THREADS, 256 / TB
#endif
#define WARPS (THREADS / 32)
#define CHUNKS (512 / TB)        /* 16 bytes each, of a row in one stage */
#define STEP (CHUNKS * IN_CHUNK) /* columns of one stage */
#define SIDE (TB * CHUNKS * 16)  /* bytes of the rows of I, or of J, in one stage */
#define TILE ((size_t)(TB * TB))

/* Where a chunk of a row lies. Eight rows, one chunk each, are what ldmatrix (and eight
   threads with 16 bytes each) read at a time: without the XOR they would lie 128 (or
   64) bytes apart, in the same banks; with it they fill all 32 banks once. */
INLINE int place_of(int row, int chunk)
{
    return (row * CHUNKS + (chunk ^ (row * CHUNKS / 8 & (CHUNKS - 1)))) * 16;
}

/* What a thread copies in every stage: the same chunk of rows that lie APART, first of I,
   then of J. APART rows further a chunk lies as far further: the XOR is the same. */
#define EACH (2 * TB * CHUNKS / THREADS)
#define APART (THREADS / CHUNKS)

struct Source {
    const u8 *from[EACH]; /* in the next stage */
    u32 there; /* a bit for each that is copied */
    int chunk, to;
};

/* Rows that are not there become zeros in all stages, once: nobody writes there again. */
INLINE Source source_of(const element *matrix, s64 stride, const s64 *rows, int m, int I,
                        int J, int k, u8 *stages)
{
    int first = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    Source source = {{}, 0, chunk, place_of(first, chunk)};
#pragma unroll
    for (int i = 0; i < EACH; i++) {
        int row = (i < EACH / 2 ? I : J - 1) * TB + first + i * APART;
        bool is_there = row < m && (i < EACH / 2 || I != J);
        s64 number = is_there ? rows[row] : 0;
        source.from[i] = (const u8 *)(matrix + number * stride + chunk * IN_CHUNK + k);
        source.there |= (u32)is_there << i;
        for (int stage = 0; row >= m && stage < STAGES; stage++)
            *(uint4 *)(stages + stage * 2 * SIDE + source.to + i * APART * CHUNKS * 16) =
                make_uint4(0, 0, 0, 0);
    }
    return source;
}

/* The next stage, from column `k` on, zeros from `end` on. Where there is no column left
   it is an empty batch: batches are counted. */
INLINE void load_stage(u8 *stage, Source &source, int k, int end)
{
    u8 *to = stage + source.to;
    if (k + STEP <= end) {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            if (source.there >> i & 1u)
                copy_async_16(to + i * APART * CHUNKS * 16, source.from[i]);
            source.from[i] += CHUNKS * 16;
        }
    } else if (k < end) {
        int left = (end - k) * (int)sizeof(element) - source.chunk * 16;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (source.there >> i & 1u)
                copy_async_16(to + i * APART * CHUNKS * 16, source.from[i],
                              max(0, min(16, left)));
    }
    copy_commit();
}

#if defined(FFMA)
#include "gram_ffma.cuh"
#else
/* Tensor cores. A warp has TB / 2 rows by 32 columns, in pieces of 16 x 8. One mma
   takes 32 bytes of each row in every format: ldmatrix need not know what they are. */
#define PIECES (TB / 32)

#if ELEMENT == BF16
#define MULTIPLY mma_bf16
#elif ELEMENT == FP16
#define MULTIPLY mma_f16
#elif ELEMENT == FP32
#define MULTIPLY mma_tf32
#elif ELEMENT == E4M3
#define MULTIPLY mma_e4m3
#else
#define MULTIPLY mma_e5m2
#endif

struct Sums {
    float of[PIECES][4][4];
};

INLINE void clear(Sums &sums)
{
#pragma unroll
    for (int i = 0; i < PIECES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int q = 0; q < 4; q++)
                sums.of[i][j][q] = 0.0f;
}

/* 32 bytes of 16 rows, as mma takes them. */
INLINE void load_fragment(u32 (&to)[4], const u8 *at)
{
    load_matrix_4(to, at);
#if ELEMENT == FP32
#pragma unroll
    for (int q = 0; q < 4; q++)
        to[q] = tf32_of_float(to[q]); /* mma would cut the bits off, always downwards */
#endif
}

INLINE void multiply_stage(Sums &sums, const u8 *left, const u8 *right)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    int down = warp / (TB / 32) * (TB / 2), across = warp % (TB / 32) * 32;
    /* 16 rows further the XOR is the same, two chunks further two bits of it turn. */
    int a_at = place_of(down + (lane & 15), lane >> 4);
    int b_at = place_of(across + (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
#pragma unroll
    for (int k = 0; k < CHUNKS; k += 2) {
        u32 a[PIECES][4], b[2][4];
#pragma unroll
        for (int i = 0; i < PIECES; i++)
            load_fragment(a[i], left + (a_at ^ k * 16) + i * 16 * CHUNKS * 16);
#pragma unroll
        for (int j = 0; j < 2; j++)
            load_fragment(b[j], right + (b_at ^ k * 16) + j * 16 * CHUNKS * 16);
#pragma unroll
        for (int i = 0; i < PIECES; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                MULTIPLY(sums.of[i][j], a[i], b[j / 2][j % 2 * 2],
                         b[j / 2][j % 2 * 2 + 1]);
    }
}

/* Tensor cores add products of 8 bits with fewer bits than fp32 has: no sum of theirs
   is longer than a stage, the rest is added outside. */
INLINE void add_stage(Sums &sums, const u8 *left, const u8 *right)
{
#if ELEMENT == E4M3 || ELEMENT == E5M2
    Sums part;
    clear(part);
    multiply_stage(part, left, right);
#pragma unroll
    for (int i = 0; i < PIECES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int q = 0; q < 4; q++)
                sums.of[i][j][q] += part.of[i][j][q];
#else
    multiply_stage(sums, left, right);
#endif
}

INLINE void store(const Sums &sums, float *to)
{
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32;
    int down = warp / (TB / 32) * (TB / 2) + lane / 4;
    int across = warp % (TB / 32) * 32 + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < PIECES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float *at = to + (down + i * 16 + half * 8) * TB + across + j * 8;
                const float *pair = sums.of[i][j] + half * 2;
                *(float2 *)at = make_float2(pair[0], pair[1]);
            }
}
#endif /* FFMA */

/* One tile, columns from `k` to `end`: STAGES - 1 stages are under way all the time. */
INLINE void sum_tile(Sums &sums, u8 *stages, Source &source, bool diagonal, int k,
                     int end)
{
    int steps = max(0, (end - k + STEP - 1) / STEP);
#pragma unroll 1
    for (int next = 0; next < STAGES - 1; next++)
        load_stage(stages + next * 2 * SIDE, source, k + next * STEP, end);
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        copy_wait<STAGES - 2>();
        __syncthreads();
        int next = step + STAGES - 1;
        load_stage(stages + next % STAGES * 2 * SIDE, source, k + next * STEP, end);
        const u8 *left = stages + step % STAGES * 2 * SIDE;
        add_stage(sums, left, diagonal ? left : left + SIDE);
    }
}

INLINE void add_parts(float *to, const float *parts, size_t apart, int splits)
{
    for (int at = threadIdx.x * 4; at < TB * TB; at += THREADS * 4) {
        float4 sum = __ldcg((const float4 *)(parts + at));
        for (int part = 1; part < splits; part++) {
            float4 more = __ldcg((const float4 *)(parts + part * apart + at));
            sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
        }
        *(float4 *)(to + at) = sum;
    }
}

/* One warp a row, as in the kernel `margin`. */
INLINE void add_margin(const element *from, int cols, const float *weights,
                       float *margin)
{
    float sum = row_times(from, weights, cols);
    if ((threadIdx.x & 31) == 0)
        *margin = sum;
}

extern "C" __global__ void __launch_bounds__(BOUNDS)
gram(const element *__restrict__ matrix, s64 stride, const s64 *__restrict__ rows,
     int m, int cols, const u32 *__restrict__ tiles, int ntiles, int splits,
     int per_split, const float *__restrict__ weights, float *__restrict__ G,
     float *__restrict__ z, float *workspace, u32 *tickets)
{
    int margins = (int)blockIdx.x - ntiles * splits;
    if (margins >= 0) {
        int row = margins * WARPS + threadIdx.x / 32;
        if (row < m)
            add_margin(matrix + rows[row] * stride, cols, weights, z + row);
        return;
    }
    SHARED_MEMORY(memory);
    int number = blockIdx.x % ntiles, split = blockIdx.x / ntiles;
    int I = tiles[number] >> 16, J = tiles[number] & 0xffffu;
    int first = split * per_split, end = min(cols, first + per_split);
    Source source = source_of(matrix, stride, rows, m, I, J, first, memory);

    Sums sums;
    clear(sums);
    sum_tile(sums, memory, source, I == J, first, end);

    size_t apart = ntiles * TILE, at = number * TILE;
    store(sums, splits == 1 ? G + at : workspace + split * apart + at);
    if (splits == 1 || !is_last(tickets + number, splits, (u32 *)memory))
        return;
    add_parts(G + at, workspace + at, apart, splits);
    if (threadIdx.x == 0)
        tickets[number] = 0;
}
LAUNCHABLE(gram)

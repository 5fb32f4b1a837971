/* Tiles of G = Y Yᵀ as `gram` makes them, and z = Y w, by the tensor cores of sm_90a.

   `tiles` has (I << 16) | J, J <= I, in ascending order, where a tile with an odd J
   follows its left neighbour: rows I 128 .. of Y by rows J 128 .., packed one after
   another in G; what lies behind row `m` is zero. A tile with an even J and its right
   neighbour are a pair, made at once: row I is read once for both.

   The work is a line of tile-stages (64 columns each), of which each of `workers`
   blocks takes `each`: see gram_line.cuh. Whoever takes the first stage of a pair
   leaves its sums in G, others leave theirs in `workspace` (workers x 2 tiles), and
   the last that comes adds them in ascending order of columns, so the bits never
   depend on who that is. `tickets` are zeros, before and after. `stride` in elements;
   it and `matrix` are multiples of 16 bytes. What lies behind `cols` in a row may be
   read, not used. Without weights there are no margins.

   grid = workers + (weights ? ceil(m / 8) : 0), block = 256,
   shared = STAGES 49152 + 2048 bytes. */
#include "gram_line.cuh"
#include "wgmma.cuh"

#ifndef STAGES
#define STAGES 4
#endif
#define TB 128
#define THREADS 256
#define WARPS (THREADS / 32)
#define CHUNKS 8                 /* 16 bytes each, of a row in one stage */
#define STEP (CHUNKS * IN_CHUNK) /* columns of one stage */
#define SIDE (TB * ATOM_ROW)     /* bytes of the rows of one tile in one stage */
#define STAGE (3 * SIDE)         /* rows of J, of J + 1, of I */
#define TILE ((size_t)(TB * TB))
#define EACH (TB * CHUNKS / THREADS) /* chunks of a side that a thread loads */
#define ROWS_APART (THREADS / CHUNKS) /* in which they lie */

#if ELEMENT == BF16
#define MULTIPLY wgmma_bf16
#else
#define MULTIPLY wgmma_f16
#endif

/* Rows that a thread loads chunks of, where they begin; none behind the last. */
struct Rows {
    const element *of[3][EACH];
    bool apart; /* rows of I are none of J */
};

template <int SIDES>
INLINE Rows rows_of(const Part &part, const element *matrix, s64 stride,
                    const s64 *rows, int m)
{
    Rows found;
    found.apart = part.I - part.J >= SIDES;
#pragma unroll
    for (int side = 0; side < 3; side++)
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            int row = (side == 2 ? part.I : part.J + side) * TB + threadIdx.x / CHUNKS +
                      i * ROWS_APART;
            bool is_read = side < SIDES || (side == 2 && found.apart);
            found.of[side][i] =
                is_read && row < m ? matrix + rows[row] * stride : nullptr;
        }
    return found;
}

/* Where a thread's chunks of a stage lie: so far behind its first one, since rows that
   are a multiple of eight apart have the same XOR. */
INLINE int behind_first(int side, int i)
{
    return side * SIDE + i * ROWS_APART * ATOM_ROW;
}
INLINE int first_place()
{
    return swizzled(threadIdx.x / CHUNKS, threadIdx.x % CHUNKS);
}

/* Rows that are not there are zeros in all stages: nobody loads there. */
template <int SIDES> INLINE void clear_missing(u8 *stages, const Rows &rows)
{
    u8 *to = stages + first_place();
#pragma unroll
    for (int side = 0; side < 3; side++)
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if ((side < SIDES || side == 2) && !rows.of[side][i])
                for (int stage = 0; stage < STAGES; stage++)
                    *(uint4 *)(to + stage * STAGE + behind_first(side, i)) =
                        make_uint4(0, 0, 0, 0);
}

/* 64 columns from `k` on, zeros from `cols` on. Bytes are counted where columns end
   alone: a copy of so many of 16 is several instructions. */
INLINE void load_stage(u8 *stage, const Rows &rows, int k, int cols)
{
    int col = k + threadIdx.x % CHUNKS * IN_CHUNK;
    u8 *to = stage + first_place();
    if (k + STEP <= cols) {
#pragma unroll
        for (int side = 0; side < 3; side++)
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (rows.of[side][i])
                    copy_async_16(to + behind_first(side, i), rows.of[side][i] + col);
        return;
    }
    int bytes = max(0, min(16, (cols - col) * (int)sizeof(element)));
    int there = bytes ? col : 0;
#pragma unroll
    for (int side = 0; side < 3; side++)
#pragma unroll
        for (int i = 0; i < EACH; i++)
            if (rows.of[side][i])
                copy_async_16(to + behind_first(side, i), rows.of[side][i] + there,
                              bytes);
}

/* A warpgroup has 64 rows of I by all of J. */
template <int COUNT>
INLINE void multiply_stage(float (&sums)[COUNT], const u8 *stage, int side)
{
    u64 left = matrix_at(stage + side * SIDE + threadIdx.x / 128 * (64 * ATOM_ROW));
    u64 right = matrix_at(stage);
#pragma unroll
    for (int bytes = 0; bytes < ATOM_ROW; bytes += 32)
        MULTIPLY(sums, later_by(left, bytes), later_by(right, bytes));
}

/* The product of a stage goes on while the next but one is loaded. Whoever comes to the
   barrier has waited for all products but the last: the room of those before is free.
*/
template <int SIDES>
INLINE void sum_stages(float (&sums)[SIDES * 64], u8 *memory, const Part &part,
                       const Rows &rows, int cols)
{
    int side = rows.apart ? 2 : part.I - part.J, steps = part.last - part.first;
    auto load = [&](int step) {
        if (step < steps)
            load_stage(memory + step % STAGES * STAGE, rows, (part.first + step) * STEP,
                       cols);
        copy_commit(); /* an empty batch where there is none: batches are counted */
    };
#pragma unroll 1
    for (int step = 0; step < STAGES - 2; step++)
        load(step);
#pragma unroll 1
    for (int step = 0; step < steps; step++) {
        copy_wait<STAGES - 3>();
        fence_for_units();
        __syncthreads();
        wgmma_begin();
        multiply_stage(sums, memory + step % STAGES * STAGE, side);
        wgmma_commit();
        load(step + STAGES - 2);
        wgmma_wait<1>();
    }
    wgmma_wait<0>();
    held(sums);
    __syncthreads(); /* before the next tile is loaded there */
}

/* Sixteen rows a warp; of eight columns each lane has two, in two rows. */
template <int COUNT> INLINE void store(const float (&sums)[COUNT], float *to)
{
    int row = threadIdx.x / 32 * 16 + (threadIdx.x & 31) / 4;
    to += row * TB + threadIdx.x % 4 * 2;
#pragma unroll
    for (int i = 0; i < COUNT; i += 2) {
        int column = i / 4 * 8, half = i / 2 % 2;
        float *at = to + column / TB * TILE + half * 8 * TB + column % TB;
        *(float2 *)at = make_float2(sums[i], sums[i + 1]);
    }
}

/* to += all parts, one after another. */
INLINE void add_parts(float *to, const float *parts, int count, int size)
{
#pragma unroll 4
    for (int at = threadIdx.x * 4; at < size; at += THREADS * 4) {
        float4 sum = __ldcg((const float4 *)(to + at));
        for (int part = 0; part < count; part++) {
            float4 more = __ldcg((const float4 *)(parts + part * 2 * TILE + at));
            sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
        }
        *(float4 *)(to + at) = sum;
    }
}

/* What all parts are given. */
struct Given {
    const element *matrix;
    s64 stride;
    const s64 *rows;
    int m, cols;
    float *G, *workspace;
    u32 *tickets;
};

template <int SIDES> INLINE void make(const Part &part, u8 *memory, const Given &given)
{
    float sums[SIDES * 64];
#pragma unroll
    for (int i = 0; i < SIDES * 64; i++)
        sums[i] = 0.0f;
    Rows rows = rows_of<SIDES>(part, given.matrix, given.stride, given.rows, given.m);
    clear_missing<SIDES>(memory, rows);
    sum_stages<SIDES>(sums, memory, part, rows, given.cols);

    float *here = given.G + part.number * TILE;
    float *own = given.workspace + blockIdx.x * 2 * TILE;
    store(sums, part.place == 0 ? here : own);
    u32 *ticket = given.tickets + part.number;
    if (part.of == 1 || !is_last(ticket, part.of, (u32 *)(memory + STAGES * STAGE)))
        return;
    float *second = own + (1 - part.place) * (s64)(2 * TILE);
    add_parts(here, second, part.of - 1, SIDES * (int)TILE);
    if (threadIdx.x == 0)
        *ticket = 0;
}

/* One warp a row, as in the kernel `margin`. */
INLINE void add_margin(const element *from, int cols, const float *weights,
                       float *margin)
{
    float sum = row_times(from, weights, cols);
    if ((threadIdx.x & 31) == 0)
        *margin = sum;
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
gram_wgmma(const element *__restrict__ matrix, s64 stride, const s64 *__restrict__ rows,
           int m, int cols, const u32 *__restrict__ tiles, int ntiles, int workers,
           int each, const float *__restrict__ weights, float *__restrict__ G,
           float *__restrict__ z, float *workspace, u32 *tickets)
{
    int margins = (int)blockIdx.x - workers;
    if (margins >= 0) {
        int row = margins * WARPS + threadIdx.x / 32;
        if (row < m)
            add_margin(matrix + rows[row] * stride, cols, weights, z + row);
        return;
    }
    SHARED_MEMORY(room);
    u8 *memory = room + (-in_shared(room) & (ATOM - 1));
    Given given = {matrix, stride, rows, m, cols, G, workspace, tickets};
    int stages = (cols + STEP - 1) / STEP;
    s64 at = (s64)blockIdx.x * each, end = min(at + each, (s64)ntiles * stages);
    while (at < end) {
        Part part = part_at(at, end, tiles, ntiles, stages, each);
        if (part.first < part.last && part.sides == 2)
            make<2>(part, memory, given);
        else if (part.first < part.last)
            make<1>(part, memory, given);
        at = part.next;
    }
}
LAUNCHABLE(gram_wgmma)

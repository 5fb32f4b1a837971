/* The s steps of an exchange in one launch, K = 1.

   t_j = sum_k lead_jk z_k + sum_{i<j} couple_ji G_ji r_i + beta + offset, r_j = dl/dt times
   the sample weight, beta <- free_j beta + push_j sum(r_j): as kernels/cpu/steps_body.h.

   As soon as r_j is known all later scores get their part of it, those of the next batch
   first: the others' turn hides behind the barrier at which r_(j+1) is made known. Row k
   belongs to block k % NC of the cluster, its score to eight lanes that never change, so
   every sum has one order, whatever NC is. A block that is late may still read r_(j-1)
   while r_(j+1) comes in from the others: hence three buffers.

   Batches may be ragged or empty: `starts` has steps + 1 entries. `factors` (rows x states)
   are r times `gain` (steps x states). z has `read` columns, one for each state, or one for
   what is read of all of them. sample_weights, offsets and intercept may be null.
   Of G only entries of a later batch's row and an earlier one's column are read.
   `pitch`: words of a buffer, 3 more than the largest batch, a multiple of 4.
   grid = NC, block = THREADS, shared = 64 + 12 pitch + 6 ceil(rows / NC) bytes. */
#include "families.cuh"

#ifndef NC
#define NC 1 /* blocks of the cluster: 1, or 8 from sm_90 on */
#endif
#if NC == 1
#define THREADS 1024
#define CLUSTER
#else
#define THREADS 256
#define CLUSTER __cluster_dims__(NC, 1, 1)
#endif
#define WARPS (THREADS / 32)
#define GROUPS (THREADS / 8) /* rows at a time */
#define BUFFERS 3
#define FRONT 64 /* bytes before the buffers: the intercept */

typedef struct {
    const float *gram;
    const int *map;
    int across, shift;
    const float *couple;
    float *scores;       /* of own rows */
    const u16 *batch_of; /* own rows' batches */
    int rank;
} room;

typedef struct {
    float target, weight;
} sides;

/* Own rows below row k. */
INLINE int own_below(int k, int rank) { return (int)((u32)(k - rank + NC - 1) / NC); }

INLINE int row_of(int own, int rank) { return own * NC + rank; }

/* Where the residual of a batch's row lies: as its column in G, to 16 bytes. */
INLINE int place_in(int row, int first) { return row - (first & ~3); }

INLINE void tell(float *at, float value)
{
#if NC == 1
    *at = value;
#else
#pragma unroll 1
    for (u32 rank = 0; rank < NC; rank++)
        cluster_store(at, rank, value);
#endif
}

INLINE void arrive()
{
#if NC > 1
    cluster_arrive();
#endif
}

INLINE void wait()
{
#if NC > 1
    cluster_wait();
#else
    __syncthreads();
#endif
}

/* Four columns of some rows; at the ends of a batch G may hold anything beside it. */
template <int ABREAST>
INLINE void add_products(const room &in, const int (&rows)[ABREAST], int col, int first,
                         int last, const float *residuals, float (&sums)[ABREAST])
{
    const float *factors = residuals + place_in(col, first);
    if (col >= first && col + 4 <= last) {
        float4 r = *(const float4 *)factors, g[ABREAST];
#pragma unroll
        for (int i = 0; i < ABREAST; i++)
            g[i] = __ldg((const float4 *)entry_of(in.gram, in.map, in.across, in.shift,
                                                   rows[i], col));
#pragma unroll
        for (int i = 0; i < ABREAST; i++) {
            sums[i] = fmaf(g[i].x, r.x, sums[i]);
            sums[i] = fmaf(g[i].y, r.y, sums[i]);
            sums[i] = fmaf(g[i].z, r.z, sums[i]);
            sums[i] = fmaf(g[i].w, r.w, sums[i]);
        }
        return;
    }
#pragma unroll 1
    for (int c = max(0, first - col); c < min(4, last - col); c++)
#pragma unroll
        for (int i = 0; i < ABREAST; i++)
            sums[i] = fmaf(*entry_of(in.gram, in.map, in.across, in.shift, rows[i], col + c),
                           factors[c], sums[i]);
}

/* The part of batch `from` (columns first to last) in the scores of own rows low to high.
   Eight lanes a row; ABREAST rows of each are under way at once, those outside the range
   as copies of one inside. */
template <int ABREAST>
INLINE void apply(const room &in, int from, int first, int last, const float *residuals,
                  int low, int high)
{
    int lane = threadIdx.x & 31, part = lane & 7;
    int base = (int)((u32)low / GROUPS * GROUPS) + (threadIdx.x >> 5) * 4;
#pragma unroll 1
    for (; low < high && base < high; base += ABREAST * GROUPS) {
        if (base + 4 + (ABREAST - 1) * GROUPS <= low)
            continue;
        float sums[ABREAST];
        int rows[ABREAST], own = base + (lane >> 3);
#pragma unroll
        for (int i = 0; i < ABREAST; i++) {
            sums[i] = 0.0f;
            rows[i] = row_of(min(max(own + i * GROUPS, low), high - 1), in.rank);
        }
#pragma unroll 1
        for (int col = (first & ~3) + 4 * part; col < last; col += 32)
            add_products(in, rows, col, first, last, residuals, sums);
#pragma unroll
        for (int i = 0; i < ABREAST; i++) {
            for (int mask = 4; mask; mask >>= 1)
                sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], mask);
            int at = own + i * GROUPS;
            if (part == 0 && at >= low && at < high) {
                float couple = __ldg(in.couple + couple_place(in.batch_of[at], from));
                in.scores[at] = fmaf(couple, sums[i], in.scores[at]);
            }
        }
    }
}

/* Scores of own rows by what is known before the first step; a warp takes a batch. */
INLINE void begin(const float *z, const float *offsets, const int *starts, int steps,
                  int read, const float *lead, int rank, float *scores, u16 *batch_of)
{
#pragma unroll 1
    for (int j = threadIdx.x >> 5; j < steps; j += WARPS) {
        int end = own_below(starts[j + 1], rank);
#pragma unroll 1
        for (int own = own_below(starts[j], rank) + (threadIdx.x & 31); own < end;
             own += 32) {
            int row = row_of(own, rank);
            float sum = offsets ? offsets[row] : 0.0f;
#pragma unroll 1
            for (int a = 0; a < read; a++)
                sum = fmaf(lead[j * read + a], z[row * read + a], sum);
            scores[own] = sum;
            batch_of[own] = (u16)j;
        }
    }
}

/* The same sum in every lane of a warp, in one order. */
INLINE double total_of(const float *residuals, int count)
{
    double total = 0.0;
#pragma unroll 1
    for (int i = threadIdx.x & 31; i < count; i += 32)
        total += residuals[i];
    for (int mask = 16; mask; mask >>= 1)
        total += __shfl_xor_sync(0xffffffffu, total, mask);
    return total;
}

INLINE sides sides_of(const float *targets, const float *sample_weights, int row, int end)
{
    sides found = {0.0f, 1.0f};
    if (row < end) {
        found.target = __ldg(targets + row);
        if (sample_weights)
            found.weight = __ldg(sample_weights + row);
    }
    return found;
}

extern "C" __global__ void CLUSTER __launch_bounds__(THREADS, 1)
recurrence(const float *__restrict__ gram, const int *__restrict__ map, int across,
           int shift, const float *__restrict__ z, const float *__restrict__ targets,
           const float *__restrict__ sample_weights, const float *__restrict__ offsets,
           double *intercept, const int *__restrict__ starts, int steps, int states,
           int read, const float *__restrict__ lead, const float *__restrict__ couple,
           const float *__restrict__ carry, const float *__restrict__ push,
           const float *__restrict__ probe, const float *__restrict__ gain, float setting,
           float *__restrict__ residuals, float *__restrict__ factors, int pitch)
{
    SHARED_MEMORY(memory);
    double *beta = (double *)memory;
    float *start = (float *)(beta + MOST_STATES), *buffers = (float *)(memory + FRONT);
    float *scores = buffers + BUFFERS * pitch;
    int rank = NC == 1 ? 0 : (int)cluster_rank(), own_rows = own_below(starts[steps], rank);
    u16 *batch_of = (u16 *)(scores + own_rows);
    bool is_last_warp = threadIdx.x >> 5 == WARPS - 1; /* it has the fewest rows */
    room in = {gram, map, across, shift, couple, scores, batch_of, rank};

    begin(z, offsets, starts, steps, read, lead, rank, scores, batch_of);
    if (threadIdx.x == 0) {
        *start = 0.0f;
#pragma unroll 1
        for (int a = 0; intercept && a < states; a++)
            beta[a] = intercept[a];
        if (intercept)
            *start = start_of(beta, probe, states, 1);
    }
    arrive(); /* every block of the cluster runs, and has read the intercept */
    wait();

#pragma unroll 1
    for (int j = 0, before = 0; j <= steps; j++) {
        int first = starts[j], last = starts[min(j + 1, steps)];
        int own = own_below(first, rank) + threadIdx.x, end = own_below(last, rank);
        const float *known = buffers + (j + BUFFERS - 1) % BUFFERS * pitch;
        float *next = buffers + j % BUFFERS * pitch;
        sides at = sides_of(targets, sample_weights, row_of(own, rank), last);
        if (j) {
            if (intercept && is_last_warp) {
                double total = total_of(known + place_in(before, before), first - before);
                if ((threadIdx.x & 31) == 0) {
                    advance_intercept(beta, carry + (j - 1) * states * states,
                                      push + (j - 1) * states, states, 1, total);
                    *start = start_of(beta, probe, states, 1);
                }
            }
            apply<1>(in, j - 1, before, first, known, own_below(first, rank), end);
            __syncthreads();
        }
        if (j == steps)
            break;
#pragma unroll 1
        for (; own < end; own += THREADS) {
            int row = row_of(own, rank);
            float r = residual_of<FAMILY>(scores[own] + *start, at.target, setting);
            r *= at.weight;
            tell(next + place_in(row, first), r);
            residuals[row] = r;
#pragma unroll 1
            for (int a = 0; a < states; a++)
                factors[row * states + a] = gain[j * states + a] * r;
            at = sides_of(targets, sample_weights, row_of(own + THREADS, rank), last);
        }
        arrive();
        if (j)
            apply<4>(in, j - 1, before, first, known, end, own_rows);
        wait();
        before = first;
    }
    if (intercept && rank == 0 && threadIdx.x < states)
        intercept[threadIdx.x] = beta[threadIdx.x];
}
LAUNCHABLE(recurrence)

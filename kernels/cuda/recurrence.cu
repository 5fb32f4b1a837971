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

/* To all blocks: a lane of the eight of a row tells one of them. */
INLINE void tell(float *at, int part, float value)
{
#if NC == 1
    if (part == 0)
        *at = value;
#else
    cluster_store(at, (u32)part, value);
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

/* The first row of a warp in a range from `low` on; a lane's others are GROUPS apart. */
template <int ABREAST> INLINE int base_of(int low)
{
    int base = (int)((u32)low / GROUPS * GROUPS) + (threadIdx.x >> 5) * 4;
    return base + 4 + (ABREAST - 1) * GROUPS <= low ? base + ABREAST * GROUPS : base;
}

/* Which of its rows a lane ends up with the sum of, and whether its neighbour has it too. */
template <int ABREAST> INLINE int row_among(int part) { return ABREAST == 1 ? 0 : part >> 1; }

/* The sums of eight lanes, each in one order; with four rows a lane gives two away, then
   one, and has the third part of all shuffles. */
INLINE float sum_of(const float (&sums)[1], int)
{
    float sum = sums[0];
    for (int mask = 4; mask; mask >>= 1)
        sum += __shfl_xor_sync(0xffffffffu, sum, mask);
    return sum;
}

INLINE float sum_of(const float (&sums)[4], int part)
{
    bool upper = part & 4, odd = part & 2;
    float first = upper ? sums[2] : sums[0], second = upper ? sums[3] : sums[1];
    first += __shfl_xor_sync(0xffffffffu, upper ? sums[0] : sums[2], 4);
    second += __shfl_xor_sync(0xffffffffu, upper ? sums[1] : sums[3], 4);
    float sum = odd ? second : first;
    sum += __shfl_xor_sync(0xffffffffu, odd ? first : second, 2);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 1);
}

/* What of a product is there before its residuals are known: asked for a barrier ahead,
   it comes from the GPU's cache while others compute. */
template <int ABREAST> struct Ahead {
    int base;
    float4 g[ABREAST];
    float share; /* of the row that a lane ends up with */
    sides at;
};

/* Four columns of a lane's rows; those outside the range as copies of one inside. */
template <int ABREAST>
INLINE void fetch(const room &in, float4 (&g)[ABREAST], int base, int col, int last,
                  int low, int high)
{
    int own = base + (threadIdx.x >> 3 & 3);
    if (col >= last)
        return;
#pragma unroll
    for (int i = 0; i < ABREAST; i++) {
        int row = row_of(min(max(own + i * GROUPS, low), high - 1), in.rank);
        g[i] = load_now(
            (const float4 *)entry_of(in.gram, in.map, in.across, in.shift, row, col));
    }
}

template <int ABREAST> INLINE int kept_row(int base, int low, int high)
{
    int own = base + (threadIdx.x >> 3 & 3) + row_among<ABREAST>(threadIdx.x & 7) * GROUPS;
    return min(max(own, low), high - 1);
}

INLINE float share_of(const room &in, int at, int from)
{
    return load_now(in.couple + couple_place(in.batch_of[at], from));
}

/* For the part of batch `from` (columns first to last) in scores of own rows low to high. */
template <int ABREAST>
INLINE void look(const room &in, Ahead<ABREAST> &ahead, int from, int first, int last,
                 int low, int high)
{
    ahead.base = base_of<ABREAST>(low);
    if (low >= high || ahead.base >= high)
        return;
    int col = (first & ~3) + 4 * (threadIdx.x & 7);
    fetch(in, ahead.g, ahead.base, col, last, low, high);
    ahead.share = share_of(in, kept_row<ABREAST>(ahead.base, low, high), from);
}

/* At the ends of a batch G and what lies beside residuals may be anything. */
template <int ABREAST>
INLINE void add_products(const float4 (&g)[ABREAST], int col, int first, int last,
                         const float *residuals, float (&sums)[ABREAST])
{
    float4 r = *(const float4 *)(residuals + place_in(col, first));
    bool inside[4];
#pragma unroll
    for (int c = 0; c < 4; c++)
        inside[c] = col + c >= first && col + c < last;
#pragma unroll
    for (int i = 0; i < ABREAST; i++) {
        sums[i] = inside[0] ? fmaf(g[i].x, r.x, sums[i]) : sums[i];
        sums[i] = inside[1] ? fmaf(g[i].y, r.y, sums[i]) : sums[i];
        sums[i] = inside[2] ? fmaf(g[i].z, r.z, sums[i]) : sums[i];
        sums[i] = inside[3] ? fmaf(g[i].w, r.w, sums[i]) : sums[i];
    }
}

/* That part, with what was looked for. `done` gets a row and its score, in every lane
   that has it. */
template <int ABREAST, class F>
INLINE void apply(const room &in, Ahead<ABREAST> &ahead, int from, int first, int last,
                  const float *residuals, int low, int high, F done)
{
    int part = threadIdx.x & 7;
    bool is_there = true;
#pragma unroll 1
    for (int base = ahead.base; low < high && base < high; base += ABREAST * GROUPS) {
        int at = kept_row<ABREAST>(base, low, high);
        float score = in.scores[at], sums[ABREAST] = {};
        if (!is_there)
            ahead.share = share_of(in, at, from);
#pragma unroll 1
        for (int col = (first & ~3) + 4 * part; col < last; col += 32) {
            if (!is_there)
                fetch(in, ahead.g, base, col, last, low, high);
            is_there = false;
            add_products(ahead.g, col, first, last, residuals, sums);
        }
        is_there = false;
        float sum = sum_of(sums, part);
        int own = base + (threadIdx.x >> 3 & 3) + row_among<ABREAST>(part) * GROUPS;
        if (own == at)
            done(at, fmaf(ahead.share, sum, score));
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

    int part = threadIdx.x & 7, before = 0, first = starts[0], last = starts[1];
    Ahead<1> near;
    Ahead<4> far;
#pragma unroll 1
    for (int j = 0; j <= steps; j++) {
        int low = own_below(first, rank), end = own_below(last, rank);
        const float *known = buffers + (j + BUFFERS - 1) % BUFFERS * pitch;
        float *next = buffers + j % BUFFERS * pitch;
        auto settle = [&](int own, float score, const sides &at) {
            int row = row_of(own, rank);
            float r = residual_of<FAMILY>(score + *start, at.target, setting);
            r *= at.weight;
            tell(next + place_in(row, first), part, r);
            if (part == 0) {
                residuals[row] = r;
#pragma unroll 1
                for (int a = 0; a < states; a++)
                    factors[row * states + a] = gain[j * states + a] * r;
            }
        };
        if (j && !intercept) /* who has a score knows its residual: no barrier between */
            apply(in, near, j - 1, before, first, known, low, end,
                  [&](int own, float score) {
                      bool looked = own < near.base + GROUPS;
                      settle(own, score, looked ? near.at : sides_of(
                          targets, sample_weights, row_of(own, rank), last));
                  });
        if (j && intercept) {
            if (is_last_warp) {
                double total = total_of(known + place_in(before, before), first - before);
                if ((threadIdx.x & 31) == 0) {
                    advance_intercept(beta, carry + (j - 1) * states * states,
                                      push + (j - 1) * states, states, 1, total);
                    *start = start_of(beta, probe, states, 1);
                }
            }
            apply(in, near, j - 1, before, first, known, low, end,
                  [&](int own, float score) { scores[own] = score; });
            __syncthreads();
        }
        if (j == steps)
            break;
        int after = starts[min(j + 2, steps)], further = own_below(after, rank);
        if (j == 0 || intercept)
#pragma unroll 1
            for (int own = low + (threadIdx.x >> 3); own < end; own += GROUPS)
                settle(own, scores[own],
                       sides_of(targets, sample_weights, row_of(own, rank), last));
        look(in, near, j, first, last, end, further);
        near.at = sides_of(targets, sample_weights, row_of(
            kept_row<1>(near.base, end, further), rank), after);
        arrive();
        if (j) {
            apply(in, far, j - 1, before, first, known, end, own_rows,
                  [&](int own, float score) {
                      if (!(part & 1))
                          scores[own] = score;
                  });
            __syncwarp(); /* another lane of these eight reads it */
        }
        look(in, far, j, first, last, further, own_rows);
        wait();
        before = first, first = last, last = after;
    }
    if (intercept && rank == 0 && threadIdx.x < states)
        intercept[threadIdx.x] = beta[threadIdx.x];
}
LAUNCHABLE(recurrence)

/* The s steps of an exchange in one launch, K = 1.

   t_j = sum_k lead_jk z_k + sum_{i<j} couple_ji G_ji r_i + beta + offset, r_j = dl/dt times
   the sample weight, beta <- free_j beta + push_j sum(r_j): as kernels/cpu/steps_body.h.

   As soon as r_j is known all later scores get their part of it, those of the next batch
   first: whoever adds one of them up knows its residual, too. The others' turn hides
   behind the barrier at which r_(j+1) is made known; it is the only one of a step, unless
   there is an intercept. Row k belongs to block k % NC of the cluster, its score is added
   up by eight lanes in one order, whatever NC is. A block that is late may still read
   r_(j-1) while r_(j+1) comes in from the others: hence three buffers.

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
#define THREADS 512
#define ABREAST 8 /* later rows of a lane that are under way at once */
#define APART 4   /* from one to the next: warps that are done have nothing to do */
#define CLUSTER
#else
#define THREADS 256
#define ABREAST 4
#define APART GROUPS /* a row stays with its warp: no barrier of the block is needed */
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
    int rank, own_rows;
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

/* Eight lanes have a row, and AT_ONCE of those APART. */
INLINE int row_of_lane(int base) { return base + (threadIdx.x >> 3 & 3); }

/* The first row of a warp in a range from `low` on. */
template <int AT_ONCE> INLINE int base_of(int low)
{
    const int all = AT_ONCE * GROUPS, own = AT_ONCE > 1 && APART == 4 ? 4 * AT_ONCE : 4;
    const int reach = own == 4 ? 4 + (AT_ONCE - 1) * GROUPS : own;
    int base = (int)((u32)low / (own == 4 ? GROUPS : all) * (own == 4 ? GROUPS : all)) +
               (int)(threadIdx.x >> 5) * own;
    return base + reach <= low ? base + all : base;
}

/* The one of its rows that a lane ends up with the sum of, as its neighbours may. */
template <int AT_ONCE> INLINE int kept_row(int base)
{
    return row_of_lane(base) + (int)(threadIdx.x & 7) * AT_ONCE / 8 * APART;
}

/* The sums of eight lanes, each in the order of sum_of_warp. A lane gives half of its rows
   away for the other half's sums: eight rows take seven shuffles, not 24. */
template <int AT_ONCE> INLINE float sum_of(float (&sums)[AT_ONCE])
{
#pragma unroll
    for (int mask = 4, left = AT_ONCE; mask; mask >>= 1) {
        bool upper = threadIdx.x & mask;
        left = left > 1 ? left / 2 : 0;
        if (left == 0)
            sums[0] += __shfl_xor_sync(0xffffffffu, sums[0], mask);
#pragma unroll
        for (int i = 0; i < left; i++) {
            float given = upper ? sums[i] : sums[i + left];
            sums[i] = upper ? sums[i + left] : sums[i];
            sums[i] += __shfl_xor_sync(0xffffffffu, given, mask);
        }
    }
    return sums[0];
}

/* What of a product is there before its residuals are known: asked for a barrier ahead,
   it comes from the GPU's cache while others compute. */
template <int AT_ONCE> struct Ahead {
    /* Rows of a warp that lie side by side are rows of one tile: 32, and it has 64. */
    static constexpr int TILES = AT_ONCE == 1 || APART == 4 ? 1 : AT_ONCE;
    float4 g[AT_ONCE];
    float share;        /* of the kept row: its coefficient */
    int base, across;   /* what places are those of: rows, and a column of tiles */
    u32 at[TILES], own; /* words of G; of the kept row's coefficients */
};

template <int AT_ONCE>
INLINE void place(const room &in, Ahead<AT_ONCE> &ahead, int base, int across)
{
    u32 last = (1u << in.shift) - 1, below = (u32)row_of(row_of_lane(0), 0) << in.shift;
    ahead.base = base, ahead.across = across;
#pragma unroll
    for (int i = 0; i < ahead.TILES; i++) {
        u32 row = (u32)row_of(min(base + i * APART, in.own_rows - 1), in.rank);
        u32 tile = (u32)__ldg(in.map + (row >> in.shift) * (u32)in.across + across);
        ahead.at[i] = (tile << 2 * in.shift) + ((row & last) << in.shift) + below;
    }
    int own = min(kept_row<AT_ONCE>(base), in.own_rows - 1);
    ahead.own = couple_place(in.batch_of[own], 0);
}

/* Four columns of a lane's rows, and where to find the next. */
template <int AT_ONCE>
INLINE void fetch(const room &in, Ahead<AT_ONCE> &ahead, int base, int col, int last,
                  int low, int high)
{
    int across = (int)((u32)min(col, last - 1) >> in.shift), own = row_of_lane(base);
    if (base != ahead.base || across != ahead.across)
        place(in, ahead, base, across);
    if (col >= last)
        return;
    const float *gram = in.gram + ((u32)col & ((1u << in.shift) - 1));
    bool is_whole = base >= low && base + 4 + (AT_ONCE - 1) * APART <= high;
#pragma unroll
    for (int i = 0; i < AT_ONCE; i++)
        if (is_whole || (own + i * APART >= low && own + i * APART < high))
            ahead.g[i] = load_now((const float4 *)(
                gram + (ahead.TILES > 1 ? ahead.at[i]
                                        : ahead.at[0] + ((u32)(i * APART) << in.shift))));
}

/* For the part of batch `from` (columns first to last) in scores of own rows low to high. */
template <int AT_ONCE>
INLINE void look(const room &in, Ahead<AT_ONCE> &ahead, int from, int first, int last,
                 int low, int high)
{
    int base = base_of<AT_ONCE>(low);
    if (low >= high || base >= high)
        return;
    fetch(in, ahead, base, (first & ~3) + 4 * (int)(threadIdx.x & 7), last, low, high);
    ahead.share = load_now(in.couple + ahead.own + from);
}

/* At the ends of a batch G and what lies beside residuals may be anything. */
template <int AT_ONCE>
INLINE void add_products(const float4 (&g)[AT_ONCE], int col, int first, int last,
                         const float *residuals, float (&sums)[AT_ONCE])
{
    residuals += place_in(col, first);
    if (col >= first && col + 4 <= last) {
        float4 r = *(const float4 *)residuals;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++) {
            sums[i] = fmaf(g[i].x, r.x, sums[i]);
            sums[i] = fmaf(g[i].y, r.y, sums[i]);
            sums[i] = fmaf(g[i].z, r.z, sums[i]);
            sums[i] = fmaf(g[i].w, r.w, sums[i]);
        }
        return;
    }
#pragma unroll
    for (int c = 0; c < 4; c++)
        if (col + c >= first && col + c < last) {
            float r = residuals[c];
#pragma unroll
            for (int i = 0; i < AT_ONCE; i++) {
                float entry[4] = {g[i].x, g[i].y, g[i].z, g[i].w};
                sums[i] = fmaf(entry[c], r, sums[i]);
            }
        }
}

/* That part, with what was looked for. `done` gets a row and its score, in every lane
   that has it. */
template <int AT_ONCE, class F>
INLINE void apply(const room &in, Ahead<AT_ONCE> &ahead, int from, int first, int last,
                  const float *residuals, int low, int high, F done)
{
    int base = base_of<AT_ONCE>(low), left = (first & ~3) + 4 * (int)(threadIdx.x & 7);
#pragma unroll 1
    for (bool is_there = true; low < high && base < high; base += AT_ONCE * GROUPS) {
        int kept = kept_row<AT_ONCE>(base);
        bool is_own = kept >= low && kept < high;
        float score = is_own ? in.scores[kept] : 0.0f, sums[AT_ONCE] = {};
        if (is_there && left < last)
            add_products(ahead.g, left, first, last, residuals, sums);
#pragma unroll 1
        for (int col = is_there ? left + 32 : left; col < last; col += 32) {
            fetch(in, ahead, base, col, last, low, high);
            add_products(ahead.g, col, first, last, residuals, sums);
        }
        float sum = sum_of(sums);
        if (AT_ONCE < 8)
            __syncwarp(); /* lanes that share a row have read its score */
        if (!is_there && is_own)
            ahead.share = load_now(in.couple + couple_place(in.batch_of[kept], from));
        if (is_own)
            done(kept, fmaf(ahead.share, sum, score));
        is_there = false;
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
    room in = {gram, map, across, shift, couple, scores, batch_of, rank, own_rows};

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
    Ahead<ABREAST> far;
    sides near_by; /* of the next batch */
    near.base = far.base = -1;
    float *next = buffers, *known = next;
#pragma unroll 1
    for (int j = 0; j <= steps; j++) {
        int low = own_below(first, rank), end = own_below(last, rank);
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
                      bool is_there = own < base_of<1>(low) + GROUPS;
                      settle(own, score, is_there ? near_by : sides_of(
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
                  [&](int own, float score) {
                      if (part == 0)
                          scores[own] = score;
                  });
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
        int following = kept_row<1>(base_of<1>(end));
        if (following < further)
            near_by = sides_of(targets, sample_weights, row_of(max(following, end), rank),
                               after);
        arrive();
        if (j) {
            apply(in, far, j - 1, before, first, known, end, own_rows,
                  [&](int own, float score) {
                      if (ABREAST == 8 || !(part & 1))
                          scores[own] = score;
                  });
            __syncwarp(); /* other lanes of these eight read it */
        }
        look(in, far, j, first, last, further, own_rows);
        wait();
        before = first, first = last, last = after, known = next;
        next = next == buffers + (BUFFERS - 1) * pitch ? buffers : next + pitch;
    }
    if (intercept && rank == 0 && threadIdx.x < states)
        intercept[threadIdx.x] = beta[threadIdx.x];
}
LAUNCHABLE(recurrence)

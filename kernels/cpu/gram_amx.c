/* The strictly-lower blocks of Y Yᵀ for bf16 rows, on processors with AMX tiles.

   The rows of a tile's one side are copied as they are, 32 columns a tile; those of the
   other side are turned into pairs of columns. Blocks of 2 × 2 tiles of sums stay in tile
   registers over a piece of DEPTH columns, for which 32 rows of either side fit into the
   first cache together, and wait in tiles of their own for the next piece, whose rows are
   asked for meanwhile. */

#include "lanes.h"

#if defined(__AMX_BF16__) || defined(HPCSGD_TILES_EMULATED)
#define HAS_TILES 1
#include "threads.h"
#include "tiles.h"
#if defined(__AVX512BW__)
#include "turn.h"
#endif
#endif

#define SIDE 16         /* rows of a tile of bf16, and rows and columns of a tile of sums */
#define COLUMNS 32      /* of a tile of bf16 */
#define PAIR (2 * SIDE) /* rows and columns of a block of sums */
#define DEPTH 256       /* columns of a piece */
#define CHUNK 256       /* rows of a piece that stay in the second cache */
#define ASKS_TO 1024    /* rows: of more, what comes early is gone before it is used */
#define GROUP (SIDE * DEPTH / 2) /* words of SIDE rows of a piece */

/* Words of 4 bytes that m rows of a piece take twice, and their sums, and to begin where
   a line of the cache does. */
EXPORT int64_t hpcsgd_tile_room(int64_t rows)
{
#if defined(HAS_TILES)
    int64_t blocks = (rows + PAIR - 1) / PAIR;
    return 4 * blocks * GROUP + blocks * blocks * PAIR * PAIR + 16;
#else
    return rows * 0; /* there is no such kernel here */
#endif
}

#if defined(HAS_TILES)

/* Pairs of columns run down a turned tile, its rows run across. */
#if defined(__AVX512BW__)
INLINE void pack(const uint16_t *const *rows, int64_t count, int64_t left,
                 const int is_turned, uint32_t *tile)
{
    __m512i r[SIDE];
    for (int64_t i = 0; i < SIDE; i++)
        r[i] = i < count ? numbers_of(rows[i], left) : _mm512_setzero_si512();
    if (is_turned)
        turn(r);
    for (int64_t i = 0; i < SIDE; i++)
        _mm512_storeu_si512(tile + i * SIDE, r[i]);
}
#else
INLINE void pack(const uint16_t *const *rows, int64_t count, int64_t left,
                 const int is_turned, uint32_t *tile)
{
    int64_t numbers = left < COLUMNS ? left : COLUMNS;
    uint16_t *to = (uint16_t *)tile;
    memset(tile, 0, TILE_SIZE);
    for (int64_t i = 0; i < count; i++)
        for (int64_t k = 0; k < numbers; k++)
            to[is_turned ? k / 2 * COLUMNS + 2 * i + k % 2 : i * COLUMNS + k] =
                rows[i][k];
}
#endif

#if defined(__AVX512BW__)
#define ASK(from) _mm_prefetch((const char *)(from), _MM_HINT_T0)
#define ASK_EARLY(from) _mm_prefetch((const char *)(from), _MM_HINT_T1)
#else
#define ASK(from) (void)(from)
#define ASK_EARLY(from) (void)(from)
#endif

/* A row of a tile, as far as there is room for it. */
INLINE void put_row(float *to, int64_t room, const float *sums)
{
#if defined(__AVX512BW__)
    if (room > 0) {
        __mmask16 mask = room < SIDE ? (__mmask16)((1u << room) - 1) : (__mmask16)-1;
        _mm512_mask_storeu_ps(to, mask, _mm512_load_ps(sums));
    }
#else
    for (int64_t k = 0; k < SIDE && k < room; k++)
        to[k] = sums[k];
#endif
}

typedef float sums_of_tile[SIDE][SIDE];
typedef sums_of_tile sums_of_block[2][2];

typedef struct {
    const uint16_t *matrix;
    int64_t stride, first, depth, coming; /* columns: before, of and behind this piece */
    const int64_t *rows, *starts;
    int64_t m, last, groups; /* rows, those that a later batch meets, groups of SIDE */
    uint32_t *turned, *plain;
    sums_of_block *sums;
    int64_t across; /* blocks of sums side by side */
    float **out;
} piece;

/* Rows of the sample from `row` on, as far as `end`: a group with zeros behind them. */
INLINE void pack_rows(const piece *at, int64_t row, int64_t end, const int is_turned,
                      uint32_t *group)
{
    const uint16_t *rows[SIDE], *next[SIDE];
    int64_t count = end - row < SIDE ? end - row : SIDE;
    for (int64_t i = 0; i < count; i++) {
        int64_t later = row + SIDE + i < end ? row + SIDE + i : row + i;
        rows[i] = at->matrix + at->rows[row + i] * at->stride + at->first;
        next[i] = at->matrix + at->rows[later] * at->stride + at->first;
    }
    for (int64_t k = 0; k < at->depth; k += COLUMNS) {
        if (!is_turned && !at->first) /* nobody could ask for these before */
            for (int64_t i = 0; i < count; i++)
                ASK(next[i] + k);
        pack(rows, count, at->depth - k, is_turned, group + k * SIDE / 2);
        for (int64_t i = 0; i < count; i++)
            rows[i] += COLUMNS;
    }
}

/* Turned rows follow plain ones by a batch, and find them in the cache. */
static void pack_part(void *work, int64_t part, int64_t parts)
{
    const piece *at = (const piece *)work;
    int64_t from = part_edge(at->groups, part, parts, 1);
    int64_t to = part_edge(at->groups, part + 1, parts, 1);
    for (int64_t group = from; group < to; group++) {
        int64_t row = group * SIDE;
        if (at->starts[1] + row < at->m)
            pack_rows(at, at->starts[1] + row, at->m, 0, at->plain + group * GROUP);
        if (row < at->last)
            pack_rows(at, row, at->last, 1, at->turned + group * GROUP);
    }
}

/* tall × flat tiles of sums, from as many groups of rows on each side. */
INLINE void block(const uint32_t *plain, const uint32_t *turned, int64_t depth,
                  const int tall, const int flat, int is_new, sums_of_block sums)
{
    if (is_new) {
        tile_zero(0);
        tile_zero(1);
        tile_zero(2);
        tile_zero(3);
    } else {
        tile_load(0, sums[0][0], TILE_BYTES);
        tile_load(1, sums[0][1], TILE_BYTES);
        tile_load(2, sums[1][0], TILE_BYTES);
        tile_load(3, sums[1][1], TILE_BYTES);
    }
    for (int64_t k = 0; k < depth; k += COLUMNS) {
        int64_t at = k * SIDE / 2;
        tile_load(4, plain + at, TILE_BYTES);
        tile_load(6, turned + at, TILE_BYTES);
        tile_dot(0, 4, 6);
        if (flat == 2) {
            tile_load(7, turned + GROUP + at, TILE_BYTES);
            tile_dot(1, 4, 7);
        }
        if (tall == 2) {
            tile_load(5, plain + GROUP + at, TILE_BYTES);
            tile_dot(2, 5, 6);
        }
        if (tall == 2 && flat == 2)
            tile_dot(3, 5, 7);
    }
    tile_store(0, sums[0][0], TILE_BYTES);
    tile_store(1, sums[0][1], TILE_BYTES);
    tile_store(2, sums[1][0], TILE_BYTES);
    tile_store(3, sums[1][1], TILE_BYTES);
}

/* Rows i .. end of the batches from b on: out of their block of sums to where they
   belong, as far as each row's batch allows. */
INLINE void put(const piece *at, int64_t b, int64_t i, int64_t end, int64_t low,
                sums_of_block sums)
{
    for (int64_t row = i; row < end; row++) {
        while (row >= at->starts[b + 1])
            b++;
        int64_t width = at->starts[b], part = (row - i) / SIDE, line = (row - i) % SIDE;
        float *to = at->out[b] + (row - width) * width + low;
        put_row(to, width - low, sums[part][0][line]);
        put_row(to + SIDE, width - low - SIDE, sums[part][1][line]);
    }
}

/* Rows i .. end, at most two groups of them, against the rows from `low` on. */
INLINE void place(const piece *at, int64_t b, int64_t i, int64_t end, int64_t low)
{
    int64_t above = i - at->starts[1], last = b;
    while (end > at->starts[last + 1])
        last++;
    int is_tall = end - i > SIDE, is_flat = at->starts[last] > low + SIDE;
    int is_new = !at->first;
    const uint32_t *plain = at->plain + above / SIDE * GROUP;
    const uint32_t *turned = at->turned + low / SIDE * GROUP;
    sums_of_block *sums = at->sums + above / PAIR * at->across + low / PAIR;
    if (is_tall && is_flat)
        block(plain, turned, at->depth, 2, 2, is_new, *sums);
    else if (is_tall)
        block(plain, turned, at->depth, 2, 1, is_new, *sums);
    else if (is_flat)
        block(plain, turned, at->depth, 1, 2, is_new, *sums);
    else
        block(plain, turned, at->depth, 1, 1, is_new, *sums);
    if (!at->coming)
        put(at, b, i, end, low, *sums);
}

/* The rows of the next piece that are to be asked for: `each` a block of sums. */
typedef struct {
    int64_t row, step, each;
} asking;

INLINE void ask(const piece *at, asking *next)
{
    for (int64_t n = 0; n < next->each && next->row < at->m; n++) {
        const uint16_t *row = at->matrix + at->rows[next->row] * at->stride;
        for (int64_t k = 0; k < at->coming; k += COLUMNS)
            ASK_EARLY(row + at->first + at->depth + k);
        next->row += next->step;
    }
}

/* Rows top .. end of the batches from b on against the rows before them: one part. */
INLINE void multiply(const piece *at, int64_t b, int64_t top, int64_t end, int64_t part,
                     int64_t parts, asking *next)
{
    for (int64_t low = part * PAIR; low < at->last; low += parts * PAIR)
        for (int64_t i = top, from = b; i < end; i += PAIR) {
            int64_t below = i + PAIR < end ? i + PAIR : end;
            while (i >= at->starts[from + 1])
                from++;
            int64_t widest = from;
            while (below > at->starts[widest + 1])
                widest++;
            if (at->starts[widest] > low) { /* else no row of these meets `low` */
                place(at, from, i, below, low);
                ask(at, next);
            }
        }
}

static void multiply_part(void *work, int64_t part, int64_t parts)
{
    const piece *at = (const piece *)work;
    int64_t blocks = at->across * (at->across + 1) / 2;
    asking next = {part, parts, (at->m + blocks - 1) / blocks};
    if (at->m > ASKS_TO)
        next.each = 0;
    tile_begin();
    for (int64_t top = at->starts[1], b = 1; top < at->m; top += CHUNK) {
        int64_t end = top + CHUNK < at->m ? top + CHUNK : at->m;
        while (top >= at->starts[b + 1])
            b++;
        multiply(at, b, top, end, part, parts, &next);
    }
    tile_release();
}

/* `room` holds hpcsgd_tile_room(m) words; `out` a pointer for each batch. */
EXPORT void hpcsgd_strict_gram_tiles(const uint16_t *matrix, int64_t stride,
                                     const int64_t *rows, int64_t cols,
                                     const int64_t *starts, int64_t batches,
                                     float *packed, uint32_t *room, float **out)
{
    int64_t m = starts[batches], last = starts[batches - 1];
    int64_t blocks = (m + PAIR - 1) / PAIR, words = 2 * blocks * GROUP;
    uint32_t *turned = (uint32_t *)(((uintptr_t)room + 63) / 64 * 64);
    for (int64_t b = 0; b < batches; b++) { /* where each block row begins */
        out[b] = packed;
        packed += (starts[b + 1] - starts[b]) * starts[b];
    }
    /* A piece is packed and multiplied, and waited for, by itself. */
    double time = (double)last * (double)m * DEPTH * PER_PRODUCT / 8;
    int64_t parts = hpcsgd_parts(time);
    for (int64_t first = 0; first < cols && last; first += DEPTH) {
        int64_t depth = cols - first < DEPTH ? cols - first : DEPTH;
        int64_t coming = cols - first - depth < DEPTH ? cols - first - depth : DEPTH;
        piece at = {matrix, stride, first, depth, coming, rows, starts, m, last,
                    2 * blocks, turned, turned + words,
                    (sums_of_block *)(turned + 2 * words), blocks, out};
        hpcsgd_share(parts, pack_part, &at);
        hpcsgd_share(parts, multiply_part, &at);
    }
}

/* What the tiles can do at best: dot products of what is in them, four chains side by
   side. Says how many multiply-adds that was. */
EXPORT int64_t hpcsgd_tile_peak(int64_t rounds)
{
    tile_begin();
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
    tile_zero(4);
    tile_zero(5);
    tile_zero(6);
    tile_zero(7);
    for (int64_t i = 0; i < rounds; i++) {
        tile_dot(0, 4, 6);
        tile_dot(1, 4, 7);
        tile_dot(2, 5, 6);
        tile_dot(3, 5, 7);
    }
    tile_release();
    return rounds * 4 * SIDE * SIDE * COLUMNS;
}

#endif

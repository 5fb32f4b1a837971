/* The strictly-lower blocks of Y Yᵀ for bf16 rows, on processors with AMX tiles.

   The rows of a tile's one side are copied as they are, 32 columns a tile; those of the
   other side are turned into pairs of columns. Blocks of 2 × 2 tiles of sums stay in tile
   registers; one side of a piece of DEPTH columns stays in the first cache, CHUNK rows of
   the other in the second. Sums over a piece are added to what came before. */

#include "lanes.h"

#if defined(__AMX_BF16__) || defined(HPCSGD_TILES_EMULATED)
#define HAS_TILES 1
#include "threads.h"
#include "tiles.h"
#if defined(__AVX512BW__)
#include "turn.h"
#endif
#endif

#define SIDE 16    /* rows of a tile of bf16, and rows and columns of a tile of sums */
#define COLUMNS 32 /* of a tile of bf16 */
#define DEPTH 512  /* columns of a piece */
#define CHUNK 256  /* rows of a piece that stay in the second cache */
#define GROUP (SIDE * DEPTH / 2) /* words of SIDE rows of a piece */

/* Words of 4 bytes that the tiles of m rows take, and to begin where a line of the
   cache does. */
EXPORT int64_t hpcsgd_tile_room(int64_t rows)
{
#if defined(HAS_TILES)
    return ((rows + SIDE - 1) / SIDE + CHUNK / SIDE) * GROUP + 16;
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

typedef struct {
    const uint16_t *matrix;
    int64_t stride, first, depth;
    const int64_t *rows, *starts;
    uint32_t *turned, *plain;
} piece;

/* Rows from .. to of the sample, SIDE a group; zeros behind them. */
INLINE void pack_rows(const piece *at, int64_t from, int64_t to, const int is_turned,
                      uint32_t *group)
{
    for (; from < to; from += SIDE, group += GROUP) {
        const uint16_t *rows[SIDE];
        int64_t count = to - from < SIDE ? to - from : SIDE;
        for (int64_t k = 0; k < at->depth; k += COLUMNS) {
            for (int64_t i = 0; i < count; i++)
                rows[i] = at->matrix + at->rows[from + i] * at->stride + at->first + k;
            pack(rows, count, at->depth - k, is_turned, group + k * SIDE / 2);
        }
    }
}

typedef float sums_of_tile[SIDE][SIDE];

/* tall × flat tiles of sums, from as many groups of rows on each side. */
INLINE void block(const uint32_t *plain, const uint32_t *turned, int64_t depth,
                  const int tall, const int flat, sums_of_tile sums[2][2])
{
    tile_zero(0);
    tile_zero(1);
    tile_zero(2);
    tile_zero(3);
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

/* Add a row of a tile to what is there, as far as the row's batch allows. */
INLINE void put(float *to, int64_t room, int is_new, const float *sums)
{
    if (room >= SIDE)
        for (int k = 0; k < SIDE; k++)
            to[k] = is_new ? sums[k] : to[k] + sums[k];
    else
        for (int64_t k = 0; k < room; k++)
            to[k] = is_new ? sums[k] : to[k] + sums[k];
}

/* Rows i .. end, at most two groups of them, against the rows from `low` on. */
INLINE void place(const piece *at, float *const *out, int64_t b, int64_t i, int64_t end,
                  int64_t low, const uint32_t *plain)
{
    _Alignas(64) sums_of_tile sums[2][2];
    int64_t last = b;
    while (end > at->starts[last + 1])
        last++;
    int is_tall = end - i > SIDE, is_flat = at->starts[last] > low + SIDE;
    const uint32_t *turned = at->turned + low / SIDE * GROUP;
    if (is_tall && is_flat)
        block(plain, turned, at->depth, 2, 2, sums);
    else if (is_tall)
        block(plain, turned, at->depth, 2, 1, sums);
    else if (is_flat)
        block(plain, turned, at->depth, 1, 2, sums);
    else
        block(plain, turned, at->depth, 1, 1, sums);
    for (int64_t row = i; row < end; row++) {
        while (row >= at->starts[b + 1])
            b++;
        int64_t width = at->starts[b], part = (row - i) / SIDE, line = (row - i) % SIDE;
        float *to = out[b] + (row - width) * width + low;
        put(to, width - low, !at->first, sums[part][0][line]);
        if (is_flat)
            put(to + SIDE, width - low - SIDE, !at->first, sums[part][1][line]);
    }
}

/* Rows top .. end against all rows before them: one step of the work, in parts. */
typedef struct {
    piece at;
    float **out;
    int64_t b, top, end, last;
} step;

static void turn_part(void *work, int64_t part, int64_t parts)
{
    const step *s = (const step *)work;
    int64_t from = part_edge(s->last, part, parts, SIDE);
    int64_t to = part_edge(s->last, part + 1, parts, SIDE);
    pack_rows(&s->at, from, to, 1, s->at.turned + from / SIDE * GROUP);
}

static void copy_part(void *work, int64_t part, int64_t parts)
{
    const step *s = (const step *)work;
    int64_t from = part_edge(s->end - s->top, part, parts, SIDE);
    int64_t to = part_edge(s->end - s->top, part + 1, parts, SIDE);
    pack_rows(&s->at, s->top + from, s->top + to, 0, s->at.plain + from / SIDE * GROUP);
}

static void multiply_part(void *work, int64_t part, int64_t parts)
{
    const step *s = (const step *)work;
    const piece *at = &s->at;
    tile_begin();
    for (int64_t low = part * 2 * SIDE; low < s->last; low += parts * 2 * SIDE)
        for (int64_t i = s->top, from = s->b; i < s->end; i += 2 * SIDE) {
            int64_t next = i + 2 * SIDE < s->end ? i + 2 * SIDE : s->end;
            while (i >= at->starts[from + 1])
                from++;
            int64_t widest = from;
            while (next > at->starts[widest + 1])
                widest++;
            if (at->starts[widest] > low) /* else no row of these meets `low` */
                place(at, s->out, from, i, next, low,
                      at->plain + (i - s->top) / SIDE * GROUP);
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
    uint32_t *turned = (uint32_t *)(((uintptr_t)room + 63) / 64 * 64);
    uint32_t *plain = turned + (last + SIDE - 1) / SIDE * GROUP;
    for (int64_t b = 0; b < batches; b++) { /* where each block row begins */
        out[b] = packed;
        packed += (starts[b + 1] - starts[b]) * starts[b];
    }
    /* A chunk of a piece is multiplied, packed and waited for by itself. */
    double time = (double)last * (m < CHUNK ? m : CHUNK) * DEPTH * PER_PRODUCT / 8;
    int64_t parts = hpcsgd_parts(time);
    for (int64_t first = 0; first < cols && last; first += DEPTH) {
        int64_t depth = cols - first < DEPTH ? cols - first : DEPTH;
        piece at = {matrix, stride, first, depth, rows, starts, turned, plain};
        step s = {at, out, 1, starts[1], 0, last};
        hpcsgd_share(parts, turn_part, &s);
        for (; s.top < m; s.top += CHUNK) {
            s.end = s.top + CHUNK < m ? s.top + CHUNK : m;
            while (s.top >= starts[s.b + 1])
                s.b++;
            hpcsgd_share(parts, copy_part, &s);
            hpcsgd_share(parts, multiply_part, &s);
        }
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

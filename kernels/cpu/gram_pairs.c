/* The strictly-lower blocks of Y Yᵀ for bf16 rows, on processors with bf16 pairs.

   What bf16 multiply-adds want is two neighbouring columns of 16 rows in one register.
   The rows that a tile meets are therefore turned once into panels of FLAT rows, pair by
   pair; the rows of the tile's other side are read where they lie, two numbers at a time,
   and broadcast. A tile of TALL × FLAT sums stays in registers. Sums over a piece of DEPTH
   columns run in the order of the columns and are added to what came before. */

#include "lanes.h"

#define TALL 14    /* rows of a tile: 28 sums of 16 lanes and what is multiplied fit */
#define FLAT 32    /* columns of a tile: two registers */
#define DEPTH 1024 /* columns of a piece: TALL rows of it stay in the first cache */
#define CHUNK 224  /* rows that stay in the second cache while all panels pass */

/* Words of 4 bytes that the panels of m rows take. */
EXPORT int64_t hpcsgd_gram_room(int64_t rows)
{
#if defined(__AVX512BF16__)
    return (rows + FLAT - 1) / FLAT * FLAT * (DEPTH / 2);
#else
    return rows * 0; /* there is no such kernel here */
#endif
}

#if defined(__AVX512BF16__)

#include "threads.h"
#include "turn.h"

/* Columns first .. first + depth of up to FLAT rows, pair by pair; zeros elsewhere. */
static void make_panel(const uint16_t *matrix, int64_t stride, const int64_t *rows,
                       int64_t count, int64_t first, int64_t depth, uint32_t *panel)
{
    for (int64_t part = 0; part < FLAT; part += 16)
        for (int64_t k = 0; k < depth; k += 32) {
            __m512i r[16];
            for (int64_t i = 0; i < 16; i++)
                r[i] = part + i < count
                           ? numbers_of(matrix + rows[part + i] * stride + first + k,
                                        depth - k)
                           : _mm512_setzero_si512();
            turn(r);
            for (int64_t p = 0; p < 16 && k + 2 * p < depth; p++)
                _mm512_storeu_si512(panel + (k / 2 + p) * FLAT + part, r[p]);
        }
}

/* One tile: `tall` rows against a panel. */
INLINE void tile(const uint16_t *const *rows, const uint32_t *panel, int64_t depth,
                 const int tall, __m512 total[TALL][2])
{
    for (int i = 0; i < tall; i++)
        total[i][0] = total[i][1] = _mm512_setzero_ps();
    int64_t p = 0;
    for (; p < depth / 2; p++) {
        __m512bh one = (__m512bh)_mm512_loadu_si512(panel + p * FLAT);
        __m512bh two = (__m512bh)_mm512_loadu_si512(panel + p * FLAT + 16);
        for (int i = 0; i < tall; i++) {
            int pair;
            memcpy(&pair, rows[i] + 2 * p, 4);
            __m512bh row = (__m512bh)_mm512_set1_epi32(pair);
            total[i][0] = _mm512_dpbf16_ps(total[i][0], row, one);
            total[i][1] = _mm512_dpbf16_ps(total[i][1], row, two);
        }
    }
    if (depth % 2) { /* nothing is read behind the end of a row */
        __m512bh one = (__m512bh)_mm512_loadu_si512(panel + p * FLAT);
        __m512bh two = (__m512bh)_mm512_loadu_si512(panel + p * FLAT + 16);
        for (int i = 0; i < tall; i++) {
            __m512bh row = (__m512bh)_mm512_set1_epi32(rows[i][2 * p]);
            total[i][0] = _mm512_dpbf16_ps(total[i][0], row, one);
            total[i][1] = _mm512_dpbf16_ps(total[i][1], row, two);
        }
    }
}

/* Add a row of a tile to what is there, as far as the row's batch allows. */
INLINE void put(float *to, int64_t room, int is_new, const __m512 total[2])
{
    for (int half = 0; half < 2; half++) {
        int64_t left = room - 16 * half;
        if (left <= 0)
            return;
        __mmask16 mask = left < 16 ? ((__mmask16)1 << left) - 1 : 0xffff;
        __m512 sum = total[half];
        if (!is_new)
            sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to + 16 * half));
        _mm512_mask_storeu_ps(to + 16 * half, mask, sum);
    }
}

typedef struct {
    const uint16_t *matrix;
    int64_t stride, first, depth;
    const int64_t *rows, *starts;
} piece;

/* Rows i .. i + tall, all of batch b or of those behind it, against one panel. */
INLINE void strip(const piece *at, int64_t b, const float *const *out, int64_t i,
                  int64_t low, const uint32_t *panel, const int tall)
{
    const uint16_t *rows[TALL];
    __m512 total[TALL][2];
    for (int a = 0; a < tall; a++)
        rows[a] = at->matrix + at->rows[i + a] * at->stride + at->first;
    tile(rows, panel, at->depth, tall, total);
    for (int a = 0; a < tall; a++) {
        while (i + a >= at->starts[b + 1])
            b++;
        int64_t width = at->starts[b];
        float *to = (float *)out[b] + (i + a - width) * width + low;
        put(to, width - low, !at->first, total[a]);
    }
}

typedef struct {
    const uint16_t *matrix;
    int64_t stride, cols, batches;
    const int64_t *rows, *starts;
    uint32_t *room;
    const float **out;
} sample;

/* The rows behind `low` that lie in top .. end, against the panel of `low`. */
static void against(const sample *s, const piece *at, int64_t low, int64_t top,
                    int64_t end)
{
    const int64_t *starts = s->starts;
    int64_t b = 1;
    while (b < s->batches && starts[b] <= low) /* the first that meets `low` */
        b++;
    int64_t i = starts[b] > top ? starts[b] : top;
    while (i < end && i >= starts[b + 1])
        b++;
    const uint32_t *panel = s->room + low * (DEPTH / 2);
    for (; i + TALL <= end; i += TALL)
        strip(at, b, s->out, i, low, panel, TALL);
    for (; i + 4 <= end; i += 4)
        strip(at, b, s->out, i, low, panel, 4);
    for (; i < end; i++)
        strip(at, b, s->out, i, low, panel, 1);
}

/* Every so manieth panel, and what meets it. */
static void do_part(void *work, int64_t part, int64_t parts)
{
    const sample *s = (const sample *)work;
    int64_t m = s->starts[s->batches], last = s->starts[s->batches - 1];
    for (int64_t first = 0; first < s->cols; first += DEPTH) {
        int64_t depth = s->cols - first < DEPTH ? s->cols - first : DEPTH;
        piece at = {s->matrix, s->stride, first, depth, s->rows, s->starts};
        for (int64_t low = part * FLAT; low < last; low += parts * FLAT)
            make_panel(s->matrix, s->stride, s->rows + low,
                       last - low < FLAT ? last - low : FLAT, first, depth,
                       s->room + low * (DEPTH / 2));
        for (int64_t top = s->starts[1]; top < m; top += CHUNK)
            for (int64_t low = part * FLAT; low < last; low += parts * FLAT)
                against(s, &at, low, top, top + CHUNK < m ? top + CHUNK : m);
    }
}

/* `room` holds hpcsgd_gram_room(m) words; `panels` a pointer for each batch. */
EXPORT void hpcsgd_strict_gram_pairs(const uint16_t *matrix, int64_t stride,
                                     const int64_t *rows, int64_t cols,
                                     const int64_t *starts, int64_t batches,
                                     float *packed, uint32_t *room, const float **out)
{
    const float *begin = packed;
    for (int64_t b = 0; b < batches; b++) { /* where each block row begins */
        out[b] = packed;
        packed += (starts[b + 1] - starts[b]) * starts[b];
    }
    sample s = {matrix, stride, cols, batches, rows, starts, room, out};
    double time = (double)(packed - begin) * (double)cols * PER_PRODUCT / 2;
    hpcsgd_share(hpcsgd_parts(time), do_part, &s);
}

#endif

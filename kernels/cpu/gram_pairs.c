/* The strictly-lower blocks of Y Yᵀ for bf16 rows, on processors with bf16 pairs.

   What bf16 multiply-adds want is two neighbouring columns of several rows in one register:
   16 rows with AVX-512, 4 with NEON. The rows that a tile meets are therefore turned once
   into panels of FLAT rows, pair by pair; the rows of the tile's other side are read where
   they lie, two numbers at a time, and broadcast. A tile of TALL × FLAT sums stays in
   registers. Sums over a piece of DEPTH columns run in the order of the columns and are
   added to what came before. */

#include "lanes.h"

#define DEPTH 1024 /* columns of a piece: TALL rows of it stay in the first cache */
#define CHUNK 224  /* rows that stay in the second cache while all panels pass */

#if defined(__AVX512BF16__)
#define HAS_PAIRS 1
#define SIDE 16 /* sums of a register */
#define TALL 14 /* rows of a tile: 28 registers of sums and what is multiplied fit */
#define FLAT 32 /* columns of a tile */
#elif defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define HAS_PAIRS 1
#define SIDE 4
#define TALL 5 /* 20 registers of sums */
#define FLAT 16
#else
#define HAS_PAIRS 0
#define FLAT 1
#endif

/* Words of 4 bytes that the panels of m rows take; 0 where there is no such kernel. */
EXPORT int64_t hpcsgd_gram_room(int64_t rows)
{
    return HAS_PAIRS ? (rows + FLAT - 1) / FLAT * FLAT * (DEPTH / 2) : 0;
}

#if HAS_PAIRS

#include "threads.h"

#define PARTS_OF_A_ROW (FLAT / SIDE)

#if defined(__AVX512BF16__)

#include "turn.h"

typedef __m512 sums;
typedef __m512bh pairs;

INLINE sums no_sums(void) { return _mm512_setzero_ps(); }

INLINE pairs pairs_of(const uint32_t *panel)
{
    return (pairs)_mm512_loadu_si512(panel);
}

INLINE pairs everywhere(uint32_t pair) { return (pairs)_mm512_set1_epi32((int)pair); }

INLINE sums add_products(sums total, pairs row, pairs column)
{
    return _mm512_dpbf16_ps(total, row, column);
}

/* Store the first `left` sums, added to what is there unless they are the first. */
INLINE void put_sums(float *to, int64_t left, int is_new, sums sum)
{
    __mmask16 mask = left < 16 ? ((__mmask16)1 << left) - 1 : 0xffff;
    if (!is_new)
        sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(mask, to));
    _mm512_mask_storeu_ps(to, mask, sum);
}

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

#else

#include <arm_neon.h>

typedef float32x4_t sums;
typedef bfloat16x8_t pairs;

INLINE sums no_sums(void) { return vdupq_n_f32(0); }

INLINE pairs pairs_of(const uint32_t *panel)
{
    return vreinterpretq_bf16_u32(vld1q_u32(panel));
}

INLINE pairs everywhere(uint32_t pair)
{
    return vreinterpretq_bf16_u32(vdupq_n_u32(pair));
}

INLINE sums add_products(sums total, pairs row, pairs column)
{
    return vbfdotq_f32(total, row, column);
}

/* Store the first `left` sums, added to what is there unless they are the first. */
INLINE void put_sums(float *to, int64_t left, int is_new, sums sum)
{
    for (int64_t k = 0; k < SIDE && k < left; k++)
        to[k] = is_new ? sum[k] : to[k] + sum[k];
}

/* Columns first .. first + depth of up to FLAT rows, pair by pair; zeros elsewhere. */
static void make_panel(const uint16_t *matrix, int64_t stride, const int64_t *rows,
                       int64_t count, int64_t first, int64_t depth, uint32_t *panel)
{
    for (int64_t i = 0; i < FLAT; i++) {
        const uint16_t *row = i < count ? matrix + rows[i] * stride + first : 0;
        for (int64_t k = 0; k < depth; k += 2) {
            uint32_t low = row ? row[k] : 0;
            uint32_t high = row && k + 1 < depth ? row[k + 1] : 0;
            panel[k / 2 * FLAT + i] = high << 16 | low;
        }
    }
}

#endif

/* Add the products of pair number p of the panel; PAIR is that of row i. */
#define ADD_PAIR(PAIR)                                                                 \
    do {                                                                               \
        pairs columns[PARTS_OF_A_ROW];                                                 \
        for (int b = 0; b < PARTS_OF_A_ROW; b++)                                       \
            columns[b] = pairs_of(panel + p * FLAT + b * SIDE);                        \
        for (int i = 0; i < tall; i++) {                                               \
            pairs row = everywhere(PAIR);                                              \
            for (int b = 0; b < PARTS_OF_A_ROW; b++)                                   \
                total[i][b] = add_products(total[i][b], row, columns[b]);              \
        }                                                                              \
    } while (0)

INLINE uint32_t pair_at(const uint16_t *from)
{
    uint32_t pair;
    memcpy(&pair, from, sizeof pair);
    return pair;
}

/* One tile: `tall` rows against a panel. */
INLINE void tile(const uint16_t *const *rows, const uint32_t *panel, int64_t depth,
                 const int tall, sums total[TALL][PARTS_OF_A_ROW])
{
    for (int i = 0; i < tall; i++)
        for (int b = 0; b < PARTS_OF_A_ROW; b++)
            total[i][b] = no_sums();
    int64_t p = 0;
    for (; p < depth / 2; p++)
        ADD_PAIR(pair_at(rows[i] + 2 * p));
    if (depth % 2) /* nothing is read behind the end of a row */
        ADD_PAIR(rows[i][2 * p]);
}

/* Add a row of a tile to what is there, as far as the row's batch allows. */
INLINE void put(float *to, int64_t room, int is_new, const sums total[PARTS_OF_A_ROW])
{
    for (int b = 0; b < PARTS_OF_A_ROW && SIDE * b < room; b++)
        put_sums(to + SIDE * b, room - SIDE * b, is_new, total[b]);
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
    sums total[TALL][PARTS_OF_A_ROW];
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

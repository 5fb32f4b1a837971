/* The strictly-lower blocks of Y Yᵀ, straight from the rows that were sampled.

   Row i of the sample meets the rows of all batches before its own; the products lie
   packed, one dense panel a batch, behind one another. No copy of the rows is made:
   each runs through memory in the direction in which the sums run. A tile of TALL × FLAT
   sums stays in registers; pieces of DEPTH columns stay in the first caches. */

#include "lanes.h"
#include "threads.h"

#define TALL (REGISTERS == 32 ? 6 : 3)
#define FLAT 4
#define DEPTH 1024 /* columns of a piece */
#define PANEL 64   /* rows that stay in the second cache while others pass */

#define TILE(NAME, TYPE, LOAD, TAIL)                                                   \
    INLINE void NAME(const TYPE *const *left, const TYPE *const *right, int64_t depth, \
                     const int tall, const int flat, float sums[TALL][FLAT])           \
    {                                                                                  \
        lanes total[TALL][FLAT];                                                       \
        for (int i = 0; i < tall; i++)                                                 \
            for (int j = 0; j < flat; j++)                                             \
                total[i][j] = (lanes){0};                                              \
        int64_t k = 0;                                                                 \
        for (; k + LANES <= depth; k += LANES) {                                       \
            lanes r[FLAT];                                                             \
            for (int j = 0; j < flat; j++)                                             \
                r[j] = LOAD(right[j] + k);                                             \
            for (int i = 0; i < tall; i++) {                                           \
                lanes l = LOAD(left[i] + k);                                           \
                for (int j = 0; j < flat; j++)                                         \
                    total[i][j] += l * r[j];                                           \
            }                                                                          \
        }                                                                              \
        if (k < depth) {                                                               \
            lanes r[FLAT];                                                             \
            for (int j = 0; j < flat; j++)                                             \
                r[j] = TAIL(right[j] + k, depth - k);                                  \
            for (int i = 0; i < tall; i++) {                                           \
                lanes l = TAIL(left[i] + k, depth - k);                                \
                for (int j = 0; j < flat; j++)                                         \
                    total[i][j] += l * r[j];                                           \
            }                                                                          \
        }                                                                              \
        for (int i = 0; i < tall; i++)                                                 \
            if (flat == FLAT) {                                                        \
                lanes four = add_up_four(total[i][0], total[i][1], total[i][2],        \
                                         total[i][3]);                                 \
                memcpy(sums[i], &four, sizeof sums[i]);                                \
            } else                                                                     \
                sums[i][0] = add_up(total[i][0]);                                      \
    }

TILE(tile_f32, float, load_f32, tail_f32)

TILE(tile_bf16, uint16_t, load_bf16, tail_bf16)

/* One tile: the rows i .. i + tall of the sample against j .. j + flat. */
#define PLACE(NAME, TYPE, TILE_OF)                                                     \
    INLINE void NAME(const TYPE *matrix, int64_t stride, const int64_t *rows,          \
                     int64_t i, int64_t j, int64_t first, int64_t depth, float *out,   \
                     int64_t width, const int tall, const int flat)                    \
    {                                                                                  \
        const TYPE *left[TALL], *right[FLAT];                                          \
        float sums[TALL][FLAT];                                                        \
        for (int a = 0; a < tall; a++)                                                 \
            left[a] = matrix + rows[i + a] * stride + first;                           \
        for (int b = 0; b < flat; b++)                                                 \
            right[b] = matrix + rows[j + b] * stride + first;                          \
        TILE_OF(left, right, depth, tall, flat, sums);                                 \
        for (int a = 0; a < tall; a++)                                                 \
            for (int b = 0; b < flat; b++) {                                           \
                float *to = out + a * width + j + b;                                   \
                *to = first ? *to + sums[a][b] : sums[a][b];                           \
            }                                                                          \
    }

/* Rows i .. i + tall against the rows j .. stop. */
#define STRIP(NAME, TYPE, PLACE_OF)                                                    \
    INLINE void NAME(const TYPE *matrix, int64_t stride, const int64_t *rows,          \
                     int64_t i, int64_t j, int64_t stop, int64_t first, int64_t depth, \
                     float *out, int64_t width, const int tall)                        \
    {                                                                                  \
        for (; j + FLAT <= stop; j += FLAT)                                            \
            PLACE_OF(matrix, stride, rows, i, j, first, depth, out, width, tall, FLAT);\
        for (; j < stop; j++)                                                          \
            PLACE_OF(matrix, stride, rows, i, j, first, depth, out, width, tall, 1);   \
    }

typedef struct {
    const void *matrix;
    int64_t stride;
    const int64_t *rows;
    int64_t cols;
    const int64_t *starts;
    int64_t batches;
    float *packed;
} sample;

/* The first row of a part: all parts have about as many products. */
static int64_t first_row(const sample *s, double products)
{
    for (int64_t b = 1; b < s->batches; b++) {
        double width = (double)s->starts[b];
        double own = width * (double)(s->starts[b + 1] - s->starts[b]);
        if (products < own)
            return s->starts[b] + (int64_t)(products / width) / TALL * TALL;
        products -= own;
    }
    return s->starts[s->batches];
}

static double products_of(const sample *s)
{
    double products = 0;
    for (int64_t b = 1; b < s->batches; b++)
        products += (double)s->starts[b] * (double)(s->starts[b + 1] - s->starts[b]);
    return products;
}

#define STRICT_GRAM(NAME, TYPE, STRIP_OF)                                              \
    /* Rows from .. to of the sample. */                                               \
    static void NAME##_rows(const sample *s, int64_t from, int64_t to)                 \
    {                                                                                  \
        const TYPE *matrix = (const TYPE *)s->matrix;                                  \
        const int64_t *rows = s->rows, *starts = s->starts;                            \
        int64_t stride = s->stride, cols = s->cols, batches = s->batches;              \
        for (int64_t first = 0; first < cols; first += DEPTH) {                        \
            int64_t depth = cols - first < DEPTH ? cols - first : DEPTH;               \
            for (int64_t low = 0; low < starts[batches - 1]; low += PANEL) {           \
                float *panel = s->packed;                                              \
                for (int64_t b = 1; b < batches; b++) {                                \
                    int64_t width = starts[b], i = starts[b] < from ? from : starts[b];\
                    int64_t end = starts[b + 1] < to ? starts[b + 1] : to;             \
                    int64_t stop = low + PANEL < width ? low + PANEL : width;          \
                    for (; low < stop && i + TALL <= end; i += TALL)                   \
                        STRIP_OF(matrix, stride, rows, i, low, stop, first, depth,     \
                                 panel + (i - starts[b]) * width, width, TALL);        \
                    for (; low < stop && i + 2 <= end; i += 2)                         \
                        STRIP_OF(matrix, stride, rows, i, low, stop, first, depth,     \
                                 panel + (i - starts[b]) * width, width, 2);           \
                    for (; low < stop && i < end; i++)                                 \
                        STRIP_OF(matrix, stride, rows, i, low, stop, first, depth,     \
                                 panel + (i - starts[b]) * width, width, 1);           \
                    panel += (starts[b + 1] - starts[b]) * width;                      \
                }                                                                      \
            }                                                                          \
        }                                                                              \
    }                                                                                  \
    static void NAME##_part(void *work, int64_t part, int64_t parts)                   \
    {                                                                                  \
        const sample *s = (const sample *)work;                                        \
        double each = products_of(s) / (double)parts;                                  \
        int64_t from = part ? first_row(s, each * (double)part) : 0;                   \
        int64_t to = part + 1 < parts ? first_row(s, each * (double)(part + 1))        \
                                      : s->starts[s->batches];                         \
        NAME##_rows(s, from, to);                                                      \
    }                                                                                  \
    EXPORT void NAME(const TYPE *matrix, int64_t stride, const int64_t *rows,          \
                     int64_t cols, const int64_t *starts, int64_t batches,             \
                     float *packed)                                                    \
    {                                                                                  \
        sample s = {matrix, stride, rows, cols, starts, batches, packed};              \
        double time = products_of(&s) * (double)cols * PER_PRODUCT;                    \
        hpcsgd_share(hpcsgd_parts(time), NAME##_part, &s);                             \
    }

PLACE(place_f32, float, tile_f32)
PLACE(place_bf16, uint16_t, tile_bf16)
STRIP(strip_f32, float, place_f32)
STRIP(strip_bf16, uint16_t, place_bf16)
STRICT_GRAM(hpcsgd_strict_gram_f32, float, strip_f32)
STRICT_GRAM(hpcsgd_strict_gram_bf16, uint16_t, strip_bf16)

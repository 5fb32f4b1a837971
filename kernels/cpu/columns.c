/* Products of sampled rows with several columns of weights, straight from the matrix.

   Weights are d × K, K side by side. They are turned into `scratch`, K rows of d, so that
   sums run along the rows of the matrix as they lie. margins: Y W, a tile of rows and
   columns of weights at once. update: W += Yᵀ R, summed in scratch and then added. Sums
   run in a fixed order: the same input gives the same bits. */

#include "lanes.h"
#include "threads.h"

#define TALL (REGISTERS == 32 ? 6 : 3) /* rows of a tile */
#define FLAT 4                         /* columns of weights of a tile */
#define TOGETHER (4 * LANES)           /* columns that threads do not part */
#define ADDED 8                        /* rows that are added together */
#define LINE 64                        /* bytes that come from memory at once */
#define PIECE 1024                     /* columns of the matrix that stay in a cache */

INLINE void turned(const float *weights, int64_t cols, int64_t wide, float *scratch)
{
    for (int64_t k = 0; k < cols; k++)
        for (int64_t c = 0; c < wide; c++)
            scratch[c * cols + k] = weights[k * wide + c];
}

/* To the second cache, while others are summed. */
INLINE void fetch(const void *from, int64_t bytes)
{
    for (int64_t at = 0; at < bytes; at += LINE)
        __builtin_prefetch((const char *)from + at, 0, 2);
}

#define MARGINS(NAME, TYPE, LOAD, TAIL)                                                \
    INLINE void NAME##_tile(const TYPE *matrix, int64_t stride, const int64_t *rows,   \
                            int64_t first, int64_t last, const float *turned,          \
                            int64_t cols, const int tall, const int flat, float *out,  \
                            int64_t wide)                                              \
    {                                                                                  \
        const TYPE *row[TALL];                                                         \
        lanes total[TALL][FLAT];                                                       \
        for (int i = 0; i < tall; i++) {                                               \
            row[i] = matrix + rows[i] * stride;                                        \
            for (int c = 0; c < flat; c++)                                             \
                total[i][c] = (lanes){0};                                              \
        }                                                                              \
        int64_t k = first;                                                             \
        for (; k + LANES <= last; k += LANES) {                                        \
            lanes w[FLAT];                                                             \
            for (int c = 0; c < flat; c++)                                             \
                w[c] = load_f32(turned + c * cols + k);                                \
            for (int i = 0; i < tall; i++) {                                           \
                lanes y = LOAD(row[i] + k);                                            \
                for (int c = 0; c < flat; c++)                                         \
                    total[i][c] += y * w[c];                                           \
            }                                                                          \
        }                                                                              \
        if (k < last)                                                                  \
            for (int i = 0; i < tall; i++) {                                           \
                lanes y = TAIL(row[i] + k, last - k);                                  \
                for (int c = 0; c < flat; c++)                                         \
                    total[i][c] += y * tail_f32(turned + c * cols + k, last - k);      \
            }                                                                          \
        for (int i = 0; i < tall; i++)                                                 \
            for (int c = 0; c < flat; c++) {                                           \
                float sum = add_up(total[i][c]);                                       \
                out[i * wide + c] = first ? out[i * wide + c] + sum : sum;             \
            }                                                                          \
    }                                                                                  \
    INLINE void NAME##_some(const TYPE *matrix, int64_t stride, const int64_t *rows,   \
                            int64_t first, int64_t last, const float *turned,          \
                            int64_t cols, const int tall, float *out, int64_t wide)    \
    {                                                                                  \
        int64_t c = 0;                                                                 \
        for (; c + FLAT <= wide; c += FLAT)                                            \
            NAME##_tile(matrix, stride, rows, first, last, turned + c * cols, cols,    \
                        tall, FLAT, out + c, wide);                                    \
        for (; c + 2 <= wide; c += 2)                                                  \
            NAME##_tile(matrix, stride, rows, first, last, turned + c * cols, cols,    \
                        tall, 2, out + c, wide);                                       \
        for (; c < wide; c++)                                                          \
            NAME##_tile(matrix, stride, rows, first, last, turned + c * cols, cols,    \
                        tall, 1, out + c, wide);                                       \
    }                                                                                  \
    /* `soon` are as many rows that will be wanted after these, or NULL. */            \
    static void NAME##_rows(const TYPE *matrix, int64_t stride, const int64_t *rows,   \
                            const int64_t *soon, int64_t count, int64_t cols,          \
                            int64_t wide, const float *weights, float *out)            \
    {                                                                                  \
        for (int64_t first = 0; first < cols; first += PIECE) {                        \
            int64_t i = 0, last = first + PIECE < cols ? first + PIECE : cols;         \
            for (; i + TALL <= count; i += TALL) {                                     \
                for (int a = 0; soon && a < TALL; a++)                                 \
                    fetch(matrix + soon[i + a] * stride + first,                       \
                          (last - first) * (int64_t)sizeof(TYPE));                     \
                NAME##_some(matrix, stride, rows + i, first, last, weights, cols,      \
                            TALL, out + i * wide, wide);                               \
            }                                                                          \
            for (; i < count; i++) {                                                   \
                if (soon)                                                              \
                    fetch(matrix + soon[i] * stride + first,                           \
                          (last - first) * (int64_t)sizeof(TYPE));                     \
                NAME##_some(matrix, stride, rows + i, first, last, weights, cols, 1,   \
                            out + i * wide, wide);                                     \
            }                                                                          \
        }                                                                              \
    }                                                                                  \
    static void NAME##_part(void *work, int64_t part, int64_t parts)                   \
    {                                                                                  \
        const product *p = (const product *)work;                                      \
        int64_t first = part_edge(p->count, part, parts, TALL);                        \
        int64_t last = part_edge(p->count, part + 1, parts, TALL);                     \
        NAME##_rows((const TYPE *)p->matrix, p->stride, p->rows + first, 0,            \
                    last - first, p->cols, p->wide, p->from, p->to + first * p->wide); \
    }                                                                                  \
    void NAME##_turned(const TYPE *matrix, int64_t stride, const int64_t *rows,        \
                       const int64_t *soon, int64_t count, int64_t cols, int64_t wide, \
                       const float *weights, float *out)                               \
    {                                                                                  \
        product all = {matrix, stride, rows, count, cols, wide, weights, out};         \
        int64_t parts = hpcsgd_parts(time_of(&all));                                   \
        if (parts > 1)                                                                 \
            hpcsgd_share(parts, NAME##_part, &all);                                    \
        else                                                                           \
            NAME##_rows(matrix, stride, rows, soon, count, cols, wide, weights, out);  \
    }                                                                                  \
    EXPORT void NAME(const TYPE *matrix, int64_t stride, const int64_t *rows,          \
                     int64_t count, int64_t cols, int64_t wide, const float *weights,  \
                     float *out, float *scratch)                                       \
    {                                                                                  \
        turned(weights, cols, wide, scratch);                                          \
        NAME##_turned(matrix, stride, rows, 0, count, cols, wide, scratch, out);       \
    }

#define UPDATE(NAME, TYPE, LOAD, ONE)                                                  \
    INLINE void NAME##_some(const TYPE *matrix, int64_t stride, const int64_t *rows,   \
                            int64_t first, int64_t last, const float *residuals,       \
                            const int count, int64_t wide, int64_t cols,               \
                            float *gradient)                                           \
    {                                                                                  \
        const TYPE *row[ADDED];                                                        \
        for (int i = 0; i < count; i++)                                                \
            row[i] = matrix + rows[i] * stride;                                        \
        int64_t k = first;                                                             \
        for (; k + LANES <= last; k += LANES) {                                        \
            lanes y[ADDED];                                                            \
            for (int i = 0; i < count; i++)                                            \
                y[i] = LOAD(row[i] + k);                                               \
            for (int64_t c = 0; c < wide; c++) {                                       \
                lanes g = load_f32(gradient + c * cols + k);                           \
                for (int i = 0; i < count; i++)                                        \
                    g += y[i] * residuals[i * wide + c];                               \
                store_f32(gradient + c * cols + k, g);                                 \
            }                                                                          \
        }                                                                              \
        for (; k < last; k++)                                                          \
            for (int64_t c = 0; c < wide; c++)                                         \
                for (int i = 0; i < count; i++)                                        \
                    gradient[c * cols + k] += ONE(row[i] + k) *                        \
                                              residuals[i * wide + c];                 \
    }                                                                                  \
    static void NAME##_columns(const product *p, int64_t first, int64_t end)           \
    {                                                                                  \
        const TYPE *matrix = (const TYPE *)p->matrix;                                  \
        const float *residuals = p->from;                                              \
        const int64_t *rows = p->rows;                                                 \
        int64_t stride = p->stride, count = p->count, cols = p->cols, wide = p->wide;  \
        float *gradient = p->to;                                                       \
        for (; first < end; first += PIECE) {                                          \
            int64_t i = 0, last = first + PIECE < end ? first + PIECE : end;           \
            for (; i + ADDED <= count; i += ADDED)                                     \
                NAME##_some(matrix, stride, rows + i, first, last,                     \
                            residuals + i * wide, ADDED, wide, cols, gradient);        \
            for (; i < count; i++)                                                     \
                NAME##_some(matrix, stride, rows + i, first, last,                     \
                            residuals + i * wide, 1, wide, cols, gradient);            \
        }                                                                              \
    }                                                                                  \
    static void NAME##_part(void *work, int64_t part, int64_t parts)                   \
    {                                                                                  \
        const product *p = (const product *)work;                                      \
        NAME##_columns(p, part_edge(p->cols, part, parts, TOGETHER),                   \
                       part_edge(p->cols, part + 1, parts, TOGETHER));                 \
    }                                                                                  \
    void NAME##_turned(const TYPE *matrix, int64_t stride, const int64_t *rows,        \
                       int64_t count, int64_t cols, int64_t wide,                      \
                       const float *residuals, float *gradient)                        \
    {                                                                                  \
        product all = {matrix, stride, rows, count, cols, wide, residuals, gradient};  \
        hpcsgd_share(hpcsgd_parts(time_of(&all)), NAME##_part, &all);                  \
    }                                                                                  \
    EXPORT void NAME(const TYPE *matrix, int64_t stride, const int64_t *rows,          \
                     int64_t count, int64_t cols, int64_t wide,                        \
                     const float *residuals, float *weights, float *scratch)           \
    {                                                                                  \
        memset(scratch, 0, (size_t)(cols * wide) * sizeof *scratch);                   \
        NAME##_turned(matrix, stride, rows, count, cols, wide, residuals, scratch);    \
        for (int64_t k = 0; k < cols; k++)                                             \
            for (int64_t c = 0; c < wide; c++)                                         \
                weights[k * wide + c] += scratch[c * cols + k];                        \
    }

MARGINS(hpcsgd_margins_columns_f32, float, load_f32, tail_f32)
MARGINS(hpcsgd_margins_columns_bf16, uint16_t, load_bf16, tail_bf16)
UPDATE(hpcsgd_update_columns_f32, float, load_f32, one_f32)
UPDATE(hpcsgd_update_columns_bf16, uint16_t, load_bf16, one_bf16)

/* Products of sampled rows with weights and with residuals, straight from the matrix.

   margin: z_i = y_i · w for the rows that were sampled, four rows at a time so that a
   piece of w is read once for all of them, while the next four are on their way from
   memory: sampled rows lie anywhere, so the processor cannot foresee them.

   update: w += Σ_i r_i y_i, eight rows at a time.

   Sums run in a fixed order: the same input gives the same bits. */

#include "lanes.h"
#include "threads.h"

#define AT_ONCE 4  /* rows whose margins are summed together */
#define ADDED 8    /* rows that are added to w together */
#define LINE 64    /* bytes that come from memory at once */
/* While a batch is summed its successor is fetched, a line for every two that are read:
   half of its rows by the margins, the others by the update. */
#define FETCHED(count) ((count) / AT_ONCE * (AT_ONCE / 2)) /* by the margins */
#define TOGETHER (4 * LANES) /* columns that threads do not part */
#define PIECE 2048 /* columns of w that stay in the first cache meanwhile */

EXPORT void hpcsgd_widen_rows_bf16(const uint16_t *matrix, int64_t row_stride,
                                   const int64_t *rows, int64_t count, int64_t cols,
                                   uint32_t *out)
{
    for (int64_t i = 0; i < count; i++) {
        const uint16_t *from = matrix + rows[i] * row_stride;
        uint32_t *to = out + i * cols;
        for (int64_t j = 0; j < cols; j++)
            to[j] = (uint32_t)from[j] << 16;
    }
}

#define MARGINS(NAME, TYPE, LOAD, TAIL)                                                \
    INLINE void NAME##_some(const TYPE *matrix, int64_t stride, const int64_t *rows,   \
                            const int64_t *soon, const int fetched, int64_t cols,      \
                            const float *weights, const int count, float *out)         \
    {                                                                                  \
        const TYPE *row[AT_ONCE], *next[AT_ONCE];                                      \
        lanes total[AT_ONCE][2];                                                       \
        for (int i = 0; i < fetched; i++)                                              \
            next[i] = matrix + soon[i] * stride;                                       \
        for (int i = 0; i < count; i++) {                                              \
            row[i] = matrix + rows[i] * stride;                                        \
            total[i][0] = total[i][1] = (lanes){0};                                    \
        }                                                                              \
        int64_t k = 0;                                                                 \
        for (; k + 2 * LANES <= cols; k += 2 * LANES) {                                \
            if (k % (LINE / sizeof(TYPE)) == 0)                                        \
                for (int i = 0; i < fetched; i++)                                      \
                    __builtin_prefetch(next[i] + k, 0, 2); /* to the second cache */   \
            for (int half = 0; half < 2; half++) {                                     \
                lanes w = load_f32(weights + k + half * LANES);                        \
                for (int i = 0; i < count; i++)                                        \
                    total[i][half] += LOAD(row[i] + k + half * LANES) * w;             \
            }                                                                          \
        }                                                                              \
        for (int i = 0; i < count; i++) {                                              \
            int64_t rest = k;                                                          \
            if (rest + LANES <= cols) {                                                \
                total[i][0] += LOAD(row[i] + rest) * load_f32(weights + rest);         \
                rest += LANES;                                                         \
            }                                                                          \
            if (rest < cols)                                                           \
                total[i][1] += TAIL(row[i] + rest, cols - rest) *                      \
                               tail_f32(weights + rest, cols - rest);                  \
            out[i] = add_up(total[i][0] + total[i][1]);                                \
        }                                                                              \
    }                                                                                  \
    /* `soon` are as many rows that will be wanted after these, or NULL: then the next \
       rows of these are fetched. */                                                   \
    void NAME##_before(const TYPE *matrix, int64_t stride, const int64_t *rows,        \
                       const int64_t *soon, int64_t count, int64_t cols,               \
                       const float *weights, float *out)                               \
    {                                                                                  \
        int64_t i = 0;                                                                 \
        for (; soon && i + AT_ONCE <= count; i += AT_ONCE)                             \
            NAME##_some(matrix, stride, rows + i, soon + FETCHED(i), AT_ONCE / 2, cols,\
                        weights, AT_ONCE, out + i);                                    \
        for (; i + AT_ONCE <= count; i += AT_ONCE) {                                   \
            int64_t next = i + 2 * AT_ONCE <= count ? i + AT_ONCE : i;                 \
            NAME##_some(matrix, stride, rows + i, rows + next, AT_ONCE, cols, weights, \
                        AT_ONCE, out + i);                                             \
        }                                                                              \
        for (; i < count; i++)                                                         \
            NAME##_some(matrix, stride, rows + i, rows, 0, cols, weights, 1, out + i); \
    }                                                                                  \
    static void NAME##_part(void *work, int64_t part, int64_t parts)                   \
    {                                                                                  \
        const product *p = (const product *)work;                                      \
        int64_t first = part_edge(p->count, part, parts, AT_ONCE);                     \
        int64_t last = part_edge(p->count, part + 1, parts, AT_ONCE);                  \
        NAME##_before((const TYPE *)p->matrix, p->stride, p->rows + first, 0,          \
                      last - first, p->cols, p->from, p->to + first);                  \
    }                                                                                  \
    EXPORT void NAME(const TYPE *matrix, int64_t stride, const int64_t *rows,          \
                     int64_t count, int64_t cols, const float *weights, float *out)    \
    {                                                                                  \
        product all = {matrix, stride, rows, count, cols, 1, weights, out};            \
        hpcsgd_share(hpcsgd_parts(time_of(&all)), NAME##_part, &all);                  \
    }

#define UPDATE(NAME, TYPE, LOAD, TAIL)                                                 \
    INLINE void NAME##_some(const TYPE *matrix, int64_t stride, const int64_t *rows,   \
                            const int64_t *soon, const int fetched, int64_t first,     \
                            int64_t last, const float *residuals, const int count,     \
                            float *weights)                                            \
    {                                                                                  \
        const TYPE *row[ADDED], *next[ADDED];                                          \
        for (int i = 0; i < fetched; i++)                                              \
            next[i] = matrix + soon[i] * stride;                                       \
        for (int i = 0; i < count; i++)                                                \
            row[i] = matrix + rows[i] * stride;                                        \
        int64_t k = first;                                                             \
        for (; k + LANES <= last; k += LANES) {                                        \
            if (k % (LINE / sizeof(TYPE)) == 0)                                        \
                for (int i = 0; i < fetched; i++)                                      \
                    __builtin_prefetch(next[i] + k, 0, 2);                             \
            lanes w = load_f32(weights + k);                                           \
            for (int i = 0; i < count; i++)                                            \
                w += LOAD(row[i] + k) * residuals[i];                                  \
            store_f32(weights + k, w);                                                 \
        }                                                                              \
        if (k < last) {                                                                \
            lanes w = tail_f32(weights + k, last - k);                                 \
            for (int i = 0; i < count; i++)                                            \
                w += TAIL(row[i] + k, last - k) * residuals[i];                        \
            store_tail_f32(weights + k, w, last - k);                                  \
        }                                                                              \
    }                                                                                  \
    INLINE void NAME##_piece(const TYPE *matrix, int64_t stride, const int64_t *rows,  \
                             const int64_t *soon, const int fetched, int64_t first,    \
                             int64_t last, int64_t count, const float *residuals,      \
                             float *weights)                                           \
    {                                                                                  \
        int64_t i = 0, next = FETCHED(count);                                          \
        for (; i + ADDED <= count; i += ADDED, next += fetched)                        \
            NAME##_some(matrix, stride, rows + i, soon + next, fetched, first, last,   \
                        residuals + i, ADDED, weights);                                \
        for (; i < count; i++, next += next + 1 < count)                               \
            NAME##_some(matrix, stride, rows + i, soon + next, fetched ? 1 : 0, first, \
                        last, residuals + i, 1, weights);                              \
    }                                                                                  \
    static void NAME##_columns(const TYPE *matrix, int64_t stride, const int64_t *rows,\
                               const int64_t *soon, int64_t count, int64_t first,      \
                               int64_t end, const float *residuals, float *weights)    \
    {                                                                                  \
        for (; first < end; first += PIECE) {                                          \
            int64_t last = first + PIECE < end ? first + PIECE : end;                  \
            if (soon)                                                                  \
                NAME##_piece(matrix, stride, rows, soon, ADDED / 2, first, last, count,\
                             residuals, weights);                                      \
            else                                                                       \
                NAME##_piece(matrix, stride, rows, rows, 0, first, last, count,        \
                             residuals, weights);                                      \
        }                                                                              \
    }                                                                                  \
    static void NAME##_part(void *work, int64_t part, int64_t parts)                   \
    {                                                                                  \
        const product *p = (const product *)work;                                      \
        NAME##_columns((const TYPE *)p->matrix, p->stride, p->rows, 0, p->count,       \
                       part_edge(p->cols, part, parts, TOGETHER),                      \
                       part_edge(p->cols, part + 1, parts, TOGETHER), p->from, p->to); \
    }                                                                                  \
    void NAME##_before(const TYPE *matrix, int64_t stride, const int64_t *rows,        \
                       const int64_t *soon, int64_t count, int64_t cols,               \
                       const float *residuals, float *weights)                         \
    {                                                                                  \
        NAME##_columns(matrix, stride, rows, soon, count, 0, cols, residuals, weights);\
    }                                                                                  \
    EXPORT void NAME(const TYPE *matrix, int64_t stride, const int64_t *rows,          \
                     int64_t count, int64_t cols, const float *residuals,              \
                     float *weights)                                                   \
    {                                                                                  \
        product all = {matrix, stride, rows, count, cols, 1, residuals, weights};      \
        hpcsgd_share(hpcsgd_parts(time_of(&all)), NAME##_part, &all);                  \
    }

MARGINS(hpcsgd_margins_f32, float, load_f32, tail_f32)
MARGINS(hpcsgd_margins_bf16, uint16_t, load_bf16, tail_bf16)
UPDATE(hpcsgd_update_f32, float, load_f32, tail_f32)
UPDATE(hpcsgd_update_bf16, uint16_t, load_bf16, tail_bf16)

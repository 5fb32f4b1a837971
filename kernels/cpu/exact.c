/* Passes over rows in float64: scores for the reported loss, moments of columns, and
   combinations of rows. Dense rows come first, CSR rows last.

   Scores: float32 rows times float64 weights, summed in float64.

   To widen the rows first takes ten times as long: they would be written and read once
   more, at twice their size. Four sums a row, in a fixed order. */

#include "lanes.h"
#include "threads.h"

typedef double pair __attribute__((vector_size(4 * LANES)));
typedef float part __attribute__((vector_size(2 * LANES)));
#define PARTS (LANES / 2)

INLINE pair widened(const float *from)
{
    part values;
    memcpy(&values, from, sizeof values);
    return __builtin_convertvector(values, pair);
}

typedef struct {
    const float *matrix;
    int64_t stride, count, cols;
    const double *weights;
    double *out;
} scores;

static void do_part(void *work, int64_t part, int64_t parts)
{
    const scores *s = (const scores *)work;
    const double *weights = s->weights;
    int64_t cols = s->cols, last = part_edge(s->count, part + 1, parts, 1);
    for (int64_t i = part_edge(s->count, part, parts, 1); i < last; i++) {
        const float *row = s->matrix + i * s->stride;
        pair total[4] = {{0}, {0}, {0}, {0}};
        int64_t k = 0;
        for (; k + 4 * PARTS <= cols; k += 4 * PARTS)
            for (int a = 0; a < 4; a++) {
                pair w;
                memcpy(&w, weights + k + a * PARTS, sizeof w);
                total[a] += widened(row + k + a * PARTS) * w;
            }
        total[0] = (total[0] + total[1]) + (total[2] + total[3]);
        double sum = (total[0][0] + total[0][1]) + (total[0][2] + total[0][3]);
        for (; k < cols; k++)
            sum += (double)row[k] * weights[k];
        s->out[i] = sum;
    }
}

/* out[i] ← row i · weights, for `count` rows that follow each other. */
EXPORT void hpcsgd_exact_scores(const float *matrix, int64_t stride, int64_t count,
                                int64_t cols, const double *weights, double *out)
{
    scores all = {matrix, stride, count, cols, weights, out};
    double time = (double)count * (double)cols * PER_NUMBER;
    hpcsgd_share(hpcsgd_parts(time), do_part, &all);
}

/* first += Σ_i h_i a_i and second += Σ_i h_i a_i² of `count` rows, column by column. */
#define MOMENTS(KIND, VALUE)                                                           \
    EXPORT void hpcsgd_row_moments_##KIND(const VALUE *matrix, int64_t stride,         \
                                          int64_t count, int64_t cols,                 \
                                          const double *h, double *restrict first,     \
                                          double *restrict second)                     \
    {                                                                                  \
        int64_t i = 0;                                                                 \
        for (; i + 2 <= count; i += 2) {                                               \
            const VALUE *one = matrix + i * stride, *two = one + stride;               \
            double a = h[i], b = h[i + 1];                                             \
            for (int64_t k = 0; k < cols; k++) {                                       \
                double x = (double)one[k], y = (double)two[k];                         \
                first[k] += x * a + y * b;                                             \
                second[k] += (x * x) * a + (y * y) * b;                                \
            }                                                                          \
        }                                                                              \
        for (; i < count; i++)                                                         \
            for (int64_t k = 0; k < cols; k++) {                                       \
                double x = (double)matrix[i * stride + k];                             \
                first[k] += x * h[i];                                                  \
                second[k] += (x * x) * h[i];                                           \
            }                                                                          \
    }

MOMENTS(f32, float)
MOMENTS(f64, double)

/* out += Σ_i r_i a_i of `count` float32 rows. */
EXPORT void hpcsgd_combine_rows(const float *matrix, int64_t stride, int64_t count,
                                int64_t cols, const double *r, double *restrict out)
{
    int64_t i = 0;
    for (; i + 4 <= count; i += 4) {
        const float *a = matrix + i * stride, *b = a + stride;
        const float *c = b + stride, *d = c + stride;
        double p = r[i], q = r[i + 1], s = r[i + 2], t = r[i + 3];
        for (int64_t k = 0; k < cols; k++)
            out[k] += ((double)a[k] * p + (double)b[k] * q) +
                      ((double)c[k] * s + (double)d[k] * t);
    }
    for (; i < count; i++)
        for (int64_t k = 0; k < cols; k++)
            out[k] += (double)matrix[i * stride + k] * r[i];
}

/* Dense rows with `wide` scores each. A group of rows is multiplied at a time, BROAD
   registers of scores side by side; what is wide is padded to whole registers. Arguments
   that are const int are known where these are called, and select what is compiled. */

#if defined(__AVX512F__)
#define WORDS 8
#define TALL 8
#elif defined(__AVX2__)
#define WORDS 4
#define TALL 4
#else
#define WORDS 2
#define TALL 4
#endif
#define BROAD 2

typedef double words __attribute__((vector_size(8 * WORDS)));

typedef struct {
    const void *matrix;
    int64_t stride, cols, wide, width; /* width: `wide`, up to a whole register */
} wide_rows;

INLINE wide_rows make_wide(const void *matrix, int64_t stride, int64_t cols,
                           int64_t wide)
{
    return (wide_rows){matrix, stride, cols, wide, (wide + WORDS - 1) / WORDS * WORDS};
}

/* Value k of row i. */
INLINE double value_of(const wide_rows *all, int64_t i, int64_t k, const int is_f64)
{
    int64_t at = i * all->stride + k;
    return is_f64 ? ((const double *)all->matrix)[at]
                  : (double)((const float *)all->matrix)[at];
}

/* to <- `count` rows of `wide` numbers, each with zeros up to a whole register. */
INLINE void pad_rows(const wide_rows *all, const double *from, int64_t count, double *to)
{
    for (int64_t i = 0; i < count; i++)
        for (int64_t c = 0; c < all->width; c++)
            to[i * all->width + c] = c < all->wide ? from[i * all->wide + c] : 0.0;
}

/* out <- scores of `tall` rows from row i on, in `broad` registers from `left` on. */
INLINE void scores_tile(const wide_rows *all, int64_t i, const double *weights,
                        int64_t left, double *out, const int is_f64, const int tall,
                        const int broad)
{
    words sums[TALL][BROAD];
    for (int a = 0; a < tall; a++)
        for (int b = 0; b < broad; b++)
            sums[a][b] = (words){0};
    for (int64_t k = 0; k < all->cols; k++) {
        words side[BROAD];
        for (int b = 0; b < broad; b++)
            memcpy(&side[b], weights + k * all->width + left + b * WORDS, sizeof(words));
        for (int a = 0; a < tall; a++)
            for (int b = 0; b < broad; b++)
                sums[a][b] += side[b] * value_of(all, i + a, k, is_f64);
    }
    for (int a = 0; a < tall; a++)
        for (int b = 0; b < broad; b++) {
            int64_t first = left + b * WORDS, own = all->wide - first;
            double *to = out + (i + a) * all->wide + first;
            if (own >= WORDS)
                memcpy(to, &sums[a][b], sizeof(words));
            else
                for (int64_t c = 0; c < own; c++)
                    to[c] = sums[a][b][c];
        }
}

INLINE void scores_group(const wide_rows *all, int64_t i, const double *weights,
                         double *out, const int is_f64, const int tall)
{
    int64_t left = 0;
    for (; left + BROAD * WORDS <= all->width; left += BROAD * WORDS)
        scores_tile(all, i, weights, left, out, is_f64, tall, BROAD);
    for (; left < all->width; left += WORDS)
        scores_tile(all, i, weights, left, out, is_f64, tall, 1);
}

/* sums += the combination of `tall` rows from row i on, in `broad` registers from `left`
   on. */
INLINE void combine_tile(const wide_rows *all, int64_t i, const double *factors,
                         int64_t left, double *sums, const int is_f64, const int tall,
                         const int broad)
{
    words sides[TALL][BROAD];
    for (int a = 0; a < tall; a++)
        for (int b = 0; b < broad; b++)
            memcpy(&sides[a][b], factors + a * all->width + left + b * WORDS,
                   sizeof(words));
    for (int64_t k = 0; k < all->cols; k++) {
        words total[BROAD];
        double *to = sums + k * all->width + left;
        for (int b = 0; b < broad; b++)
            memcpy(&total[b], to + b * WORDS, sizeof(words));
        for (int a = 0; a < tall; a++)
            for (int b = 0; b < broad; b++)
                total[b] += sides[a][b] * value_of(all, i + a, k, is_f64);
        for (int b = 0; b < broad; b++)
            memcpy(to + b * WORDS, &total[b], sizeof(words));
    }
}

INLINE void combine_group(const wide_rows *all, int64_t i, const double *factors,
                          double *sums, const int is_f64, const int tall)
{
    int64_t left = 0;
    for (; left + BROAD * WORDS <= all->width; left += BROAD * WORDS)
        combine_tile(all, i, factors, left, sums, is_f64, tall, BROAD);
    for (; left < all->width; left += WORDS)
        combine_tile(all, i, factors, left, sums, is_f64, tall, 1);
}

/* out <- rows times weights. `room` has a padded row for each column. */
#define WIDE_SCORES(KIND, VALUE, IS_F64)                                               \
    EXPORT void hpcsgd_wide_scores_##KIND(const VALUE *matrix, int64_t stride,         \
                                          int64_t count, int64_t cols, int64_t wide,   \
                                          const double *weights, double *room,         \
                                          double *out)                                 \
    {                                                                                  \
        wide_rows all = make_wide(matrix, stride, cols, wide);                         \
        int64_t i = 0;                                                                 \
        pad_rows(&all, weights, cols, room);                                           \
        for (; i + TALL <= count; i += TALL)                                           \
            scores_group(&all, i, room, out, IS_F64, TALL);                            \
        for (; i < count; i++)                                                         \
            scores_group(&all, i, room, out, IS_F64, 1);                               \
    }

/* out += transposed rows times factors. `room` has a padded row for each column, and
   eight more. */
#define WIDE_COMBINE(KIND, VALUE, IS_F64)                                              \
    EXPORT void hpcsgd_wide_combine_##KIND(const VALUE *matrix, int64_t stride,        \
                                           int64_t count, int64_t cols, int64_t wide,  \
                                           const double *factors, double *room,        \
                                           double *out)                                \
    {                                                                                  \
        wide_rows all = make_wide(matrix, stride, cols, wide);                         \
        double *sums = room, *group = room + cols * all.width;                         \
        int64_t i = 0;                                                                 \
        memset(sums, 0, sizeof(double) * (size_t)(cols * all.width));                  \
        for (; i + TALL <= count; i += TALL) {                                         \
            pad_rows(&all, factors + i * wide, TALL, group);                           \
            combine_group(&all, i, group, sums, IS_F64, TALL);                         \
        }                                                                              \
        for (; i < count; i++) {                                                       \
            pad_rows(&all, factors + i * wide, 1, group);                              \
            combine_group(&all, i, group, sums, IS_F64, 1);                            \
        }                                                                              \
        for (int64_t k = 0; k < cols; k++)                                             \
            for (int64_t c = 0; c < wide; c++)                                         \
                out[k * wide + c] += sums[k * all.width + c];                          \
    }

WIDE_SCORES(f32, float, 0)
WIDE_SCORES(f64, double, 1)
WIDE_COMBINE(f32, float, 0)
WIDE_COMBINE(f64, double, 1)

/* CSR rows: row i has the values data[indptr[i]] .. in the columns `indices`, which differ
   from each other. Weights, factors and results have `wide` columns side by side. */

#define CHAINS 4 /* sums that run side by side, so that none waits for the one before */

#define ROW_SCORE(NAME, VALUE, INDEX)                                                  \
    INLINE double NAME##_one(const INDEX *columns, const VALUE *values, int64_t count, \
                             const double *weights)                                    \
    {                                                                                  \
        double total[CHAINS] = {0};                                                    \
        int64_t k = 0;                                                                 \
        for (; k + CHAINS <= count; k += CHAINS)                                       \
            for (int c = 0; c < CHAINS; c++)                                           \
                total[c] += (double)values[k + c] * weights[columns[k + c]];           \
        for (; k < count; k++)                                                         \
            total[0] += (double)values[k] * weights[columns[k]];                       \
        return (total[0] + total[1]) + (total[2] + total[3]);                          \
    }

/* out[i] <- row i times the weights. */
#define ROW_SCORES(NAME, VALUE, INDEX)                                                 \
    EXPORT void NAME(const int64_t *indptr, const INDEX *indices, const VALUE *data,   \
                     int64_t count, int64_t wide, const double *weights, double *out)  \
    {                                                                                  \
        for (int64_t i = 0; i < count; i++) {                                          \
            int64_t first = indptr[i], last = indptr[i + 1];                           \
            if (wide == 1) {                                                           \
                out[i] = NAME##_one(indices + first, data + first, last - first,       \
                                    weights);                                          \
                continue;                                                              \
            }                                                                          \
            double *sums = out + i * wide;                                             \
            memset(sums, 0, (size_t)wide * sizeof *sums);                              \
            for (int64_t k = first; k < last; k++) {                                   \
                const double value = (double)data[k];                                  \
                const double *w = weights + (int64_t)indices[k] * wide;                \
                for (int64_t c = 0; c < wide; c++)                                     \
                    sums[c] += value * w[c];                                           \
            }                                                                          \
        }                                                                              \
    }

/* out += sum_i r_i a_i. */
#define ROW_COMBINATION(NAME, VALUE, INDEX)                                            \
    EXPORT void NAME(const int64_t *indptr, const INDEX *indices, const VALUE *data,   \
                     int64_t count, int64_t wide, const double *factors,               \
                     double *restrict out)                                             \
    {                                                                                  \
        for (int64_t i = 0; i < count; i++) {                                          \
            const int64_t last = indptr[i + 1];                                        \
            const double *r = factors + i * wide, factor = *r;                         \
            if (wide == 1) {                                                           \
                for (int64_t k = indptr[i]; k < last; k++)                             \
                    out[indices[k]] += (double)data[k] * factor;                       \
                continue;                                                              \
            }                                                                          \
            for (int64_t k = indptr[i]; k < last; k++) {                               \
                const double value = (double)data[k];                                  \
                double *to = out + (int64_t)indices[k] * wide;                         \
                for (int64_t c = 0; c < wide; c++)                                     \
                    to[c] += value * r[c];                                             \
            }                                                                          \
        }                                                                              \
    }

/* first += sum_i h_i a_i and second += sum_i h_i a_i^2, column by column. */
#define CSR_MOMENTS(NAME, VALUE, INDEX)                                                \
    EXPORT void NAME(const int64_t *indptr, const INDEX *indices, const VALUE *data,   \
                     int64_t count, int64_t wide, const double *h,                     \
                     double *restrict first, double *restrict second)                  \
    {                                                                                  \
        for (int64_t i = 0; i < count; i++) {                                          \
            const int64_t last = indptr[i + 1];                                        \
            const double *weights = h + i * wide, weight = *weights;                   \
            for (int64_t k = indptr[i]; k < last; k++) {                               \
                const double value = (double)data[k], square = value * value;          \
                const int64_t at = (int64_t)indices[k] * wide;                         \
                if (wide == 1) {                                                       \
                    first[at] += value * weight;                                       \
                    second[at] += square * weight;                                     \
                    continue;                                                          \
                }                                                                      \
                for (int64_t c = 0; c < wide; c++) {                                   \
                    first[at + c] += value * weights[c];                               \
                    second[at + c] += square * weights[c];                             \
                }                                                                      \
            }                                                                          \
        }                                                                              \
    }

#define CSR_PASSES(KIND, VALUE, WIDTH, INDEX)                                          \
    ROW_SCORE(hpcsgd_csr_scores_##KIND##_##WIDTH, VALUE, INDEX)                        \
    ROW_SCORES(hpcsgd_csr_scores_##KIND##_##WIDTH, VALUE, INDEX)                       \
    ROW_COMBINATION(hpcsgd_csr_combine_##KIND##_##WIDTH, VALUE, INDEX)                 \
    CSR_MOMENTS(hpcsgd_csr_moments_##KIND##_##WIDTH, VALUE, INDEX)

CSR_PASSES(f32, float, i32, int32_t)
CSR_PASSES(f32, float, i64, int64_t)
CSR_PASSES(f64, double, i32, int32_t)
CSR_PASSES(f64, double, i64, int64_t)

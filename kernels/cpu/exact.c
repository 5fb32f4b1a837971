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
                     int64_t count, int64_t wide, const double *factors, double *out)  \
    {                                                                                  \
        for (int64_t i = 0; i < count; i++) {                                          \
            const double *r = factors + i * wide;                                      \
            for (int64_t k = indptr[i]; k < indptr[i + 1]; k++) {                      \
                const double value = (double)data[k];                                  \
                double *to = out + (int64_t)indices[k] * wide;                         \
                if (wide == 1)                                                         \
                    *to += value * *r;                                                 \
                else                                                                   \
                    for (int64_t c = 0; c < wide; c++)                                 \
                        to[c] += value * r[c];                                         \
            }                                                                          \
        }                                                                              \
    }

/* first += sum_i h_i a_i and second += sum_i h_i a_i^2, column by column. */
#define CSR_MOMENTS(NAME, VALUE, INDEX)                                                \
    EXPORT void NAME(const int64_t *indptr, const INDEX *indices, const VALUE *data,   \
                     int64_t count, int64_t wide, const double *h, double *first,      \
                     double *second)                                                   \
    {                                                                                  \
        for (int64_t i = 0; i < count; i++)                                            \
            for (int64_t k = indptr[i]; k < indptr[i + 1]; k++) {                      \
                const double value = (double)data[k], square = value * value;          \
                const int64_t at = (int64_t)indices[k] * wide;                         \
                for (int64_t c = 0; c < wide; c++) {                                   \
                    first[at + c] += value * h[i * wide + c];                          \
                    second[at + c] += square * h[i * wide + c];                        \
                }                                                                      \
            }                                                                          \
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

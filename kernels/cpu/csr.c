/* Products of sampled CSR rows, straight from what is stored.

   Row i holds data[indptr[i]] .. in ascending columns `indices`; both are checked when
   the rows are read, not here. Sums run in a fixed order: the same input gives the same
   bits. Weights have `wide` columns side by side.

   The Gram drops columns that one sampled row alone has, numbers the others as they come,
   and spreads ABREAST rows over a dense scratch, side by side: a value of a later row is
   then multiplied with all of them at once. */

#include "csr.h"
#include "lanes.h"

#define ABREAST 16
#define CHAINS 4 /* sums that run side by side, so that none waits for the one before */

typedef float many __attribute__((vector_size(4 * ABREAST)));

#define MARGINS(NAME, TYPE, INDEX, ONE)                                                \
    INLINE float NAME##_of(const INDEX *columns, const TYPE *values, int64_t count,    \
                           const float *weights)                                       \
    {                                                                                  \
        float total[CHAINS] = {0};                                                     \
        int64_t k = 0;                                                                 \
        for (; k + CHAINS <= count; k += CHAINS)                                       \
            for (int c = 0; c < CHAINS; c++)                                           \
                total[c] += ONE(values + k + c) * weights[columns[k + c]];             \
        for (; k < count; k++)                                                         \
            total[0] += ONE(values + k) * weights[columns[k]];                         \
        return (total[0] + total[1]) + (total[2] + total[3]);                          \
    }                                                                                  \
    EXPORT void NAME(const int64_t *indptr, const INDEX *indices, const TYPE *data,    \
                     const int64_t *rows, int64_t count, int64_t wide,                 \
                     const float *weights, float *out)                                 \
    {                                                                                  \
        for (int64_t i = 0; i < count; i++) {                                          \
            int64_t first = indptr[rows[i]], last = indptr[rows[i] + 1];               \
            if (wide == 1) {                                                           \
                out[i] = NAME##_of(indices + first, data + first, last - first,        \
                                   weights);                                           \
                continue;                                                              \
            }                                                                          \
            float *sums = out + i * wide;                                              \
            memset(sums, 0, (size_t)wide * sizeof *sums);                              \
            for (int64_t k = first; k < last; k++) {                                   \
                const float value = ONE(data + k);                                     \
                const float *w = weights + (int64_t)indices[k] * wide;                 \
                for (int64_t c = 0; c < wide; c++)                                     \
                    sums[c] += value * w[c];                                           \
            }                                                                          \
        }                                                                              \
    }

#define UPDATE(NAME, TYPE, INDEX, ONE)                                                 \
    EXPORT void NAME(const int64_t *indptr, const INDEX *indices, const TYPE *data,    \
                     const int64_t *rows, int64_t count, int64_t wide,                 \
                     const float *residuals, float *weights)                           \
    {                                                                                  \
        for (int64_t i = 0; i < count; i++) {                                          \
            const float *r = residuals + i * wide;                                     \
            for (int64_t k = indptr[rows[i]]; k < indptr[rows[i] + 1]; k++) {          \
                const float value = ONE(data + k);                                     \
                float *w = weights + (int64_t)indices[k] * wide;                       \
                if (wide == 1)                                                         \
                    *w += value * *r;                                                  \
                else                                                                   \
                    for (int64_t c = 0; c < wide; c++)                                 \
                        w[c] += value * r[c];                                          \
            }                                                                          \
        }                                                                              \
    }

/* What the Gram needs of the sample: `edges` (count + 1) as indptr, `columns` numbered
   from 0 and float `values`, both with room for all that is stored. `place` has a zero
   for each column, before and after; `numbers` is how many columns there are. */
#define SHARED(NAME, TYPE, INDEX, ONE)                                                 \
    EXPORT void NAME(const int64_t *indptr, const INDEX *indices, const TYPE *data,    \
                     const int64_t *rows, int64_t count, int32_t *place,               \
                     int64_t *edges, int32_t *columns, float *values,                  \
                     int64_t *numbers)                                                 \
    {                                                                                  \
        int64_t kept = 0;                                                              \
        int32_t numbered = 0;                                                          \
        for (int64_t i = 0; i < count; i++)                                            \
            for (int64_t k = indptr[rows[i]]; k < indptr[rows[i] + 1]; k++)            \
                place[indices[k]]++;                                                   \
        for (int64_t i = 0; i < count; i++) {                                          \
            edges[i] = kept;                                                           \
            for (int64_t k = indptr[rows[i]]; k < indptr[rows[i] + 1]; k++) {          \
                int32_t *at = place + indices[k];                                      \
                if (*at == 1)                                                          \
                    continue;                                                          \
                if (*at > 1) /* from now on, minus its number and one */               \
                    *at = -++numbered;                                                 \
                columns[kept] = -*at - 1;                                              \
                values[kept++] = ONE(data + k);                                        \
            }                                                                          \
        }                                                                              \
        edges[count] = kept;                                                           \
        for (int64_t i = 0; i < count; i++)                                            \
            for (int64_t k = indptr[rows[i]]; k < indptr[rows[i] + 1]; k++)            \
                place[indices[k]] = 0;                                                 \
        *numbers = numbered;                                                           \
    }

/* The two as the steps of steps.c call them, for one column of weights. */
#define FOR_STEPS(KIND, TYPE, INDEX)                                                   \
    void hpcsgd_margins_csr_##KIND##_before(                                           \
        const csr_rows *csr, int64_t stride, const int64_t *rows, const int64_t *soon, \
        int64_t count, int64_t cols, const float *weights, float *out)                 \
    {                                                                                  \
        (void)stride, (void)cols, (void)soon;                                          \
        hpcsgd_csr_margins_##KIND(csr->indptr, (const INDEX *)csr->indices,            \
                                  (const TYPE *)csr->data, rows, count, 1, weights,    \
                                  out);                                                \
    }                                                                                  \
    void hpcsgd_update_csr_##KIND##_before(                                            \
        const csr_rows *csr, int64_t stride, const int64_t *rows, const int64_t *soon, \
        int64_t count, int64_t cols, const float *residuals, float *weights)           \
    {                                                                                  \
        (void)stride, (void)cols, (void)soon;                                          \
        hpcsgd_csr_update_##KIND(csr->indptr, (const INDEX *)csr->indices,             \
                                 (const TYPE *)csr->data, rows, count, 1, residuals,   \
                                 weights);                                             \
    }

#define ALL(KIND, TYPE, ONE, WIDTH, INDEX)                                             \
    MARGINS(hpcsgd_csr_margins_##KIND##_##WIDTH, TYPE, INDEX, ONE)                     \
    UPDATE(hpcsgd_csr_update_##KIND##_##WIDTH, TYPE, INDEX, ONE)                       \
    SHARED(hpcsgd_csr_shared_##KIND##_##WIDTH, TYPE, INDEX, ONE)                       \
    FOR_STEPS(KIND##_##WIDTH, TYPE, INDEX)

ALL(f32, float, one_f32, i32, int32_t)
ALL(f32, float, one_f32, i64, int64_t)
ALL(bf16, uint16_t, one_bf16, i32, int32_t)
ALL(bf16, uint16_t, one_bf16, i64, int64_t)

/* One row against the rows that are spread over `dense`. */
INLINE many against(const int32_t *columns, const float *values, int64_t count,
                    const many *dense)
{
    many total[CHAINS];
    for (int c = 0; c < CHAINS; c++)
        total[c] = (many){0};
    int64_t k = 0;
    for (; k + CHAINS <= count; k += CHAINS)
        for (int c = 0; c < CHAINS; c++)
            total[c] += values[k + c] * dense[columns[k + c]];
    for (; k < count; k++)
        total[0] += values[k] * dense[columns[k]];
    return (total[0] + total[1]) + (total[2] + total[3]);
}

/* The strictly-lower blocks, packed, from what hpcsgd_csr_shared made. `room` has ABREAST
   floats for each column and as many more, zeros before and after. */
EXPORT void hpcsgd_csr_gram(const int64_t *edges, const int32_t *columns,
                            const float *values, const int64_t *starts,
                            int64_t batches, float *packed, float *room)
{
    many *dense = (many *)(((uintptr_t)room + sizeof(many) - 1) / sizeof(many) *
                           sizeof(many));
    for (int64_t low = 0; low < starts[batches - 1]; low += ABREAST) {
        int64_t left = starts[batches - 1] - low;
        int64_t count = left < ABREAST ? left : ABREAST;
        for (int64_t a = 0; a < count; a++)
            for (int64_t k = edges[low + a]; k < edges[low + a + 1]; k++)
                ((float *)(dense + columns[k]))[a] = values[k];
        float *panel = packed;
        for (int64_t b = 1; b < batches; b++) {
            int64_t width = starts[b], reach = width - low;
            for (int64_t i = starts[b]; reach > 0 && i < starts[b + 1]; i++) {
                many sums = against(columns + edges[i], values + edges[i],
                                    edges[i + 1] - edges[i], dense);
                float *to = panel + (i - starts[b]) * width + low;
                if (reach >= ABREAST)
                    memcpy(to, &sums, sizeof sums);
                else
                    memcpy(to, &sums, (size_t)reach * sizeof *to);
            }
            panel += (starts[b + 1] - starts[b]) * width;
        }
        for (int64_t k = edges[low]; k < edges[low + count]; k++)
            dense[columns[k]] = (many){0};
    }
}

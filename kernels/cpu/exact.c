/* Scores for the reported loss: float32 rows times float64 weights, summed in float64.

   To widen the rows first takes ten times as long: they would be written and read once
   more, at twice their size. Four sums a row, in a fixed order. */

#include "lanes.h"

typedef double pair __attribute__((vector_size(4 * LANES)));
typedef float part __attribute__((vector_size(2 * LANES)));
#define PARTS (LANES / 2)

INLINE pair widened(const float *from)
{
    part values;
    memcpy(&values, from, sizeof values);
    return __builtin_convertvector(values, pair);
}

/* out[i] ← row i · weights, for `count` rows that follow each other. */
EXPORT void hpcsgd_exact_scores(const float *matrix, int64_t stride, int64_t count,
                                int64_t cols, const double *weights, double *out)
{
    for (int64_t i = 0; i < count; i++) {
        const float *row = matrix + i * stride;
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
        out[i] = sum;
    }
}

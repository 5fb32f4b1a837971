/* The recurrence of s steps of softmax in one call, for REAL = float and for double.

   As in steps_body.h, with K scores a row: t_j = Σ_a lead_ja z_a + Σ_{i<j} couple_ji G_ji
   r_i + β + offset, and r_j = softmax(t_j) − onehot(y_j). Included twice by softmax.c. */

#include "softmax_link.h"

/* What is known of the scores of batch j before it. */
INLINE void NAMED(begin)(const NAMED(classes) *plan, int64_t j, int64_t K,
                         const REAL *margins, const REAL *offsets,
                         const double *intercept, REAL *scores)
{
    int64_t states = plan->states;
    for (int64_t i = plan->starts[j]; i < plan->starts[j + 1]; i++)
        for (int64_t c = 0; c < K; c++) {
            REAL sum = offsets ? offsets[i] : (REAL)0;
            double start = 0;
            for (int64_t a = 0; a < states; a++) {
                sum += (REAL)plan->lead[j * states + a] *
                       margins[(i * states + a) * K + c];
                start += intercept ? plan->probe[a] * intercept[a * K + c] : 0;
            }
            scores[i * K + c] = sum + (REAL)start;
        }
}

/* Rows of the Gram, `count` of them, times one class of what is behind. */
INLINE void NAMED(dots)(const REAL *panel, int64_t width, const REAL *scaled, int64_t K,
                        const int count, REAL *scores)
{
    NAMED(vector) total[4];
    for (int i = 0; i < count; i++)
        total[i] = (NAMED(vector)){0};
    int64_t k = 0;
    for (; k + NAMED(WIDTH) <= width; k += NAMED(WIDTH)) {
        NAMED(vector) r, g;
        memcpy(&r, scaled + k, sizeof r);
        for (int i = 0; i < count; i++) {
            memcpy(&g, panel + i * width + k, sizeof g);
            total[i] += g * r;
        }
    }
    for (int i = 0; i < count; i++) {
        REAL sum = 0;
        for (int l = 0; l < NAMED(WIDTH); l++)
            sum += total[i][l];
        for (int64_t rest = k; rest < width; rest++)
            sum += panel[i * width + rest] * scaled[rest];
        scores[i * K] += sum;
    }
}

/* `residuals` (m × K) of all steps; `scratch` holds as many; weights, offsets and
   intercept may be NULL. Labels are whole numbers from 0. */
EXPORT void NAMED(hpcsgd_recur_softmax)(const NAMED(classes) *plan, int64_t K,
                                        const REAL *margins, const REAL *packed,
                                        const REAL *labels, const REAL *weights,
                                        const REAL *offsets, double *intercept,
                                        REAL *residuals, REAL *scratch)
{
    int64_t m = plan->starts[plan->batches];
    for (int64_t j = 0; j < plan->batches; j++) {
        int64_t first = plan->starts[j], last = plan->starts[j + 1];
        NAMED(begin)(plan, j, K, margins, offsets, intercept, residuals);
        for (int64_t b = 0; b < j; b++) { /* class by class, for the sums below */
            REAL couple = (REAL)plan->couple[j * (j - 1) / 2 + b];
            for (int64_t k = plan->starts[b]; k < plan->starts[b + 1]; k++)
                for (int64_t c = 0; c < K; c++)
                    scratch[c * m + k] = couple * residuals[k * K + c];
        }
        int64_t i = first;
        for (; first && i + 4 <= last; i += 4)
            for (int64_t c = 0; c < K; c++)
                NAMED(dots)(packed + (i - first) * first, first, scratch + c * m, K, 4,
                            residuals + i * K + c);
        for (; first && i < last; i++)
            for (int64_t c = 0; c < K; c++)
                NAMED(dots)(packed + (i - first) * first, first, scratch + c * m, K, 1,
                            residuals + i * K + c);
        packed += (last - first) * first;
        for (i = first; i < last; i++)
            NAMED(link)(residuals + i * K, K, (int64_t)labels[i],
                        weights ? weights[i] : (REAL)1);
        if (intercept)
            NAMED(advance)(plan, j, K, residuals, intercept);
    }
}

/* The recurrence of s steps of several models in one call, for REAL = float and double.

   As in steps_body.h, with K scores a row, side by side, and coefficients of their own for
   each: t_j = Σ_a lead_ja z_a + Σ_{i<j} couple_ji G_ji r_i + β + offset, column by column.
   Each sum runs over the rows in their order, whatever the set of instructions. Included
   twice by steps.c. */

/* Coefficients of an exchange: prepared once, used for as many as are alike. */
typedef struct {
    int64_t batches, states, family, wide; /* K */
    double setting;
    const int64_t *starts; /* batches + 1 */
    const REAL *lead;      /* batches × states × K */
    const REAL *couple;    /* entry j (j − 1) / 2 + i, of K */
    const double *free;    /* batches × states × states × K, of the intercepts */
    const double *push;    /* batches × states × K */
    const double *probe;   /* states */
} NAMED(models);

typedef REAL NAMED(broad) __attribute__((vector_size(64)));
#define BROAD ((int64_t)(64 / sizeof(REAL)))

/* Rows of the Gram, `tall` of them, times `flat` vectors of columns of what is behind. */
INLINE void NAMED(tile)(const REAL *panel, int64_t width, const REAL *scaled,
                        int64_t stride, const int tall, const int flat, REAL *scores,
                        int64_t wide, int64_t left)
{
    NAMED(broad) total[4][4];
    for (int i = 0; i < tall; i++)
        for (int f = 0; f < flat; f++)
            total[i][f] = (NAMED(broad)){0};
    for (int64_t k = 0; k < width; k++) {
        NAMED(broad) r[4];
        for (int f = 0; f < flat; f++)
            memcpy(&r[f], scaled + k * stride + f * BROAD, sizeof r[f]);
        for (int i = 0; i < tall; i++)
            for (int f = 0; f < flat; f++)
                total[i][f] += panel[i * width + k] * r[f];
    }
    for (int i = 0; i < tall; i++)
        for (int f = 0; f < flat; f++) {
            int64_t rest = left - f * BROAD;
            for (int64_t c = 0; c < BROAD && c < rest; c++)
                scores[i * wide + f * BROAD + c] += total[i][f][c];
        }
}

/* The same for all columns. */
INLINE void NAMED(rows)(const REAL *panel, int64_t width, const REAL *scaled,
                        int64_t stride, const int tall, REAL *scores, int64_t wide)
{
    int64_t c = 0;
    for (; c + 3 * BROAD < wide; c += 4 * BROAD)
        NAMED(tile)(panel, width, scaled + c, stride, tall, 4, scores + c, wide, wide - c);
    for (; c < wide; c += BROAD)
        NAMED(tile)(panel, width, scaled + c, stride, tall, 1, scores + c, wide, wide - c);
}

/* β ← M β + u Σ r of every column, in double. */
INLINE void NAMED(advance_all)(const NAMED(models) *plan, int64_t j,
                               const REAL *residuals, double *intercept)
{
    int64_t states = plan->states, K = plan->wide;
    for (int64_t c = 0; c < K; c++) {
        double total = 0, next[8];
        for (int64_t i = plan->starts[j]; i < plan->starts[j + 1]; i++)
            total += residuals[i * K + c];
        for (int64_t a = 0; a < states; a++) {
            next[a] = plan->push[(j * states + a) * K + c] * total;
            for (int64_t b = 0; b < states; b++)
                next[a] += plan->free[((j * states + a) * states + b) * K + c] *
                           intercept[b * K + c];
        }
        for (int64_t a = 0; a < states; a++)
            intercept[a * K + c] = next[a];
    }
}

/* Scores of batch j by what is known before it; `row` holds K REALs. */
INLINE void NAMED(begin_all)(const NAMED(models) *plan, int64_t j, const REAL *margins,
                             const REAL *offsets, const double *intercept, REAL *scores,
                             REAL *row)
{
    int64_t states = plan->states, K = plan->wide;
    for (int64_t c = 0; c < K; c++) {
        double start = 0;
        for (int64_t a = 0; intercept && a < states; a++)
            start += plan->probe[a] * intercept[a * K + c];
        row[c] = (REAL)start;
    }
    for (int64_t i = plan->starts[j]; i < plan->starts[j + 1]; i++) {
        REAL offset = offsets ? offsets[i] : (REAL)0;
        for (int64_t c = 0; c < K; c++)
            scores[i * K + c] = row[c] + offset;
        for (int64_t a = 0; a < states; a++) {
            const REAL *lead = plan->lead + (j * states + a) * K;
            const REAL *z = margins + (i * states + a) * K;
            for (int64_t c = 0; c < K; c++)
                scores[i * K + c] += lead[c] * z[c];
        }
    }
}

/* Scores of a row become residuals; `row` holds K REALs. */
INLINE void NAMED(link_all)(const NAMED(models) *plan, REAL target, const REAL *weights,
                            int64_t apart, REAL *scores, REAL *row)
{
    for (int64_t c = 0; c < plan->wide; c++)
        row[c] = target;
    NAMED(residuals)(plan->family, row, (REAL)plan->setting, plan->wide, scores);
    for (int64_t c = 0; weights && c < plan->wide; c++)
        scores[c] *= weights[c * apart];
}

/* `residuals` (m × K) of all steps; weights (m × 1, or m × K where they are `apart`),
   offsets (m) and intercept (states × K) may be NULL. `scratch` holds, for K rounded up to
   vectors of 64 bytes, m + 1 rows of them. */
EXPORT void NAMED(hpcsgd_recur_many)(const NAMED(models) *plan, int64_t apart,
                                     const REAL *margins, const REAL *packed,
                                     const REAL *targets, const REAL *weights,
                                     const REAL *offsets, double *intercept,
                                     REAL *residuals, REAL *scratch)
{
    int64_t K = plan->wide, stride = (K + BROAD - 1) / BROAD * BROAD;
    int64_t m = plan->starts[plan->batches];
    REAL *row = scratch + m * stride;
    memset(scratch, 0, (size_t)(m * stride) * sizeof *scratch);
    for (int64_t j = 0; j < plan->batches; j++) {
        int64_t first = plan->starts[j], last = plan->starts[j + 1], i = first;
        NAMED(begin_all)(plan, j, margins, offsets, intercept, residuals, row);
        for (int64_t b = 0; b < j; b++) {
            const REAL *couple = plan->couple + (j * (j - 1) / 2 + b) * K;
            for (int64_t k = plan->starts[b]; k < plan->starts[b + 1]; k++)
                for (int64_t c = 0; c < K; c++)
                    scratch[k * stride + c] = couple[c] * residuals[k * K + c];
        }
        for (; first && i + 4 <= last; i += 4)
            NAMED(rows)(packed + (i - first) * first, first, scratch, stride, 4,
                        residuals + i * K, K);
        for (; first && i < last; i++)
            NAMED(rows)(packed + (i - first) * first, first, scratch, stride, 1,
                        residuals + i * K, K);
        packed += (last - first) * first;
        for (i = first; i < last; i++)
            NAMED(link_all)(plan, targets[i],
                            weights ? weights + i * (apart ? K : 1) : 0, apart,
                            residuals + i * K, row);
        if (intercept)
            NAMED(advance_all)(plan, j, residuals, intercept);
    }
}

#undef BROAD

/* From K scores of a row to its residuals, and what K intercepts make of them, for REAL.

   Included by softmax_body.h, and for plain steps by softmax_steps.c. */

/* The same bytes as `plan` of steps_body.h. */
typedef struct {
    int64_t batches, states, family;
    double setting;
    const int64_t *starts;
    const double *lead, *couple, *free, *push, *probe;
} NAMED(classes);

INLINE void NAMED(link)(REAL *t, int64_t K, int64_t label, REAL weight)
{
    REAL top = t[0], sum = 0;
    for (int64_t c = 1; c < K; c++)
        top = t[c] > top ? t[c] : top;
    for (int64_t c = 0; c < K; c++)
        sum += t[c] = EXP(t[c] - top);
    for (int64_t c = 0; c < K; c++)
        t[c] = (t[c] / sum - (REAL)(c == label)) * weight;
}

/* β ← M β + u Σ r, in double; `next` holds states × K. */
INLINE void NAMED(advance)(const NAMED(classes) *plan, int64_t j, int64_t K,
                           const REAL *residuals, double *intercept)
{
    int64_t states = plan->states;
    for (int64_t c = 0; c < K; c++) {
        double total = 0, next[8];
        for (int64_t i = plan->starts[j]; i < plan->starts[j + 1]; i++)
            total += residuals[i * K + c];
        for (int64_t a = 0; a < states; a++) {
            next[a] = plan->push[j * states + a] * total;
            for (int64_t b = 0; b < states; b++)
                next[a] += plan->free[(j * states + a) * states + b] *
                           intercept[b * K + c];
        }
        for (int64_t a = 0; a < states; a++)
            intercept[a * K + c] = next[a];
    }
}

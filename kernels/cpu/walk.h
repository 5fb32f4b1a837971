/* What plain steps are made of: coefficients, and where they are taken. */

#ifndef HPCSGD_WALK_H
#define HPCSGD_WALK_H

#include "lanes.h"

/* Plain steps without a message between them: margins, residuals and update of every
   batch in one call, so that nothing but arithmetic lies between two steps.

   The states of row k of the weights lie side by side; state 0 is w. */
typedef struct {
    int64_t steps, states, family, rounds; /* rounds: margins are stored as bf16 */
    double setting;
    const int64_t *starts;
    const double *carry;         /* steps × states × states */
    const double *gain;          /* steps × states */
    const double *free, *push;   /* of the intercept, as in `plan` */
    const double *probe;         /* states */
} walk;

/* What steps are taken on. `residuals` holds m floats, or m × K of softmax,
   and `scratch` what hpcsgd/backends/compiled_calls.py says; sample weights, offsets and intercept may
   be NULL. */
typedef struct {
    const void *matrix;
    int64_t stride;
    const int64_t *rows;
    int64_t cols;
    float *weights;
    const float *targets, *sample_weights, *offsets;
    double *intercept;
    float *residuals, *scratch;
} place;

/* The batch after number j, if it is as large: it comes from memory while j is worked
   on. */
INLINE const int64_t *after(const walk *plan, const place *at, int64_t j)
{
    int64_t count = plan->starts[j + 1] - plan->starts[j];
    if (plan->starts[j + 1] + count > plan->starts[plan->steps])
        return 0;
    return at->rows + plan->starts[j + 1];
}

INLINE float round_bf16(float value)
{
    uint32_t bits;
    if (value != value)
        return value;
    memcpy(&bits, &value, 4);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
    memcpy(&value, &bits, 4);
    return value;
}

#endif

/* Plain steps of softmax: K scores a row, all steps in one call or one between two sums.

   As in steps.c. The weights are turned into `scratch` before the first step, state by
   state and class by class, and back behind the last one, so that sums run along the rows
   of the matrix and states are mixed many columns at a time. */

#include "walk.h"

#include <math.h>

#define BODY "softmax_link.h"
#include "reals.h"

#define MOST_STATES 8

/* `scratch`, part by part, each class by class with its columns side by side. */
typedef struct {
    int64_t size;    /* K × cols: what one state takes */
    float *weights;  /* states × size */
    float *point;    /* size: where scores are read; of one state, the weights */
    float *gradient; /* size, of several states */
    float *scaled;   /* m × K residuals, of one state */
} room;

INLINE room room_of(const walk *plan, const place *at, int64_t K)
{
    room in = {K * at->cols, at->scratch, at->scratch, 0, 0};
    in.scaled = in.weights + in.size;
    if (plan->states > 1) {
        in.point = in.weights + plan->states * in.size;
        in.gradient = in.point + in.size;
    }
    return in;
}

/* Row k of the weights holds states × K numbers, class by class for each state. */
static void turn_there(const place *at, int64_t wide, float *turned)
{
    for (int64_t k = 0; k < at->cols; k++)
        for (int64_t c = 0; c < wide; c++)
            turned[c * at->cols + k] = at->weights[k * wide + c];
}

static void turn_back(const place *at, int64_t wide, const float *turned)
{
    for (int64_t k = 0; k < at->cols; k++)
        for (int64_t c = 0; c < wide; c++)
            at->weights[k * wide + c] = turned[c * at->cols + k];
}

/* q · x: where scores are read. */
static void read_at(const walk *plan, const room *in)
{
    for (int64_t k = 0; k < in->size; k++)
        in->point[k] = (float)plan->probe[0] * in->weights[k];
    for (int64_t a = 1; a < plan->states; a++) {
        const float *state = in->weights + a * in->size;
        float q = (float)plan->probe[a];
        for (int64_t k = 0; k < in->size; k++)
            in->point[k] += q * state[k];
    }
}

/* x ← M x + u g, a few columns at a time: all states are read before one changes. */
static void mix(const walk *plan, int64_t step, const room *in)
{
    enum { ABREAST = 4 * LANES };
    int64_t states = plan->states;
    const double *carry = plan->carry + step * states * states;
    const double *gain = plan->gain + step * states;
    for (int64_t k = 0; k < in->size; k += ABREAST) {
        int64_t count = in->size - k < ABREAST ? in->size - k : ABREAST;
        float next[MOST_STATES][ABREAST];
        for (int64_t a = 0; a < states; a++) {
            for (int64_t l = 0; l < count; l++)
                next[a][l] = (float)gain[a] * in->gradient[k + l];
            for (int64_t b = 0; b < states; b++)
                for (int64_t l = 0; l < count; l++)
                    next[a][l] += (float)carry[a * states + b] *
                                  in->weights[b * in->size + k + l];
        }
        for (int64_t a = 0; a < states; a++)
            memcpy(in->weights + a * in->size + k, next[a], (size_t)count * 4);
    }
}

static void scores_to_residuals(const walk *plan, int64_t step, int64_t K,
                                const place *at)
{
    for (int64_t i = plan->starts[step]; i < plan->starts[step + 1]; i++) {
        float *t = at->residuals + i * K;
        for (int64_t c = 0; c < K; c++) {
            double start = 0;
            for (int64_t a = 0; at->intercept && a < plan->states; a++)
                start += plan->probe[a] * at->intercept[a * K + c];
            t[c] = plan->rounds ? round_bf16(t[c]) : t[c];
            t[c] += (at->offsets ? at->offsets[i] : 0.0f) + (float)start;
        }
        link_f32(t, K, (int64_t)at->targets[i],
                 at->sample_weights ? at->sample_weights[i] : 1.0f);
    }
    if (at->intercept) {
        classes_f32 own = {0, plan->states, 0, 0, plan->starts, 0, 0,
                           plan->free, plan->push, plan->probe};
        advance_f32(&own, step, K, at->residuals, at->intercept);
    }
}

/* As WALK of steps.c. */
#define WALK(KIND, TYPE)                                                               \
    void hpcsgd_margins_columns_##KIND##_turned(                                       \
        const TYPE *, int64_t, const int64_t *, const int64_t *, int64_t, int64_t,     \
        int64_t, const float *, float *);                                              \
    void hpcsgd_update_columns_##KIND##_turned(const TYPE *, int64_t, const int64_t *, \
                                               int64_t, int64_t, int64_t,              \
                                               const float *, float *);                \
    static void read_##KIND(const walk *plan, const place *at, const room *in,         \
                            int64_t K, int64_t j, float *out)                          \
    {                                                                                  \
        int64_t first = plan->starts[j], count = plan->starts[j + 1] - first;          \
        if (plan->states > 1)                                                          \
            read_at(plan, in);                                                         \
        hpcsgd_margins_columns_##KIND##_turned(                                        \
            (const TYPE *)at->matrix, at->stride, at->rows + first,                    \
            after(plan, at, j), count, at->cols, K, in->point, out);                   \
    }                                                                                  \
    static void take_##KIND(const walk *plan, const place *at, const room *in,         \
                            int64_t K, int64_t j)                                      \
    {                                                                                  \
        int64_t first = plan->starts[j], count = plan->starts[j + 1] - first;          \
        float *factors = at->residuals + first * K, *target = in->weights;             \
        scores_to_residuals(plan, j, K, at);                                           \
        if (plan->states == 1) {                                                       \
            float carry = (float)plan->carry[j], gain = (float)plan->gain[j];          \
            for (int64_t i = 0; i < count * K; i++)                                    \
                in->scaled[i] = gain * factors[i];                                     \
            for (int64_t k = 0; carry != 1.0f && k < in->size; k++)                    \
                target[k] *= carry;                                                    \
            factors = in->scaled;                                                      \
        } else {                                                                       \
            target = in->gradient;                                                     \
            memset(target, 0, (size_t)in->size * sizeof *target);                      \
        }                                                                              \
        hpcsgd_update_columns_##KIND##_turned((const TYPE *)at->matrix, at->stride,    \
                                              at->rows + first, count, at->cols, K,    \
                                              factors, target);                        \
        if (plan->states > 1)                                                          \
            mix(plan, j, in);                                                          \
    }                                                                                  \
    EXPORT void hpcsgd_walk_softmax_##KIND(const walk *plan, int64_t K,                \
                                           const place *at)                            \
    {                                                                                  \
        room in = room_of(plan, at, K);                                                \
        turn_there(at, plan->states * K, in.weights);                                  \
        for (int64_t j = 0; j < plan->steps; j++) {                                    \
            read_##KIND(plan, at, &in, K, j, at->residuals + plan->starts[j] * K);     \
            take_##KIND(plan, at, &in, K, j);                                          \
        }                                                                              \
        turn_back(at, plan->states * K, in.weights);                                   \
    }                                                                                  \
    EXPORT void hpcsgd_between_softmax_##KIND(const walk *plan, int64_t K,             \
                                              const place *at, int64_t j,              \
                                              const float *summed, float *out)         \
    {                                                                                  \
        room in = room_of(plan, at, K);                                                \
        if (j >= 0) {                                                                  \
            int64_t first = plan->starts[j], count = plan->starts[j + 1] - first;      \
            memcpy(at->residuals + first * K, summed, (size_t)(count * K) * 4);        \
            take_##KIND(plan, at, &in, K, j);                                          \
        } else                                                                         \
            turn_there(at, plan->states * K, in.weights);                              \
        if (j + 1 < plan->steps)                                                       \
            read_##KIND(plan, at, &in, K, j + 1, out);                                 \
        else                                                                           \
            turn_back(at, plan->states * K, in.weights);                               \
    }

WALK(f32, float)
WALK(bf16, uint16_t)

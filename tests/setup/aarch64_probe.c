/* Kernels on the same inputs on every processor; one line of numbers for each. */

#include <stdio.h>
#include <stdlib.h>

#include "lanes.h"

#define ROWS 40
#define COLS 1031 /* one piece of columns, and a part of the next */
#define BATCHES 5
#define DRAWN 61

int hpcsgd_level(void);
int64_t hpcsgd_gram_room(int64_t rows);
void hpcsgd_margins_f32(const float *, int64_t, const int64_t *, int64_t, int64_t,
                        const float *, float *);
void hpcsgd_margins_bf16(const uint16_t *, int64_t, const int64_t *, int64_t, int64_t,
                         const float *, float *);
void hpcsgd_update_bf16(const uint16_t *, int64_t, const int64_t *, int64_t, int64_t,
                        const float *, float *);
void hpcsgd_strict_gram_f32(const float *, int64_t, const int64_t *, int64_t,
                            const int64_t *, int64_t, float *);
void hpcsgd_strict_gram_bf16(const uint16_t *, int64_t, const int64_t *, int64_t,
                             const int64_t *, int64_t, float *);
void hpcsgd_loss_terms(int64_t, int64_t, const double *, const double *, const double *,
                       const double *, const double *, double *, double *, double *);
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
void hpcsgd_strict_gram_pairs(const uint16_t *, int64_t, const int64_t *, int64_t,
                              const int64_t *, int64_t, float *, uint32_t *,
                              const float **);
#endif

static uint64_t state = 1;

/* A number from -1 to 1 of 24 bits. */
static float draw(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (float)((int32_t)(state >> 40) - (1 << 23)) / (float)(1 << 23);
}

static void print(const char *name, const float *values, int64_t count)
{
    printf("%s", name);
    for (int64_t i = 0; i < count; i++)
        printf(" %.9g", values[i]);
    printf("\n");
}

int main(void)
{
    static float matrix[ROWS * COLS], weights[COLS], out[DRAWN], gram[DRAWN * DRAWN];
    static uint16_t narrow[ROWS * COLS];
    int64_t rows[DRAWN], starts[BATCHES + 1] = {0, 7, 8, 29, 45, DRAWN}, packed = 0;
    for (int64_t i = 0; i < ROWS * COLS; i++) {
        matrix[i] = draw();
        uint32_t bits;
        memcpy(&bits, matrix + i, sizeof bits);
        narrow[i] = (uint16_t)(bits >> 16);
    }
    for (int64_t i = 0; i < COLS; i++)
        weights[i] = draw();
    for (int64_t i = 0; i < DRAWN; i++)
        rows[i] = (int64_t)((draw() + 1) * (ROWS / 2)) % ROWS;
    for (int64_t b = 1; b < BATCHES; b++)
        packed += (starts[b + 1] - starts[b]) * starts[b];

    printf("level %d\n", hpcsgd_level());
    hpcsgd_margins_f32(matrix, COLS, rows, DRAWN, COLS, weights, out);
    print("margins_f32", out, DRAWN);
    hpcsgd_margins_bf16(narrow, COLS, rows, DRAWN, COLS, weights, out);
    print("margins_bf16", out, DRAWN);
    hpcsgd_update_bf16(narrow, COLS, rows, DRAWN, COLS, out, weights);
    print("update_bf16", weights, COLS);
    hpcsgd_strict_gram_f32(matrix, COLS, rows, COLS, starts, BATCHES, gram);
    print("gram_f32", gram, packed);
    hpcsgd_strict_gram_bf16(narrow, COLS, rows, COLS, starts, BATCHES, gram);
    print("gram_bf16", gram, packed);
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
    const float *panels[BATCHES];
    uint32_t *room = malloc(sizeof *room * (size_t)hpcsgd_gram_room(DRAWN));
    hpcsgd_strict_gram_pairs(narrow, COLS, rows, COLS, starts, BATCHES, gram, room,
                             panels);
    print("gram_pairs", gram, packed);
    free(room);
#endif
    double scores[ROWS], targets[ROWS], shares[ROWS], along[ROWS], r[ROWS], h[ROWS];
    double bound = 700, sums[3];
    for (int64_t i = 0; i < ROWS; i++) {
        scores[i] = 9 * draw(), targets[i] = draw() > 0, shares[i] = draw() + 1;
        along[i] = draw();
    }
    hpcsgd_loss_terms(1, ROWS, scores, targets, shares, along, &bound, r, h, sums);
    printf("losses %.12g %.12g %.12g\n", sums[0], sums[1], sums[2]);
    return 0;
}

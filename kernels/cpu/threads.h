/* The work of one call, split over threads.

   Every sum is made whole by one thread in the order in which one thread alone would make
   it: parts are rows, columns or tiles of what comes out, so the bits are the same for
   any number of threads. */

#ifndef HPCSGD_THREADS_H
#define HPCSGD_THREADS_H

#include <stdint.h>

typedef void (*part_of)(void *work, int64_t part, int64_t parts);

/* In how many parts it pays to do what takes one thread about so long; 1 is the caller
   alone. */
int64_t hpcsgd_parts(double nanoseconds);

/* Do all parts, whoever does them; they are done when this returns. */
void hpcsgd_share(int64_t parts, part_of what, void *work);

/* Where part number `part` begins of `count` things, `step` of which stay together. */
static inline int64_t part_edge(int64_t count, int64_t part, int64_t parts, int64_t step)
{
    int64_t edge = count / step * part / parts * step;
    return part < parts ? edge : count;
}

/* What one number of a row takes about, from memory or from a cache behind the first, and
   what one multiply-add takes in registers: nanoseconds. */
#define PER_NUMBER 0.2
#define PER_PRODUCT 0.02

/* A product of sampled rows with `wide` columns of weights or residuals. */
typedef struct {
    const void *matrix;
    int64_t stride;
    const int64_t *rows;
    int64_t count, cols, wide;
    const float *from;
    float *to;
} product;

static inline double time_of(const product *p)
{
    double numbers = (double)p->count * (double)p->cols;
    return numbers * (PER_NUMBER + PER_PRODUCT * (double)(p->wide - 1));
}

#endif

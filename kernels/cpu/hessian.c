/* The Hessian of sparse rows: what is added is as little as the values of a row, squared.

   Each row adds h a a' to a square that the caller keeps, in float64: a row of 14 values
   makes 105 products, and not half the square of all columns. */

#include "lanes.h"

#define OUTER(NAME, INDEX)                                                             \
    EXPORT void NAME(const int64_t *indptr, const INDEX *indices, const double *data,  \
                     int64_t count, const double *bends, int64_t width, double *out)   \
    {                                                                                  \
        for (int64_t i = 0; i < count; i++)                                            \
            for (int64_t k = indptr[i]; k < indptr[i + 1]; k++) {                      \
                double value = bends[i] * data[k], *row = out + indices[k] * width;    \
                for (int64_t l = indptr[i]; l <= k; l++)                               \
                    row[indices[l]] += value * data[l];                                \
            }                                                                          \
    }

/* out += sum over `count` CSR rows of bends_i a_i a_i', the lower triangle of a square
   with rows of `width` numbers; the columns of a row ascend. */
OUTER(hpcsgd_csr_outer_i32, int32_t)
OUTER(hpcsgd_csr_outer_i64, int64_t)

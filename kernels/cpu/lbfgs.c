/* The two-loop recursion of L-BFGS on inner products.

   The vectors are g, and for each slot j the move s at 1 + 2j and the change y of the
   gradient at 2 + 2j; `products` has their inner products, (vectors, vectors). */

#include "lanes.h"

INLINE double dot(const double *a, const double *b, int64_t count)
{
    double total = 0.0;
    for (int64_t i = 0; i < count; i++)
        total += a[i] * b[i];
    return total;
}

/* out <- the coefficients whose combination of the vectors is -H g, for H by the `pairs`
   slots in `order`, the oldest first. `shares` is a room of as many numbers. */
EXPORT void hpcsgd_two_loops(int64_t pairs, const int64_t *order, int64_t vectors,
                             const double *products, double *shares, double *out)
{
    memset(out, 0, (size_t)vectors * sizeof *out);
    out[0] = -1.0;
    for (int64_t i = pairs - 1; i >= 0; i--) {
        const int64_t s = 1 + 2 * order[i], y = s + 1;
        shares[i] = dot(out, products + s * vectors, vectors) / products[s * vectors + y];
        out[y] -= shares[i];
    }
    if (pairs) {
        const int64_t s = 1 + 2 * order[pairs - 1], y = s + 1;
        const double scale = products[s * vectors + y] / products[y * vectors + y];
        for (int64_t i = 0; i < vectors; i++)
            out[i] *= scale;
    }
    for (int64_t i = 0; i < pairs; i++) {
        const int64_t s = 1 + 2 * order[i], y = s + 1;
        out[s] += shares[i] -
                  dot(out, products + y * vectors, vectors) / products[s * vectors + y];
    }
}

/* What is looked at while data are read: whether all of it is finite, and its checksum.
   Both at the speed of memory. */

#include "lanes.h"

#define EXPONENT 0x7f800000u

/* *bad ← 1 where a float32 of the block is infinite or no number. */
EXPORT void hpcsgd_find_bad(const uint32_t *block, int64_t stride, int64_t count,
                            int64_t cols, int64_t *bad)
{
    uint32_t found = 0;
    for (int64_t i = 0; i < count && !found; i++) {
        const uint32_t *row = block + i * stride;
        for (int64_t k = 0; k < cols; k++)
            found |= (row[k] & EXPONENT) == EXPONENT;
    }
    *bad = (int64_t)found;
}

/* *sum += Σ_ik row_i column_k bits_ik mod 2⁶⁴ for words of 32 bits. */
EXPORT void hpcsgd_fingerprint(const uint32_t *block, int64_t stride, int64_t count,
                               int64_t cols, const uint64_t *of_rows,
                               const uint64_t *of_columns, uint64_t *sum)
{
    for (int64_t i = 0; i < count; i++) {
        const uint32_t *row = block + i * stride;
        uint64_t total = 0;
        for (int64_t k = 0; k < cols; k++)
            total += row[k] * of_columns[k];
        *sum += total * of_rows[i];
    }
}

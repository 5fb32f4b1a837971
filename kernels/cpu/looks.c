/* What is looked at while data are read: whether all of it is finite, and its checksum.
   Both at the speed of memory. */

#include "lanes.h"

#define LOOKS(KIND, WORD, EXPONENT)                                                    \
    EXPORT void hpcsgd_find_bad_##KIND(const WORD *block, int64_t stride,              \
                                       int64_t count, int64_t cols, int64_t *bad)      \
    {                                                                                  \
        WORD found = 0;                                                                \
        for (int64_t i = 0; i < count && !found; i++) {                                \
            const WORD *row = block + i * stride;                                      \
            for (int64_t k = 0; k < cols; k++)                                         \
                found |= (row[k] & EXPONENT) == EXPONENT;                              \
        }                                                                              \
        *bad = (int64_t)found;                                                         \
    }                                                                                  \
    EXPORT void hpcsgd_fingerprint_##KIND(const WORD *block, int64_t stride,           \
                                          int64_t count, int64_t cols,                 \
                                          const uint64_t *of_rows,                     \
                                          const uint64_t *of_columns, uint64_t *sum)   \
    {                                                                                  \
        for (int64_t i = 0; i < count; i++) {                                          \
            const WORD *row = block + i * stride;                                      \
            uint64_t total = 0;                                                        \
            for (int64_t k = 0; k < cols; k++)                                         \
                total += row[k] * of_columns[k];                                       \
            *sum += total * of_rows[i];                                                \
        }                                                                              \
    }

/* *bad ← 1 where a number of the block is infinite or none; and
   *sum += Σ_ik row_i column_k bits_ik mod 2⁶⁴ for its words. */
LOOKS(f32, uint32_t, 0x7f800000u)
LOOKS(f64, uint64_t, 0x7ff0000000000000u)

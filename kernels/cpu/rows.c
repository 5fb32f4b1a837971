/* Gather rows by index and widen bf16 to fp32 in one pass.

   A bf16 number is the upper half of a float, so widening is a shift and exact.
   One pass reads 2 bytes and writes 4 for each element; gathering first and
   widening then would read and write the 16-bit copy once more. */

#include <stdint.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

EXPORT void hpcsgd_widen_rows_bf16(const uint16_t *matrix, int64_t row_stride,
                                   const int64_t *rows, int64_t count,
                                   int64_t cols, uint32_t *out)
{
    for (int64_t i = 0; i < count; i++) {
        const uint16_t *from = matrix + rows[i] * row_stride;
        uint32_t *to = out + i * cols;
        for (int64_t j = 0; j < cols; j++)
            to[j] = (uint32_t)from[j] << 16;
    }
}

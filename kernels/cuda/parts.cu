/* total = the sum of `ranks` arrays of bf16 bits that lie one after the other: in float,
   from the first to the last, rounded once. The bits of the host, floats below 2^-126
   included. A thread has the 16 bytes of 8 sums; block = 256,
   grid = ceil(count / 2048). */
#include "elements.cuh"

extern "C" __global__ void __launch_bounds__(256)
add_parts(const element *__restrict__ parts, int ranks, s64 count, element *__restrict__ total)
{
    s64 first = ((s64)blockIdx.x * 256 + threadIdx.x) * IN_CHUNK;
    if (first + IN_CHUNK <= count && count % IN_CHUNK == 0 && is_aligned(parts) &&
        is_aligned(total)) {
        float sum[IN_CHUNK], part[IN_CHUNK];
        load_chunk(parts + first, sum);
        for (int rank = 1; rank < ranks; rank++) {
            load_chunk(parts + rank * count + first, part);
#pragma unroll
            for (int i = 0; i < IN_CHUNK; i++)
                sum[i] = exact_sum(sum[i], part[i]);
        }
        u32 word[IN_CHUNK / 2];
#pragma unroll
        for (int i = 0; i < IN_CHUNK / 2; i++)
            word[i] = bf16_of_float(sum[2 * i]) | bf16_of_float(sum[2 * i + 1]) << 16;
        *(uint4 *)(total + first) = make_uint4(word[0], word[1], word[2], word[3]);
        return;
    }
    for (s64 k = first; k < count && k < first + IN_CHUNK; k++) {
        float sum = value_of(parts[k]);
        for (int rank = 1; rank < ranks; rank++)
            sum = exact_sum(sum, value_of(parts[rank * count + k]));
        total[k] = (element)bf16_of_float(sum);
    }
}
LAUNCHABLE(add_parts)

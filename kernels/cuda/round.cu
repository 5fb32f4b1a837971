/* values = values rounded to ELEMENT (bf16, fp16) and widened again, in place.

   What a format would store, where the numbers stay floats. grid = ceil(count / 256),
   block = 256. */
#include "elements.cuh"

extern "C" __global__ void __launch_bounds__(256) round_values(float *values, int count)
{
    int i = blockIdx.x * 256 + threadIdx.x;
    if (i >= count)
        return;
#if ELEMENT == FP16
    values[i] = float_of_half(half_of_float(values[i]));
#else
    values[i] = float_of_bf16(bf16_of_float(values[i]));
#endif
}
LAUNCHABLE(round_values)

/* The rows of an exchange, and what belongs to them, from where the last one ended.

   Row `position` of `order` and those after it: their numbers, targets, sample weights and
   offsets (either may be null), side by side. The position moves on, so the same launch
   serves every exchange of an epoch. grid = 1, block = 1024. */
#include "device.cuh"

extern "C" __global__ void __launch_bounds__(1024)
sample(const s64 *__restrict__ order, s64 *position, int count,
       const float *__restrict__ targets, const float *__restrict__ weights,
       const float *__restrict__ offsets, s64 *__restrict__ numbers,
       float *__restrict__ own_targets, float *__restrict__ own_weights,
       float *__restrict__ own_offsets)
{
    s64 first = *position;
    for (int i = threadIdx.x; i < count; i += 1024) {
        s64 row = order[first + i];
        numbers[i] = row;
        own_targets[i] = targets[row];
        if (weights)
            own_weights[i] = weights[row];
        if (offsets)
            own_offsets[i] = offsets[row];
    }
    __syncthreads(); /* all have read it */
    if (threadIdx.x == 0)
        *position = first + count;
}
LAUNCHABLE(sample)

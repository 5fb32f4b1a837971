/* z = Y w (K = 1) for rows that are named by number, straight from the matrix.

   One warp a row, lanes 16 bytes apart, one order of summation. `stride` in elements, a
   multiple of 16 bytes; what lies behind `cols` in a row may be read, not used.
   grid = ceil(rows / 8), block = 256. */
#include "elements.cuh"

extern "C" __global__ void __launch_bounds__(256, 4)
margin(const element *__restrict__ matrix, s64 stride, const s64 *__restrict__ rows,
       int count, int cols, const float *__restrict__ weights, float *__restrict__ margins)
{
    int lane = threadIdx.x & 31, row = blockIdx.x * 8 + (threadIdx.x >> 5);
    if (row >= count)
        return;
    float sum = row_times(matrix + rows[row] * stride, weights, cols);
    if (lane == 0)
        margins[row] = sum;
}
LAUNCHABLE(margin)

/* Rows between members: own columns without gaps, and those of all side by side.

   A warp a row, grid = ceil(rows / 8), block = 256. Values are moved, never read as
   numbers: only their size counts. */
#include "elements.cuh"

/* Rows by number, one behind the other. */
extern "C" __global__ void __launch_bounds__(256)
pack_rows(const element *__restrict__ matrix, s64 stride, const s64 *__restrict__ rows,
          int count, int cols, element *__restrict__ packed)
{
    int lane = threadIdx.x & 31, row = blockIdx.x * 8 + (threadIdx.x >> 5);
    if (row >= count)
        return;
    const element *from = matrix + rows[row] * stride;
    for (int k = lane; k < cols; k += 32)
        packed[(s64)row * cols + k] = from[k];
}
LAUNCHABLE(pack_rows)

/* `count` packed rows of each member behind each other become whole rows: member p has
   the columns from edges[p] to edges[p + 1]. Row i becomes row rows[i] of `whole`, or
   row i where `rows` is NULL; what lies behind the last column becomes 0. */
extern "C" __global__ void __launch_bounds__(256)
join_rows(const element *__restrict__ packed, const int *__restrict__ edges, int members,
          int count, const s64 *__restrict__ rows, element *__restrict__ whole,
          s64 stride)
{
    int lane = threadIdx.x & 31, row = blockIdx.x * 8 + (threadIdx.x >> 5);
    if (row >= count)
        return;
    element *to = whole + (rows ? rows[row] : (s64)row) * stride;
    for (int p = 0; p < members; p++) {
        int first = edges[p], wide = edges[p + 1] - first;
        const element *from = packed + (s64)count * first + (s64)row * wide;
        for (int k = lane; k < wide; k += 32)
            to[first + k] = from[k];
    }
    for (s64 k = edges[members] + lane; k < stride; k += 32)
        to[k] = 0;
}
LAUNCHABLE(join_rows)

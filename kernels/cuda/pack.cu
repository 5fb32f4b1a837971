/* Tiles of a Gram, one after the other, from a square that a library has filled.

   Tile number t is rows I and columns J of 2^shift; what lies behind row or column `m` becomes
   0. Rows of the square are `pitch` floats apart, a multiple of them.
   grid = tiles, block = 256. */
#include "device.cuh"

INLINE float kept(float value, int col, int m) { return col < m ? value : 0.0f; }

extern "C" __global__ void __launch_bounds__(256)
pack_tiles(const float *__restrict__ square, s64 pitch, int m, int shift,
           const u32 *__restrict__ tiles, float *__restrict__ G)
{
    int I = tiles[blockIdx.x] >> 16, J = tiles[blockIdx.x] & 0xffffu;
    int side = 1 << shift;
    float *to = G + ((s64)blockIdx.x << 2 * shift);
    for (int at = threadIdx.x * 4; at < side * side; at += 256 * 4) {
        int row = I * side + (at >> shift), col = J * side + (at & (side - 1));
        float4 four = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (row < m) {
            four = *(const float4 *)(square + row * pitch + col);
            four = make_float4(kept(four.x, col, m), kept(four.y, col + 1, m),
                               kept(four.z, col + 2, m), kept(four.w, col + 3, m));
        }
        *(float4 *)(to + at) = four;
    }
}
LAUNCHABLE(pack_tiles)

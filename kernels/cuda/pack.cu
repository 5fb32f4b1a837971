/* Tiles of a Gram, one after the other, from a square that a library has filled.

   Tile number t is rows I and columns J of 64; what lies behind row or column `m` becomes
   0. Rows of the square are `pitch` floats apart, a multiple of 64.
   grid = tiles, block = 256. */
#include "device.cuh"

#define SIDE 64

INLINE float kept(float value, int col, int m) { return col < m ? value : 0.0f; }

extern "C" __global__ void __launch_bounds__(256)
pack_tiles(const float *__restrict__ square, s64 pitch, int m,
           const u32 *__restrict__ tiles, float *__restrict__ G)
{
    int I = tiles[blockIdx.x] >> 16, J = tiles[blockIdx.x] & 0xffffu;
    float *to = G + (s64)blockIdx.x * SIDE * SIDE;
    for (int at = threadIdx.x * 4; at < SIDE * SIDE; at += 256 * 4) {
        int row = I * SIDE + at / SIDE, col = J * SIDE + at % SIDE;
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

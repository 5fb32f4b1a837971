/* Products of tensor cores, with the lane layouts of the hardware. */
#pragma once
#include "cpu_formats.h"

namespace emulated {

/* D (16 x 8) += A (16 x K) B (K x 8) of elements that lie EACH to a 32-bit word. */
template <int K, int EACH, class F> inline void multiply(Warp *w, F element)
{
    constexpr int PER_REGISTER = EACH, HALF = K / 2;
    float A[16][K], B[K][8], C[16][8];
    for (int lane = 0; lane < 32; lane++) {
        int g = lane / 4, t = lane % 4 * PER_REGISTER;
        for (int e = 0; e < EACH; e++) {
            for (int q = 0; q < 4; q++)
                A[g + (q & 1) * 8][t + e + (q >> 1) * HALF] = element(w->a[lane][q], e);
            for (int q = 0; q < 2; q++)
                B[t + e + q * HALF][g] = element(w->b[lane][q], e);
        }
        for (int q = 0; q < 4; q++)
            C[g + (q >> 1) * 8][lane % 4 * 2 + (q & 1)] = w->c[lane][q];
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < K; k++)
            for (int j = 0; j < 8; j++)
                C[i][j] += A[i][k] * B[k][j];
    for (int lane = 0; lane < 32; lane++)
        for (int q = 0; q < 4; q++)
            w->c[lane][q] = C[lane / 4 + (q >> 1) * 8][lane % 4 * 2 + (q & 1)];
}

template <class F>
inline void mma(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, F compute)
{
    Warp *warp = now->warp;
    unsigned lane = now->lane;
    memcpy(warp->a[lane], a, sizeof a);
    warp->b[lane][0] = b0;
    warp->b[lane][1] = b1;
    memcpy(warp->c[lane], d, sizeof d);
    together(compute);
    memcpy(d, warp->c[lane], sizeof d);
}

} // namespace emulated

inline void mma_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    emulated::mma(d, a, b0, b1, [](emulated::Warp *w) {
        emulated::multiply<16, 2>(w, [](unsigned v, int e) {
            return __uint_as_float(e ? v & 0xffff0000u : v << 16);
        });
    });
}
inline void mma_f16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    emulated::mma(d, a, b0, b1, [](emulated::Warp *w) {
        emulated::multiply<16, 2>(w, [](unsigned v, int e) {
            return emulated::of_half(e ? v >> 16 : v & 0xffffu);
        });
    });
}
/* The hardware reads the upper 19 bits. */
inline void mma_tf32(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    emulated::mma(d, a, b0, b1, [](emulated::Warp *w) {
        emulated::multiply<8, 1>(
            w, [](unsigned v, int) { return __uint_as_float(v & 0xffffe000u); });
    });
}
inline void mma_e4m3(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    emulated::mma(d, a, b0, b1, [](emulated::Warp *w) {
        emulated::multiply<32, 4>(
            w, [](unsigned v, int e) { return emulated::of_e4m3(v >> 8 * e & 0xffu); });
    });
}
inline void mma_e5m2(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1)
{
    emulated::mma(d, a, b0, b1, [](emulated::Warp *w) {
        emulated::multiply<32, 4>(
            w, [](unsigned v, int e) { return emulated::of_e5m2(v >> 8 * e & 0xffu); });
    });
}

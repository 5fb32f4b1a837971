/* The formats that a matrix is stored in. ELEMENT is one of their numbers. */
#ifndef HPCSGD_ELEMENTS_CUH
#define HPCSGD_ELEMENTS_CUH

#include "device.cuh"

#define BF16 1
#define FP16 2
#define FP32 3
#define E4M3 4
#define E5M2 5

#ifndef ELEMENT
#define ELEMENT BF16
#endif

#if ELEMENT == FP32
typedef float element;
#elif ELEMENT == BF16 || ELEMENT == FP16
typedef u16 element;
#else
typedef u8 element;
#endif
#define IN_CHUNK (16 / (int)sizeof(element)) /* elements of 16 bytes */

INLINE bool is_aligned(const void *at) { return ((u64)at & 15) == 0; }

INLINE float value_of(element stored)
{
#if ELEMENT == FP32
    return stored;
#elif ELEMENT == BF16
    return float_of_bf16(stored);
#elif ELEMENT == FP16
    return float_of_half(stored);
#elif ELEMENT == E4M3
    return float_of_e4m3(stored);
#else
    return float_of_e5m2(stored);
#endif
}

/* 16 bytes as floats. */
INLINE void spread(const uint4 &words, float (&to)[IN_CHUNK])
{
    u32 word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < IN_CHUNK; i++) {
#if ELEMENT == FP32
        to[i] = __uint_as_float(word[i]);
#elif ELEMENT == BF16
        to[i] = __uint_as_float(i & 1 ? word[i / 2] & 0xffff0000u : word[i / 2] << 16);
#elif ELEMENT == FP16
        to[i] = float_of_half(word[i / 2] >> 16 * (i & 1) & 0xffffu);
#else
        to[i] = value_of((element)(word[i / 4] >> 8 * (i & 3) & 0xffu));
#endif
    }
}

/* 16 bytes of a row, aligned, as floats. */
INLINE void load_chunk(const element *from, float (&to)[IN_CHUNK])
{
    spread(__ldg((const uint4 *)from), to);
}

/* A row times w, by one warp, in one order: the same in every lane. */
INLINE float row_times(const element *row, const float *weights, int cols)
{
    int lane = threadIdx.x & 31;
    float sums[2] = {0.0f, 0.0f};
    for (int k = lane * IN_CHUNK; k < cols; k += 32 * IN_CHUNK) {
        float chunk[IN_CHUNK];
        load_chunk(row + k, chunk);
#pragma unroll
        for (int i = 0; i < IN_CHUNK; i++)
            if (k + i < cols)
                sums[i & 1] = fmaf(chunk[i], weights[k + i], sums[i & 1]);
    }
    return sum_of_warp(sums[0] + sums[1]);
}

#endif

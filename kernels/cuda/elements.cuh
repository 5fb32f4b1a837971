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

/* A whole chunk times its weights, 16 bytes of them at a time: one by one, lanes that lie
   a chunk apart would meet in four of the 32 banks. */
INLINE void add_chunk(const uint4 &words, const float *weights, float (&sums)[2])
{
    float chunk[IN_CHUNK];
    spread(words, chunk);
#pragma unroll
    for (int i = 0; i < IN_CHUNK; i += 4) {
        float4 w = *(const float4 *)(weights + i);
        sums[0] = fmaf(chunk[i], w.x, sums[0]);
        sums[1] = fmaf(chunk[i + 1], w.y, sums[1]);
        sums[0] = fmaf(chunk[i + 2], w.z, sums[0]);
        sums[1] = fmaf(chunk[i + 3], w.w, sums[1]);
    }
}

#define AT_A_TIME 4 /* chunks of a lane that are under way */

/* A row times w, by one warp, in one order: the same in every lane. */
INLINE float row_times(const element *row, const float *weights, int cols)
{
    const int apart = 32 * IN_CHUNK;
    int first = (threadIdx.x & 31) * IN_CHUNK;
    int whole = is_aligned(weights) ? cols & -IN_CHUNK : 0;
    float sums[2] = {0.0f, 0.0f};
#pragma unroll 1
    for (int base = first; base - first < whole; base += AT_A_TIME * apart) {
        uint4 words[AT_A_TIME];
#pragma unroll
        for (int t = 0; t < AT_A_TIME; t++)
            if (base + t * apart < whole)
                words[t] = load_now((const uint4 *)(row + base + t * apart));
        __syncwarp(); /* or the compiler asks for one when it has used the other */
#pragma unroll
        for (int t = 0; t < AT_A_TIME; t++)
            if (base + t * apart < whole)
                add_chunk(words[t], weights + base + t * apart, sums);
    }
    /* The chunk that has fewer columns; all of them where weights have no boundary. */
    int after = whole + ((first - whole) & (apart - 1));
#pragma unroll 1
    for (int k = after; k < cols; k += apart) {
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

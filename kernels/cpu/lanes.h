/* Lanes of floats, as wide as the instruction set that this object is compiled for.

   The compiler's own vector types are used, so one source serves every set. Sums run
   lane by lane in a fixed order: the same input gives the same bits on one set. */

#ifndef HPCSGD_LANES_H
#define HPCSGD_LANES_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
#define INLINE static inline __attribute__((always_inline))

/* Eight on every set: rows begin anywhere, so half of the loads of 16 would touch two
   lines of the cache, and those of 8 were faster on the processors that we measured.
   AVX2 and AVX-512 therefore give the same bits. */
#define LANES 8
#if defined(__AVX512VL__)
#define REGISTERS 32
#else
#define REGISTERS 16
#endif

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef uint32_t wide __attribute__((vector_size(4 * LANES)));
typedef uint16_t half __attribute__((vector_size(2 * LANES)));

INLINE lanes load_f32(const float *from)
{
    lanes v;
    memcpy(&v, from, sizeof v);
    return v;
}

INLINE void store_f32(float *to, lanes v) { memcpy(to, &v, sizeof v); }

/* A bf16 number is the upper half of a float: widening is a shift, and exact. */
INLINE lanes load_bf16(const uint16_t *from)
{
#if defined(__AVX2__)
    /* GCC 12 makes four instructions of the conversion below where one will do. */
    wide w = (wide)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from)) << 16;
#else
    half h;
    memcpy(&h, from, sizeof h);
    wide w = __builtin_convertvector(h, wide) << 16;
#endif
    lanes v;
    memcpy(&v, &w, sizeof v);
    return v;
}

INLINE float one_f32(const float *from) { return *from; }

INLINE float one_bf16(const uint16_t *from)
{
    uint32_t w = (uint32_t)*from << 16;
    float v;
    memcpy(&v, &w, sizeof v);
    return v;
}

/* The last `count` < LANES values, zeros behind them: under a mask where there are
   some, since what was stored value by value cannot be read as a whole at once. */
#if defined(__AVX512VL__) && defined(__AVX512BW__)
#define FIRST(count) ((__mmask8)((1u << (count)) - 1))

INLINE lanes tail_f32(const float *from, int64_t count)
{
    return (lanes)_mm256_maskz_loadu_ps(FIRST(count), from);
}

INLINE lanes tail_bf16(const uint16_t *from, int64_t count)
{
    __m128i half = _mm_maskz_loadu_epi16(FIRST(count), from);
    return (lanes)_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16);
}

INLINE void store_tail_f32(float *to, lanes v, int64_t count)
{
    _mm256_mask_storeu_ps(to, FIRST(count), (__m256)v);
}
#else
#if defined(__AVX2__)
INLINE __m256i first_of(int64_t count)
{
    static const int32_t edge[2 * LANES] = {-1, -1, -1, -1, -1, -1, -1, -1};
    return _mm256_loadu_si256((const __m256i *)(edge + LANES - count));
}

INLINE lanes tail_f32(const float *from, int64_t count)
{
    return (lanes)_mm256_maskload_ps(from, first_of(count));
}

INLINE void store_tail_f32(float *to, lanes v, int64_t count)
{
    _mm256_maskstore_ps(to, first_of(count), (__m256)v);
}
#else
INLINE lanes tail_f32(const float *from, int64_t count)
{
    float whole[LANES] = {0};
    for (int64_t i = 0; i < count; i++) /* a call to copy them would take longer */
        whole[i] = from[i];
    return load_f32(whole);
}

INLINE void store_tail_f32(float *to, lanes v, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        to[i] = v[i];
}
#endif

INLINE lanes tail_bf16(const uint16_t *from, int64_t count)
{
    uint16_t whole[LANES] = {0};
    for (int64_t i = 0; i < count; i++)
        whole[i] = from[i];
    return load_bf16(whole);
}
#endif

/* Lanes are added by halves: 8 to 4 to 2 to 1. */
INLINE float add_up(lanes v)
{
    lanes w = v + __builtin_shuffle(v, (wide){4, 5, 6, 7, 0, 1, 2, 3});
    w += __builtin_shuffle(w, (wide){2, 3, 0, 1, 2, 3, 0, 1});
    return w[0] + w[1];
}

/* The same sums of four at once, in lanes 0 to 3. */
INLINE lanes add_up_four(lanes a, lanes b, lanes c, lanes d)
{
    lanes ab = __builtin_shuffle(a, b, (wide){0, 8, 1, 9, 2, 10, 3, 11}) +
               __builtin_shuffle(a, b, (wide){4, 12, 5, 13, 6, 14, 7, 15});
    lanes cd = __builtin_shuffle(c, d, (wide){0, 8, 1, 9, 2, 10, 3, 11}) +
               __builtin_shuffle(c, d, (wide){4, 12, 5, 13, 6, 14, 7, 15});
    lanes all = __builtin_shuffle(ab, cd, (wide){0, 1, 8, 9, 2, 3, 10, 11}) +
                __builtin_shuffle(ab, cd, (wide){4, 5, 12, 13, 6, 7, 14, 15});
    return all + __builtin_shuffle(all, (wide){4, 5, 6, 7, 0, 1, 2, 3});
}

#endif

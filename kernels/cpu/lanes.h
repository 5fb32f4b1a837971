/* Lanes of floats, as wide as the instruction set that this object is compiled for.

   The compiler's own vector types are used, so one source serves every set. Sums run
   lane by lane in a fixed order: the same input gives the same bits on one set. */

#ifndef HPCSGD_LANES_H
#define HPCSGD_LANES_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512BF16__)
#include <immintrin.h>
#endif

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif
#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
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
    half h;
    memcpy(&h, from, sizeof h);
    wide w = __builtin_convertvector(h, wide) << 16;
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

/* The last `count` < LANES values, zeros behind them. */
INLINE lanes tail_f32(const float *from, int64_t count)
{
    lanes v = {0};
    memcpy(&v, from, (size_t)count * 4);
    return v;
}

INLINE lanes tail_bf16(const uint16_t *from, int64_t count)
{
    uint16_t whole[LANES] = {0};
    memcpy(whole, from, (size_t)count * 2);
    return load_bf16(whole);
}

/* Lanes are added by halves: 16 to 8 to 4 to 2 to 1. */
INLINE float add_up(lanes v)
{
    float part[LANES];
    memcpy(part, &v, sizeof v);
    for (int size = LANES / 2; size; size /= 2)
        for (int i = 0; i < size; i++)
            part[i] += part[i + size];
    return part[0];
}

#endif

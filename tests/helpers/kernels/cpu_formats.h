/* Numbers of few bits, and single operations of fp32 that nothing is fused with. */
#pragma once
#include "cpu_threads.h"

namespace emulated {

/* As instructions have it: no float on the way is subnormal. */
inline float of_half(unsigned bits)
{
    unsigned sign = (bits & 0x8000u) << 16, size = bits & 0x7fffu;
    float value = size >= 0x7c00u
                      ? __uint_as_float(0x7f800000u | (size & 0x3ffu) << 13)
                      : size >= 0x400u ? __uint_as_float((size << 13) + (112u << 23))
                                       : (float)size * 0x1p-24f;
    return __uint_as_float(__float_as_uint(value) | sign);
}

inline unsigned to_half(float value)
{
    unsigned bits = __float_as_uint(value), sign = bits >> 16 & 0x8000u;
    unsigned size = bits & 0x7fffffffu;
    if (size > 0x7f800000u)
        return sign | 0x7e00u;
    if (size >= 0x477ff000u)
        return sign | 0x7c00u;
    if (size < 0x38800000u) /* a subnormal: float addition rounds it to even */
        return sign | (__float_as_uint(__uint_as_float(size) + 0.5f) - 0x3f000000u);
    size += 0xfffu + (size >> 13 & 1u);
    return sign | ((size - 0x38000000u) >> 13);
}

inline float of_e4m3(unsigned bits)
{
    unsigned size = bits & 0x7fu, sign = (bits & 0x80u) << 24;
    float value = size == 0x7fu ? __uint_as_float(0x7fc00000u) : of_half(size << 7) * 256.0f;
    return __uint_as_float(__float_as_uint(value) | sign);
}

inline float of_e5m2(unsigned bits) { return of_half(bits << 8); }

} // namespace emulated

/* To nearest, halves away from zero. */
inline unsigned tf32_of_float(unsigned bits)
{
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0x7fffffffu;
    return (bits + 0x1000u) & ~0x1fffu;
}
inline float float_of_half(unsigned bits) { return emulated::of_half(bits); }
inline unsigned half_of_float(float value) { return emulated::to_half(value); }
inline float float_of_e4m3(unsigned bits) { return emulated::of_e4m3(bits); }
inline float float_of_e5m2(unsigned bits) { return emulated::of_e5m2(bits); }
/* By way of a format that keeps small numbers and rounds a sum of two floats once; the
   compiler knows as much, and would add floats. */
inline float exact_sum(float left, float right)
{
    volatile long double sum = (long double)left + right;
    return (float)sum;
}
inline float exact_product(float left, float right)
{
    volatile long double product = (long double)left * right;
    return (float)product;
}
inline float exact_quotient(float above, float below)
{
    volatile long double quotient = (long double)above / below;
    return (float)quotient;
}
inline float exact_root(float value)
{
    volatile long double root = sqrtl(value);
    return (float)root;
}

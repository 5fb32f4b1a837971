/* What opcodes of PTX that compute values mean: registers, integers, floats and changes
   of format.

   A register is an integer, a float or a predicate of its width; `as` and `put` read
   and write it as the type that an instruction names. Floats below 2^-126 are zeros
   throughout (Flushed), as .ftz asks; those without .ftz run under another State.
   Doubles below 2^-1022 are zeros, too, as they are on no GPU. */
#pragma once
#include "cuda_on_cpu.h"

typedef uint8_t u8, b8;
typedef uint16_t u16, b16;
typedef uint32_t u32, b32;
typedef uint64_t u64, b64;
typedef int8_t s8;
typedef int16_t s16;
typedef int32_t s32;
typedef int64_t s64;
typedef float f32;
typedef double f64;
typedef bool pred;

namespace ptx {

/* ---- registers ---- */

template <class T, class R> inline T as(R from)
{
    if constexpr (std::is_same_v<T, R>) {
        return from;
    } else if constexpr (sizeof(T) == sizeof(R)) {
        T value;
        memcpy(&value, &from, sizeof value);
        return value;
    } else {
        static_assert(std::is_integral_v<T> && std::is_integral_v<R> &&
                          sizeof(T) < sizeof(R),
                      "an operand that is too narrow");
        return (T)from;
    }
}

template <class T, class R> inline void put(R &to, T value)
{
    if constexpr (sizeof(T) == sizeof(R)) {
        memcpy(&to, &value, sizeof value);
    } else {
        static_assert(std::is_integral_v<T> && std::is_integral_v<R> &&
                          sizeof(T) < sizeof(R),
                      "a result that is too wide");
        to = (R)value;
    }
}

/* ---- integers ---- */

template <class T> using bits = std::make_unsigned_t<T>;
template <class T> constexpr unsigned WIDTH = 8 * sizeof(T);

template <class T> inline T add(T a, T b)
{
    if constexpr (std::is_integral_v<T>)
        return (T)((bits<T>)a + (bits<T>)b);
    else
        return a + b;
}
template <class T> inline T sub(T a, T b)
{
    if constexpr (std::is_integral_v<T>)
        return (T)((bits<T>)a - (bits<T>)b);
    else
        return a - b;
}
template <class T> inline T mul(T a, T b)
{
    if constexpr (std::is_integral_v<T>)
        return (T)((u64)a * (u64)b);
    else
        return a * b;
}
template <class T> inline T mad(T a, T b, T c) { return add(mul(a, b), c); }
template <class W, class T> inline W mul_wide(T a, T b) { return (W)a * (W)b; }
template <class W, class T> inline W mad_wide(T a, T b, W c)
{
    return add(mul_wide<W>(a, b), c);
}
inline u32 mul_hi(u32 a, u32 b) { return (u32)((u64)a * b >> 32); }
inline s32 mul_hi(s32 a, s32 b) { return (s32)((s64)a * b >> 32); }
inline u64 mul_hi(u64 a, u64 b) { return (u64)((unsigned __int128)a * b >> 64); }

/* By zero: unspecified, and so what nobody can have meant. */
template <class T> inline T quotient(T a, T b)
{
    if (b == 0)
        return (T)0x5eadbeef5eadbeefull;
    if (std::is_signed_v<T> && b == (T)-1)
        return sub((T)0, a);
    return a / b;
}
template <class T> inline T rest(T a, T b) { return sub(a, mul(quotient(a, b), b)); }

/* Shifts by the width or more leave nothing, or the sign. */
template <class T> inline T shl(T a, u32 by)
{
    return by < WIDTH<T> ? (T)((bits<T>)a << by) : (T)0;
}
template <class T> inline T shr(T a, u32 by)
{
    if (by < WIDTH<T>)
        return (T)(a >> by);
    return a < 0 ? (T)-1 : (T)0;
}

/* The lowest `count` bits of a, from bit `from` of b on. */
template <class T> inline T bfi(T a, T b, u32 from, u32 count)
{
    from &= 0xff, count &= 0xff;
    for (u32 i = 0; i < count && from + i < WIDTH<T>; i++) {
        T one = (T)1 << (from + i);
        b = (a >> i & 1) ? b | one : b & ~one;
    }
    return b;
}

/* Four of the eight bytes of b:a; bit 3 of a number takes a byte's sign eight times. */
inline u32 prmt(u32 a, u32 b, u32 choice)
{
    u64 bytes = (u64)b << 32 | a;
    u32 found = 0;
    for (int i = 0; i < 4; i++) {
        u32 which = choice >> 4 * i & 0xf;
        u32 byte = (u32)(bytes >> 8 * (which & 7)) & 0xff;
        if (which & 8)
            byte = byte & 0x80 ? 0xff : 0;
        found |= byte << 8 * i;
    }
    return found;
}

/* ---- floats ---- */

inline bool is_nan(f32 a) { return (as<u32>(a) & 0x7fffffffu) > 0x7f800000u; }
inline bool is_nan(f64 a) { return a != a; }
template <class T> inline bool is_nan(T) { return false; }

/* What .ftz does to an operand; moves and signs do not do it by themselves. */
inline f32 flushed(f32 a)
{
    u32 word = as<u32>(a);
    return as<f32>(word & 0x7f800000u ? word : word & 0x80000000u);
}
inline f32 negative(f32 a) { return as<f32>(as<u32>(a) ^ 0x80000000u); }
inline f32 absolute(f32 a) { return as<f32>(as<u32>(a) & 0x7fffffffu); }
inline f64 negative(f64 a) { return as<f64>(as<u64>(a) ^ 1ull << 63); }
inline f64 absolute(f64 a) { return as<f64>(as<u64>(a) & ~(1ull << 63)); }
template <class T> inline T negative(T a) { return sub((T)0, a); }
template <class T> inline T absolute(T a) { return a < 0 ? negative(a) : a; }

/* Of floats the one that is a number; -0 is less than +0. */
template <class T> inline T least(T a, T b)
{
    if constexpr (std::is_floating_point_v<T>) {
        if (is_nan(a) || is_nan(b))
            return is_nan(a) ? is_nan(b) ? (T)as<f32>(0x7fffffffu) : b : a;
        if (a == b)
            return std::signbit(a) ? a : b;
    }
    return b < a ? b : a;
}
template <class T> inline T greatest(T a, T b)
{
    if constexpr (std::is_floating_point_v<T>) {
        if (is_nan(a) || is_nan(b))
            return is_nan(a) ? is_nan(b) ? (T)as<f32>(0x7fffffffu) : b : a;
        if (a == b)
            return std::signbit(a) ? b : a;
    }
    return a < b ? b : a;
}

/* Comparisons are false where one side is no number; those that end in u are true. */
template <class T> inline bool eq(T a, T b) { return a == b; }
template <class T> inline bool ne(T a, T b) { return a < b || a > b; }
template <class T> inline bool lt(T a, T b) { return a < b; }
template <class T> inline bool le(T a, T b) { return a <= b; }
template <class T> inline bool gt(T a, T b) { return a > b; }
template <class T> inline bool ge(T a, T b) { return a >= b; }
template <class T> inline bool equ(T a, T b) { return !(a < b || a > b); }
template <class T> inline bool neu(T a, T b) { return a != b; }
template <class T> inline bool ltu(T a, T b) { return !(a >= b); }
template <class T> inline bool leu(T a, T b) { return !(a > b); }
template <class T> inline bool gtu(T a, T b) { return !(a <= b); }
template <class T> inline bool geu(T a, T b) { return !(a < b); }
template <class T> inline bool num(T a, T b) { return !is_nan(a) && !is_nan(b); }
template <class T> inline bool nan(T a, T b) { return is_nan(a) || is_nan(b); }

/* Another state of the processor for a while: `volatile` keeps the work inside. */
constexpr u32 ZEROS = 0x8040, DOWN = 0x2000, ROUND = 0x6000;
struct State {
    u32 before = __builtin_ia32_stmxcsr();
    State(u32 clear, u32 set) { __builtin_ia32_ldmxcsr((before & ~clear) | set); }
    ~State() { __builtin_ia32_ldmxcsr(before); }
};
template <class F> __attribute__((noinline)) f32 under(u32 clear, u32 set, f32 a, f32 b,
                                                       f32 c, F compute)
{
    State state(clear, set);
    volatile f32 x = a, y = b, z = c;
    volatile f32 found = compute(x, y, z);
    return found;
}
inline f32 kept_add(f32 a, f32 b)
{
    return under(ZEROS, 0, a, b, 0, [](f32 x, f32 y, f32) { return x + y; });
}
inline f32 kept_mul(f32 a, f32 b)
{
    return under(ZEROS, 0, a, b, 0, [](f32 x, f32 y, f32) { return x * y; });
}
inline f32 kept_quotient(f32 a, f32 b) { return exact_quotient(a, b); }
inline f32 kept_root(f32 a) { return exact_root(a); }
inline f32 fma(f32 a, f32 b, f32 c) { return __builtin_fmaf(a, b, c); }
inline f64 fma(f64 a, f64 b, f64 c) { return __builtin_fma(a, b, c); }
inline f32 fma_down(f32 a, f32 b, f32 c)
{
    return under(ROUND, DOWN, a, b, c,
                 [](f32 x, f32 y, f32 z) { return __builtin_fmaf(x, y, z); });
}
inline f32 ex2(f32 a) { return flushed(exp2f(flushed(a))); }

/* ---- from one format to another ---- */

template <class D, class S> inline D convert(S from) { return (D)from; }
inline f32 saturated(f32 a)
{
    return is_nan(a) ? 0.0f : least(greatest(flushed(a), 0.0f), 1.0f);
}
/* Towards zero; what is out of reach is the end of it, and no number is 0. */
inline s32 truncated(f32 a)
{
    return is_nan(a) ? 0 : a >= 0x1p31f ? INT32_MAX : a < -0x1p31f ? INT32_MIN : (s32)a;
}
inline f32 of_f16(u16 from) { return emulated::of_half(from); }
inline u16 to_f16(f32 from) /* one bit pattern is no number, whatever came in */
{
    return is_nan(from) ? 0x7fff : (u16)emulated::to_half(from);
}
inline u32 to_tf32(f32 from) { return tf32_of_float(as<u32>(from)); }

} // namespace ptx

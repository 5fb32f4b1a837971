/* float to narrow formats and back, as a message travels in them.

   Rounded to nearest, ties to even; subnormal numbers, infinities and NaN are those of
   the format, and what lies beyond its largest number becomes infinity, or NaN where it
   has none. A factor, a power of two, goes with each call. Everything is chosen without
   a branch, so that the loops become vectors. */

#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* One body for each kind of vector, chosen when the object is loaded. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define VECTORS __attribute__((target_clones("default", "avx2", "arch=skylake-avx512")))
#else
#define VECTORS
#endif

#define INFINITE 0x7f800000

static inline int32_t bits_of(float value)
{
    int32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static inline float float_of(int32_t bits)
{
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* A format: bits of its fraction, bias of its exponents, the code that stands behind its
   largest number, and that of a NaN.*/
struct format {
    int fraction, bias;
    int32_t behind, nan;
};

static inline int32_t narrowed(float value, struct format to)
{
    int drop = 23 - to.fraction;
    int32_t size = bits_of(value) & 0x7fffffff;
    int32_t kept = size < INFINITE ? size : INFINITE;
    int32_t odd = (kept >> drop) & 1;
    int32_t code = (kept + (1 << (drop - 1)) - 1 + odd) >> drop;
    code -= (127 - to.bias) << to.fraction;
    code = code < to.behind ? code : to.behind;
    /* Subnormal numbers lie at equal distances: an addition rounds to them. */
    int32_t unit = (128 - to.bias + drop) << 23, least = (128 - to.bias) << 23;
    int32_t multiple = bits_of(float_of(kept) + float_of(unit)) - unit;
    code = kept < least ? multiple : code;
    return size > INFINITE ? to.nan : code;
}

static inline float widened(int32_t code, struct format of)
{
    int up = 23 - of.fraction;
    int32_t bits = code << up, shift = (127 - of.bias) << 23, least = shift + (1 << 23);
    float small = float_of(bits + least) - float_of(least);
    float value = code < 1 << of.fraction ? small : float_of(bits + shift);
    int32_t none = code == of.behind && code != of.nan ? 0 : 1 << 22;
    return code >= of.behind ? float_of(INFINITE | none) : value;
}

#define FP16 ((struct format){10, 15, 0x7c00, 0x7e00})
#define E4M3 ((struct format){3, 7, 0x7f, 0x7f})
#define E5M2 ((struct format){2, 15, 0x7c, 0x7e})

/* bf16 is the upper half of a float: less is to be done. */
static inline uint16_t upper_half(float value)
{
    uint32_t bits = (uint32_t)bits_of(value), odd = bits >> 16 & 1;
    uint32_t kept = (bits + 0x7fff + odd) >> 16, none = bits >> 16 | 0x40;
    return (uint16_t)((bits & 0x7fffffff) > INFINITE ? none : kept);
}

static inline float of_upper_half(uint16_t held)
{
    return float_of((int32_t)((uint32_t)held << 16));
}

#define LOOP for (int64_t i = 0; i < count; i++)
#define ENCODE(type, top, to)                                                            \
    LOOP((type *)out)[i] = (type)(narrowed(values[i] * factor, to)                       \
                                  | ((bits_of(values[i]) >> 31) & 1) << (top))
#define VALUE(type, top, of)                                                             \
    signed_as(widened(((const type *)held)[i] & ((1 << (top)) - 1), of) * factor,        \
              ((const type *)held)[i] >> (top))

static inline float signed_as(float size, int32_t is_negative)
{
    return float_of((bits_of(size) & 0x7fffffff)
                    | (int32_t)((uint32_t)is_negative << 31));
}

/* out ← values · factor in the format of number `kind`: bf16, fp16, e4m3 or e5m2. */
VECTORS EXPORT void hpcsgd_encode(const float *restrict values, void *restrict out,
                                  int64_t count, int kind, float factor)
{
    switch (kind) {
    case 0: LOOP((uint16_t *)out)[i] = upper_half(values[i] * factor); break;
    case 1: ENCODE(uint16_t, 15, FP16); break;
    case 2: ENCODE(uint8_t, 7, E4M3); break;
    default: ENCODE(uint8_t, 7, E5M2);
    }
}

/* out ← held · factor. */
VECTORS EXPORT void hpcsgd_decode(const void *restrict held, float *restrict out,
                                  int64_t count, int kind, float factor)
{
    switch (kind) {
    case 0: LOOP out[i] = of_upper_half(((const uint16_t *)held)[i]) * factor; break;
    case 1: LOOP out[i] = VALUE(uint16_t, 15, FP16); break;
    case 2: LOOP out[i] = VALUE(uint8_t, 7, E4M3); break;
    default: LOOP out[i] = VALUE(uint8_t, 7, E5M2);
    }
}

/* The largest size among the values that are finite, 0 where none is. */
VECTORS EXPORT float hpcsgd_largest(const float *values, int64_t count)
{
    int32_t largest = 0;
    LOOP {
        int32_t size = bits_of(values[i]) & 0x7fffffff;
        size = size < INFINITE ? size : 0;
        largest = largest > size ? largest : size;
    }
    return float_of(largest);
}

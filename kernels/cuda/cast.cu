/* Values to the bits of a format and back, and rows by number to a dense block.

   Rounded to nearest, ties to even; what lies beyond a format's largest number becomes
   infinity, or NaN where it has none: the bits of kernels/cpu/casts.c. `factor` may be
   NULL. A thread has the 16 bytes of a format; block = 256,
   grid = ceil(count / (256 chunks)), and ceil(rows / 8) for rows. */
#include "elements.cuh"

#if ELEMENT != FP32
#if ELEMENT == FP16
#define FRACTION 10
#define BIAS 15
#define BEHIND 0x7c00 /* the code after that of the largest number */
#define NONE 0x7e00
#elif ELEMENT == E4M3
#define FRACTION 3
#define BIAS 7
#define BEHIND 0x7f
#define NONE 0x7f
#else
#define FRACTION 2
#define BIAS 15
#define BEHIND 0x7c
#define NONE 0x7e
#endif
#define INFINITE 0x7f800000

INLINE u32 narrowed(float value)
{
#if ELEMENT == BF16
    return bf16_of_float(value);
#else
    const int drop = 23 - FRACTION;
    int bits = (int)__float_as_uint(value), size = bits & 0x7fffffff;
    int kept = min(size, INFINITE), odd = kept >> drop & 1;
    int code = (kept + (1 << (drop - 1)) - 1 + odd) >> drop;
    code = min(code - ((127 - BIAS) << FRACTION), BEHIND);
    /* Subnormal numbers lie at equal distances: an addition rounds to them. */
    const int unit = (128 - BIAS + drop) << 23;
    float moved = __uint_as_float((u32)kept) + __uint_as_float((u32)unit);
    if (kept < (128 - BIAS) << 23)
        code = (int)__float_as_uint(moved) - unit;
    code = size > INFINITE ? NONE : code;
    return (u32)code | (u32)bits >> 31 << (8 * (int)sizeof(element) - 1);
#endif
}

extern "C" __global__ void __launch_bounds__(256)
narrow(const float *__restrict__ values, s64 count, const float *__restrict__ factor,
       element *__restrict__ held)
{
    const int each = 32 / (int)sizeof(element) / 8; /* elements of a word */
    s64 first = ((s64)blockIdx.x * 256 + threadIdx.x) * IN_CHUNK;
    float by = factor ? *factor : 1.0f;
    if (first + IN_CHUNK <= count && is_aligned(values) && is_aligned(held)) {
        u32 word[4] = {0, 0, 0, 0};
#pragma unroll
        for (int q = 0; q < IN_CHUNK / 4; q++) {
            float4 four = __ldg((const float4 *)(values + first) + q);
            float one[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 code = narrowed(factor ? one[i] * by : one[i]);
                word[(4 * q + i) / each] |= code << 32 / each * (i % each);
            }
        }
        *(uint4 *)(held + first) = make_uint4(word[0], word[1], word[2], word[3]);
        return;
    }
    for (s64 k = first; k < count && k < first + IN_CHUNK; k++)
        held[k] = (element)narrowed(factor ? values[k] * by : values[k]);
}
LAUNCHABLE(narrow)

extern "C" __global__ void __launch_bounds__(256)
widen(const element *__restrict__ held, s64 count, const float *__restrict__ factor,
      float *__restrict__ values)
{
    s64 first = ((s64)blockIdx.x * 256 + threadIdx.x) * IN_CHUNK;
    float by = factor ? *factor : 1.0f;
    if (first + IN_CHUNK <= count && is_aligned(values) && is_aligned(held)) {
        float chunk[IN_CHUNK];
        load_chunk(held + first, chunk);
#pragma unroll
        for (int i = 0; i < IN_CHUNK; i++) /* a product would flush small ones */
            chunk[i] = factor ? chunk[i] * by : chunk[i];
#pragma unroll
        for (int q = 0; q < IN_CHUNK; q += 4)
            *(float4 *)(values + first + q) =
                make_float4(chunk[q], chunk[q + 1], chunk[q + 2], chunk[q + 3]);
        return;
    }
    for (s64 k = first; k < count && k < first + IN_CHUNK; k++)
        values[k] = factor ? value_of(held[k]) * by : value_of(held[k]);
}
LAUNCHABLE(widen)
#endif

/* One warp a row. A row of the block has `pitch` places, a multiple of 16 bytes; those
   behind `cols` become 0. WIDEN: the block is of floats. */
#if defined(WIDEN)
typedef float gathered;

INLINE void copy_chunk(const element *from, int left, float *to, s64 room)
{
    float chunk[IN_CHUNK];
    if (left > 0)
        load_chunk(from, chunk);
#pragma unroll
    for (int i = 0; i < IN_CHUNK; i++)
        chunk[i] = i < left ? chunk[i] : 0.0f;
#pragma unroll
    for (int q = 0; q < IN_CHUNK; q += 4)
        if (q < room)
            *(float4 *)(to + q) =
                make_float4(chunk[q], chunk[q + 1], chunk[q + 2], chunk[q + 3]);
}
#else
typedef element gathered;

/* The bits of a word of which the first `bytes` bytes count. */
INLINE u32 kept_of(u32 word, int bytes)
{
    return bytes >= 4 ? word : bytes <= 0 ? 0u : word & ((1u << 8 * bytes) - 1u);
}

INLINE void copy_chunk(const element *from, int left, element *to, s64)
{
    uint4 word = make_uint4(0, 0, 0, 0);
    int bytes = left < IN_CHUNK ? left * (int)sizeof(element) : 16;
    if (left > 0)
        word = __ldg((const uint4 *)from);
    *(uint4 *)to = make_uint4(kept_of(word.x, bytes), kept_of(word.y, bytes - 4),
                              kept_of(word.z, bytes - 8), kept_of(word.w, bytes - 12));
}
#endif

extern "C" __global__ void __launch_bounds__(256)
gather_rows(const element *__restrict__ matrix, s64 stride, const s64 *__restrict__ rows,
            int count, int cols, gathered *__restrict__ block, s64 pitch)
{
    int lane = threadIdx.x & 31, row = blockIdx.x * 8 + (threadIdx.x >> 5);
    if (row >= count)
        return;
    const element *from = matrix + rows[row] * stride;
    gathered *to = block + row * pitch;
    for (int k = lane * IN_CHUNK; k < pitch; k += 32 * IN_CHUNK)
        copy_chunk(from + k, cols - k, to + k, pitch - k);
}
LAUNCHABLE(gather_rows)

/* One by one in fp32, for what tensor cores do not know and where every bit counts.
   Part of gram.cu, which says TB, THREADS and where a chunk lies. */
#ifndef HPCSGD_GRAM_FFMA_CUH
#define HPCSGD_GRAM_FFMA_CUH

/* The sums of a thread: rows DOWN apart, columns 16 apart, so that eight threads that
   read side by side read eight rows side by side. */
#define DOWN (THREADS / 16)

struct Sums {
    float of[TB / DOWN][TB / 16];
};

INLINE void clear(Sums &sums)
{
#pragma unroll
    for (int i = 0; i < TB / DOWN; i++)
#pragma unroll
        for (int j = 0; j < TB / 16; j++)
            sums.of[i][j] = 0.0f;
}

INLINE void load_four(const u8 *from, float (&to)[4])
{
#if ELEMENT == FP32
    float4 four = *(const float4 *)from;
    to[0] = four.x;
    to[1] = four.y;
    to[2] = four.z;
    to[3] = four.w;
#elif ELEMENT == BF16 || ELEMENT == FP16
    uint2 four = *(const uint2 *)from;
    to[0] = value_of((element)(four.x & 0xffffu));
    to[1] = value_of((element)(four.x >> 16));
    to[2] = value_of((element)(four.y & 0xffffu));
    to[3] = value_of((element)(four.y >> 16));
#else
    u32 four = *(const u32 *)from;
#pragma unroll
    for (int i = 0; i < 4; i++)
        to[i] = value_of((element)(four >> 8 * i & 0xffu));
#endif
}

INLINE void add_stage(Sums &sums, const u8 *left, const u8 *right)
{
    int down = threadIdx.x / 16, across = threadIdx.x % 16;
#pragma unroll 1
    for (int k = 0; k < STEP; k += 4) {
        int chunk = k / IN_CHUNK, inside = k % IN_CHUNK * (int)sizeof(element);
        float a[TB / DOWN][4];
#pragma unroll
        for (int i = 0; i < TB / DOWN; i++)
            load_four(left + place_of(down + i * DOWN, chunk) + inside, a[i]);
#pragma unroll
        for (int j = 0; j < TB / 16; j++) {
            float b[4];
            load_four(right + place_of(across + j * 16, chunk) + inside, b);
#pragma unroll
            for (int i = 0; i < TB / DOWN; i++)
#pragma unroll
                for (int q = 0; q < 4; q++)
                    sums.of[i][j] = fmaf(a[i][q], b[q], sums.of[i][j]);
        }
    }
}

INLINE void store(const Sums &sums, float *to)
{
    int down = threadIdx.x / 16, across = threadIdx.x % 16;
#pragma unroll
    for (int i = 0; i < TB / DOWN; i++)
#pragma unroll
        for (int j = 0; j < TB / 16; j++)
            to[(down + i * DOWN) * TB + across + j * 16] = sums.of[i][j];
}

#endif

/* What kernels ask of the processor beyond the language, in one place.

   The same kernels are compiled by NVRTC, by nvcc, and by a C++ compiler with the
   emulation of the tests, which brings its own of everything below. 16- and 8-bit
   numbers are integers here: no header of CUDA is needed. */
#ifndef HPCSGD_DEVICE_CUH
#define HPCSGD_DEVICE_CUH

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long s64;

#define MOST_STATES 4 /* of an update: w, and what it remembers */

#define INLINE static __device__ __forceinline__

#if defined(CUDA_ON_CPU)
#define ARCH 1000 /* has everything */
#else
#if defined(__CUDA_ARCH__)
#define ARCH __CUDA_ARCH__
#else
#define ARCH 0 /* nvcc's look at the host's part */
#endif

#define LAUNCHABLE(kernel)
#define SHARED_MEMORY(name) extern __shared__ __align__(128) unsigned char name[]

INLINE void spin()
{
#if ARCH >= 700
    __nanosleep(32);
#endif
}

INLINE u32 load_acquire(const u32 *at)
{
    u32 value;
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
    return value;
}

INLINE u32 in_shared(const void *at) { return (u32)__cvta_generic_to_shared(at); }

/* Asked for here: what the compiler may move it puts behind the branch or the barrier in
   front of its use, where each load waits for the one before. */
INLINE uint4 load_now(const uint4 *at)
{
    uint4 found;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
                 : "l"(at)
                 : "memory");
    return found;
}
INLINE float4 load_now(const float4 *at)
{
    float4 found;
    asm volatile("ld.global.v4.f32 {%0,%1,%2,%3}, [%4];"
                 : "=f"(found.x), "=f"(found.y), "=f"(found.z), "=f"(found.w)
                 : "l"(at)
                 : "memory");
    return found;
}
INLINE float load_now(const float *at)
{
    float found;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(found) : "l"(at) : "memory");
    return found;
}

/* Into the cache of the GPU, for later. */
INLINE void fetch_ahead(const void *at)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(at));
}

/* Copies of 16 bytes to shared memory, of which the first `bytes` come from memory and
   the rest are zeros. In batches: copy_wait<N> waits until N of them are left. */
#if ARCH >= 800
INLINE void copy_async_16(void *to, const void *from, int bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(in_shared(to)), "l"(from), "r"(bytes)
                 : "memory");
}
/* All 16: where a number of them is given, the processor makes seven instructions of it. */
INLINE void copy_async_16(void *to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
                 :
                 : "r"(in_shared(to)), "l"(from)
                 : "memory");
}
INLINE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LEFT> INLINE void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
#else
/* The first `count` bytes of a word. */
INLINE u32 first_bytes(u32 word, int count)
{
    return count >= 4 ? word : count <= 0 ? 0u : word & ((1u << 8 * count) - 1u);
}
INLINE void copy_async_16(void *to, const void *from, int bytes)
{
    /* What is behind `bytes` may be read as well. */
    uint4 value = bytes > 0 ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
    value.x = first_bytes(value.x, bytes);
    value.y = first_bytes(value.y, bytes - 4);
    value.z = first_bytes(value.z, bytes - 8);
    value.w = first_bytes(value.w, bytes - 12);
    *(uint4 *)to = value;
}
INLINE void copy_async_16(void *to, const void *from) { *(uint4 *)to = *(const uint4 *)from; }
INLINE void copy_commit() {}
template <int LEFT> INLINE void copy_wait() {}
#endif

/* Four 8 x 8 matrices of 16-bit words; lane l gives the address of row l % 8 of matrix
   l / 8. */
INLINE void load_matrix_4(u32 (&to)[4], const void *row)
{
#if ARCH >= 750
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(in_shared(row))
                 : "memory");
#endif
}

/* d (16 x 8, fp32) += a (16 x K) b (K x 8), one warp, lane layouts as PTX has them. */
#define MMA(NAME, SHAPE, KIND, LEAST)                                                  \
    INLINE void NAME(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1)                 \
    {                                                                                  \
        LEAST(asm volatile("mma.sync.aligned." SHAPE ".row.col.f32." KIND "." KIND     \
                           ".f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"\
                           : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])            \
                           : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0),      \
                             "r"(b1));)                                                \
    }
#define NOTHING(...)
#define THIS(...) __VA_ARGS__
#if ARCH >= 800
#define FROM_80 THIS
#else
#define FROM_80 NOTHING
#endif
#if ARCH >= 890
#define FROM_89 THIS
#else
#define FROM_89 NOTHING
#endif
MMA(mma_bf16, "m16n8k16", "bf16", FROM_80)
MMA(mma_f16, "m16n8k16", "f16", FROM_80)
MMA(mma_tf32, "m16n8k8", "tf32", FROM_80)
MMA(mma_e4m3, "m16n8k32", "e4m3", FROM_89)
MMA(mma_e5m2, "m16n8k32", "e5m2", FROM_89)

INLINE float float_of_half(u32 bits)
{
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"((u16)bits));
    return value;
}

INLINE u32 half_of_float(float value)
{
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

/* The bits of a float to nearest in tf32, as mma_tf32 takes them. */
INLINE u32 tf32_of_float(u32 bits)
{
#if ARCH >= 800
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(__uint_as_float(bits)));
#endif
    return bits;
}

/* Exact: the exponent is moved, and 2^120 undoes the difference of the biases. Written in
   PTX, since CuPy's -ftz=true takes floats below 2^-126 for zeros in all products of C. */
INLINE float float_of_e4m3(u32 bits)
{
    u32 size = bits & 0x7fu, sign = (bits & 0x80u) << 24;
    float value;
    asm("mul.rn.f32 %0, %1, 0f7B800000;" : "=f"(value) : "f"(__uint_as_float(size << 20)));
    if (size == 0x7fu)
        value = __uint_as_float(0x7fc00000u);
    return __uint_as_float(__float_as_uint(value) | sign);
}

INLINE float float_of_e5m2(u32 bits) { return float_of_half(bits << 8); }

/* Nothing below 2^-126 is taken for zero, and nothing is joined with what follows. */
INLINE float exact_sum(float left, float right)
{
    float sum;
    asm("add.rn.f32 %0, %1, %2;" : "=f"(sum) : "f"(left), "f"(right));
    return sum;
}

INLINE float exact_product(float left, float right)
{
    float product;
    asm("mul.rn.f32 %0, %1, %2;" : "=f"(product) : "f"(left), "f"(right));
    return product;
}

INLINE float exact_quotient(float above, float below)
{
    float quotient;
    asm("div.rn.f32 %0, %1, %2;" : "=f"(quotient) : "f"(above), "f"(below));
    return quotient;
}

INLINE float exact_root(float value)
{
    float root;
    asm("sqrt.rn.f32 %0, %1;" : "=f"(root) : "f"(value));
    return root;
}

/* A cluster: blocks that reach each other's shared memory, sm_90 and later. */
INLINE u32 cluster_rank()
{
    u32 rank = 0;
#if ARCH >= 900
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
#endif
    return rank;
}

INLINE void cluster_store(float *at, u32 rank, float value)
{
#if ARCH >= 900
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(there)
                 : "r"(in_shared(at)), "r"(rank));
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(there), "f"(value) : "memory");
#endif
}

INLINE void cluster_arrive()
{
#if ARCH >= 900
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
#endif
}

INLINE void cluster_wait()
{
#if ARCH >= 900
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
#endif /* CUDA_ON_CPU */

INLINE float float_of_bf16(u32 bits) { return __uint_as_float(bits << 16); }

/* To nearest, ties to even; what is no number stays none. */
INLINE u32 bf16_of_float(float value)
{
    u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return bits >> 16 | 0x40u;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

/* The same sum in every lane, in one order. */
INLINE float sum_of_warp(float value)
{
    for (int mask = 16; mask; mask >>= 1)
        value += __shfl_xor_sync(0xffffffffu, value, mask);
    return value;
}

/* Whether this block is the last of `splits` that come here. `flag` is any place in
   shared memory: behind the first barrier nothing in it is needed any more. */
INLINE bool is_last(u32 *ticket, int splits, u32 *flag)
{
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0)
        *flag = atomicAdd(ticket, 1u);
    __syncthreads();
    bool last = *flag == (u32)splits - 1u;
    __threadfence();
    return last;
}

#endif

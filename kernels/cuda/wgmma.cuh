/* Products by warpgroups: four warps, the first of a number divisible by four, that
   multiply matrices in shared memory. sm_90a alone has them.

   Matrices lie as 128-byte swizzling has them, K-major: 128 bytes of each row, eight
   rows in 1024 bytes that begin at a multiple of 1024; the 16 bytes of number c in row
   r are the (c ^ r & 7)-th of that row. tests/helpers/kernels/wgmma_on_cpu.h reads them as the
   PTX ISA says. */
#ifndef HPCSGD_WGMMA_CUH
#define HPCSGD_WGMMA_CUH

#include "elements.cuh"

#define ATOM_ROW 128   /* bytes of a row in the pattern that repeats */
#define ATOM_ROWS 8    /* and rows */
#define ATOM (ATOM_ROW * ATOM_ROWS)

/* Where 16 bytes of a row lie, from the first row on. */
INLINE int swizzled(int row, int chunk)
{
    return row * ATOM_ROW + (chunk ^ (row & (ATOM_ROWS - 1))) * 16;
}

/* What wgmma is told of a matrix: begin, the distance of eight rows from the next
   eight, and the pattern. What follows in a row begins so many bytes later. */
INLINE u64 matrix_at(const void *rows)
{
    u64 begin = (in_shared(rows) & 0x3ffffu) >> 4;
    return begin | 1ull << 16 | (u64)(ATOM >> 4) << 32 | 1ull << 62;
}
INLINE u64 later_by(u64 matrix, int bytes) { return matrix + (u64)(bytes >> 4); }

#if !defined(CUDA_ON_CPU)
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define FROM_90A THIS
#elif ARCH == 0
#define FROM_90A NOTHING
#else
#error "wgmma is of sm_90a alone: compile for that, not for sm_90"
#endif

/* What this thread has written to shared memory, for units that are not threads. */
INLINE void fence_for_units()
{
    FROM_90A(asm volatile("fence.proxy.async.shared::cta;" ::: "memory");)
}

/* Accumulators, before the first product that adds to them. */
INLINE void wgmma_begin()
{
    FROM_90A(asm volatile("wgmma.fence.sync.aligned;" ::: "memory");)
}
INLINE void wgmma_commit()
{
    FROM_90A(asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");)
}
template <int LEFT> INLINE void wgmma_wait()
{
    FROM_90A(asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");)
}

#define EIGHT(d, i)                                                                    \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]),        \
        "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define SIXTY_FOUR(d, i)                                                               \
    EIGHT(d, i), EIGHT(d, i + 8), EIGHT(d, i + 16), EIGHT(d, i + 24), EIGHT(d, i + 32),\
        EIGHT(d, i + 40), EIGHT(d, i + 48), EIGHT(d, i + 56)
#define NAMES_0                                                                        \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,"   \
    "%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41," \
    "%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61," \
    "%62,%63"
#define NAMES_64                                                                       \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,"\
    "%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,"  \
    "%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,%118," \
    "%119,%120,%121,%122,%123,%124,%125,%126,%127"

/* d (64 x 128 or 256, fp32, of a warpgroup) += a bᵀ, 16 columns of both; d is another's
   until wgmma_wait says so. Behind the matrices: add to d; no signs changed; nothing
   transposed. */
#define WGMMA(NAME, KIND)                                                              \
    INLINE void NAME(float (&d)[64], u64 a, u64 b)                                     \
    {                                                                                  \
        FROM_90A(asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." KIND      \
                              "." KIND " {" NAMES_0 "}, %64, %65, 1, 1, 1, 0, 0;"      \
                              : SIXTY_FOUR(d, 0)                                       \
                              : "l"(a), "l"(b));)                                      \
    }                                                                                  \
    INLINE void NAME(float (&d)[128], u64 a, u64 b)                                    \
    {                                                                                  \
        FROM_90A(asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." KIND "."  \
                              KIND " {" NAMES_0 NAMES_64                               \
                              "}, %128, %129, 1, 1, 1, 0, 0;"                          \
                              : SIXTY_FOUR(d, 0), SIXTY_FOUR(d, 64)                    \
                              : "l"(a), "l"(b));)                                      \
    }
WGMMA(wgmma_bf16, "bf16")
WGMMA(wgmma_f16, "f16")

/* The compiler moves nothing of d across this. */
template <int COUNT> INLINE void held(float (&d)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}
#endif /* CUDA_ON_CPU */
#endif

/* Which of the objects this processor can run; this one is compiled for all of them. */

#include "lanes.h"

#if defined(__x86_64__) && defined(__linux__) && defined(__GNUC__)
#define CAN_ASK_FOR_TILES 1
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#define REQUEST 0x1023 /* ARCH_REQ_XCOMP_PERM */
#define TILE_DATA 18   /* the state that holds the tiles */
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#define BF16_BIT (1UL << 14) /* HWCAP2_BF16, which older headers lack */
#endif

#if defined(__x86_64__) && defined(__GNUC__)

/* Tiles, bf16 in them, and a system that keeps both of their states over a switch. */
static int has_tiles(void)
{
#if defined(CAN_ASK_FOR_TILES)
    unsigned a, b, c, d, kept, high;
    if (!__get_cpuid_count(1, 0, &a, &b, &c, &d) || !(c >> 27 & 1)) /* no xgetbv */
        return 0;
    __asm__ volatile("xgetbv" : "=a"(kept), "=d"(high) : "c"(0));
    int is_kept = (kept >> 17 & 3) == 3;
    return is_kept && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 24 & 1) &&
           (d >> 22 & 1);
#else
    return 0;
#endif
}
#endif

/* x86-64: 0 portable, 1 AVX2, 2 AVX-512, 3 AVX-512 with bf16, 4 AMX. The system must keep
   the registers over a switch too, which the compiler's own check asks the processor as
   well. Armv8: 0 portable, which has NEON, 1 NEON with bf16. */
EXPORT int hpcsgd_level(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return 0;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return 1;
    if (!__builtin_cpu_supports("avx512bf16"))
        return 2;
    return has_tiles() ? 4 : 3;
#elif defined(BF16_BIT)
    return (getauxval(AT_HWCAP2) & BF16_BIT) != 0;
#else
    return 0;
#endif
}

/* True once the system lets this process use tiles, with all of its threads and what it
   forks; a tile before that ends the process. */
EXPORT int hpcsgd_ask_for_tiles(void)
{
#if defined(CAN_ASK_FOR_TILES)
    return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
#else
    return 0;
#endif
}

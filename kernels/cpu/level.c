/* Which of the objects this processor can run; this one is compiled for all of them. */

#include "lanes.h"

/* 0 portable, 1 AVX2, 2 AVX-512, 3 AVX-512 with bf16. The system must keep the registers
   over a switch too, which the compiler's own check asks the processor as well. */
EXPORT int hpcsgd_level(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return 0;
    if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
        !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return 1;
    return __builtin_cpu_supports("avx512bf16") ? 3 : 2;
#else
    return 0;
#endif
}

/* wgmma on a processor: products of four warps with matrices in shared memory, which
   are read at some time between the instruction and the wait for it. Part of
   cuda_on_cpu.h.

   wgmma_matrix.h says what a matrix is, wgmma_registers.h where its products go,
   wgmma_memory.h when bytes may be read, wgmma_products.h who asks. Each has rules, of
   which each is a fault here, said by `wgmma_said`, and makes sums that are no numbers.

   Watched where WGMMA is defined: what is written to shared memory is of no interest to
   kernels without. */
#pragma once

namespace emulated {

/* Shared memory begins somewhere: as CUDA has it behind 1 KiB of its own, not always at
   a multiple of what a pattern needs. */
inline unsigned window()
{
    return 1024u + 128u * (unsigned)(now->block->group->launch->seed * 3 % 8);
}

} // namespace emulated

#if !defined(WGMMA)
namespace emulated {
inline void began(const void *, int) {}
inline void wrote(const void *, int) {}
inline void landed(const void *, int) {}
} // namespace emulated
#else
#include "wgmma_products.h"

inline unsigned in_shared(const void *at)
{
    auto *from = emulated::now->block->shared();
    return emulated::window() + (unsigned)((const unsigned char *)at - from);
}
inline void fence_for_units()
{
    auto &all = emulated::units();
    for (unsigned at : all.written[emulated::thread_of_block()])
        all.grains[at].unfenced--;
    all.written[emulated::thread_of_block()].clear();
    all.fences++;
}
inline void wgmma_begin()
{
    emulated::together([](emulated::Warp *) { emulated::quarter().is_fenced = true; });
}
inline void wgmma_commit()
{
    emulated::together([](emulated::Warp *) { emulated::quarter().groups++; });
}
template <int LEFT> inline void wgmma_wait()
{
    emulated::together(
        [](emulated::Warp *) { emulated::complete(emulated::quarter(), LEFT); });
}
template <int COUNT> inline void wgmma_bf16(float (&d)[COUNT], uint64_t a, uint64_t b)
{
    emulated::wgmma(d, a, b, emulated::value_of_bf16);
}
template <int COUNT> inline void wgmma_f16(float (&d)[COUNT], uint64_t a, uint64_t b)
{
    emulated::wgmma(d, a, b, emulated::value_of_f16);
}
template <int COUNT> inline void held(float (&)[COUNT]) {}
#endif
